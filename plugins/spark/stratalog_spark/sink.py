"""The sink, for batches and streams: tasks stage, the driver publishes by one commit a partition.

Only what the attempt of a task staged that Spark admits is in the messages; what others staged is garbage. A streaming
round is marked with query and batch: done again, it is skipped where it is already.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.types import StructType

from stratalog import TopicPartition
from stratalog.errors import ConfigError, StorageError, UnknownTopicError
from stratalog.writing import BulkWriter, Published, Stage, StagedSegment, WriteMark
from stratalog_spark.arrowsink import ArrowStreamWriter, ArrowWriter, WriterCommitMessage, as_arrow
from stratalog_spark.messages import Message
from stratalog_spark.options import SinkOptions
from stratalog_spark.rowcolumns import by_log, check_schema, columns_of, writable
from stratalog_spark.tables import is_kept
from stratalog_spark.worker import freeze_once

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER: Final = logging.getLogger(__name__)
_STAGE_BYTES: Final = 1 << 20  # what is gathered for one partition before it is encoded
_GATHERED_BYTES: Final = 64 << 20  # and for all of them
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


def check_append(*, overwrite: bool) -> None:
    """Raise ConfigError if what is there should go: a log can only be appended to."""
    if overwrite:
        raise ConfigError('a log can only be appended to: mode("append"), or output mode append or update')


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What one task staged, and in which round."""

    staged: list[StagedSegment] = field(default_factory=list)
    mark: WriteMark | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _written, (_WRITTEN.pack((self.staged, self.mark)),)  # Spark pickles it: text alone


_WRITTEN: Final = Message[tuple[list[StagedSegment], WriteMark | None]](
    "written", tuple[list[StagedSegment], WriteMark | None]
)


def _written(text: str) -> Written:
    return Written(*_WRITTEN.unpack(text))


class _Places(dict[str, int]):
    """Partitions by topic, looked up once."""

    def __init__(self, writer: BulkWriter) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, topic: str) -> int:
        self[topic] = self._writer.partitions(topic)
        return self[topic]


class _Task:
    """One task: rows are gathered for each partition, and encoded some at a time."""

    def __init__(self, options: SinkOptions, writer: BulkWriter, opened: ExitStack) -> None:
        self._options, self._writer, self._opened = options, writer, opened
        self._places = _Places(writer)
        self._stages: dict[TopicPartition, Stage] = {}
        self._waiting: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._sizes: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
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
        """All that was staged."""
        for log in list(self._waiting):
            self._encode(log)
        return [found for stage in self._stages.values() for found in stage.finish()]


def stage(options: SinkOptions, batches: Iterator[pa.RecordBatch], mark: WriteMark | None) -> Written:
    """What a task does; whatever ends it early, what it staged goes, as far as the process lives to see to it."""
    freeze_once()
    with options.target.open() as writer, ExitStack() as opened:
        task = _Task(options, writer, opened)
        for batch in batches:
            task.write(batch)
        staged = task.finish()
        opened.pop_all()
        return Written(staged, mark)


def publish(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], mark: WriteMark | None
) -> list[Published]:
    """What the driver does: one commit a partition, in the order of the tasks; then small segments are merged.

    Raises:
        StorageError: one failed; those before it are there. With a mark, doing it again skips them.
    """
    by_name = dict[TopicPartition, list[StagedSegment]]()
    for found in _staged(messages):
        by_name.setdefault(found.log, []).append(found)
    done = list[Published]()
    if not by_name:
        return done
    with options.target.open() as writer:
        for log, staged in sorted(by_name.items()):
            try:
                done.append(writer.append(log, staged, mark))
            except StorageError as error:
                there = ", ".join(str(found.log) for found in done) or "none"
                error.add_note(f"published before it failed at {log}: {there}")
                raise
        for log in sorted(by_name) if options.merge_bytes else ():
            _merge_end(writer, log, options.merge_bytes)
    return done


def _merge_end(writer: BulkWriter, log: TopicPartition, limit_bytes: int) -> None:
    """Tidy up after many small rounds; what was published is there in any case, and the next round tries again."""
    try:
        writer.merge_end(log, limit_bytes)
    except StorageError as error:
        _LOGGER.warning("small segments of %s are not merged: %s", log, error)


def discard(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """What a failed write leaves goes; what was published stays."""
    staged = _staged(messages)
    if staged:
        with options.target.open() as writer:
            writer.discard(staged)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedSegment]:
    return [found for message in messages if isinstance(message, Written) for found in message.staged]


def _prepare(options: SinkOptions, schema: StructType) -> None:
    """Raise on the driver, before a task begins, what would keep every task or the commit from its work."""
    check_schema(schema, options.topic, of_table=is_kept(schema))
    with options.target.open() as writer:
        if options.topic is None:
            return
        if options.partitions is not None:
            writer.create_topic(options.topic, options.partitions)
        try:
            writer.check(options.topic, compression=options.compression)
        except UnknownTopicError as error:
            raise UnknownTopicError(
                f"there is no topic {options.topic} in {options.target.location}: option partitions makes it"
            ) from error


class BatchWriter(ArrowWriter):
    """For ``df.write``. Made once a write, in a process of the driver, and copied to the tasks."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _prepare(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Carry out one task."""
        return stage(self._options, iterator, self._options.mark)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish."""
        publish(self._options, messages, self._options.mark)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Clean up."""
        discard(self._options, messages)


class StreamWriter(ArrowStreamWriter):
    """For ``df.writeStream``. Made anew for each commit: tasks alone know the query, and tell in their messages."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _prepare(options, schema)
        self._options, self._schema = options, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Carry out one task."""
        context = TaskContext.get()
        query = context and context.getLocalProperty(_QUERY)
        number = context and context.getLocalProperty(_BATCH)
        if query is None or number is None:
            raise ConfigError("a task of a stream that does not know its query and batch: this Spark is not supported")
        return stage(self._options, as_arrow(iterator, self._schema), WriteMark(query, int(number)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the round ``batchId``."""
        marks = {message.mark for message in messages if isinstance(message, Written)}
        if len(marks) > 1 or any(mark is None or mark.number != batchId for mark in marks):
            raise ConfigError(f"the tasks of batch {batchId} wrote for other rounds: {marks}")
        publish(self._options, messages, next(iter(marks), None))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Clean up."""
        del batchId
        discard(self._options, messages)
