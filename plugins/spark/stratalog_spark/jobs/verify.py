"""Parallel check of a whole tier: every root, object and index, and the hash and all CRCs of every segment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from stratalog import TopicPartition
from stratalog.reading import Check, Finding, ReadSource, check, plan_checks
from stratalog_spark.tasks.run_tasks import TaskProgress, run_tasks, source_of, task_count

ORPHAN: Final = "orphan"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of a check of a tier.

    ``wrong`` contains problems that affect readers. ``orphans`` contains objects that no manifest names; the collector
    will delete these objects. ``size_bytes`` is the size of the ``.log`` files that were read.
    """

    logs: int
    segments: int
    size_bytes: int
    wrong: tuple[Finding, ...]
    orphans: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if ``wrong`` is empty."""
        return not self.wrong


def verify(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str] | None = None,
    deep: bool = True,
    progress: TaskProgress | None = None,
) -> VerifyReport:
    """Check the current state of a tier without changing it.

    The driver checks roots and pages, and lists the objects. The tasks read the objects. If an object is damaged, the
    other objects are still checked.

    If ``deep`` is True, the tasks read every ``.log`` file, and check its hash and each batch. Otherwise they check
    only manifests, sizes and indexes. ``stratalog_spark.jobs`` describes the other arguments.

    Raises:
        ConfigError: ``tier`` is not a tier.
        UnknownTopicError: a topic does not exist.
        StoreError: the driver cannot read the tier.
        SparkJobError: a task cannot read the tier.
    """
    source = source_of(tier)
    plan = plan_checks(source, topics=topics, deep=deep, checks=task_count(spark))

    def run_check(task: Check) -> tuple[int, int, list[Finding]]:
        segments, size_bytes, findings = 0, 0, list[Finding]()
        for segment, segment_findings in check(source, task):
            segments, size_bytes = segments + 1, size_bytes + (segment.info.size_bytes if task.deep else 0)
            findings += segment_findings
        return segments, size_bytes, findings

    results = run_tasks(
        spark, plan.checks, run_check, task=Check, result=tuple[int, int, list[Finding]], progress=progress
    )
    findings = sorted([*plan.found, *(item for _, _, items in results for item in items)], key=_place_of)
    return VerifyReport(
        logs=len(plan.logs),
        segments=sum(segments for segments, _, _ in results),
        size_bytes=sum(size for _, size, _ in results),
        wrong=tuple(item for item in findings if item.kind != ORPHAN),
        orphans=tuple(item for item in findings if item.kind == ORPHAN),
    )


def _place_of(finding: Finding) -> tuple[TopicPartition, str, int]:
    assert finding.log is not None, "each finding of a tier has its log"
    return finding.log, finding.place, finding.position
