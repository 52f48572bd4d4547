"""Many small segments of a tier as fewer large ones: their batches one behind the other, and not a byte of them changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.writing import MergePlan, Rewritten, Span
from stratalog_spark.jobs.runs import LARGEST_RUN_BYTES, SMALLEST_RUN_BYTES, Replaced, publish, target_of
from stratalog_spark.jobs.tasks import Progress, run_tasks, source_of, task_count
from stratalog_spark.messages import REWRITTEN, Message
from stratalog_spark.ranges import topics_of

SEGMENT_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What was done to each log; those in which nothing had to be are not there."""

    logs: tuple[Replaced, ...]


@dataclass(frozen=True, slots=True)
class _Groups:
    """What one task merges: groups of a span, as a plan has them."""

    span: Span
    groups: tuple[tuple[int, int], ...]


_GROUPS: Final = Message[_Groups]("groups", _Groups)


def merge(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    take_over: bool = False,
    progress: Progress | None = None,
) -> MergeReport:
    """Make larger segments of small closed ones that lie beside each other, by one commit a partition.

    Batches, offsets and markers stay as they are. A segment is small up to half of what is made; larger ones stay, and so
    does everything when it is run again. What retention treats apart stays apart: segments of one span of ``segment.ms``,
    and either compacted or not, become one.

    Args:
        spark: a session, classic or Connect.
        tier: its URI, or a source with credentials.
        topics: only these; None is all.
        segment_bytes: of what is made, at most; a topic's ``segment.bytes`` bounds it, too.
        take_over: an engine that wrote to the tier is no more; it is fenced.
        progress: told of tasks.

    Raises:
        As ``compact``.
    """
    if segment_bytes < 1:
        raise ConfigError(f"segments have 1 byte or more, not {segment_bytes}")
    source = source_of(tier)
    target = target_of(source, take_over=take_over)

    def work(given: _Groups) -> Rewritten:
        with target.open() as opened:
            return opened.merge(given.span, given.groups)

    with target.open() as writer, source.open(peek=True) as reader:
        found = (writer.plan_merge(log, segment_bytes) for log in topics_of(reader, topics))
        plans = [plan for plan in found if plan is not None]
        tasks = list(_shared(plans, task_count(spark)))
        parts = run_tasks(spark, tasks, work, task=_GROUPS, result=REWRITTEN, progress=progress)
        spans = [plan.span for plan in plans]
        return MergeReport(publish(writer, spans, tasks, parts, "merged by a job", keeps_others=True))


def _shared(plans: Sequence[MergePlan], tasks: int) -> Iterator[_Groups]:
    """The groups of all plans, some neighbours a task: of 4 to 128 MiB, as many tasks as are wanted if they are so large."""
    total = sum(size_bytes for plan in plans for _, _, size_bytes in plan.groups)
    wanted = min(max(-(-total // max(tasks, 1)), SMALLEST_RUN_BYTES), LARGEST_RUN_BYTES)
    for plan in plans:
        held, groups = 0, list[tuple[int, int]]()
        for start, end, size_bytes in plan.groups:
            if groups and held + size_bytes > wanted:
                yield _Groups(plan.span, tuple(groups))
                held, groups = 0, []
            groups.append((start, end))
            held += size_bytes
        yield _Groups(plan.span, tuple(groups))
