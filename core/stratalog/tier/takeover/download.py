"""Copies of a log's segments from its tier into a folder, in Kafka's file layout; the tier is only read.

The ``.log`` file of a segment is written under another name. It is renamed after a check of its hash, and after the
other files of the segment were made durable. Therefore a ``.log`` file with its final name is complete, and a repeated
copy skips the segment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from stratalog.errors import CorruptObjectError
from stratalog.log.folder.folder import store_epochs
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import (
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
    NEXT_EPOCH_FILE,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    TopicId,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind
from stratalog.segment.framing import EpochSetter
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier_log import TierLog

UNFINISHED: Final = ".restoring"  # after ``.log``: neither Kafka nor an engine reads it as a segment
PIECE_BYTES: Final = 4 << 20
_INDEXES: Final = ((FileKind.OFFSET_INDEX, OFFSET_INDEX_SUFFIX), (FileKind.TIME_INDEX, TIME_INDEX_SUFFIX))


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Plan of a copy of one log from its tier to a folder.

    Attributes:
        source: name of the log in the tier.
        target: name of the log that the copy becomes.
        view: the state of the tier to copy.
        log_end: exclusive end offset of the copy.
        leader_epoch: the highest leader epoch in the tier.
        segments: the number of segments with offsets below ``log_end``.
        size_bytes: size of their ``.log`` files.
        requests: the approximate number of requests that the copy sends to the store.
    """

    source: TopicPartition
    topic_id: TopicId
    target: TopicPartition
    view: RemoteView
    log_end: int
    leader_epoch: int
    segments: int
    size_bytes: int
    requests: int

    def parts(self) -> Iterator[RemoteSegment]:
        """Yield the segments to copy, ascending; the manifest is read as the segments are consumed."""
        return _segments_below(self.view, self.log_end)


def plan_copy(remote: TierLog, target: TopicPartition, view: RemoteView, log_end: int, chunk_bytes: int) -> RestorePlan:
    """Return the plan of a copy. The call reads the list of segments, but no segment.

    Args:
        remote: the log in the tier. Its newest root gives the leader epoch of the plan, even if ``view`` is older.
        target: the name of the log that the copy becomes.
        view: the state of the log in the tier to copy.
        log_end: exclusive end offset of the copy; within the offsets of the tier.
        chunk_bytes: the number of bytes that one request fetches, for ``requests``.
    """
    root_epoch = remote.root.leader_epoch if remote.root is not None else NO_EPOCH
    leader_epoch = max(root_epoch, *(entry.epoch for entry in view.leader_epochs), NO_EPOCH)
    segments = size_bytes = requests = 0
    for segment in _segments_below(view, log_end):
        segments += 1
        size_bytes += segment.size_bytes
        requests += -(-segment.size_bytes // chunk_bytes) + len(segment.entry.slices) - 1
    return RestorePlan(
        remote.name, remote.topic_id, target, view, log_end, leader_epoch, segments, size_bytes, requests
    )


def _segments_below(view: RemoteView, log_end: int) -> Iterator[RemoteSegment]:
    """Yield the segments that have offsets from the log start (inclusive) to ``log_end`` (exclusive), ascending."""
    for segment in view.segments.from_offset(view.log_start):
        if segment.base_offset >= log_end:
            return
        assert isinstance(segment, RemoteSegment)
        yield segment


def write_epochs(plan: RestorePlan, files: LogFiles, only_epoch: int | None) -> None:
    """Write the leader epoch checkpoint of a copy: all leader epochs of the tier, or only ``only_epoch``.

    Epochs from ``log_end`` on are written, too; the caller truncates them. The next epoch that an earlier, interrupted
    restore has stored is removed: otherwise, opening the copy would begin this epoch.
    """
    files.remove(NEXT_EPOCH_FILE)
    replacement = () if only_epoch is None else (EpochEntry(only_epoch, plan.view.log_start),)
    store_epochs(files, LEADER_EPOCHS_FILE, replacement or plan.view.leader_epochs)


def copy_segments(plan: RestorePlan, files: LogFiles, on_bytes: Callable[[int], None], only_epoch: int | None) -> int:
    """Copy all segments of a log into its folder, durable on return; return the number of newly copied segments.

    Segments that an earlier, interrupted copy completed are skipped.

    Args:
        plan: a result of ``plan_copy``.
        files: the folder. Files of segments that are not in the plan are deleted, except producer snapshots.
        on_bytes: called with the number of bytes of each piece of a ``.log`` file that is copied or skipped.
        only_epoch: leader epoch to write into all batches; None keeps those of the tier.

    Raises:
        CorruptObjectError: the bytes of a segment do not match the manifest; the segment was not copied.
        LogDirError: the folder cannot be written. It is a DiskFullError if the disk is full.
    """
    bases = {segment.base_offset for segment in plan.parts()}
    size_by_name = dict[str, int]()
    for file in files.list():
        parsed_name = parse_segment_file(file.name)
        if parsed_name is not None and parsed_name.base_offset not in bases and parsed_name.suffix != SNAPSHOT_SUFFIX:
            files.remove(file.name)  # an interrupted restore began it after its copy
        else:
            size_by_name[file.name] = file.size_bytes
    return sum(_copy_segment(segment, files, size_by_name, on_bytes, only_epoch) for segment in plan.parts())


def _copy_segment(
    segment: RemoteSegment,
    files: LogFiles,
    size_by_name: Mapping[str, int],
    on_bytes: Callable[[int], None],
    only_epoch: int | None,
) -> bool:
    """Copy one segment into a folder, durable on return; return False if the folder has its complete ``.log`` file.

    ``size_by_name`` has the sizes (bytes) of the files in the folder, by name. See ``copy_segments`` for the other
    arguments.
    """
    name = segment_file(segment.base_offset, LOG_SUFFIX)
    if size_by_name.get(name) == segment.size_bytes:
        on_bytes(segment.size_bytes)
        return False
    for kind, suffix in _INDEXES:  # also empty indexes: Kafka logs an error if a segment has none
        files.replace_small(segment_file(segment.base_offset, suffix), segment.read_file(kind))
    for kind, suffix, offset in (
        (FileKind.TRANSACTION_INDEX, TRANSACTION_INDEX_SUFFIX, segment.base_offset),
        (FileKind.SNAPSHOT, SNAPSHOT_SUFFIX, segment.end_offset),
    ):
        data = segment.read_file(kind)
        if data:
            files.replace_small(segment_file(offset, suffix), data)
    _copy_log(segment, files, name, on_bytes, only_epoch)
    return True


def _copy_log(
    segment: RemoteSegment, files: LogFiles, name: str, on_bytes: Callable[[int], None], only_epoch: int | None
) -> None:
    files.remove(name + UNFINISHED)
    digest, epoch_setter = hashlib.sha256(), None if only_epoch is None else EpochSetter(only_epoch)
    with closing(files.open_segment(name + UNFINISHED, create=True)) as file:
        for position in range(0, segment.size_bytes, PIECE_BYTES):
            piece = segment.read(position, PIECE_BYTES)
            digest.update(piece)
            file.append(piece if epoch_setter is None else epoch_setter.feed(piece))
            on_bytes(len(piece))
        if epoch_setter is not None:
            file.append(epoch_setter.rest())
        file.sync()
    if digest.hexdigest() != segment.entry.sha256:
        segment.forget()
        files.remove(name + UNFINISHED)
        raise CorruptObjectError(
            f"the segment at offset {segment.base_offset} of {segment.info.log} was changed: its SHA-256 is "
            f"{digest.hexdigest()}, the manifest has {segment.entry.sha256}",
            segment.label,
        )
    files.set_modified(name + UNFINISHED, segment.info.modified_ms)
    files.rename(name + UNFINISHED, name)
    files.sync()
