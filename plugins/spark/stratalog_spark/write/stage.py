"""Conversion of rows to staged segments, in the tasks of a write. Only tasks import it: pyarrow is slow to import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from stratalog import TopicPartition
from stratalog.writing import BulkWriter, Stage, StagedSegment
from stratalog_spark.columns.kafka_columns import written_names
from stratalog_spark.columns.row_columns import convert_rows, select_written, split_by_log
from stratalog_spark.columns.scanned_rows import ARROW_TYPES
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.tasks.worker import freeze_once
from stratalog_spark.write.open_writers import open_writer

_STAGE_BYTES: Final = 1 << 20  # size of the rows gathered for one partition before they are encoded
_GATHERED_BYTES: Final = 64 << 20  # limit for the gathered rows of all partitions
_ROWS: Final = 10_000  # rows that Spark puts into an Arrow batch


def stage(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> list[StagedSegment]:
    """Stage the rows of one task, and return the staged segments.

    Raises the errors of ``split_by_log`` and ``Stage.add``. After an error, the staged segments of the task are
    discarded. If the process of the task is killed, its staged segments remain as garbage.
    """
    freeze_once()
    with open_writer(options.target) as writer, ExitStack() as stack:
        task = _Task(options, writer, stack)
        for batch in batches:
            task.write(batch)
        segments = task.finish()
        stack.pop_all()
        return segments


class _Task:
    """State of one task, which collects rows for each partition and encodes them in groups."""

    def __init__(self, options: SinkOptions, writer: BulkWriter, stack: ExitStack) -> None:
        self._options, self._writer, self._stack = options, writer, stack
        self._partitions = cache(writer.partitions)
        self._stages: dict[TopicPartition, Stage] = {}
        self._waiting: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._sizes: dict[TopicPartition, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, which may be of several topics and partitions."""
        for log, rows in split_by_log(select_written(batch), self._options.topic, self._partitions):
            self._waiting.setdefault(log, []).append(rows)
            self._sizes[log] = self._sizes.get(log, 0) + rows.nbytes
            if self._sizes[log] >= _STAGE_BYTES:
                self._encode(log)
        while sum(self._sizes.values()) > _GATHERED_BYTES:
            self._encode(max(self._sizes, key=self._sizes.__getitem__))

    def _encode(self, log: TopicPartition) -> None:
        if log not in self._stages:
            stage = self._writer.stage(log, compression=self._options.compression)
            self._stages[log] = self._stack.enter_context(stage)
        del self._sizes[log]
        for rows in self._waiting.pop(log):
            self._stages[log].add(convert_rows(rows))

    def finish(self) -> list[StagedSegment]:
        """Encode the remaining rows, and return all staged segments."""
        for log in list(self._waiting):
            self._encode(log)
        return [segment for stage in self._stages.values() for segment in stage.finish()]


def convert_to_arrow(items: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the input of a sink as Arrow batches. Before Spark 4.1, the input of streams is rows: convert them.

    A converted batch contains only the columns that are written.
    """
    names = written_names(schema.names)
    arrow_schema = pa.schema([(names[name], ARROW_TYPES[schema[name].dataType.simpleString()]) for name in names])
    remaining = iter(items)
    while rows := list(islice(remaining, 1)):
        if isinstance(rows[0], pa.RecordBatch):
            yield rows[0]
            continue
        rows.extend(islice(remaining, _ROWS - 1))
        converted = [_select_columns(row.asDict(recursive=True), names) for row in rows]
        yield pa.RecordBatch.from_pylist(converted, schema=arrow_schema)


def _select_columns(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of a row that the sink writes.

    The timestamp gets a time zone, because Spark passes local time without one.
    """
    row = {names[name]: values[name] for name in names}
    timestamp = row.get("timestamp")
    return row if timestamp is None else {**row, "timestamp": timestamp.astimezone()}
