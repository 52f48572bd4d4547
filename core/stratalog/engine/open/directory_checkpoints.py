"""The checkpoint files of a log directory: recovery points, log starts, high watermarks and compacted offsets.

Source: apache/kafka LogManager, OffsetCheckpointFile.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stratalog.epochs.checkpoint import check_offsets, format_offsets
from stratalog.errors import LogDirOfflineError
from stratalog.log.folder.directory_state import DirectoryState
from stratalog.log.log import Log
from stratalog.model.names import (
    CLEANER_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    RECOVERY_POINTS_FILE,
    TopicPartition,
)
from stratalog.model.offsets import LogOffsets

if TYPE_CHECKING:
    from stratalog.engine.open.log_dir import LogDir


class DirectoryCheckpoints:
    """Offsets of all logs of one directory: the offsets that were stored when it was opened, and the offsets to store.

    The files also keep the offsets of logs that exist but are not open. If the directory is out of service, nothing is
    written.

    Attributes:
        stored: offsets with which logs are opened. They are first those of the files; ``keep_offsets`` and the methods
            that forget offsets change them.
        arriving: offsets of logs that are being moved here and are not open yet; the files contain them.
    """

    def __init__(self, directory: LogDir, stored: DirectoryState) -> None:
        self._directory, self.stored = directory, stored
        self.arriving: dict[TopicPartition, LogOffsets] = {}
        # by log: stored log start, which is below the first local segment, and the log's own start when it was opened
        self._tiered_starts: dict[TopicPartition, tuple[int, int]] = {}
        self._written_contents: dict[str, bytes] = {}  # latest written contents, by file
        self._lock: Final = threading.Lock()  # without the lock, older checkpoints could replace newer ones

    def keep_offsets(self, log: TopicPartition, high_watermark: int, dirty_start: int | None) -> None:
        """Set the stored offsets of a log that is opened again, or was moved here."""
        with self._lock:
            self.stored.high_watermarks[log] = high_watermark
            if dirty_start is None:
                self.stored.dirty_starts.pop(log, None)
            else:
                self.stored.dirty_starts[log] = dirty_start

    def keep_tiered_start(self, log: Log, stored_start: int | None) -> None:
        """Keep the stored log start of a log that was just opened, if it is below the first local segment.

        Earlier records may be in the remote storage of a broker, or in a tier that this engine does not use. If a
        broker with remote storage finds no stored log start, it assumes 0, and clients that read from the beginning get
        errors.

        Source: apache/kafka LogManager.checkpointLogStartOffsetsInDir, LogLoader.
        """
        log_start, first_base = log.offsets().log_start, log.view().segments[0].base_offset
        with self._lock:
            self._tiered_starts.pop(log.name, None)
            if stored_start is not None and stored_start < log_start == first_base:
                self._tiered_starts[log.name] = stored_start, log_start

    def bounds_of(self, log: Log) -> LogOffsets:
        """Return the offsets of a log for the checkpoints.

        The log start is the stored log start of ``keep_tiered_start``, until the log's own start changes.
        """
        offsets = log.offsets()
        stored_start, opened_start = self._tiered_starts.get(log.name, (0, -1))
        if offsets.log_start == opened_start:
            return offsets._replace(log_start=stored_start)
        self._tiered_starts.pop(log.name, None)  # a truncated log may reach the earlier log start later
        return offsets

    def check_in_service(self) -> None:
        """Raise LogDirOfflineError if the directory is out of service."""
        failure = self._directory.failure
        if failure is not None:
            raise LogDirOfflineError(
                f"the log directory is out of service: {failure.reason}", self._directory.store.path()
            )

    def forget(self, log: TopicPartition) -> None:
        """Remove the offsets of an earlier log of this name, durably. The directory must not have a log of this name.

        If the offsets remained, a crash could cause the loss of records: the new log would be loaded with the offsets
        of the earlier log, and all records below the earlier log start would be dropped.

        Raises:
            LogDirOfflineError: the directory is out of service, or an I/O error takes it out of service.
            StorageError: a file cannot be written; the offsets are not removed.
        """
        self.check_in_service()
        stored = self.stored
        all_offsets = (stored.recovery_points, stored.log_starts, stored.high_watermarks, stored.dirty_starts)
        line = f"\n{log.topic} {log.partition} ".encode()
        with self._lock:
            is_stored = any(log in offsets for offsets in all_offsets) or any(
                line in data for data in self._written_contents.values()
            )
        if not is_stored:
            return
        self.write()
        with self._lock:  # the files now lack the offsets of all absent logs: forget these offsets, too
            for offsets in all_offsets:
                for name in offsets.keys() - self._directory.folders.keys() - self._directory.linked_logs:
                    del offsets[name]

    def write(self) -> None:
        """Store the recovery points, log starts, high watermarks and compacted offsets of all logs durably.

        Raises:
            LogDirOfflineError: an I/O error; the directory is out of service from now on.
            DiskFullError: a file cannot be written.
        """
        with self._lock:
            bounds = self._bounds()
            recovery_points = {name: offsets.recovery_point for name, offsets in bounds.items()}
            log_starts = {
                name: offsets.log_start for name, offsets in bounds.items() if self._needs_log_start(name, offsets)
            }
            self._write_file(RECOVERY_POINTS_FILE, self.stored.recovery_points, bounds, recovery_points)
            self._write_file(LOG_STARTS_FILE, self.stored.log_starts, bounds, log_starts)
            self._write_high_watermarks(bounds)
        self.write_dirty_starts()

    def write_dirty_starts(self) -> None:
        """Store the first dirty offset of each log durably. Raises the errors of ``write``.

        If neither the logs nor the file have a first dirty offset, nothing is written. The method removes logs that are
        no longer in the directory from the file: if two directories have an offset of one log, Kafka's cleaner stops.
        """
        with self._lock:
            dirty_starts = {
                name: log.maintenance.cleaning.dirty_start for name, log in list(self._directory.logs.items())
            }
            known_starts = {name: offset for name, offset in dirty_starts.items() if offset is not None}
            if known_starts or self.stored.dirty_starts or CLEANER_FILE in self._written_contents:
                self._write_file(CLEANER_FILE, self.stored.dirty_starts, dirty_starts, known_starts)

    def forget_dirty_starts(self, names: Iterable[TopicPartition]) -> None:
        """Remove the cleaner's checkpoint file, durably, and the stored first dirty offsets of ``names``.

        The removal needs no space on the disk. ``write`` creates the file again. If a crash occurs before that, all
        logs of the directory are compacted from their start.
        """
        with self._lock:
            self.check_in_service()
            for name in names:
                self.stored.dirty_starts.pop(name, None)
            self._written_contents.pop(CLEANER_FILE, None)
            with self._offline_after_error():
                self._directory.store.remove_small(CLEANER_FILE)

    def write_high_watermarks(self) -> None:
        """Store the high watermarks of all logs durably. Raises the errors of ``write``."""
        with self._lock:
            self._write_high_watermarks(self._bounds())

    def _bounds(self) -> dict[TopicPartition, LogOffsets]:
        bounds = {
            name: self.bounds_of(log) for name, log in list(self._directory.logs.items())
        }  # a copy: the logs may change
        return {**bounds, **self.arriving}

    def _write_high_watermarks(self, bounds: Mapping[TopicPartition, LogOffsets]) -> None:
        watermarks = {name: offsets.high_watermark for name, offsets in bounds.items()}
        self._write_file(HIGH_WATERMARKS_FILE, self.stored.high_watermarks, bounds, watermarks)

    def _write_file(
        self,
        file: str,
        old_offsets: Mapping[TopicPartition, int],
        open_names: Container[TopicPartition],
        new_offsets: Mapping[TopicPartition, int],
    ) -> None:
        existing = [*self._directory.folders, *self._directory.linked_logs]
        unopened = {name: old_offsets[name] for name in existing if name not in open_names and name in old_offsets}
        data = format_offsets({**unopened, **new_offsets})
        if self._directory.failure is None and self._written_contents.get(file) != data:
            check_offsets(data, self._written_contents.get(file, b""), self._directory.store.path(file))
            with self._offline_after_error():
                self._directory.store.replace_small(file, data)
            self._written_contents[file] = data

    @contextmanager
    def _offline_after_error(self) -> Iterator[None]:
        try:
            yield
        except LogDirOfflineError as error:
            self._directory.take_offline(error)
            raise

    def _needs_log_start(self, name: TopicPartition, bounds: LogOffsets) -> bool:
        """Return False if the log starts at offset 0 and no tier has its first records; otherwise True.

        Kafka does not store a log start that is the first local offset. stratalog stores it: after a crash, older
        segments may exist, because the removal of a segment becomes durable later than it becomes visible.

        Source: apache/kafka LogManager.checkpointLogStartOffsetsInDir.
        """
        log = self._directory.logs.get(name)
        is_tiered = log is None or name in self._tiered_starts or log.config.remote_storage_enable
        return bounds.log_start > 0 or is_tiered
