"""Logs in a tier that other software wrote, such as a Kafka broker. Without a manifest, the segments define the log.

Several leaders may have uploaded segments, and two of them may have written different records at the same offset.
Therefore the description of a segment contains the leader epochs of its offsets. A record belongs to the log if the log
has the record's leader epoch at this offset.

Source: apache/kafka RemoteLogLeaderEpochState.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from stratalog.errors import StorageError
from stratalog.log.read.tier_view import RemoteSegments, RemoteView, merged_epochs
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import SegmentInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.read.remote_segment import RemoteSegment


def foreign_view(segments: Sequence[StoredSegment], fetcher: Fetcher) -> RemoteView:
    """Return the state of the log that these segments form. A segment is ignored if another one has all its offsets.

    Raises:
        StorageError: two segments leave a gap, or overlap and neither has all offsets of the other.
    """
    chain: list[StoredSegment] = []
    for entry in sorted(segments, key=lambda entry: (entry.info.base_offset, -entry.info.end_offset)):
        info, end = entry.info, chain[-1].info.end_offset if chain else entry.info.base_offset
        if info.end_offset <= end and chain:
            continue  # the chain already has all offsets of this segment
        if info.base_offset != end:
            raise StorageError(f"segments of {info.log} leave a gap: one ends at {end}, the next is {info}")
        chain.append(entry)
    return _view(chain, fetcher)


def foreign_part(
    segments: Sequence[StoredSegment], fetcher: Fetcher, epochs: Sequence[EpochEntry], log_start: int, local_start: int
) -> RemoteView:
    """Return the state in the tier of a log whose newer segments are on local disk.

    The result has only segments with records of the log's leader epochs: after an unclean leader election, the tier can
    also have records of another leader at the same offsets.

    Args:
        segments: segments of the log, in any order; not empty.
        fetcher: reads the segments.
        epochs: leader epochs of the log, ascending; if empty, segments are joined as in ``foreign_view``.
        log_start: the log start offset; segments below it may be missing.
        local_start: the first offset on local disk.

    Raises:
        StorageError: the segments leave a gap between ``log_start`` and ``local_start``.
    """
    if not epochs:
        return foreign_view(segments, fetcher)
    oldest_first = sorted(segments, key=lambda entry: (entry.info.modified_ms, entry.info.end_offset, min(entry.keys)))
    chain = EpochIndex(oldest_first).select_segments(epochs, local_start)
    end = log_start
    for entry in chain:
        if entry.info.base_offset > end:
            break
        end = max(end, entry.info.end_offset)
    if end < local_start:
        log = segments[0].info.log
        raise StorageError(f"the tier of {log} ends at offset {end}, but local disk starts at {local_start}")
    return _view(chain, fetcher)


def _view(chain: Sequence[StoredSegment], fetcher: Fetcher) -> RemoteView:
    if not chain:
        return RemoteView()
    start, end = chain[0].info.base_offset, chain[-1].info.end_offset
    epochs = merged_epochs(entry.info.leader_epochs for entry in chain)
    return RemoteView(0, start, end, RemoteSegments(RemoteSegment(entry, fetcher) for entry in chain), epochs)


def drop_empty_epochs(epochs: Iterable[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Return the leader epochs that have records. An epoch has none if the next one begins at the same offset."""
    entries: list[EpochEntry] = []
    for entry in epochs:
        if entries and entries[-1].start_offset == entry.start_offset:
            entries.pop()
        entries.append(entry)
    return tuple(entries)


class EpochIndex:
    """Segments by leader epoch and offset. Immutable.

    If segments of one epoch overlap, a segment that was uploaded later replaces the earlier ones that it covers.

    Args:
        segments: the segments, in the order in which they were uploaded.
    """

    def __init__(self, segments: Iterable[StoredSegment]) -> None:
        self._by_epoch: dict[int, list[tuple[int, StoredSegment]]] = {}  # by start in the epoch, ascending
        end_by_epoch: dict[int, int] = {}
        for segment in segments:
            for epoch, start, end in _parts(segment.info):
                segments_by_start = self._by_epoch.setdefault(epoch, [])
                while segments_by_start and segments_by_start[-1][0] >= start and end_by_epoch[epoch] <= end:
                    segments_by_start.pop()
                segments_by_start.insert(
                    bisect_right(segments_by_start, start, key=lambda item: item[0]), (start, segment)
                )
                end_by_epoch[epoch] = max(end_by_epoch.get(epoch, end), end)

    def lookup(self, epoch: int, offset: int) -> StoredSegment | None:
        """Return the segment with the record at ``offset`` of leader epoch ``epoch``; None if there is none."""
        segments_by_start = self._by_epoch.get(epoch, [])
        index = bisect_right(segments_by_start, offset, key=lambda item: item[0]) - 1
        if index < 0:
            return None
        segment = segments_by_start[index][1]
        return segment if any(part[0] == epoch and offset < part[2] for part in _parts(segment.info)) else None

    def select_segments(self, lineage: Sequence[EpochEntry], log_end: int) -> tuple[StoredSegment, ...]:
        """Return the segments that hold the records of a log below ``log_end``, ascending; missing ones leave gaps.

        Args:
            lineage: the leader epochs of the log and their start offsets, ascending.
            log_end: exclusive end offset.
        """
        selected: list[StoredSegment] = []
        for entry, following in pairwise((*lineage, None)):
            assert entry is not None  # only the right-hand item of a pair can be None
            end = log_end if following is None else min(following.start_offset, log_end)
            offset = max(entry.start_offset, selected[-1].info.end_offset if selected else 0)
            while offset < end:
                segment = self.lookup(entry.epoch, offset) or self._next(entry.epoch, offset, end)
                if segment is None:
                    break
                if not selected or selected[-1] is not segment:
                    selected.append(segment)
                offset = max(offset + 1, segment.info.end_offset)
        return tuple(selected)

    def _next(self, epoch: int, offset: int, end: int) -> StoredSegment | None:
        segments_by_start = self._by_epoch.get(epoch, [])
        return next((segment for start, segment in segments_by_start if offset < start < end), None)


def _parts(info: SegmentInfo) -> list[tuple[int, int, int]]:
    """Return epoch, start offset and exclusive end offset of each leader epoch that has offsets of a segment."""
    epochs = drop_empty_epochs(info.leader_epochs)
    ends = [*(entry.start_offset for entry in epochs[1:]), info.end_offset]
    return [
        (entry.epoch, max(entry.start_offset, info.base_offset), end)
        for entry, end in zip(epochs, ends, strict=True)
        if end > max(entry.start_offset, info.base_offset)
    ]
