"""Conversion of a tier's segments: to record batches of magic 2, to another codec, or to another layout."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from stratalog.reading import ReadSource
from stratalog.writing import BulkWriter, ReplaceSpan, Rewritten
from stratalog_spark.jobs.runs import ReplaceReport, Run, plan_runs, publish, rewrite, target_of
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import TaskProgress, source_of, task_count


def convert(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str],
    compression: str | None = None,
    layout: str | None = None,
    take_over: bool = False,
    progress: TaskProgress | None = None,
) -> ReplaceReport:
    """Convert closed segments of topics to record batches of magic 2, and to another codec or layout if requested.

    The records do not change. Messages of magic 0 and 1 keep their timestamps, with the timestamp type CreateTime. With
    ``compression``, batches of magic 2 in other codecs are recompressed. Otherwise batches of magic 2 do not change.
    Control batches never change. A batch that compaction has changed stays unchanged if it has a delete horizon, or no
    record at its first or last offset. Segments in which nothing changes are only read.

    Args:
        spark: a session, classic or Connect.
        tier: URI of the tier, or a source with credentials.
        topics: topics to convert. All their partitions are converted.
        compression: ``gzip``, ``snappy``, ``lz4``, ``zstd`` or ``uncompressed``. If it is None, batches of magic 2 do
            not change.
        layout: new layout of the segments; None means the layout in the topic's settings. The settings do not change.
        take_over: fence the engine that wrote to the tier; use it only after that engine has stopped.
        progress: called with the numbers of completed tasks and of all tasks.

    Raises:
        ConfigError: ``tier`` is not a tier.
        UnknownTopicError: a topic does not exist.
        FencedEpochError: an engine writes to a topic, or has records that are not in the tier.
        StorageError: another program replaced segments of a log while the job ran. The job did not change this log. Run
            the job again.
        SparkJobError: a task failed; nothing was changed.
        UnknownComponentError: the codec or layout does not exist.
    """
    source = source_of(tier)
    target = target_of(source, take_over=take_over)

    def work(task_writer: BulkWriter, run: Run) -> Rewritten:
        return task_writer.recode(run.span, (run.start, run.end), compression=compression, layout=layout)

    with target.open() as writer, source.open(peek=True) as reader:
        logs = partitions_of_topics(reader, topics)
        for topic in sorted({log.topic for log in logs}):
            writer.check(topic, compression=compression, layout=layout)
        log_spans = (writer.span(log) for log in logs)
        spans: list[ReplaceSpan] = [span for span in log_spans if span is not None]
        runs = plan_runs(reader, spans, tasks=task_count(spark))
        parts = rewrite(spark, target, runs, work, task=Run, progress=progress)
        return ReplaceReport(publish(writer, spans, parts, "converted by a job", keeps_others=True))
