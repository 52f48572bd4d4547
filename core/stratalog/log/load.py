"""Opening a log's folder: which segments are live, where the log ends, what its producers did.

The same passes serve an engine, which repairs what a crash left, and a reader, which only works out what a repair
would give and writes nothing.

Source: apache/kafka LogLoader, UnifiedLog.rebuildProducerState.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.cache import EpochCache
from stratalog.epochs.checkpoint import format_epochs, parse_epochs
from stratalog.errors import CorruptBatchError
from stratalog.log.replay import newest_snapshot, replay, replay_range, snapshot_offsets
from stratalog.log.swap import plan_swap
from stratalog.model.batches import RecordBatch
from stratalog.model.names import (
    DELETED_SUFFIX,
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from stratalog.model.segments import AbortedTransaction
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.recover import Recovered, recovered
from stratalog.segment.search import batch_at, offset_index
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segments import LogFiles

UNKNOWN_END: Final = 1 << 62  # stands for the end of a segment that has not been looked at


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What the log directory knows of a log before its folder is opened.

    ``clean``: the last writer stopped in order. ``log_start`` and ``high_watermark`` are checkpoints, None if there
    is none. ``writable``: repair and create; else nothing is touched.
    """

    log: TopicPartition
    clean: bool
    recovery_point: int
    log_start: int | None
    high_watermark: int | None
    writable: bool


@dataclass(slots=True)
class LoadedLog:
    """A log's state as loaded; the segments are open, the last one is the active one.

    ``log_start`` is the checkpoint's, 0 if there is none: without a tier, the log starts at its first segment or later.

    A reader of a folder without segments has none.
    """

    segments: list[Segment]
    producers: ProducerState
    epochs: EpochCache
    log_start: int
    log_end: int
    recovery_point: int
    recovered_segments: int = 0
    truncated_bytes: int = 0
    damage: CorruptBatchError | None = None


def load(files: LogFiles, parts: Components, config: TopicConfig, request: LoadRequest) -> LoadedLog:
    """Load a log.

    Raises:
        CorruptCheckpointError: ``leader-epoch-checkpoint`` is malformed.
    """
    segments = _open_segments(files, parts, request)
    snapshots = snapshot_offsets(files)
    epochs = EpochCache(parse_epochs(files.read_small(LEADER_EPOCHS_FILE) or b"", files.path(LEADER_EPOCHS_FILE)))
    floor = request.log_start or 0
    loader = _Loader(files, parts, config, request, segments, snapshots, epochs)
    if request.clean or not segments:
        loader.tail()
    else:
        loader.recover()
    if loader.log_end < floor:
        loader.drop_all(floor)
    if not loader.segments and request.writable:
        loader.create(max(floor, loader.log_end))
    loader.epochs = loader.epochs.truncate_from_end(loader.log_end).truncate_from_start(floor)
    return LoadedLog(
        segments=loader.segments,
        producers=loader.producers,
        epochs=loader.epochs,
        log_start=floor,
        log_end=loader.log_end,
        recovery_point=loader.log_end if request.clean else min(request.recovery_point, loader.log_end),
        recovered_segments=loader.recovered_segments,
        truncated_bytes=loader.truncated_bytes,
        damage=loader.damage,
    )


def _open_segments(files: LogFiles, parts: Components, request: LoadRequest) -> list[Segment]:
    def next_offset(name: str) -> int:
        found = parse_segment_file(name)
        base = found.base_offset if found else 0
        swap = Segment(files, base, UNKNOWN_END, parts, files.open_segment(name), names={LOG_SUFFIX: name})
        try:
            end = base
            for chunk in walk(swap, 0, parts, check_crc=False):
                end = chunk.tables[-1].last_offset[-1] + 1
            return end
        finally:
            swap.close()

    plan = plan_swap([file.name for file in files.list()], next_offset)
    live = plan.live
    if request.writable and (plan.removals or plan.renames):
        for name in plan.removals:
            files.remove(name)
        for old, new in plan.renames:
            files.rename(old, new)
        files.sync()
        live = {name: name for name in live}
    bases = sorted(
        found.base_offset for name in live if (found := parse_segment_file(name)) and found.suffix == LOG_SUFFIX
    )
    ends = [*bases[1:], UNKNOWN_END]
    return [
        Segment(
            files,
            base,
            end,
            parts,
            files.open_segment(live[segment_file(base, LOG_SUFFIX)]),
            names=_renamed(live, base),
        )
        for base, end in zip(bases, ends, strict=False)
    ]


def _renamed(live: Mapping[str, str], base_offset: int) -> dict[str, str]:
    names = {}
    for final, now in live.items():
        found = parse_segment_file(final)
        if final != now and found is not None and found.base_offset == base_offset:
            names[found.suffix] = now
    return names


class _Loader:
    """The passes over one log, sharing what they find."""

    def __init__(
        self,
        files: LogFiles,
        parts: Components,
        config: TopicConfig,
        request: LoadRequest,
        segments: list[Segment],
        snapshots: list[int],
        epochs: EpochCache,
    ) -> None:
        self.files, self.parts, self.config, self.request = files, parts, config, request
        self.segments, self.snapshots, self.epochs = segments, snapshots, epochs
        self.producers = ProducerState()
        self.log_end = 0
        self.recovered_segments = self.truncated_bytes = 0
        self.damage: CorruptBatchError | None = None

    # --- a clean stop ------------------------------------------------------------------------------------------------

    def tail(self) -> None:
        """Find the log's end from the last index entry of the active segment."""
        if not self.segments:
            self.log_end = self.request.log_start or 0
            return
        active = self.segments[-1]
        end, valid = active.base_offset, 0
        try:
            start = _last_indexed_position(active, self.parts)
            for chunk in walk(active, start, self.parts):
                end, valid = chunk.tables[-1].last_offset[-1] + 1, chunk.end_position
        except CorruptBatchError as error:
            self.damage = error
        active.end_offset = self.log_end = end
        expected = self.request.high_watermark
        if self.damage is None and expected is not None and expected > end:
            reason = f"the log ends at offset {end}, but its high watermark was {expected}: the end is missing"
            self.damage = CorruptBatchError(reason, active.label, valid)
        if self.damage is not None:
            self.segments[-1] = _limited(active, self.files, self.parts, valid, {})
        if not self.snapshots:  # as Kafka: an old directory without snapshots is not scanned for producers
            self.producers.end_offset = end
            return
        self._producers_up_to(end)

    def _producers_up_to(self, end: int) -> None:
        found = newest_snapshot(self.files, self.snapshots, end)
        start = self.segments[0].base_offset if self.segments else end
        if found is not None:
            self.producers, start = found, max(start, found.end_offset)
        try:
            replay_range(self.producers, self.segments, start, end, self.parts)
        except CorruptBatchError as error:
            self.damage = self.damage or error
            self.producers.end_offset = end

    # --- an unclean one ----------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Check every segment that may hold offsets from the recovery point on; cut at the first bad entry."""
        point = self.request.recovery_point
        first = next(
            (i for i, segment in enumerate(self.segments) if segment.end_offset > point), len(self.segments) - 1
        )
        self._producers_up_to(self.segments[first].base_offset)
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            found = recovered(segment, self.parts, self.config, self._replay)
            self.recovered_segments += 1
            cut = segment.size_bytes - found.valid_bytes
            last = cut > 0 or index == len(self.segments) - 1
            self._settle(index, found, last=last)
            if last:
                self.truncated_bytes += cut + sum(later.size_bytes for later in self.segments[index + 1 :])
                self._drop(self.segments[index + 1 :])
                del self.segments[index + 1 :]
                self.log_end = found.end_offset
                break
        self.producers.end_offset = self.log_end
        if self.request.writable:
            for offset in self.snapshots:
                if offset > self.log_end:
                    self.files.remove(segment_file(offset, SNAPSHOT_SUFFIX))

    def _replay(self, chunk: Chunk, batch: RecordBatch) -> AbortedTransaction | None:
        if batch.leader_epoch > self.epochs.latest:
            self.epochs = self.epochs.assign(batch.leader_epoch, batch.base_offset)
        return replay(self.producers, chunk.data, batch, self.parts)

    def _settle(self, index: int, found: Recovered, *, last: bool) -> None:
        """Make one segment what recovery found it to be: on disk, or for a reader in memory."""
        segment = self.segments[index]
        end = found.end_offset if last else segment.end_offset
        if not self.request.writable:
            segment = self.segments[index] = _limited(segment, self.files, self.parts, found.valid_bytes, found.entries)
        else:
            if segment.log.size_bytes > found.valid_bytes:
                segment.log.truncate(found.valid_bytes)
            for role, entries in found.entries.items():
                self._write_index(segment, role, entries)
        segment.end_offset, segment.largest = end, found.largest

    def _write_index(self, segment: Segment, role: IndexRole, entries: bytes) -> None:
        found = self.parts.indexes[role]
        name = segment.file_name(found.suffix)
        if role is IndexRole.TRANSACTION and not entries:
            self.files.remove(name)
            return
        limit = max(self.config.segment_index_bytes, len(entries))
        file = self.files.open_index(name, max_bytes=limit, writable=True)
        try:
            file.truncate(0)
            file.append(entries)
        finally:
            file.close()

    # --- both --------------------------------------------------------------------------------------------------------

    def drop_all(self, start: int) -> None:
        """The log ends below its start: files vanished under us. Begin again at ``start``."""
        self._drop(self.segments)
        self.segments = []
        self.epochs, self.producers, self.log_end = EpochCache(), ProducerState(), start
        self.producers.end_offset = start

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.close()
            if self.request.writable:
                set_aside(self.files, segment)

    def create(self, base_offset: int) -> None:
        """The first segment of an empty log."""
        log = self.files.open_segment(segment_file(base_offset, LOG_SUFFIX), create=True)
        self.segments = [Segment(self.files, base_offset, base_offset, self.parts, log)]
        self.log_end = base_offset


def set_aside(files: LogFiles, segment: Segment) -> list[str]:
    """Rename a segment's files to ``.deleted``, the log first; returns the new names, for removal later."""
    suffixes = [LOG_SUFFIX, *(found.suffix for found in segment.parts.indexes.values()), SNAPSHOT_SUFFIX]
    there = {file.name for file in files.list()}
    renamed = []
    for suffix in suffixes:
        name = segment.file_name(suffix)
        if name in there:
            files.rename(name, name + DELETED_SUFFIX)
            renamed.append(name + DELETED_SUFFIX)
    return renamed


def write_epochs(files: LogFiles, epochs: EpochCache) -> None:
    """Store the leader epochs, durable on return."""
    files.replace_small(LEADER_EPOCHS_FILE, format_epochs(epochs.entries))


def _last_indexed_position(segment: Segment, parts: Components) -> int:
    reader = offset_index(segment, parts)
    if not len(reader):
        return 0
    entry = reader[-1]
    found = batch_at(segment, entry.position, parts)
    return entry.position if found is not None and found.last_offset <= entry.offset else 0


def _limited(
    segment: Segment, files: LogFiles, parts: Components, size_bytes: int, entries: Mapping[IndexRole, bytes]
) -> Segment:
    return Segment(
        files,
        segment.base_offset,
        segment.end_offset,
        parts,
        segment.log,
        size_bytes=size_bytes,
        names=segment.names,
        index_entries=entries,
    )
