"""Plans of reads: the ranges of offsets to read, and the segments on local disk and in the tier that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from stratalog.log.read.retry_read import READ_ERRORS, ReadRetry, ViewSource
from stratalog.log.read.view import LogView, ReadRange
from stratalog.model.offsets import Isolation
from stratalog.model.segment_info import AbortedTransaction
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import aborted_transactions

_T = TypeVar("_T")


class ReadPlan(NamedTuple):
    """Plan of one read.

    Attributes:
        view: the view at the start of the read.
        span: range of offsets.
        aborted: aborted transactions whose records are omitted.
        meets_damage: True if the read requests offsets after ``span``. If the view has ``damage``, the read then ends
            with this error.
    """

    view: LogView
    span: range
    aborted: tuple[AbortedTransaction, ...]
    meets_damage: bool


def plan_read(views: ViewSource, components: Components, start: int, end: int | None, isolation: str) -> ReadPlan:
    """Return the plan of a read of [start, end), up to the isolation's bound. ``start`` 0 means the log start.

    ``views`` returns the newest view. If a segment is removed or replaced while its transaction index is read, the plan
    is made again with a newer view.

    Raises:
        OffsetOutOfRangeError: ``start`` is below the log start (and not 0) or above the log end.
        ConfigError: ``isolation`` has an unknown value.
        StorageError: for read_committed, a transaction index cannot be read.
    """
    view, retry = views(), None
    while True:
        try:
            return _plan_view(view, components, start, end, isolation)
        except READ_ERRORS as error:
            retry = retry or ReadRetry(views, view)
            if not retry.should_retry(error, None):
                raise
            view = retry.view


def _plan_view(view: LogView, components: Components, start: int, end: int | None, isolation: str) -> ReadPlan:
    first_offset = start or view.offsets.log_start
    bound = view.checked_bound(first_offset, isolation)
    stop = bound if end is None else min(end, bound)
    aborted: tuple[AbortedTransaction, ...] = ()
    if isolation == Isolation.READ_COMMITTED:
        aborted = hidden_transactions(view, components, first_offset, stop)
    return ReadPlan(view, range(first_offset, stop), aborted, end is None or end > stop)


def hidden_transactions(view: LogView, components: Components, start: int, end: int) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions with data in [start, end), which readers of committed records omit."""
    return aborted_transactions(view.readable_from(start), start, end, components)


def read_all(
    views: ViewSource,
    view: LogView,
    span: range,
    read: Callable[[ReadRange], Iterator[tuple[_T | None, int]]],
) -> Iterator[_T]:
    """Yield the pieces that ``read`` yields for each range of the segments with offsets in ``span``.

    If a segment is removed or replaced during the read, continue with the newest view.

    Args:
        views: returns the newest view.
        view: the view that is read first.
        span: offsets to read.
        read: yields pieces of one range, or None, each with the offset at which a retry continues after the piece.
    """
    retry: ReadRetry | None = None
    start = span.start
    while True:
        segment: ReadableSegment | None = None
        try:
            for part in view.ranges(start, span.stop):
                segment = part.segment
                for piece, next_offset in read(part):
                    start = next_offset  # a retry begins where the last piece ended
                    if piece is not None:
                        yield piece
                start = max(start, part.end)
        except READ_ERRORS as error:
            retry = retry or ReadRetry(views, view)
            if not retry.should_retry(error, segment):
                raise
            view = retry.view
        else:
            return
