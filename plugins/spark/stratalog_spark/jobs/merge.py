"""Merge of many small segments of a tier into fewer large segments. Record batches do not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.writing import BulkWriter, MergePlan, Rewritten
from stratalog_spark.jobs.runs import Groups, ReplaceJob, ReplaceReport, publish, run_bytes
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import TaskProgress, task_count

SEGMENT_BYTES: Final = 128 << 20


def merge(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    take_over: bool = False,
    progress: TaskProgress | None = None,
) -> ReplaceReport:
    """Merge small neighbouring closed segments into larger segments, by one commit for each partition.

    Record batches, offsets and markers do not change. A segment is small if its size is at most half of the target
    size. Larger segments are not merged, so a repeated job changes nothing. Segments are merged only if their
    timestamps are in one interval of ``segment.ms``, and if either all or none of them are compacted: retention then
    treats them equally.

    ``segment_bytes`` is the maximum size of a merged segment, at least 1. The topic's ``segment.bytes`` is a second
    limit. ``stratalog_spark.jobs`` describes the other arguments and the errors.
    """
    if segment_bytes < 1:
        raise ConfigError(f"the segment size must be at least 1 byte, not {segment_bytes}")
    job = ReplaceJob.of(spark, tier, take_over=take_over, progress=progress)

    def work(task_writer: BulkWriter, task_groups: Groups) -> Rewritten:
        return task_writer.merge(task_groups.span, task_groups.groups)

    with job.target.open() as writer, job.source.open(peek=True) as reader:
        log_plans = (writer.plan_merge(log, segment_bytes) for log in partitions_of_topics(reader, topics))
        plans = [plan for plan in log_plans if plan is not None]
        tasks = list(_group_tasks(plans, task_count(spark)))
        parts = job.rewrite(tasks, work, Groups)
        spans = [plan.span for plan in plans]
        return ReplaceReport(publish(writer, spans, parts, "merged by a job", keeps_others=True))


def _group_tasks(plans: Sequence[MergePlan], tasks: int) -> Iterator[Groups]:
    """Yield the input of each task: neighbouring groups of a plan, of about equal size for ``tasks`` tasks.

    ``run_bytes`` is the target size. The last input of a plan may be smaller, and that of a single group may be larger.
    """
    target_bytes = run_bytes(sum(size_bytes for plan in plans for _, _, size_bytes in plan.groups), tasks)
    for plan in plans:
        group_bytes, groups = 0, list[tuple[int, int]]()
        for start, end, size_bytes in plan.groups:
            if groups and group_bytes + size_bytes > target_bytes:
                yield Groups(plan.span, tuple(groups))
                group_bytes, groups = 0, []
            groups.append((start, end))
            group_bytes += size_bytes
        yield Groups(plan.span, tuple(groups))
