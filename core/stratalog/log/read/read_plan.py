"""Plans of reads: the ranges of offsets to read, and the segments of both tiers that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from stratalog.log.read.retry_read import READ_ERRORS, ReadRetry, ViewSource
from stratalog.log.read.view import LogView
from stratalog.model.offsets import Isolation
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import aborted_transactions

_T = TypeVar("_T")


class ReadRange(NamedTuple):
    """Offsets [start, end) of a log that one segment has.

    ``below`` is the offset that no batch of the segment may reach; None for the active segment, whose end moves.
    """

    segment: ReadableSegment
    start: int
    end: int
    below: int | None


Ranges: TypeAlias = Callable[[LogView, int], Iterator[ReadRange]]
"""Returns the ranges of a view to read, from an offset on."""


class ReadPlan(NamedTuple):
    """Plan of one read, made from the view at its start.

    Attributes:
        view: the view at the start of the read.
        span: range of offsets.
        hidden: aborted transactions whose records are omitted.
        meets_damage: True if the read reaches the damaged end of the log, if the log is damaged.
    """

    view: LogView
    span: range
    hidden: tuple[AbortedTransaction, ...]
    meets_damage: bool


def plan_read(view: LogView, parts: Components, start: int, end: int | None, isolation: str) -> ReadPlan:
    """Return the plan of a read of [start, end), up to the isolation's bound. ``start`` 0 is the log start.

    Raises:
        OffsetOutOfRangeError: ``start`` is below the log start (and not 0) or above the log end.
    """
    if start == 0:
        start = view.offsets.log_start
    view.check_range(start)
    bound = view.bound(isolation)
    stop = bound if end is None else min(end, bound)
    hidden = hidden_transactions(view, parts, start, stop, isolation)
    return ReadPlan(view, range(start, stop), hidden, end is None or end > stop)


def hidden_transactions(
    view: LogView, parts: Components, start: int, end: int, isolation: str
) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with data in [start, end) that a reader of this isolation omits."""
    if isolation != Isolation.READ_COMMITTED:
        return ()
    return aborted_transactions(view.readable_from(start), start, end, parts)


def read_ranges(
    view: LogView, start: int, stop: int, segments: Iterable[ReadableSegment] | None = None
) -> Iterator[ReadRange]:
    """Yield the ranges of [start, stop), ascending, over both tiers; local segments are preferred.

    Args:
        view: the view to read.
        start: first offset; offsets below the log start are in no range.
        stop: exclusive end.
        segments: the segments to read, ascending; None is all.
    """
    start = max(start, view.offsets.log_start)
    active = view.segments[-1] if view.segments else None
    for segment in view.readable_from(start) if segments is None else segments:
        first, end = max(start, segment.base_offset), segment.end_offset
        if first >= stop:
            return
        if first < end:  # the next segment may begin before this one ends: the bounds in the tier and on disk differ
            start = min(end, stop)
            yield ReadRange(segment, first, start, None if segment is active else end)


def read_all(
    views: ViewSource,
    view: LogView,
    start: int,
    ranges: Ranges,
    read: Callable[[ReadRange], Iterator[tuple[_T | None, int]]],
) -> Iterator[_T]:
    """Yield what ``read`` makes of the ranges from ``start`` on. If a segment moves, continue where it is now.

    Args:
        views: returns the newest view.
        view: the view that is read first.
        start: the first offset.
        ranges: returns the ranges to read of a view, from an offset on.
        read: yields pieces of one range, or None, each with the offset at which to continue after it.
    """
    retry = ReadRetry(views, view)
    while True:
        segment: ReadableSegment | None = None
        try:
            for part in ranges(retry.view, start):
                segment = part.segment
                for piece, next_offset in read(part):
                    start = next_offset  # a retry begins where the last piece ended
                    if piece is not None:
                        yield piece
                start = max(start, part.end)
        except READ_ERRORS as error:
            if not retry.should_retry(error, segment):
                raise
        else:
            return
