"""State of a log directory: clean shutdown, recovery points, start offsets, high watermarks, topic ids.

Source: apache/kafka LogManager, OffsetCheckpointFile, PartitionMetadataFile.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import Final

from stratalog.epochs.checkpoint import parse_offsets
from stratalog.errors import CorruptCheckpointError, InvalidTopicError, LogDirNotFoundError, NotAFileError
from stratalog.model.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARKS_FILE,
    IGNORED_FOLDERS,
    LEADER_EPOCHS_FILE,
    LOCK_FILE,
    LOG_STARTS_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    TOPICS_FILE,
    TopicId,
    TopicPartition,
    left_folder_fate,
    parse_partition_folder,
    parse_segment_file,
)
from stratalog.model.notes import readable
from stratalog.spi.segment_store import LogFiles, SegmentStore

_LOGGER: Final = logging.getLogger(__name__)
DIRECTORY_FILES: Final = (
    META_PROPERTIES_FILE,
    RECOVERY_POINTS_FILE,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    CLEANER_FILE,
    CLEAN_SHUTDOWN_FILE,
    TOPICS_FILE,
    LOCK_FILE,
)
"""Files that engines and brokers write beside the folders of logs."""

_OF_LOGS: Final = (PARTITION_METADATA_FILE, LEADER_EPOCHS_FILE)


@dataclass(frozen=True, slots=True)
class DirectoryState:
    """Contents of the checkpoints of a log directory, read once. Each mapping has one offset for each log.

    ``clean`` is True if the last writer stopped cleanly and no writer has the directory open. ``live`` is True if a
    writer has the directory open now. ``dirty_starts`` has, for each log, the first offset that is not compacted yet.
    """

    clean: bool
    live: bool
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    dirty_starts: dict[TopicPartition, int] = field(default_factory=dict)


def read_directory(store: SegmentStore, *, live: bool) -> DirectoryState:
    """Return the state of a log directory, from its checkpoints and the clean-shutdown file.

    As in Kafka, a damaged checkpoint counts as empty, and recovery then starts earlier. The error is logged as a
    warning.
    """
    return DirectoryState(
        clean=is_marked_clean(store) and not live,
        live=live,
        recovery_points=_offsets(store, RECOVERY_POINTS_FILE),
        log_starts=_offsets(store, LOG_STARTS_FILE),
        high_watermarks=_offsets(store, HIGH_WATERMARKS_FILE),
        dirty_starts=_offsets(store, CLEANER_FILE),
    )


def read_offsets(store: SegmentStore, name: str) -> dict[TopicPartition, int] | None:
    """Return the offsets in the checkpoint ``name`` of a log directory; None if the file does not exist.

    Raises:
        CorruptCheckpointError: the checkpoint is damaged, or larger than ``limits.checkpoint.bytes``.
        LogDirError: the checkpoint cannot be read, or is not a file (NotAFileError).
    """
    data = store.read_small(name)
    return None if data is None else parse_offsets(data, store.path(name))


def _offsets(store: SegmentStore, name: str) -> dict[TopicPartition, int]:
    try:
        return read_offsets(store, name) or {}
    except (CorruptCheckpointError, NotAFileError) as error:
        _LOGGER.warning("a checkpoint file is ignored: %s", error)
        return {}


def is_marked_clean(store: SegmentStore) -> bool:
    """Return True if a directory has the clean-shutdown file. Log a warning if an entry of this name is not a file."""
    try:
        return store.read_small(CLEAN_SHUTDOWN_FILE) is not None
    except NotAFileError as error:  # no writer creates such an entry
        _LOGGER.warning("the directory counts as not cleanly closed: %s", error)
        return False


def partition_folders(store: SegmentStore) -> dict[TopicPartition, str]:
    """Return the folder name of each log, for all folders with names of the form TOPIC-PARTITION.

    The logs are sorted by topic and partition.

    Folders with Kafka's suffixes ``-delete``, ``-future`` and ``-stray`` are left out. Raises LogDirNotFoundError if
    the directory does not exist.
    """
    folders: dict[TopicPartition, str] = {}
    for name in store.logs():
        if name in IGNORED_FOLDERS or left_folder_fate(name):
            continue
        log = parse_partition_folder(name)
        if log is not None:
            folders[log] = name
    return dict(sorted(folders.items()))


def is_log_directory(store: SegmentStore) -> bool:
    """Return True if a directory has files of logs, or files that engines and brokers write beside logs.

    A folder's name alone is not a proof: ``/etc/dbus-1`` also has the form of a log's folder, TOPIC-PARTITION. Raises
    LogDirNotFoundError if the directory does not exist.
    """
    if any(_has(store, name) for name in DIRECTORY_FILES):
        return True
    return any(holds_log(store.open_log(folder)) for folder in partition_folders(store).values())


def holds_log(files: LogFiles) -> bool:
    """Return True if a folder has files of a log."""
    return any(file.name in _OF_LOGS or parse_segment_file(file.name) for file in files.list())


def check_log_directory(store: SegmentStore) -> None:
    """Raise LogDirNotFoundError if a directory is not a log directory, or is the folder of one log."""
    _check_is_no_log(store)
    if not is_log_directory(store):
        raise LogDirNotFoundError("the directory contains no logs", store.path())


def check_may_become_log_directory(store: SegmentStore) -> None:
    """Raise LogDirNotFoundError if no logs may be created in a directory.

    The folder of a log cannot become a log directory. If folders in a directory are named like logs, but none contains
    a log, the directory belongs to another program, and no logs may be created in it. A missing directory is accepted.
    """
    try:
        folders = partition_folders(store)
    except LogDirNotFoundError:
        return
    _check_is_no_log(store)
    if folders and not is_log_directory(store):
        name = next(iter(folders.values()))
        text = (
            f"{name} is named like a log but contains none, so the directory belongs to another program: use another "
            "directory"
        )
        raise LogDirNotFoundError(text, store.path())


def _has(store: SegmentStore, name: str) -> bool:
    try:
        return store.read_small(name) is not None
    except LogDirNotFoundError:  # not raised for a missing file: the path of the store is not a directory
        raise LogDirNotFoundError("this is not a directory", store.path()) from None
    except (CorruptCheckpointError, NotAFileError):  # too large, or a folder: the name exists
        return True


def _check_is_no_log(store: SegmentStore) -> None:
    if any(_has(store, name) for name in _OF_LOGS):
        parent = os.path.dirname(os.path.abspath(store.path()))  # noqa: PTH100, PTH120 - a Path would follow links
        raise LogDirNotFoundError("this is the folder of one log", store.path()).advised(
            f"use its log directory, {parent}"
        )


def read_topic_id(files: LogFiles) -> TopicId | None:
    """Return the topic id in ``partition.metadata``, None if there is no such file (before Kafka 2.8).

    Raises:
        CorruptCheckpointError: the file is malformed.
    """
    data = files.read_small(PARTITION_METADATA_FILE)
    return None if data is None else parse_topic_id(data, files.path(PARTITION_METADATA_FILE))


def parse_topic_id(data: bytes, path: str) -> TopicId:
    """Return the topic id in the bytes of ``partition.metadata``. Errors name ``path``.

    Raises:
        CorruptCheckpointError: the file is malformed.
    """
    lines = data.decode("utf-8", "replace").splitlines()
    values = [line.split(": ", 1)[-1].strip() for line in lines[:2]]
    if len(values) < 2 or not values[0].isdigit():
        raise CorruptCheckpointError("the file must have two lines, version and topic_id", path)
    try:
        return TopicId(values[1])
    except InvalidTopicError as error:
        raise CorruptCheckpointError(error.reason, path, len(lines[0]) + 1) from error


def format_topic_id(topic_id: TopicId) -> bytes:
    """Return the bytes of ``partition.metadata``, without a final newline, as in Kafka."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def store_topic_id(files: LogFiles, topic_id: TopicId) -> None:
    """Replace ``partition.metadata`` durably."""
    data = readable(format_topic_id(topic_id), parse_topic_id, files.path(PARTITION_METADATA_FILE))
    files.replace_small(PARTITION_METADATA_FILE, data)
