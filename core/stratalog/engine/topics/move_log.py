"""Moving a log to another log directory.

The log is closed, copied under a ``-future`` name, renamed, and only then set aside where it was. A note in the copy
says that it is the newer one: a crash between the two renames leaves both.

Source: apache/kafka LogManager.replaceCurrentWithFutureLog.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from contextlib import closing
from typing import Final

from stratalog.engine.open.log_dir import LogDir
from stratalog.env import Env
from stratalog.errors import StorageError
from stratalog.log.load.loaded_log import LoadRequest
from stratalog.log.log import Log
from stratalog.model.names import (
    LOG_SUFFIX,
    MOVED_FILE,
    TopicPartition,
    future_folder,
    parse_partition_folder,
    partition_folder,
)
from stratalog.model.offsets import LogOffsets
from stratalog.spi.segment_store import LogFiles

_CHUNK_BYTES: Final = 1 << 20


def copy_log(log: Log, source: LogDir, target: LogDir, env: Env) -> LogOffsets:
    """Close a log and put a durable copy of it in its place in ``target``; its bounds.

    Raises:
        StorageError: the log is closed, and was not moved unless it ``has_arrived``.
    """
    name = log.name
    files = source.store.open_log(source.folders[name])
    files.remove(MOVED_FILE)
    files.sync()
    if not log.close():
        log.flush()  # raises what took it out of service
    bounds = log.offsets()
    copy = future_folder(name, uuid.UUID(int=env.chance.getrandbits(128), version=4))
    try:
        _copy_files(files, target.store.open_log(copy, create=True))
        target.arriving[name] = bounds
        target.write_checkpoints()  # before it is there: its log start must not be lost
        target.store.rename_log(copy, partition_folder(name))
    except BaseException:
        if not has_arrived(target, name):
            target.arriving.pop(name, None)
            with contextlib.suppress(StorageError):
                target.store.remove_log(copy)
        raise
    target.folders[name] = partition_folder(name)
    if log.cleaning.dirty_start is not None:
        target.dirty_starts[name] = log.cleaning.dirty_start
    return bounds


def has_arrived(target: LogDir, name: TopicPartition) -> bool:
    """Whether the copy has its name: from then on it is the newer one, even if nobody knows whether the name is durable.

    What would be appended to the older one after that, the next start would set aside.
    """
    try:
        return partition_folder(name) in target.store.logs()
    except StorageError:
        return True  # nobody can tell


def finish_move(name: TopicPartition, source: LogDir, target: LogDir, delay_ms: int) -> None:
    """Set the old copy aside and forget that there were two."""
    source.set_aside(name, delay_ms)
    files = target.store.open_log(target.folders[name])
    files.remove(MOVED_FILE)
    files.sync()


def moved_request(bounds: LogOffsets) -> LoadRequest:
    """How a log is opened that was closed just now."""
    return LoadRequest(
        clean=True,
        recovery_point=bounds.log_end,
        log_start=bounds.log_start,
        high_watermark=bounds.high_watermark,
        writable=True,
    )


def settle_moves(dirs: Iterable[LogDir]) -> None:
    """Set aside what a crash during a move left: the older one of two copies, and copies that were not finished.

    An older copy that holds more stays as well: it was written to while the directory with the newer one was out of reach.
    Two copies without a note, and unfinished ones whose log is nowhere, stay as they are.
    """
    listed = list(dirs)
    places: dict[TopicPartition, list[LogDir]] = {}
    for directory in listed:
        for name in directory.folders:
            places.setdefault(name, []).append(directory)
    for name, found in places.items():
        newer = [one for one in found if len(found) > 1 and _has_note(one, name)]
        if len(newer) == 1:
            for older in found:
                if older is not newer[0] and _log_bytes(older, name) <= _log_bytes(newer[0], name):
                    finish_move(name, older, newer[0], 0)
    present = {partition_folder(name) for name in places}
    for directory in listed:
        for left, fate in list(directory.left.items()):
            log = left.rpartition(".")[0]
            if fate == "future" and log in present and parse_partition_folder(log) is not None:
                directory.remove_later(left, 0)


def _has_note(directory: LogDir, name: TopicPartition) -> bool:
    return directory.store.open_log(directory.folders[name]).read_small(MOVED_FILE) is not None


def _log_bytes(directory: LogDir, name: TopicPartition) -> int:
    """The size of a log's records. The older copy outgrows the newer one if it was used while that was out of reach."""
    listed = directory.store.open_log(directory.folders[name]).list()
    return sum(found.size_bytes for found in listed if found.name.endswith(LOG_SUFFIX))


def _copy_files(source: LogFiles, target: LogFiles) -> None:
    for file in source.list():
        if file.is_folder:  # nothing of the log
            continue
        with (
            closing(source.open_segment(file.name)) as old,
            closing(target.open_segment(file.name, create=True)) as new,
        ):
            for position in range(0, file.size_bytes, _CHUNK_BYTES):
                new.append([old.read(position, _CHUNK_BYTES)])
            new.sync()
    target.replace_small(MOVED_FILE, b"")
