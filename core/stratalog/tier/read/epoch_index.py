"""Which segments of a tier belong to one history of a log, where several leaders wrote.

Two leaders may have written different records at the same offset. So a segment carries the leader epochs of its offsets,
and a log finds its records under the epochs of its own history alone.

Source: apache/kafka RemoteLogLeaderEpochState.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import SegmentInfo
from stratalog.spi.layouts import StoredSegment


def with_records(epochs: Iterable[EpochEntry]) -> tuple[EpochEntry, ...]:
    """The epochs without those that hold no record, because the next one begins where they do."""
    kept: list[EpochEntry] = []
    for entry in epochs:
        if kept and kept[-1].start_offset == entry.start_offset:
            kept.pop()
        kept.append(entry)
    return tuple(kept)


class EpochIndex:
    """Segments by leader epoch and offset, as a log's history asks for them. Immutable.

    Where uploads of one epoch overlap, a later one that covers earlier ones takes their place.

    Args:
        segments: in the order in which they were uploaded.
    """

    def __init__(self, segments: Iterable[StoredSegment]) -> None:
        self._by_epoch: dict[int, list[tuple[int, StoredSegment]]] = {}  # by start in the epoch, ascending
        highest: dict[int, int] = {}
        for segment in segments:
            for epoch, start, end in _parts(segment.info):
                listed = self._by_epoch.setdefault(epoch, [])
                while listed and listed[-1][0] >= start and highest[epoch] <= end:
                    listed.pop()
                listed.insert(bisect_right(listed, start, key=lambda found: found[0]), (start, segment))
                highest[epoch] = max(highest.get(epoch, end), end)

    def lookup(self, epoch: int, offset: int) -> StoredSegment | None:
        """The segment that holds ``offset`` as it was written in ``epoch``; None if there is none."""
        listed = self._by_epoch.get(epoch, [])
        at = bisect_right(listed, offset, key=lambda found: found[0]) - 1
        if at < 0:
            return None
        segment = listed[at][1]
        return segment if any(part[0] == epoch and offset < part[2] for part in _parts(segment.info)) else None

    def chosen(self, lineage: Sequence[EpochEntry], log_end: int) -> tuple[StoredSegment, ...]:
        """The segments to read a log's history from, ascending, each from where the one before it ends.

        Args:
            lineage: the leader epochs of the log, ascending.
            log_end: where the history ends; nothing beyond it is looked for.
        """
        found: list[StoredSegment] = []
        for entry, following in pairwise((*lineage, None)):
            assert entry is not None  # the last one stands alone on the right
            end = log_end if following is None else min(following.start_offset, log_end)
            offset = max(entry.start_offset, found[-1].info.end_offset if found else 0)
            while offset < end:
                segment = self.lookup(entry.epoch, offset) or self._next(entry.epoch, offset, end)
                if segment is None:
                    break
                if not found or found[-1] is not segment:
                    found.append(segment)
                offset = max(offset + 1, segment.info.end_offset)
        return tuple(found)

    def _next(self, epoch: int, offset: int, end: int) -> StoredSegment | None:
        listed = self._by_epoch.get(epoch, [])
        return next((segment for start, segment in listed if offset < start < end), None)


def _parts(info: SegmentInfo) -> list[tuple[int, int, int]]:
    """Epoch, start and end of each part of a segment that was written in one epoch and is not empty."""
    epochs = with_records(info.leader_epochs)
    ends = [*(entry.start_offset for entry in epochs[1:]), info.end_offset]
    return [
        (entry.epoch, max(entry.start_offset, info.base_offset), end)
        for entry, end in zip(epochs, ends, strict=True)
        if end > max(entry.start_offset, info.base_offset)
    ]
