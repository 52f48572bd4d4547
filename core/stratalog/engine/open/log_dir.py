"""One log directory of an engine: its lock, its clean-shutdown marker, its checkpoint files, and its logs.

Source: apache/kafka LogManager, KafkaScheduler's checkpoint tasks, CleanShutdownFileHandler.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from stratalog.engine.open.directory_checkpoints import DirectoryCheckpoints
from stratalog.engine.open.directory_id import read_identity
from stratalog.env import Env
from stratalog.errors import LogDirNotFoundError, NotAFileError, StorageError, TopicExistsError
from stratalog.log.folder.directory_state import (
    DirectoryState,
    check_may_become_log_directory,
    partition_folders,
    read_directory,
    store_topic_id,
)
from stratalog.log.log import Log
from stratalog.model.events import Event, LogDirOffline
from stratalog.model.names import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_TOPIC,
    TopicId,
    TopicPartition,
    deleted_folder,
    left_folder_fate,
    partition_folder,
    random_uuid,
)
from stratalog.spi.segment_store import LogFiles, SegmentStore

_LOGGER: Final = logging.getLogger(__name__)
DELETE_DELAY_MS: Final = 60_000  # for -delete folders that an earlier engine or broker left
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
        left_folders: unused folders with the suffix ``-stray`` or ``-future``: "stray" or "future" by folder name.
        linked_logs: logs of a broker whose folders are symbolic links, which are not followed. Their checkpoints are
            kept.
        checkpoints: stored offsets of the logs.

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
            stored = read_directory(store, live=False)
            self.identity = read_identity(store)
            with contextlib.suppress(NotAFileError):  # only a regular file counts as the marker
                store.remove_small(CLEAN_SHUTDOWN_FILE)
            self.folders = {
                log: name for log, name in partition_folders(store).items() if log.topic != CLUSTER_METADATA_TOPIC
            }
            self.left_folders = {name: fate for name in store.logs() if (fate := left_folder_fate(name))}
            self.linked_logs = self._find_linked_logs(stored)
        except BaseException:
            store.close()
            raise
        self._pending_deletes: dict[str, int] = {}  # folders to remove, and when (monotonic ns)
        for name in [name for name, fate in self.left_folders.items() if fate == "delete"]:
            self.remove_later(name, DELETE_DELAY_MS)
        self.logs: dict[TopicPartition, Log] = {}
        self.checkpoints = DirectoryCheckpoints(self, stored)

    def _find_linked_logs(self, stored: DirectoryState) -> frozenset[TopicPartition]:
        """Return the logs in the checkpoints whose folders are symbolic links. A listing omits such folders."""
        linked: set[TopicPartition] = set()
        checkpointed = {*stored.recovery_points, *stored.log_starts, *stored.high_watermarks, *stored.dirty_starts}
        for log in checkpointed - self.folders.keys():
            with contextlib.suppress(StorageError):  # the folder or the target of the link does not exist
                self.store.open_log(partition_folder(log))
                linked.add(log)
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

    def files_of(self, log: TopicPartition) -> LogFiles:
        """Return the files in the folder of a partition of the directory."""
        return self.store.open_log(self.folders[log])

    def create(self, log: TopicPartition, topic_id: TopicId) -> None:
        """Create a partition's folder with its ``partition.metadata``. The folder is durable when the method returns.

        Raises:
            TopicExistsError: the directory has a file or folder with the partition's name.
            StorageError: the creation failed; ``discard`` removes the folder if it exists.
        """
        self.checkpoints.forget(log)
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
        """Rename the folder of a closed log to ``-delete`` durably. A missing folder is not an error.

        The folder is removed after ``delay_ms``, or by ``close`` if the directory is closed earlier.

        Source: apache/kafka LogManager.asyncDelete.
        """
        folder = self.folders[log]
        deleted_name = deleted_folder(log, random_uuid(self._env.chance))
        try:
            self.store.rename_log(folder, deleted_name)
        except LogDirNotFoundError:  # an earlier call renamed the folder, and then failed
            self.store.remove_log(folder)  # makes this rename durable
        finally:
            self.remove_later(deleted_name, delay_ms)  # even after an error that followed the rename
        self.logs.pop(log, None)
        del self.folders[log]

    def remove_later(self, folder: str, delay_ms: int) -> None:
        """Schedule the removal of a folder that is no longer a log: after ``delay_ms``, or earlier by ``close``."""
        self.left_folders.pop(folder, None)
        self._pending_deletes[folder] = self._env.clock.monotonic_ns() + delay_ms * 1_000_000

    def delete_expired(self, *, all_now: bool = False) -> int:
        """Remove the scheduled folders whose delay is over; with ``all_now``, all. Return the number of due folders.

        If the directory is out of service, no folder is removed, but the due folders are counted.
        """
        now = self._env.clock.monotonic_ns()
        due = [name for name, due_ns in list(self._pending_deletes.items()) if all_now or due_ns <= now]
        for name in due if self.failure is None else ():
            self.store.remove_log(name)
            self._pending_deletes.pop(name, None)
        return len(due)

    def close(self, *, failed: bool) -> bool:
        """Close all logs, write the checkpoint files, and release the lock.

        If all logs were closed cleanly, the clean-shutdown marker is written. A log that was never opened counts as
        clean if the last writer of the directory stopped cleanly. A log whose folder is a symbolic link counts as clean
        under the same condition.

        Args:
            failed: True if a log of this directory could not be opened: then no marker is written.

        Returns:
            True if the marker was written.

        Raises:
            StorageError: a log could not be closed, or a file could not be written; the lock is released nevertheless.
        """
        errors: list[StorageError] = []
        clean = not failed and (
            self.checkpoints.stored.clean or self.logs.keys() == self.folders.keys() | self.linked_logs
        )
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
            self.checkpoints.write()
            clean = clean and not errors and self.failure is None
            if clean:
                self.store.replace_small(CLEAN_SHUTDOWN_FILE, CLEAN_SHUTDOWN)
        finally:
            self.store.close()
        if errors:
            raise errors[0]
        return clean
