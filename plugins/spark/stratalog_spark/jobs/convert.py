"""Old records in today's format: a tier's segments in record batches of magic 2, in another codec, in another layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from stratalog.reading import ReadSource
from stratalog.writing import Rewritten, Span
from stratalog_spark.jobs.runs import RUN, Replaced, Run, plan_runs, publish, target_of
from stratalog_spark.jobs.tasks import Progress, run_tasks, source_of, task_count
from stratalog_spark.messages import REWRITTEN
from stratalog_spark.ranges import topics_of


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What was done to each log; those in which nothing had to be are not there."""

    logs: tuple[Replaced, ...]


def convert(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str],
    compression: str | None = None,
    layout: str | None = None,
    take_over: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Write closed segments of topics anew that are not as asked for: each record as it was, in record batches of magic 2.

    Messages of magic 0 and 1 get a producer's timestamp, the one that they have. Batches of magic 2 stay as they are unless
    ``compression`` is given; then those in other codecs get that one, but control batches and those that compaction left
    in part. Segments in which nothing changes are read and stay: run again, it does what came since, or what is left.

    Args:
        spark: a session, classic or Connect.
        tier: its URI, or a source with credentials.
        topics: all of each.
        compression: ``gzip``, ``snappy``, ``lz4``, ``zstd`` or ``uncompressed``; None leaves batches of magic 2.
        layout: how segments are stored from now on; None is as the topic says. Its setting stays what it is.
        take_over: an engine that wrote to the tier is no more; it is fenced.
        progress: told of tasks.

    Raises:
        As ``compact``.
        UnknownComponentError: there is no such codec, or layout.
    """
    source = source_of(tier)
    target = target_of(source, take_over=take_over)

    def work(run: Run) -> Rewritten:
        with target.open() as opened:
            return opened.recode(run.span, (run.start, run.end), compression=compression, layout=layout)

    with target.open() as writer, source.open(peek=True) as reader:
        logs = topics_of(reader, topics)
        for topic in sorted({log.topic for log in logs}):
            writer.check(topic, compression=compression, layout=layout)
        found = (writer.span(log) for log in logs)
        spans: list[Span] = [span for span in found if span is not None]
        runs = plan_runs(reader, spans, tasks=task_count(spark))
        parts = run_tasks(spark, runs, work, task=RUN, result=REWRITTEN, progress=progress)
        return ConvertReport(publish(writer, spans, runs, parts, "converted by a job", keeps_others=True))
