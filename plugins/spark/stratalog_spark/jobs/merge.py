"""Merge of many small segments of a tier into fewer large segments. Record batches do not change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.reading import ReadSource
from stratalog.writing import BulkWriter, MergePlan, Rewritten
from stratalog_spark.jobs.runs import (
    LARGEST_RUN_BYTES,
    SMALLEST_RUN_BYTES,
    Groups,
    ReplaceReport,
    publish,
    rewrite,
    target_of,
)
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import TaskProgress, source_of, task_count

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

    Args:
        spark: a session, classic or Connect.
        tier: URI of the tier, or a source with credentials.
        topics: topics whose segments are merged; None means all topics.
        segment_bytes: maximum size of a merged segment. The topic's ``segment.bytes`` is a second limit.
        take_over: fence the engine that wrote to the tier; use it only after that engine has stopped.
        progress: called with the numbers of completed tasks and of all tasks.

    Raises:
        ConfigError: ``tier`` is not a tier, or ``segment_bytes`` is below 1.
        UnknownTopicError: a topic does not exist.
        FencedEpochError: an engine writes to a topic, or has records that are not in the tier.
        StorageError: another program replaced segments of a log while the job ran. The job did not change this log. Run
            the job again.
        SparkJobError: a task failed; nothing was changed.
    """
    if segment_bytes < 1:
        raise ConfigError(f"the segment size must be at least 1 byte, not {segment_bytes}")
    source = source_of(tier)
    target = target_of(source, take_over=take_over)

    def work(task_writer: BulkWriter, task_groups: Groups) -> Rewritten:
        return task_writer.merge(task_groups.span, task_groups.groups)

    with target.open() as writer, source.open(peek=True) as reader:
        log_plans = (writer.plan_merge(log, segment_bytes) for log in partitions_of_topics(reader, topics))
        plans = [plan for plan in log_plans if plan is not None]
        tasks = list(_group_tasks(plans, task_count(spark)))
        parts = rewrite(spark, target, tasks, work, task=Groups, progress=progress)
        spans = [plan.span for plan in plans]
        return ReplaceReport(publish(writer, spans, parts, "merged by a job", keeps_others=True))


def _group_tasks(plans: Sequence[MergePlan], tasks: int) -> Iterator[Groups]:
    """Yield the input of each task: neighbouring groups of a plan, of about equal size for ``tasks`` tasks.

    The size is at least 4 MiB and at most 128 MiB. The last input of a plan may be smaller, and that of a single group
    may be larger.
    """
    total = sum(size_bytes for plan in plans for _, _, size_bytes in plan.groups)
    target_bytes = min(max(-(-total // max(tasks, 1)), SMALLEST_RUN_BYTES), LARGEST_RUN_BYTES)
    for plan in plans:
        group_bytes, groups = 0, list[tuple[int, int]]()
        for start, end, size_bytes in plan.groups:
            if groups and group_bytes + size_bytes > target_bytes:
                yield Groups(plan.span, tuple(groups))
                group_bytes, groups = 0, []
            groups.append((start, end))
            group_bytes += size_bytes
        yield Groups(plan.span, tuple(groups))
