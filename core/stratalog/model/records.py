"""Records: objects for people, columns for machines, Arrow for everybody else."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog.errors import PluginImportError
from stratalog.model.batches import NO_EPOCH, NO_TIMESTAMP, Buffer, TimestampType

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - inside functions pa is the module at run time

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record, as it is read or to be written.

    Attributes:
        offset: assigned by the log when written, -1 before.
        timestamp_ms: -1 is "no timestamp"; an append then stamps its own clock.
        timestamp_type: NONE for V0, else CREATE_TIME or LOG_APPEND_TIME; ignored when written.
        key: None and empty are different.
        value: None is a tombstone in a compacted topic.
        headers: in order; a name may repeat.
        leader_epoch: of the batch, -1 where the format has none (V0, V1).
        partition: of the log it was read from, -1 before.
    """

    offset: int = -1
    timestamp_ms: int = NO_TIMESTAMP
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    leader_epoch: int = NO_EPOCH
    partition: int = -1


class Fields(Flag):
    """Which fields a decoder fills; the others are absent (their columns are empty)."""

    OFFSET = auto()
    TIMESTAMP = auto()
    KEY = auto()
    VALUE = auto()
    HEADERS = auto()
    ALL = OFFSET | TIMESTAMP | KEY | VALUE | HEADERS


def int64_column(values: Iterable[int] = ()) -> memoryview:
    """A column of int64."""
    return memoryview(array("q", values))


EMPTY: Final = int64_column()
_MAX_ARROW_MS: Final = ((1 << 63) - 1) // 1000
_MIN_ARROW_MS: Final = -_MAX_ARROW_MS


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """n records as columns over one ``arena`` of bytes. Every column is a ``memoryview`` of int64, of length n.

    ``key_position`` and ``key_size`` address the arena (size -1: null), likewise value; ``header_first`` and
    ``header_count`` address the flat header columns. A column that was not asked for has length 0.
    """

    arena: Buffer
    count: int
    offset: memoryview = EMPTY
    timestamp_ms: memoryview = EMPTY
    timestamp_type: memoryview = EMPTY
    leader_epoch: memoryview = EMPTY
    key_position: memoryview = EMPTY
    key_size: memoryview = EMPTY
    value_position: memoryview = EMPTY
    value_size: memoryview = EMPTY
    header_first: memoryview = EMPTY
    header_count: memoryview = EMPTY
    header_key_position: memoryview = EMPTY
    header_key_size: memoryview = EMPTY
    header_value_position: memoryview = EMPTY
    header_value_size: memoryview = EMPTY

    def take(self, start: int, end: int) -> RecordColumns:
        """The records [start, end) as a slice has them, sharing the arena and the flat header columns."""
        return RecordColumns(
            self.arena,
            len(range(self.count)[start:end]),
            self.offset[start:end],
            self.timestamp_ms[start:end],
            self.timestamp_type[start:end],
            self.leader_epoch[start:end],
            self.key_position[start:end],
            self.key_size[start:end],
            self.value_position[start:end],
            self.value_size[start:end],
            self.header_first[start:end],
            self.header_count[start:end],
            self.header_key_position,
            self.header_key_size,
            self.header_value_position,
            self.header_value_size,
        )

    def keys(self) -> list[bytes | None]:
        """All keys."""
        return _items(self.arena, self.key_position, self.key_size)

    def values(self) -> list[bytes | None]:
        """All values."""
        return _items(self.arena, self.value_position, self.value_size)

    def headers(self) -> list[Headers]:
        """All headers; names that are not UTF-8 have U+FFFD where Kafka puts it too."""
        if not len(self.header_key_position):
            return [()] * self.count
        names = [
            (name or b"").decode("utf-8", "replace")
            for name in _items(self.arena, self.header_key_position, self.header_key_size)
        ]
        values = _items(self.arena, self.header_value_position, self.header_value_size)
        flat = list(zip(names, values, strict=True))
        return [
            tuple(flat[first : first + count]) if count else ()
            for first, count in zip(self.header_first, self.header_count, strict=True)
        ]

    def to_records(self, partition: int = -1) -> list[Record]:
        """All records as objects; needs every field."""
        types = [_TYPES[value] for value in self.timestamp_type]
        columns = (
            self.offset,
            self.timestamp_ms,
            types,
            self.keys(),
            self.values(),
            self.headers(),
            self.leader_epoch,
            (partition,) * self.count,
        )
        return list(map(Record._make, zip(*columns, strict=True)))


_TYPES: Final = {int(kind): kind for kind in TimestampType}


def _items(arena: Buffer, positions: memoryview, sizes: memoryview) -> list[bytes | None]:
    raw = arena if isinstance(arena, bytes) else bytes(arena)
    return [
        None if size < 0 else raw[position : position + size] for position, size in zip(positions, sizes, strict=True)
    ]


def arrow_schema() -> pyarrow.Schema:
    """The schema of every Arrow table of records. Headers are never null.

    Timestamps are null for "no timestamp", and for those that microseconds in 64 bits cannot hold (beyond the year
    294,246: what a producer sends that takes nanoseconds for milliseconds); ``Record`` has the number.
    """
    pa = _pyarrow()
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    schema: pyarrow.Schema = pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("timestamp_type", pa.int32(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.field("item", header, nullable=False)), nullable=False),
            pa.field("leader_epoch", pa.int32(), nullable=False),
        ]
    )
    return schema


def to_arrow(chunks: Sequence[RecordColumns], partition: int) -> pyarrow.Table:
    """One table with a chunk for each of ``chunks`` (all fields), in ``arrow_schema()``.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra.
    """
    pa = _pyarrow()
    schema = arrow_schema()
    batches = [_arrow_batch(chunk, partition, schema) for chunk in chunks if chunk.count]
    table: pyarrow.Table = pa.Table.from_batches(batches, schema=schema)
    return table


def _arrow_batch(chunk: RecordColumns, partition: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    pa = _pyarrow()
    stamps = pa.array(
        [
            ms * 1000 if ms != NO_TIMESTAMP and _MIN_ARROW_MS <= ms <= _MAX_ARROW_MS else None
            for ms in chunk.timestamp_ms
        ],
        type=schema.field("timestamp").type,
    )
    headers = [[{"key": key, "value": value} for key, value in row] for row in chunk.headers()]
    arrays = [
        pa.array([partition] * chunk.count, type=pa.int32()),
        pa.array(chunk.offset.tolist(), type=pa.int64()),
        stamps,
        pa.array(chunk.timestamp_type.tolist(), type=pa.int32()),
        pa.array(chunk.keys(), type=pa.binary()),
        pa.array(chunk.values(), type=pa.binary()),
        pa.array(headers, type=schema.field("headers").type),
        pa.array(chunk.leader_epoch.tolist(), type=pa.int32()),
    ]
    batch: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch


def _pyarrow() -> Any:  # the extra is optional: only the public signatures know its types
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra: only who asks for Arrow needs it
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "arrow", "stratalog[arrow]") from error
    return pa
