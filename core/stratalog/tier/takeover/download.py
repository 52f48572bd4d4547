"""Copying the segments of a log from its tier into a folder, as Kafka lays them out; the tier is only read.

A segment's ``.log`` gets its name last, when its hash is that of the manifest and everything beside it is durable: what
bears the name is whole, and is not fetched again by who repeats the copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.log.folder.folder import store_epochs
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import (
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
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
from stratalog.tier.read.fetcher import RemoteSegment
from stratalog.tier.tier_log import TierLog

UNFINISHED: Final = ".restoring"  # behind ``.log``: neither Kafka nor an engine takes it for a segment
PIECE_BYTES: Final = 4 << 20
_INDEXES: Final = (
    (FileKind.OFFSET_INDEX, OFFSET_INDEX_SUFFIX),
    (FileKind.TIME_INDEX, TIME_INDEX_SUFFIX),
)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What is copied of one log.

    Attributes:
        source: the log in the tier.
        topic_id: of its topic there.
        target: what it is called where it goes.
        view: the state of the tier that is copied.
        log_end: the first offset that does not come along.
        leader_epoch: the highest that the tier knows of.
        segments: how many hold records below it.
        size_bytes: of their ``.log`` files.
        requests: about how many the store is asked.
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
        """The segments, ascending; the list is read as it is taken."""
        return segments_below(self.view, self.log_end)


def planned(remote: TierLog, target: TopicPartition, view: RemoteView, log_end: int, chunk_bytes: int) -> RestorePlan:
    """Count what is to be copied; the list of segments is read once.

    Args:
        remote: the log in the tier.
        target: what it shall be called.
        view: the state of the tier.
        log_end: the first offset to leave behind; not outside what the tier has.
        chunk_bytes: how much one request fetches.
    """
    told = remote.root.leader_epoch if remote.root is not None else NO_EPOCH
    leader_epoch = max(told, *(entry.epoch for entry in view.leader_epochs), NO_EPOCH)
    segments = size_bytes = requests = 0
    for segment in segments_below(view, log_end):
        segments += 1
        size_bytes += segment.size_bytes
        requests += -(-segment.size_bytes // chunk_bytes) + len(segment.stored.slices) - 1
    return RestorePlan(remote.log, remote.topic_id, target, view, log_end, leader_epoch, segments, size_bytes, requests)


def segments_below(view: RemoteView, log_end: int) -> Iterator[RemoteSegment]:
    """Those with offsets that readers may ask for, below ``log_end``."""
    for segment in view.segments.from_offset(view.log_start):
        if segment.base_offset >= log_end:
            return
        assert isinstance(segment, RemoteSegment)
        yield segment


def write_epochs_of(plan: RestorePlan, files: LogFiles, only_epoch: int | None) -> None:
    """Store where leader epochs begin, or that all is in one; a cut takes what lies behind it."""
    one = () if only_epoch is None else (EpochEntry(only_epoch, plan.view.log_start),)
    store_epochs(files, LEADER_EPOCHS_FILE, one or plan.view.leader_epochs)


def copy_segments(plan: RestorePlan, files: LogFiles, on_bytes: Callable[[int], None], only_epoch: int | None) -> int:
    """Put all segments of a log into its folder, durable on return; how many were not there.

    Args:
        plan: which.
        files: the folder, which holds nothing but what was copied before, and what a log that was opened there has left.
        on_bytes: told of each piece of a ``.log`` that is there.
        only_epoch: the leader epoch that all batches tell; None is that of the tier.

    Raises:
        As ``copy_segment``.
    """
    bases = {segment.base_offset for segment in plan.parts()}
    there = dict[str, int]()
    for file in files.list():
        named = parse_segment_file(file.name)
        if named is not None and named.base_offset not in bases and named.suffix != SNAPSHOT_SUFFIX:
            files.remove(file.name)  # begun behind a cut by a restore that did not end: within what comes again
        else:
            there[file.name] = file.size_bytes
    return sum(copy_segment(segment, files, there, on_bytes, only_epoch) for segment in plan.parts())


def copy_segment(
    segment: RemoteSegment,
    files: LogFiles,
    there: Mapping[str, int],
    on_bytes: Callable[[int], None],
    only_epoch: int | None,
) -> bool:
    """Put one segment into a folder, durable on return; False if it is there already.

    Args:
        segment: in the tier.
        files: the folder, which holds nothing but what was copied before.
        there: the sizes (bytes) of its files, by name.
        on_bytes: told of each piece of the ``.log`` that is there.
        only_epoch: the leader epoch that all batches tell; None is that of the tier.

    Raises:
        CorruptObjectError: the bytes are not those that the manifest names; the segment is not there.
        StoreError: the store failed or refused.
        DiskFullError, LogDirError: the folder cannot be written.
    """
    name = segment_file(segment.base_offset, LOG_SUFFIX)
    if there.get(name) == segment.size_bytes:
        on_bytes(segment.size_bytes)
        return False
    for kind, suffix in _INDEXES:  # empty ones too: Kafka complains of a segment that lacks one
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
    digest, changed = hashlib.sha256(), None if only_epoch is None else EpochSetter(only_epoch)
    with closing(files.open_segment(name + UNFINISHED, create=True)) as file:
        for position in range(0, segment.size_bytes, PIECE_BYTES):
            piece = segment.read(position, PIECE_BYTES)
            digest.update(piece)
            file.append([piece if changed is None else changed.feed(piece)])
            on_bytes(len(piece))
        if changed is not None:
            file.append([changed.rest()])
        file.sync()
    if digest.hexdigest() != segment.stored.sha256:
        segment.forget()
        files.remove(name + UNFINISHED)
        raise CorruptObjectError(
            f"the segment at offset {segment.base_offset} of {segment.info.log} is not what was stored: its SHA-256 is "
            f"{digest.hexdigest()}, the manifest says {segment.stored.sha256}",
            segment.label,
        )
    files.set_modified(name + UNFINISHED, segment.info.modified_ms)
    files.rename(name + UNFINISHED, name)
    files.sync()


def check_bound(log: TopicPartition, view: RemoteView, log_end: int) -> int:
    """The offset itself, if the tier has the log up to it.

    Raises:
        StorageError: the log does not reach so far, or begins above it.
    """
    if not view.log_start <= log_end <= view.end_offset:
        raise StorageError(f"the tier has {log} from offset {view.log_start} to {view.end_offset}, not up to {log_end}")
    return log_end
