"""One log directory of an engine: its lock, its clean-shutdown marker, its checkpoint files, and its logs.

Source: apache/kafka LogManager, KafkaScheduler's checkpoint tasks, CleanShutdownFileHandler.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Container, Mapping
from typing import Final

from stratalog.engine.open.directory_id import read_identity
from stratalog.env import Env
from stratalog.epochs.checkpoint import check_offsets, format_offsets
from stratalog.errors import (
    LogDirNotFoundError,
    LogDirOfflineError,
    NotAFileError,
    StorageError,
    TopicExistsError,
)
from stratalog.log.folder.directory_state import (
    check_may_become_log_directory,
    partition_folders,
    read_directory,
    store_topic_id,
)
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.log import Log
from stratalog.model.events import Event, LogDirOffline
from stratalog.model.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    RECOVERY_POINTS_FILE,
    TopicId,
    TopicPartition,
    deleted_folder,
    left_folder_fate,
    partition_folder,
    random_uuid,
)
from stratalog.model.offsets import LogOffsets
from stratalog.spi.segment_store import SegmentStore

_LOGGER: Final = logging.getLogger(__name__)
DELETE_DELAY_MS: Final = 60_000  # for folders that an earlier engine or broker has renamed to -delete
CLEAN_SHUTDOWN: Final = b'{"version":0,"brokerEpoch":-1}'


class LogDir:
    """A log directory, locked for writing.

    The constructor takes the lock, records whether the last writer stopped cleanly, and removes the clean-shutdown
    marker at once: a crash from now on must count as an unclean stop. If the constructor fails, it releases the lock.

    Attributes:
        store: files of the directory.
        identity: properties in ``meta.properties``; {} if the directory has no such file.
        failure: error that took the directory out of service; None while it is in service.
        folders: folder name of each partition in the directory, including partitions that are not open.
        logs: open logs, by name.
        left_folders: "stray" or "future" for each folder with this suffix, which is not used, by folder name.
        linked_logs: logs of a broker whose folders are symbolic links, which are not followed. Their checkpoints are
            kept.
        arriving: offsets of logs that are being moved here and are not open yet; the checkpoints contain them.

    Raises:
        LogDirError: the directory is locked, or cannot be used.
        CorruptCheckpointError: a checkpoint file or ``meta.properties`` is malformed.
    """

    def __init__(self, store: SegmentStore, env: Env, notify: Callable[[Event], None]) -> None:
        self.store, self._env, self._notify = store, env, notify
        self.failure: StorageError | None = None  # set once
        self._failure_lock = threading.Lock()
        try:
            check_may_become_log_directory(store)
            store.acquire()
            self._state = read_directory(store, live=False)
            self.identity = read_identity(store)
            with contextlib.suppress(NotAFileError):  # only a regular file counts as the marker
                store.remove_small(CLEAN_SHUTDOWN_FILE)
            self.folders = {
                log: name for log, name in partition_folders(store).items() if log.topic != CLUSTER_METADATA_TOPIC
            }
            self.left_folders = {name: fate for name in store.logs() if (fate := left_folder_fate(name))}
            self.linked_logs = self._find_linked_logs()
        except BaseException:
            store.close()
            raise
        self.arriving: dict[TopicPartition, LogOffsets] = {}
        # stored log start below the first local segment, and log start at the opening
        self._tiered_starts: dict[TopicPartition, tuple[int, int]] = {}
        self._pending_deletes: dict[str, int] = {}  # folders to remove, and when (monotonic ns)
        for name in [name for name, fate in self.left_folders.items() if fate == "delete"]:
            self.remove_later(name, DELETE_DELAY_MS)
        self.logs: dict[TopicPartition, Log] = {}
        self._written_contents: dict[str, bytes] = {}  # latest written contents of the checkpoints, by file
        self._write_lock = threading.Lock()  # without the lock, older checkpoints could replace newer ones

    def _find_linked_logs(self) -> frozenset[TopicPartition]:
        """Return the logs of the checkpoints whose folders are not listed but exist, because they are links."""
        state, linked = self._state, set[TopicPartition]()
        checkpointed = {*state.recovery_points, *state.log_starts, *state.high_watermarks, *state.dirty_starts}
        for log in checkpointed - self.folders.keys():
            with contextlib.suppress(StorageError):  # no such folder, or a link that leads nowhere
                files = self.store.open_log(partition_folder(log))
                linked.add(log)
                _LOGGER.warning(
                    "a log is ignored, because its folder is a symbolic link: path=%s: mount the folder with this name "
                    "instead",
                    files.path(),
                )
        return frozenset(linked)

    def take_offline(self, error: StorageError) -> None:
        """Refuse appends to all logs of the directory from now on, and write no checkpoints there; reads continue.

        After the first call, further calls do nothing.

        Source: apache/kafka LogDirFailureChannel: an I/O error takes the whole directory out of service.
        """
        with self._failure_lock:
            if self.failure is not None:
                return
            self.failure = error
        for log in list(self.logs.values()):
            log.maintenance.take_offline(error)
        self._notify(LogDirOffline(path=self.store.path(), reason=str(error)))

    def dirty_start(self, log: TopicPartition) -> int | None:
        """Return the first dirty offset of a log in the cleaner's checkpoint file; None if the file has none.

        The file was read when the directory was opened.
        """
        return self._state.dirty_starts.get(log)

    def high_watermark(self, log: TopicPartition) -> int | None:
        """Return the high watermark of a log in the checkpoint file; None if the file has none.

        The file was read when the directory was opened.
        """
        return self._state.high_watermarks.get(log)

    def keep_offsets(self, log: TopicPartition, high_watermark: int, dirty_start: int | None) -> None:
        """Set the results of ``high_watermark`` and ``dirty_start`` for a log that is opened again, or was moved here."""
        with self._write_lock:
            self._state.high_watermarks[log] = high_watermark
            if dirty_start is None:
                self._state.dirty_starts.pop(log, None)
            else:
                self._state.dirty_starts[log] = dirty_start

    def keep_tiered_start(self, log: Log, stored_start: int | None) -> None:
        """Keep the stored log start of a log that was just opened, if it is below the first local segment.

        Earlier records may be in the remote storage of a broker, or in a tier that this engine does not use. A broker
        with remote storage that finds no stored log start assumes 0, and clients that read from the beginning then get
        errors.

        Source: apache/kafka LogManager.checkpointLogStartOffsetsInDir, LogLoader.
        """
        log_start, first_base = log.offsets().log_start, log.view().segments[0].base_offset
        with self._write_lock:
            self._tiered_starts.pop(log.name, None)
            if stored_start is not None and stored_start < log_start == first_base:
                self._tiered_starts[log.name] = stored_start, log_start

    def bounds_of(self, log: Log) -> LogOffsets:
        """Return the offsets of a log for the checkpoints, with the log start that ``keep_tiered_start`` got.

        Once the log start has changed since the opening, it is that of the log.
        """
        offsets = log.offsets()
        stored_start, opened_start = self._tiered_starts.get(log.name, (0, -1))
        if offsets.log_start == opened_start:
            return offsets._replace(log_start=stored_start)
        self._tiered_starts.pop(log.name, None)  # a truncated log may have the earlier log start again later
        return offsets

    def forget_offsets(self, log: TopicPartition) -> None:
        """Remove the checkpoints of an earlier log of this name, durably. The directory has no log of this name.

        Otherwise a new log of this name would be loaded with the offsets of the earlier log after a crash: if the new
        log ended below the log start of the earlier log, all its records would be dropped.

        Raises:
            StorageError: as ``write_checkpoints``; the checkpoints are not forgotten.
        """
        state = self._state
        checkpoints = (state.recovery_points, state.log_starts, state.high_watermarks, state.dirty_starts)
        line = f"\n{log.topic} {log.partition} ".encode()
        with self._write_lock:
            is_stored = any(log in offsets for offsets in checkpoints) or any(
                line in data for data in self._written_contents.values()
            )
        if not is_stored:
            return
        self.write_checkpoints()
        with self._write_lock:  # the files have no other absent log either: its creation need not write them again
            for offsets in checkpoints:
                for name in offsets.keys() - self.folders.keys() - self.linked_logs:
                    del offsets[name]

    def create(self, log: TopicPartition, topic_id: TopicId) -> None:
        """Create a partition's folder with its ``partition.metadata``, durable on return.

        Raises:
            TopicExistsError: the directory has a file or folder with the partition's name.
            StorageError: the creation failed; ``discard`` removes the folder if it exists.
        """
        self.forget_offsets(log)
        folder = self.folders[log] = partition_folder(log)  # stored first, because creation may fail half way
        try:
            files = self.store.open_log(folder, create=True)
        except FileExistsError as error:
            del self.folders[log]
            raise TopicExistsError(
                f"{self.store.path(folder)} exists, and is not a log of this engine: move it to another place"
            ) from error
        store_topic_id(files, topic_id)

    def discard(self, log: TopicPartition) -> None:
        """Remove the folder of a new partition that was never used. Do nothing if the partition does not exist.

        If an error is raised, the partition is still in ``folders``.
        """
        folder = self.folders.get(log)
        if folder is not None:
            with contextlib.suppress(LogDirNotFoundError):  # the creation failed before the folder existed
                self.store.open_log(folder)
                self.store.remove_log(folder)
            del self.folders[log]

    def set_aside(self, log: TopicPartition, delay_ms: int) -> None:
        """Rename the folder of a closed log to ``-delete``, durable on return. A missing folder is no error.

        The folder is removed after ``delay_ms``, or in ``close`` if earlier.

        Source: apache/kafka LogManager.asyncDelete.
        """
        folder = self.folders[log]
        deleted_name = deleted_folder(log, random_uuid(self._env.chance))
        try:
            self.store.rename_log(folder, deleted_name)
        except LogDirNotFoundError:  # an earlier call has renamed the folder, and failed then
            self.store.remove_log(folder)  # makes this rename durable
        finally:
            self.remove_later(deleted_name, delay_ms)  # also after an error that followed the rename
        self.logs.pop(log, None)
        del self.folders[log]

    def remove_later(self, folder: str, delay_ms: int) -> None:
        """Schedule the removal of a folder that is no longer a log: after ``delay_ms``, or in ``close`` if earlier."""
        self.left_folders.pop(folder, None)
        self._pending_deletes[folder] = self._env.clock.monotonic_ns() + delay_ms * 1_000_000

    def delete_expired(self, *, all_now: bool = False) -> int:
        """Remove scheduled folders whose delay is over, or, with ``all_now``, all. Return the number of due folders.

        If the directory is out of service, no folder is removed, but the due folders are counted.
        """
        now = self._env.clock.monotonic_ns()
        due = [name for name, due_ns in list(self._pending_deletes.items()) if all_now or due_ns <= now]
        for name in due if self.failure is None else ():
            self.store.remove_log(name)
            self._pending_deletes.pop(name, None)
        return len(due)

    def request(self, log: TopicPartition) -> LoadRequest:
        """Return the request to load a log, with the log's offsets from the checkpoint files."""
        state = self._state
        return LoadRequest(
            clean=state.clean,
            recovery_point=state.recovery_points.get(log, 0),
            log_start=state.log_starts.get(log),
            high_watermark=state.high_watermarks.get(log) if state.clean else None,
            writable=True,
        )

    def write_checkpoints(self) -> None:
        """Store the recovery points, log starts, high watermarks and compacted offsets of all logs, durable on return.

        Logs that could not be opened keep their values in the files. If the directory is out of service, nothing is
        written.

        Raises:
            LogDirOfflineError: an I/O error; the directory is out of service from now on.
            DiskFullError: a file cannot be written.
        """
        with self._write_lock:
            bounds = self._bounds()
            recovery_points = {name: offsets.recovery_point for name, offsets in bounds.items()}
            log_starts = {
                name: offsets.log_start for name, offsets in bounds.items() if self._needs_log_start(name, offsets)
            }
            self._store(RECOVERY_POINTS_FILE, self._state.recovery_points, bounds, recovery_points)
            self._store(LOG_STARTS_FILE, self._state.log_starts, bounds, log_starts)
            self._store_high_watermarks(bounds)
        self.write_cleaner_checkpoint()

    def write_cleaner_checkpoint(self) -> None:
        """Store the first dirty offset of each log, durable on return. Errors are those of ``write_checkpoints``.

        If no log has a first dirty offset, and neither has the file, nothing is written. Logs that are no longer in the
        directory must not stay in the file: if two directories have an offset of one log, Kafka's cleaner stops.
        """
        with self._write_lock:
            dirty_starts = {name: log.maintenance.cleaning.dirty_start for name, log in list(self.logs.items())}
            known_starts = {name: offset for name, offset in dirty_starts.items() if offset is not None}
            if known_starts or self._state.dirty_starts or CLEANER_FILE in self._written_contents:
                self._store(CLEANER_FILE, self._state.dirty_starts, dirty_starts, known_starts)

    def write_high_watermarks(self) -> None:
        """Store the high watermarks of all logs, durable on return. Errors are those of ``write_checkpoints``."""
        with self._write_lock:
            self._store_high_watermarks(self._bounds())

    def _bounds(self) -> dict[TopicPartition, LogOffsets]:
        bounds = {name: self.bounds_of(log) for name, log in list(self.logs.items())}  # a copy: the logs may change
        return {**bounds, **self.arriving}

    def _store_high_watermarks(self, bounds: Mapping[TopicPartition, LogOffsets]) -> None:
        watermarks = {name: offsets.high_watermark for name, offsets in bounds.items()}
        self._store(HIGH_WATERMARKS_FILE, self._state.high_watermarks, bounds, watermarks)

    def _store(
        self,
        file: str,
        old_offsets: Mapping[TopicPartition, int],
        open_names: Container[TopicPartition],
        new_offsets: Mapping[TopicPartition, int],
    ) -> None:
        existing = [*self.folders, *self.linked_logs]
        unopened = {name: old_offsets[name] for name in existing if name not in open_names and name in old_offsets}
        data = format_offsets({**unopened, **new_offsets})
        if self.failure is not None or self._written_contents.get(file) == data:
            return
        try:
            check_offsets(data, self._written_contents.get(file, b""), self.store.path(file))
            self.store.replace_small(file, data)
        except LogDirOfflineError as error:
            self.take_offline(error)
            raise
        self._written_contents[file] = data

    def _needs_log_start(self, name: TopicPartition, bounds: LogOffsets) -> bool:
        """Return True unless the log starts at offset 0, and no tier has its first records.

        Kafka also leaves out a log start at the first local offset. But segments below it may exist after a crash,
        because their removal becomes durable later than the removal is visible here.

        Source: apache/kafka LogManager.checkpointLogStartOffsetsInDir.
        """
        log = self.logs.get(name)
        is_tiered = log is None or name in self._tiered_starts or log.config.remote_storage_enable
        return bounds.log_start > 0 or is_tiered

    def close(self, *, failed: bool) -> bool:
        """Close all logs, write the checkpoint files, and release the lock.

        If all logs were closed cleanly, the clean-shutdown marker is written. A log that was never opened counts as
        clean if the last writer of the directory stopped cleanly; so does a log whose folder is a link.

        Args:
            failed: True if a log of this directory could not be opened: then no marker is written.

        Returns:
            True if the marker was written.

        Raises:
            StorageError: a log could not be closed, or a file could not be written; the lock is released nevertheless.
        """
        errors: list[StorageError] = []
        clean = not failed and (self._state.clean or self.logs.keys() == self.folders.keys() | self.linked_logs)
        try:
            for log in self.logs.values():
                try:
                    clean = log.close() and clean
                except StorageError as error:
                    errors.append(error)
            try:
                self.delete_expired(all_now=True)  # first, because it frees space on a full disk
            except StorageError as error:
                _LOGGER.warning("deleted folders are removed when the directory is opened again: %s", error)
            self.write_checkpoints()
            clean = clean and not errors and self.failure is None
            if clean:
                self.store.replace_small(CLEAN_SHUTDOWN_FILE, CLEAN_SHUTDOWN)
        finally:
            self.store.close()
        if errors:
            raise errors[0]
        return clean
