"""Conversion of rows that Spark writes into records. Only tasks import this module: numpy and pyarrow are slow to import.

The rows have the columns of Spark's Kafka sink, and a timestamp.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog import RecordColumns, TopicPartition
from stratalog.errors import InvalidRecordError
from stratalog_spark.columns.kafka_columns import HEADERS, READ_ONLY, written_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

Column: TypeAlias = Any  # pyarrow array; pyarrow's type stubs have no buffers
_HASHED_BYTES: Final = 1 << 18  # bytes hashed together: the array of indexes takes eight times as many bytes
_LARGEST_BYTES: Final = (1 << 31) - 1


def check_assigned_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check a batch that an INSERT writes into a table, and return it unchanged.

    If the statement leaves out a column, its values are null.

    Raises:
        InvalidRecordError: a row has a value in a column that the log assigns, such as ``offset``.
    """
    for name in READ_ONLY.intersection(batch.schema.names):
        if batch.column(name).null_count < batch.num_rows:
            raise InvalidRecordError(
                f"a row has a value in column {name!r}, which the log assigns: write the rows without this column"
            )
    return batch


def select_written(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with only the columns that are written, under their declared names."""
    names = written_names(batch.schema.names)
    return batch.select(list(names)).rename_columns(list(names.values()))


def split_by_log(
    batch: pa.RecordBatch, topic: str | None, partitions: Callable[[str], int]
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield each topic and partition with its rows in ``batch``. The order of the rows does not change.

    Args:
        batch: a result of ``select_written``. ``check_schema`` must accept its schema.
        topic: topic of all rows. If it is None, the column ``topic`` has the topic of each row.
        partitions: returns the number of partitions of a topic.

    Raises:
        InvalidRecordError: a row has no topic, or names a partition that its topic does not have.
        UnknownTopicError: ``partitions`` raises it for a topic that does not exist.
    """
    for name, rows in _split_by_topic(batch, topic):
        row_partitions = partitions_of(rows, partitions(name))
        order = np.argsort(row_partitions, kind="stable")
        borders: NDArray[np.int64] = np.flatnonzero(np.diff(row_partitions[order])) + 1
        for indexes in np.split(order, borders):
            if len(indexes):
                log_rows = rows if len(indexes) == rows.num_rows else rows.take(indexes)
                yield TopicPartition(name, int(row_partitions[indexes[0]])), log_rows


def _split_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    if topic is not None:
        yield topic, batch
        return
    column: Column = batch.column("topic")
    if column.null_count:
        raise InvalidRecordError("a row has no topic: add option topic, or a topic to every row")
    for name in column.unique().to_pylist():
        yield name, batch.filter(pc.equal(column, name))


def partitions_of(rows: pa.RecordBatch, partitions: int) -> NDArray[np.int32]:
    """Return the partition of each row: the value of the column ``partition``.

    If the value is null or there is no such column, murmur2 of the key chooses the partition, as in Kafka's producer.
    If the key is null too, a hash of the value chooses the partition. Equal rows get the same partition. A repeated
    write therefore sends each row to the same partition as before, unless partitions were added to the topic.

    Raises:
        InvalidRecordError: a row names a partition that the topic does not have.
    """
    row_partitions: NDArray[np.int32] = np.full(rows.num_rows, -1, dtype=np.int32)
    unassigned = np.arange(rows.num_rows)
    if "partition" in rows.schema.names:
        column: Column = rows.column("partition")
        nulls = np.asarray(column.is_null())
        row_partitions = np.asarray(column.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int32).copy()
        invalid = row_partitions[~nulls & ((row_partitions < 0) | (row_partitions >= partitions))]
        if len(invalid):
            raise InvalidRecordError(f"a row has partition {invalid[0]}, but the topic has {partitions} partitions")
        unassigned = np.flatnonzero(nulls)
    if len(unassigned):
        row_partitions[unassigned] = (_hashes(rows.take(unassigned)) & 0x7FFFFFFF) % partitions
    return row_partitions


def _hashes(rows: pa.RecordBatch) -> NDArray[np.uint32]:
    """Return the hash that chooses a row's partition: murmur2 of the key, or CRC-32 of the value for a null key."""
    values: Column = rows.column("value")
    if "key" not in rows.schema.names:
        return _checksums(values)
    keys: Column = rows.column("key")
    nulls = np.asarray(keys.is_null())
    hashes = murmur2(keys)
    if nulls.any():
        hashes[nulls] = _checksums(values.filter(keys.is_null()))
    return hashes


def _checksums(column: Column) -> NDArray[np.uint32]:
    starts, sizes, data = _bytes_of(column)
    spans = zip(starts.tolist(), sizes.tolist(), strict=True)
    return np.fromiter((zlib.crc32(data[start : start + size].data) for start, size in spans), np.uint32, len(sizes))


def murmur2(column: Column) -> NDArray[np.uint32]:
    """Return Kafka's 32-bit murmur2 of each value. Null has the same hash as empty bytes."""
    starts, sizes, data = _bytes_of(column)
    hashes: NDArray[np.uint32] = np.empty(len(sizes), dtype=np.uint32)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        step = max(_HASHED_BYTES // (size + 1), 1)
        for start in range(0, len(rows), step):
            step_rows = rows[start : start + step]
            hashes[step_rows] = _murmur2_of(data[starts[step_rows][:, None] + np.arange(size)])
    return hashes


def _murmur2_of(block: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return murmur2 of each row of a two-dimensional array, which contains values of equal size."""
    count, size = block.shape
    hashes: NDArray[np.uint32] = np.full(count, 0x9747B28C ^ size, dtype=np.uint32)
    factor, shift = np.uint32(0x5BD1E995), np.uint32(24)
    aligned_size = size & ~3
    for word in np.ascontiguousarray(block[:, :aligned_size]).view("<u4").T if aligned_size else ():
        mixed = word * factor
        mixed ^= mixed >> shift
        hashes = (hashes * factor) ^ (mixed * factor)
    if aligned_size < size:
        tail: NDArray[np.uint8] = np.zeros((count, 4), dtype=np.uint8)
        tail[:, : size - aligned_size] = block[:, aligned_size:]
        hashes = (hashes ^ tail.view("<u4")[:, 0]) * factor
    hashes = (hashes ^ (hashes >> np.uint32(13))) * factor
    return hashes ^ (hashes >> np.uint32(15))


def convert_rows(rows: pa.RecordBatch) -> RecordColumns:
    """Return rows as record columns.

    The result has every field of a record. If there is no column ``key``, all keys are null. A row without a timestamp
    gets the timestamp -1. Spark's Kafka source returns -1 ms for a record without a timestamp, so a row with exactly -1
    ms gets -1, too. Offsets begin at 0.

    Raises:
        InvalidRecordError: the rows are larger than 2 GiB in total, a header is null or has no key, or a timestamp is
            less than 1 ms before 1970, which would be rounded to -1.
    """
    arena = _Arena()
    count, names = rows.num_rows, rows.schema.names
    keys = arena.put(rows.column("key")) if "key" in names else (arena.zeros(count), arena.none(count))
    values = arena.put(rows.column("value"))
    first_headers, header_counts = arena.zeros(count), arena.zeros(count)
    header_keys = header_values = (arena.zeros(0), arena.zeros(0))
    if HEADERS in names:
        header_lists: Column = rows.column(HEADERS)
        ends = np.frombuffer(header_lists.buffers()[1], dtype=np.int32)[
            header_lists.offset : header_lists.offset + count + 1
        ]
        first_headers, header_counts = ends[:-1] - ends[0], np.diff(ends)
        header_counts = np.where(np.asarray(header_lists.is_null()), 0, header_counts).astype(np.int32)
        pairs = header_lists.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
        if pairs.null_count or pairs.field(0).null_count:
            raise InvalidRecordError("a header of a row is null, or has no key")
        header_keys, header_values = arena.put(pairs.field(0)), arena.put(pairs.field(1))
    timestamps_ms: NDArray[np.int64] = np.full(count, -1, dtype=np.int64)
    if "timestamp" in names:
        timestamps: Column = rows.column("timestamp")
        times_us = np.asarray(timestamps.cast("int64").fill_null(-1000).to_numpy(zero_copy_only=False))
        if ((times_us > -1000) & (times_us < 0)).any():
            raise InvalidRecordError(
                "a row has a timestamp less than 1 ms before 1970, which a record cannot store: change the timestamp to "
                "1970, or to null for the time of the write"
            )
        timestamps_ms = times_us // 1000
    numbers: list[NDArray[Any]] = [
        np.arange(count, dtype=np.int64),
        timestamps_ms,
        arena.zeros(count),
        arena.none(count),
    ]
    numbers += [*keys, *values, first_headers, header_counts, *header_keys, *header_values]
    return RecordColumns(arena.join(), count, *map(_view, numbers))


def _view(column: NDArray[Any]) -> memoryview:
    """Return the numbers as a memoryview of format ``q`` or ``i``, which ``RecordColumns`` requires."""
    flat = np.ascontiguousarray(column).data.cast("B") if len(column) else memoryview(b"")
    return flat.cast("q") if column.dtype.itemsize == 8 else flat.cast("i")


class _Arena:
    """Concatenated bytes of several columns."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._size = 0

    def put(self, column: Column) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Add a column. Return the position of each value in the arena, and its size, which is -1 for null.

        Raises:
            InvalidRecordError: the arena is larger than 2 GiB.
        """
        starts, sizes, data = _bytes_of(column)
        low = int(starts[0]) if len(starts) else 0
        high = int(starts[-1] + sizes[-1]) if len(starts) else 0
        positions = starts - low + self._size
        self._parts.append(data.data[low:high])
        self._size += high - low
        if self._size > _LARGEST_BYTES:
            raise InvalidRecordError(
                "rows of more than 2 GiB in one Arrow batch: lower spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        nulls = np.asarray(column.is_null())
        return positions.astype(np.int32), np.where(nulls, -1, sizes).astype(np.int32)

    @staticmethod
    def zeros(count: int) -> NDArray[np.int32]:
        """Return a column of ``count`` zeros."""
        return np.zeros(count, dtype=np.int32)

    @staticmethod
    def none(count: int) -> NDArray[np.int32]:
        """Return a column of ``count`` values, all -1."""
        return np.full(count, -1, dtype=np.int32)

    def join(self) -> bytes:
        """Return the bytes of all columns."""
        return b"".join(self._parts)


def _bytes_of(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return the start of each value, its size (0 for null), and the bytes of all values.

    The column may have offsets of 32 or 64 bits.
    """
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, ends, data = column.buffers()
    width = np.int64 if is_large else np.int32
    offsets = np.frombuffer(ends, dtype=width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.empty(0, dtype=np.uint8)
    return offsets[:-1], np.diff(offsets), content
