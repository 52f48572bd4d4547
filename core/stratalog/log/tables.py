"""A long range of a log as one Arrow table, read by several threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from stratalog.env.helpers import HELPERS
from stratalog.errors import CorruptIndexError
from stratalog.log.again import ViewSource
from stratalog.log.columns import Plan, planned, planned_arrow, read_arrow
from stratalog.model.arrow import arrow_table
from stratalog.segment.components import Components
from stratalog.segment.search import floor_offset
from stratalog.segment.segment import Segment

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_PIECE_READS: Final = 3  # one piece's: less than is read at a time, so that it is one batch of the table
_LEAST_PIECES: Final = 2  # of a thread: the last to finish is not waited for as long


def read_table(
    views: ViewSource, parts: Components, start: int, end: int | None, isolation: str, partition: int
) -> pyarrow.Table:
    """The records that ``read_arrow`` gives, in one table.

    What is long, and on local disk, is cut into pieces of some mebibytes, which ``limits.arrow.threads`` threads read.
    Each piece is a read of its own, with all checks, that begins with the batch before it: an index that lies about
    where to cut costs time. A thread that is kept waiting takes fewer pieces.

    Raises:
        As ``read_arrow``: of several things that are wrong, the first in the log.
    """
    threads = parts.limits.arrow_threads
    plan = planned(views, parts, start, end, isolation) if threads > 1 else None
    spans = [] if plan is None else _spans(plan, parts, threads)
    if plan is None or len(spans) < 2:
        return arrow_table(read_arrow(views, parts, start, end, isolation, partition))

    def read(span: range) -> list[pyarrow.RecordBatch]:
        return list(planned_arrow(plan, views, parts, span, partition))

    found = HELPERS.results(spans, read, threads)
    if plan.view.damage is not None and plan.meets_damage:
        raise plan.view.damage.with_traceback(None)
    return arrow_table(chain.from_iterable(found))


def _spans(plan: Plan, parts: Components, threads: int) -> list[range]:
    """The plan's offsets in pieces; none if some of them are in the tier, which reads ahead by itself."""
    wanted, spans = plan.span, list[range]()
    position = wanted.start
    while position < wanted.stop:
        segment = plan.view.segment_at(position)
        if not isinstance(segment, Segment):
            return []
        last = min(wanted.stop, max(segment.end_offset, position + 1))
        cuts = [position, *_cuts(segment, range(position, last), parts, threads), last]
        spans += [range(one, other) for one, other in pairwise(cuts)]
        position = last
    return spans


def _cuts(segment: Segment, span: range, parts: Components, threads: int) -> Iterator[int]:
    """Where to cut, ascending: as the index tells, before batches that begin at about the same distance."""
    offsets = segment.end_offset - segment.base_offset
    if offsets <= 0:
        return
    piece_bytes = _PIECE_READS * parts.limits.read_bytes
    wanted_bytes = segment.size_bytes * len(span) // offsets
    rounds = -(-wanted_bytes // (threads * piece_bytes))
    if rounds < _LEAST_PIECES:
        return
    count, last = rounds * threads, span.start
    for number in range(1, count):
        try:
            cut = floor_offset(segment, span.start + number * len(span) // count, parts)
        except CorruptIndexError:
            return
        if cut is not None and last < cut + 1 < span.stop:
            last = cut + 1
            yield last
