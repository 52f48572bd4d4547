"""A long range of a log as one Arrow table, read by several threads."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import SegmentGoneError
from stratalog.log.read.columns import read_planned_arrow
from stratalog.log.read.read_plan import ReadPlan, plan_read
from stratalog.log.read.retry_read import ViewSource
from stratalog.model.arrow import arrow_table
from stratalog.segment.components import Components
from stratalog.segment.search import index_floor
from stratalog.segment.segment import Segment

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

_PIECE_READS: Final = 3  # reads of one piece: fewer than ARROW_READS, to get one batch of the table
_LEAST_PIECES: Final = 3  # with fewer pieces, waking a thread costs more than it saves


def read_table(
    views: ViewSource,
    components: Components,
    start: int,
    end: int | None,
    isolation: str,
    partition: int,
    columns: Sequence[str] | None = None,
) -> pyarrow.Table:
    """Return the records of ``read_arrow`` in one table.

    A long range on local disk is split into pieces of a few MiB, which ``limits.arrow.threads`` threads read. Raises
    the same errors as ``read_arrow``. If several pieces fail, the error of the first of them is raised.
    """
    threads = components.limits.arrow_threads
    plan = plan_read(views, components, start, end, isolation)
    spans: list[range] = []
    if threads > 1:
        with contextlib.suppress(SegmentGoneError):  # one thread then reads the whole range, with a newer view
            spans = pieces_of(plan, components, threads)

    def read(span: range) -> list[pyarrow.RecordBatch]:
        return list(read_planned_arrow(plan, views, components, span, partition, columns))

    results = components.env.helpers.results(spans or [plan.span], read, threads)
    return arrow_table(chain.from_iterable(results), columns)


class _Share(NamedTuple):
    """Offset range of a plan in one segment. ``size_bytes`` is estimated from the number of offsets."""

    segment: Segment
    span: range
    size_bytes: int


def pieces_of(plan: ReadPlan, components: Components, threads: int) -> list[range]:
    """Return the plan's offsets as pieces of similar size.

    The list is empty if the range is short, or if some of its offsets are in the tier: the tier reads ahead by itself.
    """
    shares = _shares(plan)
    total_bytes = sum(share.size_bytes for share in shares)
    pieces = -(-total_bytes // (_PIECE_READS * components.limits.read_bytes))
    if pieces < _LEAST_PIECES:
        return []
    if pieces > threads:  # a multiple of the threads: then all threads end at about the same time
        pieces = -(-pieces // threads) * threads
    cuts, first = [plan.span.start], 0
    for share in shares:
        numbers = range(-(-first * pieces // total_bytes), -(-(first + share.size_bytes) * pieces // total_bytes))
        for number in numbers:
            cut_offset = _find_cut(share, number * total_bytes // pieces - first, components)
            if cuts[-1] < cut_offset < plan.span.stop:
                cuts.append(cut_offset)
        first += share.size_bytes
    return [range(start, end) for start, end in pairwise([*cuts, plan.span.stop])]


def _shares(plan: ReadPlan) -> list[_Share]:
    """Return the shares of the plan's segments; empty if any offset of the plan is in the tier."""
    shares = list[_Share]()
    for segment, start, end, _ in plan.view.ranges(plan.span.start, plan.span.stop):
        if not isinstance(segment, Segment):
            return []
        offsets = max(segment.end_offset - segment.base_offset, end - start)
        shares.append(_Share(segment, range(start, end), segment.size_bytes * (end - start) // offsets))
    return shares


def _find_cut(share: _Share, distance_bytes: int, components: Components) -> int:
    """Return the offset of a batch start about ``distance_bytes`` into the share.

    Without an index entry, the result is the first offset of the share.
    """
    if distance_bytes <= 0:
        return share.span.start
    target_offset = share.span.start + len(share.span) * distance_bytes // share.size_bytes
    entry = index_floor(share.segment, target_offset, components)
    return share.span.start if entry is None else entry.offset + 1
