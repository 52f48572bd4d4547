"""Checking a whole tier in parallel: every root and object, every index, and of every segment its hash and all CRCs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from stratalog.reading import Check, Checked, ReadSource, check, plan_checks
from stratalog_spark.jobs.tasks import Progress, run_tasks, source_of, task_count
from stratalog_spark.messages import Message

ORPHAN = "orphan"


_CHECK: Final = Message[Check]("check", Check)
_CHECKED: Final = Message[tuple[int, int, list[Checked]]]("checked", tuple[int, int, list[Checked]])


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check of a tier found.

    ``wrong`` is what a reader suffers from; ``orphans`` are objects that no manifest names, which wait for the collector.
    ``size_bytes`` is how much of ``.log`` files was read.
    """

    logs: int
    segments: int
    size_bytes: int
    wrong: tuple[Checked, ...]
    orphans: tuple[Checked, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong


def verify(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str] | None = None,
    deep: bool = True,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a tier as it is now; changes nothing.

    The driver looks at roots and pages and lists the objects; the executors read what is in them. What is damaged hides
    nothing else.

    Args:
        spark: a session, classic or Connect.
        tier: its URI, or a source with credentials.
        topics: only these.
        deep: read every ``.log`` file, too: its hash, and each batch. Else only what stands beside it.
        progress: told of tasks.

    Raises:
        ConfigError: it is no tier.
        UnknownTopicError: a topic is not there.
        StoreError: the tier cannot be read by the driver.
        SparkJobError: nor by a task.
    """
    source = source_of(tier)
    plan = plan_checks(source, topics=topics, deep=deep, checks=task_count(spark))

    def work(task: Check) -> tuple[int, int, list[Checked]]:
        return _look(source, task)

    done = run_tasks(spark, plan.checks, work, task=_CHECK, result=_CHECKED, progress=progress)
    found = [*plan.found, *(item for _, _, items in done for item in items)]
    return VerifyReport(
        logs=len(plan.logs),
        segments=sum(segments for segments, _, _ in done),
        size_bytes=sum(size for _, size, _ in done),
        wrong=_sorted(item for item in found if item.finding.flaw != ORPHAN),
        orphans=_sorted(item for item in found if item.finding.flaw == ORPHAN),
    )


def _look(source: ReadSource, task: Check) -> tuple[int, int, list[Checked]]:
    segments, size_bytes, wrong = 0, 0, list[Checked]()
    for stored, found in check(source, task):
        segments, size_bytes = segments + 1, size_bytes + (stored.info.size_bytes if task.deep else 0)
        wrong += found
    return segments, size_bytes, wrong


def _sorted(found: Iterable[Checked]) -> tuple[Checked, ...]:
    order: Sequence[Checked] = sorted(found, key=lambda item: (item.log, item.finding.key, item.finding.position))
    return tuple(order)
