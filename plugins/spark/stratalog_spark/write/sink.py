"""The sink for batches and streams: tasks stage segments, and the driver publishes them by one commit per partition.

For each task, Spark passes the message of one successful attempt to the driver. Only segments in these messages are
published. Segments of other attempts are garbage. The commits of a micro-batch store the ids of the query and of the
micro-batch as a WriteMark. If the micro-batch is repeated, partitions that already have its records are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog import TopicPartition
from stratalog.errors import ConfigError, StorageError, UnknownTopicError
from stratalog.writing import BulkWriter, Published, StagedSegment, WriteMark
from stratalog_spark.columns.kafka_columns import check_schema, written_names
from stratalog_spark.options.table_options import has_table_options
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.tasks.messages import Message
from stratalog_spark.write.open_writers import merge_ends, merger_of, open_writer

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER: Final = logging.getLogger(__name__)
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


_ArrowStreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
"""Base class of the stream writer; from Spark 4.1 on, a writer of Arrow batches."""


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """Segments that one task staged, and the WriteMark of the write. The mark is None if the write has no mark."""

    staged: list[StagedSegment] = field(default_factory=list)
    mark: WriteMark | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _unpack_written, (_WRITTEN.pack((self.staged, self.mark)),)  # Spark pickles only this text


_WRITTEN: Final = Message(tuple[list[StagedSegment], WriteMark | None])


def _unpack_written(text: str) -> Written:
    return Written(*_WRITTEN.unpack(text))


def publish(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    mark: WriteMark | None,
    *,
    merges_later: bool = False,
) -> list[Published]:
    """Publish the staged segments on the driver, by one commit per partition. Return a result for each partition.

    The segments of the tasks are published in the order of ``messages``. If ``mark`` is None, a repeated call publishes
    the records twice. Small segments are merged afterwards; if ``merges_later`` is True, those of a tier are merged in
    another thread of this process, after the call.

    Raises:
        StorageError: a commit failed. The commits of other partitions are published. If ``mark`` is not None, a
            repeated call skips these partitions.
    """
    segments_by_log = dict[TopicPartition, list[StagedSegment]]()
    for segment in _collect_segments(messages):
        segments_by_log.setdefault(segment.log, []).append(segment)
    if not segments_by_log:
        return []
    merges_later = merges_later and options.target.is_tier
    published = list[Published]()
    try:
        with open_writer(options.target) as writer:
            published = _append_all(writer, dict(sorted(segments_by_log.items())), mark)
            if options.merge_bytes and not merges_later:
                merge_ends(writer, segments_by_log, options.merge_bytes)
    except StorageError as error:
        if not published:
            raise
        # the records are published and durable; after an error, the caller would repeat the write
        _LOGGER.warning("%s was not closed cleanly after a write: %s", options.target.location, error)
    if options.merge_bytes and merges_later:
        merger_of(options.target).submit(segments_by_log, options.merge_bytes)
    return published


def _append_all(
    writer: BulkWriter, segments_by_log: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None
) -> list[Published]:
    """Publish staged segments, and return a result for each log. Raise the first error after all commits."""
    outcomes = writer.append_all(segments_by_log, mark)
    published = [result for result in outcomes if isinstance(result, Published)]
    for log, outcome in zip(segments_by_log, outcomes, strict=True):
        if isinstance(outcome, Exception):
            published_logs = ", ".join(str(result.log) for result in published) or "none"
            outcome.add_note(f"already published when it failed at {log}: {published_logs}")
            raise outcome
    return published


def discard(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Discard the staged segments of a failed write. Published segments stay."""
    segments = _collect_segments(messages)
    if segments:
        with options.target.open() as writer:
            writer.discard(segments)


def _collect_segments(messages: Sequence[WriterCommitMessage | None]) -> list[StagedSegment]:
    return [segment for message in messages if isinstance(message, Written) for segment in message.staged]


def _prepare(options: SinkOptions, schema: StructType) -> None:
    """Raise on the driver, before tasks start, the errors that every task or the commit would raise.

    Log the names of columns that are not written. If option ``partitions`` is set, create the topic if it is missing.
    """
    check_schema(schema, options.topic)
    options.warn_of_ignored()
    ignored = sorted(set(schema.names) - set(written_names(schema.names)))
    if ignored:
        _LOGGER.warning("columns that are not written: %s", ", ".join(ignored))
    with open_writer(options.target) as writer:
        if options.topic is None:
            return
        if options.partitions is not None:
            writer.create_topic(options.topic, options.partitions)
        try:
            writer.check(options.topic, compression=options.compression)
        except UnknownTopicError as error:
            raise UnknownTopicError(
                f"there is no topic {options.topic} in {options.target.location}: add option partitions to create it"
            ) from error


class BatchWriter(DataSourceArrowWriter):
    """Writer for ``df.write``. Spark creates one writer for each write on the driver, and copies it to the tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _prepare(options, schema)
        self._options, self._is_of_table = options, has_table_options(schema) or bool(options.catalog)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task, and return its message for the driver."""
        from stratalog_spark.columns.row_columns import check_assigned_columns  # noqa: PLC0415 - imports pyarrow
        from stratalog_spark.write.stage import stage  # noqa: PLC0415 - the same

        batches = map(check_assigned_columns, iterator) if self._is_of_table else iterator
        return Written(stage(self._options, batches), self._options.mark)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the segments that the tasks staged, by one commit per partition."""
        publish(self._options, messages, self._options.mark)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the segments that the tasks staged. Published segments stay."""
        discard(self._options, messages)


class StreamWriter(_ArrowStreamWriter):
    """Writer for ``df.writeStream``.

    For each micro-batch, Spark creates one writer for the tasks, and another writer for the commit or the abort. Only
    tasks know the ids of the query and of the micro-batch, so their messages contain these ids for the other writer.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _prepare(options, schema)
        self._options, self._schema = options, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task, and return its message for the driver."""
        from stratalog_spark.write.stage import convert_to_arrow, stage  # noqa: PLC0415 - imports pyarrow

        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY)
        number = context and context.getLocalProperty(_BATCH)
        if query is None or number is None:
            raise ConfigError("a task of a stream has no query id and batch id: this release of Spark is not supported")
        return Written(stage(self._options, convert_to_arrow(iterator, self._schema)), WriteMark(query, int(number)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the segments that the tasks of the micro-batch ``batchId`` staged, by one commit per partition.

        Raises:
            ConfigError: a message belongs to another micro-batch.
            StorageError: a commit failed; the commits of other partitions are published.
        """
        marks = {message.mark for message in messages if isinstance(message, Written)}
        if len(marks) > 1 or any(mark is None or mark.number != batchId for mark in marks):
            raise ConfigError(f"the tasks of batch {batchId} wrote for other rounds: {marks}")
        publish(self._options, messages, next(iter(marks), None), merges_later=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Discard the segments that the tasks staged. Published segments stay."""
        del batchId
        discard(self._options, messages)
