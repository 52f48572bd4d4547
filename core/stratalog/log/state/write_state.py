"""Contents of a log that is open for writing: segments, producers, epochs, and files that wait for their deletion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import OutOfResourcesError, SystemLimitError
from stratalog.log.folder.folder import write_epochs
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.state.health import Health
from stratalog.producers.state import ProducerState
from stratalog.segment.appender import Appender
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import LogFiles


class PendingDeletes:
    """Names of ``.deleted`` files, each with the time when the file is deleted (monotonic ns)."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, int] = {}

    def add(self, names: Iterable[str], due_ns: int) -> None:
        """Add files to delete at ``due_ns`` (monotonic ns) or later. A name that was added before keeps its time."""
        for name in names:
            self._names.setdefault(name, due_ns)

    def remove(self, names: Iterable[str]) -> None:
        """Remove the names of deleted files."""
        for name in names:
            del self._names[name]

    def due(self, now_ns: int, *, all_now: bool) -> list[str]:
        """Return the names of the files to delete now, sorted; all names if ``all_now`` is True."""
        return sorted(name for name, due_ns in self._names.items() if all_now or due_ns <= now_ns)

    def items(self) -> list[tuple[str, int]]:
        """Return all names with the time (monotonic ns) when each file is deleted, in the order of ``add``."""
        return list(self._names.items())


class WriteState:
    """Contents of one log. The methods are called under the log's lock.

    Attributes:
        segments: local segments, ascending; the last one is the active one.
        appender: appender of the active segment.
        producers: idempotent and transactional producers.
        producer_expiration_ms: producers silent for that long are not restored from a snapshot.
        epochs: leader epochs and their start offsets.
        has_stale_epochs: True if the file of leader epochs may differ from ``epochs``, because there was no space or no
            descriptor to write it. The file must be written before the next append: after an append, loading could not
            correct the file.
        log_start: the log start that was set. A view limits it to the bounds of the log (``limit_bounds``).
        snapshot_offset: offset of the newest producer snapshot when the log was loaded; -1 if that snapshot is
            obsolete.
        extra_labels: labels of the extra indexes that the log's files were last compared with; None before the first
            comparison.
        pending_deletes: files of segments that the log no longer has.
    """

    __slots__ = (
        "_files",
        "_health",
        "appender",
        "epochs",
        "extra_labels",
        "has_stale_epochs",
        "log_start",
        "pending_deletes",
        "producer_expiration_ms",
        "producers",
        "segments",
        "snapshot_offset",
    )

    def __init__(self, files: LogFiles, health: Health, loaded_log: LoadedLog, appender: Appender) -> None:
        self._files, self._health, self.segments, self.appender = files, health, tuple(loaded_log.segments), appender
        self.producers, self.producer_expiration_ms = loaded_log.producers, loaded_log.producer_expiration_ms
        self.epochs, self.log_start, self.snapshot_offset = (
            loaded_log.epochs,
            loaded_log.log_start,
            loaded_log.snapshot_offset,
        )
        self.has_stale_epochs = loaded_log.stores_stale_epochs
        self.extra_labels: frozenset[str] | None = None
        self.pending_deletes = PendingDeletes()

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self.segments[-1].end_offset

    def begin_segment(self, segment: Segment, appender: Appender) -> None:
        """End the active segment where ``segment`` begins, and append to ``segment`` from now on."""
        self.segments[-1].end_offset = segment.base_offset
        self.segments, self.appender = (*self.segments, segment), appender

    def replace_appender(self, appender: Appender) -> None:
        """Use ``appender`` for later appends to the active segment."""
        self.appender = appender

    def replace_segments(self, first: int, count: int, new_segments: Sequence[Segment]) -> None:
        """Replace ``count`` segments from index ``first`` on with ``new_segments``. The old segments are not closed."""
        self.segments = (*self.segments[:first], *new_segments, *self.segments[first + count :])

    def set_epochs(self, epochs: EpochCache) -> None:
        """Replace the epochs with ``store_epochs``, unless they are equal to the current epochs."""
        if epochs != self.epochs:
            self.store_epochs(epochs)

    def store_epochs(self, epochs: EpochCache) -> None:
        """Replace the epochs, durably. After an error, the earlier epochs stay.

        Raises:
            OutOfResourcesError: no space or no descriptor.
            StorageError: the disk failed; the log is out of service.
        """
        with self._health.guard("storing leader epochs"):
            try:
                write_epochs(self._files, epochs)
            except SystemLimitError:  # the file may have been replaced before the error
                self.has_stale_epochs = self.has_stale_epochs or epochs != self.epochs
                with contextlib.suppress(OutOfResourcesError):
                    write_epochs(self._files, self.epochs)
                    self.has_stale_epochs = False
                raise
            self.epochs, self.has_stale_epochs = epochs, False

    def forget_epochs(self, remaining: EpochCache) -> None:
        """Replace the epochs by ``remaining``, a part of them.

        If there is no space to write the file, the old file stays, because a deletion of records must work on a full
        disk. The old file only has more epochs than needed, and the next loading or append removes them.

        Raises:
            StorageError: the disk failed; the log is out of service.
        """
        if remaining != self.epochs:
            self.has_stale_epochs = self.has_stale_epochs or remaining.latest < self.epochs.latest
            self.epochs = remaining
            with contextlib.suppress(OutOfResourcesError):
                self.store_epochs(remaining)

    def replace_producers(self, producers: ProducerState) -> None:
        """Replace the producers' state after a truncation."""
        self.producers = producers

    def note_snapshots_changed(self) -> None:
        """Record that the newest snapshot at the time of loading may be obsolete."""
        self.snapshot_offset = -1

    def set_log_start(self, offset: int) -> None:
        """Set the log start. The next view limits it to the bounds of the log (``limit_bounds``)."""
        self.log_start = offset

    def note_extras_compared(self, labels: frozenset[str]) -> None:
        """Record that the extra index files on disk agree with ``labels``."""
        self.extra_labels = labels
