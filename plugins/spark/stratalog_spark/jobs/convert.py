"""Conversion of a tier's segments: to record batches of magic 2, to another codec, or to another layout."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from stratalog.reading import ReadSource
from stratalog.writing import BulkWriter, Rewritten
from stratalog_spark.jobs.runs import ReplaceJob, ReplaceReport, Run
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import TaskProgress


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

    ``compression`` is ``gzip``, ``snappy``, ``lz4``, ``zstd`` or ``uncompressed``. ``layout`` is the new layout of the
    segments; None means the layout in the topic's settings. The settings do not change. ``stratalog_spark.jobs``
    describes the other arguments.

    Raises:
        UnknownComponentError: the codec or layout does not exist.
        The errors of all jobs that replace segments; see ``stratalog_spark.jobs``.
    """
    job = ReplaceJob.of(spark, tier, take_over=take_over, progress=progress)

    def work(task_writer: BulkWriter, run: Run) -> Rewritten:
        return task_writer.recode(run.span, (run.start, run.end), compression=compression, layout=layout)

    with job.target.open() as writer, job.source.open(peek=True) as reader:
        logs = partitions_of_topics(reader, topics)
        for topic in sorted({log.topic for log in logs}):
            writer.check(topic, compression=compression, layout=layout)
        log_spans = (writer.span(log) for log in logs)
        spans = [span for span in log_spans if span is not None]
        return ReplaceReport(job.replace(reader, writer, spans, work, "converted by a job", keeps_others=True))
