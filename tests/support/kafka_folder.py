"""A log directory whose files change as a broker changes them, during reads: appends, rolls, retention, cleaning."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from log_bed import LOG, TOPIC_ID, LogBed, records
from stratalog.epochs.checkpoint import format_epochs, format_offsets
from stratalog.log.folder.directory_state import format_topic_id
from stratalog.model.batches import BatchTable
from stratalog.model.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    HIGH_WATERMARKS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_STARTS_FILE,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    SWAP_SUFFIX,
    TopicId,
    segment_file,
)
from stratalog.model.offsets import EpochEntry
from stratalog.segment.framing import scan

START_MS: Final = 1_700_000_000_000


@dataclass(slots=True)
class Batch:
    """An encoded batch with the offsets [base, end)."""

    base: int
    end: int
    data: bytes


@dataclass(slots=True)
class KafkaFolder:
    """One log of a broker, written without an engine and without index files. Readers create the indexes.

    Attributes:
        bed: bed with the folder and the record formats.
        topic_id: id of the topic.
        segments: batches by base offset of their segment; the last segment is the active one.
        history: every batch that was ever written.
        epochs: leader epochs in the checkpoint.
    """

    bed: LogBed
    topic_id: TopicId = TOPIC_ID
    segments: dict[int, list[Batch]] = field(default_factory=lambda: {0: []})
    history: list[Batch] = field(default_factory=list)
    epochs: list[EpochEntry] = field(default_factory=lambda: [EpochEntry(0, 0)])

    def __post_init__(self) -> None:
        self.bed.folder.mkdir(parents=True)
        (self.bed.folder / PARTITION_METADATA_FILE).write_bytes(format_topic_id(self.topic_id))
        self.path(0).touch()
        self.lead(0)
        self.confirm(0)

    @property
    def end(self) -> int:
        """Return the log end offset."""
        return self.history[-1].end if self.history else 0

    def path(self, base: int, state: str = "") -> Path:
        """Return the path of a ``.log`` file."""
        return self.bed.folder / (segment_file(base, LOG_SUFFIX) + state)

    def lead(self, epoch: int) -> None:
        """Begin a new leader epoch at the log end."""
        if epoch > self.epochs[-1].epoch:
            self.epochs.append(EpochEntry(epoch, self.end))
        _replace(self.bed.folder / LEADER_EPOCHS_FILE, format_epochs(self.epochs))

    def append(self, count: int = 3) -> Batch:
        """Append one batch."""
        epoch = self.epochs[-1].epoch
        data = self.bed.batch(self.end, records(count, start=self.end, timestamp_ms=START_MS), leader_epoch=epoch)
        batch = Batch(self.end, self.end + count, data)
        active = max(self.segments)
        with self.path(active).open("ab") as file:
            file.write(data)
        self.segments[active].append(batch)
        self.history.append(batch)
        return batch

    def roll(self) -> None:
        """Close the active segment."""
        if self.segments[max(self.segments)]:
            self.segments[self.end] = []
            self.path(self.end).touch()

    def fill(self, segments: int, batches: int = 4) -> None:
        """Write this many closed segments and an active one with a batch; move the high watermark to the log end."""
        for _ in range(segments):
            for _ in range(batches):
                self.append()
            self.roll()
        self.append()
        self.confirm()

    def confirm(self, offset: int | None = None) -> None:
        """Store the high watermark; by default, the log end."""
        self._checkpoint(HIGH_WATERMARKS_FILE, self.end if offset is None else offset)

    def _checkpoint(self, name: str, offset: int) -> None:
        _replace(self.bed.directory / name, format_offsets({LOG: offset}))

    def expire(self) -> None:
        """Delete the oldest segment as retention does, unless it is active; its file is deleted immediately."""
        if len(self.segments) > 1:
            oldest = min(self.segments)
            del self.segments[oldest]
            self._checkpoint(LOG_STARTS_FILE, min(self.segments))
            self.path(oldest).rename(self.path(oldest, DELETED_SUFFIX))
            self.path(oldest, DELETED_SUFFIX).unlink()

    def clean(self, first: int, last: int, *, keep_every: int = 1, stop_at: str = "") -> None:
        """Replace closed segments by one segment with some of their batches, as Kafka's cleaner does.

        Args:
            first: index of the first segment to replace, counted from the oldest.
            last: index of the last segment to replace.
            keep_every: keep one of this many batches.
            stop_at: stop after this step: ``cleaned``, ``swap`` or ``deleted``; "" to complete the replacement.
        """
        bases = sorted(self.segments)[:-1][first : last + 1]
        if not bases:
            return
        kept_batches = [batch for base in bases for batch in self.segments[base]]
        kept_batches = [batch for index, batch in enumerate(kept_batches) if index % keep_every == 0]
        self.path(bases[0], CLEANED_SUFFIX).write_bytes(b"".join(batch.data for batch in kept_batches))
        if stop_at == "cleaned":
            return
        self.path(bases[0], CLEANED_SUFFIX).rename(self.path(bases[0], SWAP_SUFFIX))
        if stop_at == "swap":
            return
        for base in bases:
            self.path(base).rename(self.path(base, DELETED_SUFFIX))
            del self.segments[base]
        self.segments[bases[0]] = kept_batches
        self.segments = dict(sorted(self.segments.items()))
        if stop_at == "deleted":
            return
        self.path(bases[0], SWAP_SUFFIX).rename(self.path(bases[0]))
        for base in bases:
            with suppress(FileNotFoundError):
                self.path(base, DELETED_SUFFIX).unlink()

    def tables(self, data: bytes) -> tuple[BatchTable, ...]:
        """Return the batches in ``data``; CRCs are checked."""
        scan_result = scan(self.bed.components.formats, data, 0, len(data), check_crc=True)
        assert scan_result.stop_position == len(data), scan_result.reason
        return scan_result.tables


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.rename(path)
