"""Records as Arrow tables."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import PluginImportError
from stratalog.extensions import extension
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.column_views import outside_headers, views_of
from stratalog.model.record_checks import integer
from stratalog.model.records import RecordColumns

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - inside functions pa is the module at run time

_MAX_ARROW_MS: Final = ((1 << 63) - 1) // 1000
_MIN_ARROW_MS: Final = -_MAX_ARROW_MS
_LIMIT: Final = (1 << 31) - 1  # Arrow's offsets have 32 bits
_LEAST_SHARED_ROWS: Final = 1 << 12
_SHARED_ROWS: Final = 1 << 17  # of a buffer that is kept
_REPLACEMENT_BYTES: Final = 3  # of U+FFFD, for what may have been one byte

Batches = Callable[[RecordColumns, int, int, Any], Iterator[Any]]
"""Arrow batches of columns, a partition, a limit in bytes and the schema. Any: pyarrow is optional."""


def arrow_schema() -> pyarrow.Schema:
    """The schema of every Arrow table of records. Headers are never null.

    Timestamps are null for "no timestamp", and for those that microseconds in 64 bits cannot hold (beyond the year
    294,246: what a producer sends that takes nanoseconds for milliseconds); ``Record`` has the number.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra.
    """
    schema: pyarrow.Schema = _schema(_pyarrow())
    return schema


def to_arrow(chunks: Iterable[RecordColumns], partition: int) -> pyarrow.Table:
    """One table in ``arrow_schema()``, with a chunk for each of ``chunks`` that has records.

    The chunks are taken one by one; nothing of the table refers to their memory, so that what a chunk was decoded from
    can go before the next one is read. Only a chunk that needs more than 2 GiB in one column becomes several.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra.
        ConfigError: a column is absent; the text names it.
        IndexError, TypeError, ValueError: columns that are not what ``RecordColumns`` says.
        OverflowError: one record needs more than 2 GiB in one column (only columns that overlap can make it so).
    """
    return arrow_table(batch for chunk in chunks for batch in arrow_batches(chunk, partition))


def arrow_batches(chunk: RecordColumns, partition: int) -> Iterator[pyarrow.RecordBatch]:
    """Columns as batches in ``arrow_schema()``: none if there are no records, several if one would pass 2 GiB.

    Raises:
        As ``to_arrow``.
    """
    schema = _schema(_pyarrow())
    partition = integer("partition", partition, 32)
    if chunk.count:
        yield from record_batches(chunk, partition, _LIMIT, schema)


def arrow_table(batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
    """One table of batches in ``arrow_schema()``, which are taken one by one; each is a chunk of it.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra.
    """
    pa = _pyarrow()
    table: pyarrow.Table = pa.Table.from_batches(list(batches), schema=_schema(pa))
    return table


class ArrowBuffers(NamedTuple):
    """What one batch in ``arrow_schema()`` is made of, for kernels that fill Arrow's memory themselves.

    Buffers are those of ``arrow_allocator`` or ``arrow_repeated``, in the layout of Arrow's columnar format. A column that
    may be null is a pair: the number of its nulls, and its buffers with the validity bitmap first (None if nothing is
    null). Without headers (``header_rows`` 0) those of ``names`` and ``contents`` are not looked at.
    """

    rows: int
    header_rows: int
    fixed: Sequence[Any]
    """Partition, offset, timestamp (us), timestamp type, leader epoch."""
    stamped: tuple[int, Any]
    """Of the timestamps: nulls and bitmap."""
    keys: tuple[int, list[Any]]
    values: tuple[int, list[Any]]
    list_offsets: Any
    """Where the headers of each row begin: int32, one more than rows."""
    names: list[Any]
    contents: tuple[int, list[Any]]


def arrow_allocator() -> Callable[..., Any]:
    """What makes buffers for ``ArrowBuffers``: pyarrow's ``allocate_buffer(size, resizable=False)``.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra.
    """
    allocate: Callable[..., Any] = _pyarrow().allocate_buffer
    return allocate


def arrow_repeated(number: int, rows: int) -> Any:
    """A buffer of ``rows`` times the same int32, which may be part of other batches as well: many columns have one number.

    Raises:
        OverflowError: ``number`` is none of 32 bits.
        PluginImportError: pyarrow is not installed; the text names the extra.
    """
    pa = _pyarrow()
    if rows > _SHARED_ROWS:
        return _repeated(pa, number, rows).slice(0)
    return _shared(pa, number, max(_LEAST_SHARED_ROWS, 1 << (rows - 1).bit_length())).slice(0, 4 * rows)


def _repeated(pa: Any, number: int, rows: int) -> Any:
    return pa.py_buffer(array("i", (number,)) * rows)


@lru_cache(maxsize=16)
def _shared(pa: Any, number: int, rows: int) -> Any:
    """At most 8 MiB in all stay in memory."""
    return _repeated(pa, number, rows)


def arrow_batch(buffers: ArrowBuffers) -> pyarrow.RecordBatch:
    """The batch that these buffers are; nothing is copied or checked."""
    pa = _pyarrow()
    schema = _schema(pa)
    batch: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(_wrapped(pa, buffers), schema=schema)
    return batch


# --- compiled ----------------------------------------------------------------------------------------------------


def packed_batches(kernel: ModuleType) -> Batches:
    """The way by the compiled twin: it packs Arrow's buffers, and they are wrapped."""

    def batches(chunk: RecordColumns, partition: int, limit: int, schema: Any) -> Iterator[Any]:
        pa, start = _pyarrow(), 0
        while start < chunk.count:
            buffers = ArrowBuffers(*kernel.pack(chunk, start, partition, limit, pa.allocate_buffer))
            yield pa.RecordBatch.from_arrays(_wrapped(pa, buffers), schema=schema)
            start += buffers.rows

    return batches


def _wrapped(pa: Any, packed: ArrowBuffers) -> list[Any]:
    """The columns of the schema."""
    column, rows = pa.Array.from_buffers, packed.rows
    partitions, offsets, stamps, types, epochs = packed.fixed
    stamp_nulls, stamp_bits = packed.stamped
    key_nulls, keys = packed.keys
    value_nulls, values = packed.values
    kinds, pairs = _kinds(pa)
    if packed.header_rows:
        content_nulls, contents = packed.contents
        names = column(pa.string(), packed.header_rows, packed.names)
        parts = [names, column(pa.binary(), packed.header_rows, contents, content_nulls)]
        pairs = _pairs(pa, kinds[6], parts)
    return [
        column(kinds[0], rows, [None, partitions]),
        column(kinds[1], rows, [None, offsets]),
        column(kinds[2], rows, [stamp_bits, stamps], stamp_nulls),
        column(kinds[3], rows, [None, types]),
        column(kinds[4], rows, keys, key_nulls),
        column(kinds[5], rows, values, value_nulls),
        column(kinds[6], rows, [None, packed.list_offsets], 0, 0, [pairs]),
        column(kinds[7], rows, [None, epochs]),
    ]


@cache
def _kinds(pa: Any) -> tuple[list[Any], Any]:
    """The types of the schema's columns, and the pairs of nobody's headers."""
    kinds = _schema(pa).types
    return kinds, _pairs(pa, kinds[6], [pa.array([], pa.string()), pa.array([], pa.binary())])


def _pairs(pa: Any, kind: Any, parts: list[Any]) -> Any:
    """Headers from their names and values; ``kind`` is that of the column."""
    return pa.Array.from_buffers(kind.value_type, len(parts[0]), [None], children=parts)


# --- pure Python -------------------------------------------------------------------------------------------------


def converted_batches(chunk: RecordColumns, partition: int, limit: int, schema: Any) -> Iterator[Any]:
    """The way without a compiler: pyarrow converts lists. Any: pyarrow is optional."""
    pa, start = _pyarrow(), 0
    views_of(chunk)
    if not chunk.count:
        return
    for end in _cuts(chunk, limit):
        part = chunk if (start, end) == (0, chunk.count) else chunk.take(start, end)
        yield pa.RecordBatch.from_arrays(_converted(pa, schema, part, partition), schema=schema)
        start = end


def _converted(pa: Any, schema: Any, chunk: RecordColumns, partition: int) -> list[Any]:
    headers, kind = chunk.headers(), schema.field("headers").type
    list_offsets = pa.py_buffer(array("i", accumulate(map(len, headers), initial=0)))
    header_parts = [
        pa.array([name for row in headers for name, _ in row], type=pa.string()),
        pa.array([value for row in headers for _, value in row], type=pa.binary()),
    ]
    return [
        pa.repeat(pa.scalar(partition, pa.int32()), chunk.count),
        _copied(pa, pa.int64(), chunk.offset),
        _timestamps(pa, chunk.timestamp_ms).cast(schema.field("timestamp").type),
        _copied(pa, pa.int32(), chunk.timestamp_type),
        pa.array(chunk.keys(), type=pa.binary()),
        pa.array(chunk.values(), type=pa.binary()),
        pa.Array.from_buffers(kind, chunk.count, [None, list_offsets], children=[_pairs(pa, kind, header_parts)]),
        _copied(pa, pa.int32(), chunk.leader_epoch),
    ]


def _copied(pa: Any, kind: Any, column: memoryview) -> Any:
    """A column of numbers; a copy, for the original may be a slice of much more."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column.tobytes())])


def _timestamps(pa: Any, timestamp_ms: memoryview) -> Any:
    """Microseconds, null where there is no timestamp or 64 bits cannot hold it."""
    pc = import_module("pyarrow.compute")  # part of the extra
    ms = _copied(pa, pa.int64(), timestamp_ms)
    fits = pc.and_(pc.greater_equal(ms, _MIN_ARROW_MS), pc.less_equal(ms, _MAX_ARROW_MS))
    return pc.multiply(pc.if_else(pc.and_(fits, pc.not_equal(ms, NO_TIMESTAMP)), ms, None), 1000)


def _cuts(chunk: RecordColumns, limit: int) -> Iterator[int]:
    """Where the batches end that a chunk has to be cut into; they may be smaller than they could be."""
    if _largest(chunk) <= limit:
        yield chunk.count
        return
    start, used = 0, [0] * 5
    sizes = zip(
        _positive(chunk.key_size),
        _positive(chunk.value_size),
        _sums(chunk, [_REPLACEMENT_BYTES * size for size in _positive(chunk.header_key_size)]),
        _sums(chunk, _positive(chunk.header_value_size)),
        chunk.header_count,
        strict=True,
    )
    for row, more in enumerate(sizes):
        if max(more) > limit:
            raise OverflowError(f"record {row} of the columns needs more than Arrow's offsets of 32 bits can say")
        used = [a + b for a, b in zip(used, more, strict=True)]
        if max(used) > limit:
            yield row
            start, used = row, list(more)
    if start < chunk.count:
        yield chunk.count


def _largest(chunk: RecordColumns) -> int:
    """What no column of the chunk can need more of, whatever its sizes say of each other."""
    header_rows = sum(chunk.header_count)
    return max(
        chunk.count * max(chunk.key_size),
        chunk.count * max(chunk.value_size),
        header_rows,
        header_rows * _REPLACEMENT_BYTES * max(chunk.header_key_size, default=0),
        header_rows * max(chunk.header_value_size, default=0),
    )


def _positive(sizes: memoryview) -> list[int]:
    return [max(size, 0) for size in sizes]


def _sums(chunk: RecordColumns, sizes: list[int]) -> list[int]:
    """The sizes of all headers of each record together."""
    before = [0, *accumulate(sizes)]
    total = len(sizes)
    result = []
    for first, count in zip(chunk.header_first, chunk.header_count, strict=True):
        if count and (first < 0 or count < 0 or first + count > total):
            outside_headers(first, count, total)
        result.append(before[first + count] - before[first] if count else 0)
    return result


# --- which -------------------------------------------------------------------------------------------------------


def _chosen() -> Batches:
    kernel = extension("stratalog.model.arrow_c")
    return converted_batches if kernel is None else packed_batches(kernel)


record_batches: Final = _chosen()
"""The twin that is in use."""


@cache
def _schema(pa: Any) -> Any:
    """``pa`` is pyarrow: an extra, whose types only the public signatures know."""
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
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


def _pyarrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra: only who asks for Arrow needs it
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "arrow", "stratalog[arrow]") from error
    return pa
