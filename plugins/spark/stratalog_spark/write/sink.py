"""The sink for batches and streams: tasks stage segments, and the driver publishes them by one commit per partition.

Spark passes the message of one successful attempt of each task to the driver. Only segments in these messages are
published; segments of other attempts are garbage. The commits of a micro-batch store the ids of the query and the batch
as a WriteMark. If the batch is repeated, partitions that already have its records are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog import TopicPartition
from stratalog.errors import ConfigError, StorageError, UnknownTopicError
from stratalog.writing import BulkWriter, Published, Stage, StagedSegment, WriteMark
from stratalog_spark.columns.kafka_columns import arrow_types
from stratalog_spark.columns.row_columns import (
    by_log,
    check_schema,
    columns_of,
    without_assigned,
    writable,
    written_names,
)
from stratalog_spark.options.table_options import is_kept
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.tasks.messages import Message
from stratalog_spark.tasks.worker import freeze_once
from stratalog_spark.write.open_writers import merge_ends, merger_of, open_writer

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER: Final = logging.getLogger(__name__)
_STAGE_BYTES: Final = 1 << 20  # size of the rows gathered for one partition before they are encoded
_GATHERED_BYTES: Final = 64 << 20  # limit for all partitions
_ROWS: Final = 10_000  # rows that Spark puts into an Arrow batch
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


_ArrowStreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
"""An Arrow writer from Spark 4.1 on."""


def check_append(*, overwrite: bool) -> None:
    """Raise ConfigError if ``overwrite`` is True: a log can only be appended to."""
    if overwrite:
        raise ConfigError('a log can only be appended to: use mode("append"), or output mode append or update')


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """Segments that one task staged, and the WriteMark of the write; None if the write has no mark."""

    staged: list[StagedSegment] = field(default_factory=list)
    mark: WriteMark | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _written, (_WRITTEN.pack((self.staged, self.mark)),)  # Spark pickles only this text


_WRITTEN: Final = Message[tuple[list[StagedSegment], WriteMark | None]](
    "written", tuple[list[StagedSegment], WriteMark | None]
)


def _written(text: str) -> Written:
    return Written(*_WRITTEN.unpack(text))


class _Places(dict[str, int]):
    """Number of partitions by topic, looked up once per topic."""

    def __init__(self, writer: BulkWriter) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, topic: str) -> int:
        self[topic] = self._writer.partitions(topic)
        return self[topic]


class _Task:
    """State of one task, which collects rows for each partition and encodes them in groups."""

    def __init__(self, options: SinkOptions, writer: BulkWriter, opened: ExitStack) -> None:
        self._options, self._writer, self._opened = options, writer, opened
        self._places = _Places(writer)
        self._stages: dict[TopicPartition, Stage] = {}
        self._waiting: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._sizes: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, which may be of several topics and partitions."""
        for place, rows in by_log(writable(batch), self._options.topic, self._places):
            log = TopicPartition(*place)
            self._waiting.setdefault(log, []).append(rows)
            self._sizes[log] = self._sizes.get(log, 0) + rows.nbytes
            if self._sizes[log] >= _STAGE_BYTES:
                self._encode(log)
        while sum(self._sizes.values()) > _GATHERED_BYTES:
            self._encode(max(self._sizes, key=self._sizes.__getitem__))

    def _encode(self, log: TopicPartition) -> None:
        if log not in self._stages:
            stage = self._writer.stage(log, compression=self._options.compression)
            self._stages[log] = self._opened.enter_context(stage)
        del self._sizes[log]
        for rows in self._waiting.pop(log):
            self._stages[log].add(columns_of(rows))

    def finish(self) -> list[StagedSegment]:
        """Encode the remaining rows, and return all staged segments."""
        for log in list(self._waiting):
            self._encode(log)
        return [found for stage in self._stages.values() for found in stage.finish()]


def stage(options: SinkOptions, batches: Iterator[pa.RecordBatch], mark: WriteMark | None) -> Written:
    """Stage the rows of one task. Return the message of the task for the driver.

    Errors are those of ``by_log`` and ``Stage.add``. After an error, the staged segments of the task are discarded. If
    the process of the task is killed, its staged segments remain as garbage.
    """
    freeze_once()
    with open_writer(options.target) as writer, ExitStack() as opened:
        task = _Task(options, writer, opened)
        for batch in batches:
            task.write(batch)
        staged = task.finish()
        opened.pop_all()
        return Written(staged, mark)


def publish(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    mark: WriteMark | None,
    *,
    merges_later: bool = False,
) -> list[Published]:
    """Publish the staged segments on the driver, by one commit per partition. Return a result for each partition.

    Small segments are merged afterwards.

    Args:
        options: options of the write.
        messages: messages of the tasks, whose segments are published in this order.
        mark: id of the writer and number of the write; None: a repeated call publishes the records twice.
        merges_later: True to merge in a thread of this process after the call, if the target is a tier.

    Raises:
        StorageError: a commit failed; the commits of other partitions are published. With a mark, a repeated call skips
            those partitions.
    """
    by_name = dict[TopicPartition, list[StagedSegment]]()
    for found in _staged(messages):
        by_name.setdefault(found.log, []).append(found)
    if not by_name:
        return []
    done = list[Published]()
    try:
        with open_writer(options.target) as writer:
            done = _append_all(writer, dict(sorted(by_name.items())), mark)
            if options.merge_bytes and not (merges_later and options.target.is_tier):
                merge_ends(writer, by_name, options.merge_bytes)
    except StorageError as error:
        if not done:
            raise
        # the records are published and durable; an error would ask for a repetition
        _LOGGER.warning("%s was not closed cleanly after a write: %s", options.target.location, error)
    if options.merge_bytes and merges_later and options.target.is_tier:
        merger_of(options.target).submit(by_name, options.merge_bytes)
    return done


def _append_all(
    writer: BulkWriter, staged: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None
) -> list[Published]:
    """Publish staged segments, and return a result for each log. Raise the first error after all commits."""
    outcomes = writer.append_all(staged, mark)
    done = [found for found in outcomes if isinstance(found, Published)]
    for log, outcome in zip(staged, outcomes, strict=True):
        if isinstance(outcome, Exception):
            there = ", ".join(str(found.log) for found in done) or "none"
            outcome.add_note(f"already published when it failed at {log}: {there}")
            raise outcome
    return done


def discard(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Discard the staged segments of a failed write. Published segments stay."""
    staged = _staged(messages)
    if staged:
        with options.target.open() as writer:
            writer.discard(staged)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedSegment]:
    return [found for message in messages if isinstance(message, Written) for found in message.staged]


def _prepare(options: SinkOptions, schema: StructType) -> None:
    """Raise on the driver the errors that every task or the commit would raise. Log columns that are not written.

    If option ``partitions`` is set, a missing topic is created.
    """
    check_schema(schema, options.topic)
    options.warn_of_ignored()
    left_out = sorted(set(schema.names) - set(written_names(schema.names)))
    if left_out:
        _LOGGER.warning("columns that are not written: %s", ", ".join(left_out))
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
    """Writer for ``df.write``. Spark creates it once per write on the driver, and copies it to the tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _prepare(options, schema)
        self._options, self._of_table = options, is_kept(schema) or bool(options.catalog)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task, and return its message for the driver."""
        batches = map(without_assigned, iterator) if self._of_table else iterator
        return stage(self._options, batches, self._options.mark)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the segments that the tasks staged, by one commit per partition."""
        publish(self._options, messages, self._options.mark)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the segments that the tasks staged. Published segments stay."""
        discard(self._options, messages)


class StreamWriter(_ArrowStreamWriter):
    """Writer for ``df.writeStream``. Spark creates it once per commit.

    Only tasks know the ids of query and batch, so their messages contain these ids.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _prepare(options, schema)
        self._options, self._schema = options, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task, and return its message for the driver."""
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY)
        number = context and context.getLocalProperty(_BATCH)
        if query is None or number is None:
            raise ConfigError("a task of a stream has no query id and batch id: this release of Spark is not supported")
        return stage(self._options, as_arrow(iterator, self._schema), WriteMark(query, int(number)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the segments that the tasks of the micro-batch ``batchId`` staged, by one commit per partition.

        Raises:
            ConfigError: a message is of another micro-batch.
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


def as_arrow(given: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the input of a sink as Arrow batches. Before Spark 4.1, the input of streams is rows, which are converted.

    A converted batch contains only the columns that are written.
    """
    import pyarrow as pa  # noqa: PLC0415 - comes with Spark's extra

    kinds, names = arrow_types(pa), written_names(schema.names)
    wanted = pa.schema([(names[name], kinds[schema[name].dataType.simpleString()]) for name in names])
    rest = iter(given)
    while taken := list(islice(rest, 1)):
        if isinstance(taken[0], pa.RecordBatch):
            yield taken[0]
            continue
        taken.extend(islice(rest, _ROWS - 1))
        plain = [_plain(row.asDict(recursive=True), names) for row in taken]
        yield pa.RecordBatch.from_pylist(plain, schema=wanted)


def _plain(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the written columns of a row. The timestamp, which Spark passes as local time, gets a time zone."""
    row = {names[name]: given[name] for name in names}
    stamp = row.get("timestamp")
    return row if stamp is None else {**row, "timestamp": stamp.astimezone()}
