"""Move of a log to another log directory.

The log is closed and copied to a ``-future`` folder, and the copy is renamed to its final name. Then the old folder is
renamed to ``-delete``. A crash between the two renames leaves both folders. Therefore the new folder has a note file,
which marks it as the newer one.

Source: apache/kafka LogManager.replaceCurrentWithFutureLog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final

from stratalog.engine.open.log_dir import LogDir
from stratalog.env import Env
from stratalog.errors import OutOfResourcesError, StorageError
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.log import Log
from stratalog.model.names import (
    LOG_SUFFIX,
    MOVED_FILE,
    TopicPartition,
    future_folder,
    parse_segment_file,
    partition_folder,
    random_uuid,
)
from stratalog.model.offsets import LogOffsets
from stratalog.spi.segment_store import LogFiles

_CHUNK_BYTES: Final = 1 << 20


def close_log(log: Log, source: LogDir) -> LogOffsets:
    """Close a log that is about to be moved, and return its offsets for the checkpoints.

    Raises:
        StorageError: the log is out of service, or was not closed cleanly. The log may be closed nevertheless.
    """
    files = source.files_of(log.name)
    files.remove(MOVED_FILE)
    files.sync()
    if not log.close():
        log.flush()  # raises the error that took the log out of service
    return source.checkpoints.bounds_of(log)


def copy_log(log: Log, source: LogDir, target: LogDir, env: Env) -> None:
    """Make a durable copy of a closed log's folder in ``target``.

    Raises:
        StorageError: the copy failed. The log is moved only if ``has_arrived`` returns True.
    """
    name = log.name
    files = source.files_of(name)
    copy = future_folder(name, random_uuid(env.chance))
    try:
        _copy_files(files, target.store.open_log(copy, create=True))
        target.checkpoints.arriving[name] = source.checkpoints.bounds_of(log)
        target.checkpoints.write()  # before the rename: otherwise a crash could lose the log start
        target.store.rename_log(copy, partition_folder(name))
    except BaseException:
        if not has_arrived(target, name):
            target.checkpoints.arriving.pop(name, None)
            with contextlib.suppress(StorageError):
                target.store.remove_log(copy)
        raise
    target.folders[name] = partition_folder(name)
    keep_offsets(log, target)


def keep_offsets(log: Log, directory: LogDir) -> None:
    """Store the log's present high watermark and first dirty offset in ``directory``, for its next opening there."""
    directory.checkpoints.keep_offsets(log.name, log.offsets().high_watermark, log.maintenance.cleaning.dirty_start)


def has_arrived(target: LogDir, name: TopicPartition) -> bool:
    """Return True if the copy of a log in ``target`` has its final name, or if an error prevents the check.

    If the result is True, the old folder must not be used: the engine may delete this folder at its next start.
    """
    try:
        return partition_folder(name) in target.store.logs()
    except StorageError:
        return True  # unknown


def finish_move(name: TopicPartition, source: LogDir, target: LogDir, delay_ms: int) -> None:
    """Rename the old folder of a moved log to ``-delete``, and remove the note from the new folder.

    The old directory's cleaner checkpoint then lacks the log. On a full disk, a later checkpoint removes the log.
    """
    source.set_aside(name, delay_ms)
    files = target.files_of(name)
    files.remove(MOVED_FILE)
    files.sync()
    with contextlib.suppress(OutOfResourcesError):  # the log is moved: an error would report the opposite
        source.checkpoints.write_dirty_starts()  # before the new directory's file has the log


def moved_request(bounds: LogOffsets) -> LoadRequest:
    """Return the request to load a log that was closed cleanly with these offsets."""
    return LoadRequest(
        clean=True,
        recovery_point=bounds.log_end,
        log_start=bounds.log_start,
        high_watermark=bounds.high_watermark,
        writable=True,
    )


def clean_up_moves(dirs: Iterable[LogDir]) -> None:
    """Remove the older of two folders of a log whose move a crash interrupted.

    The newer folder is the one with the note of ``copy_log``. Both folders stay if the log in the older folder ends
    later: it was written to while the directory with the newer folder was unavailable. All folders stay if no folder or
    several folders have a note.
    """
    places: dict[TopicPartition, list[LogDir]] = {}
    for directory in dirs:
        for name in directory.folders:
            places.setdefault(name, []).append(directory)
    for name, directories in places.items():
        newer = [candidate for candidate in directories if len(directories) > 1 and _has_note(candidate, name)]
        if len(newer) == 1:
            for older in directories:
                if older is not newer[0] and _end_of(older, name) <= _end_of(newer[0], name):
                    finish_move(name, older, newer[0], 0)


def remove_copies(dirs: Sequence[LogDir]) -> None:
    """Remove the unfinished copies of logs that are open and healthy.

    The copy of a damaged log stays, because it may have records that the log has lost, for example if a broker was
    moving the log from a failing disk.
    """
    healthy_folders = {
        partition_folder(name) for directory in dirs for name, log in directory.logs.items() if log.healthy
    }
    for directory in dirs:
        for folder, fate in list(directory.left_folders.items()):
            if fate == "future" and folder.rpartition(".")[0] in healthy_folders:
                directory.remove_later(folder, 0)


def _has_note(directory: LogDir, name: TopicPartition) -> bool:
    return directory.files_of(name).read_small(MOVED_FILE) is not None


def _end_of(directory: LogDir, name: TopicPartition) -> tuple[str, int]:
    """Return the name and size (bytes) of the ``.log`` file of the last segment in a log's folder.

    Compare the results as tuples: each append increases the tuple, and retention and compaction do not reduce it.
    """
    files = directory.files_of(name).list()
    logs = (file for file in files if file.name.endswith(LOG_SUFFIX) and parse_segment_file(file.name))
    return max(((file.name, file.size_bytes) for file in logs), default=("", 0))


def _copy_files(source: LogFiles, target: LogFiles) -> None:
    for file in source.list():
        if file.is_folder:  # not part of the log
            continue
        with (
            closing(source.open_segment(file.name)) as old,
            closing(target.open_segment(file.name, create=True)) as new,
        ):
            for position in range(0, file.size_bytes, _CHUNK_BYTES):
                new.append(old.read(position, _CHUNK_BYTES))
            new.sync()
    target.replace_small(MOVED_FILE, b"")
