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
_REPLACEMENT_BYTES: Final = 3  # size of U+FFFD, which may replace one byte

Batches = Callable[[RecordColumns, int, int, Any], Iterator[Any]]
"""A function of columns, partition, limit in bytes and schema that yields Arrow batches. Any: pyarrow is optional."""


def arrow_schema() -> pyarrow.Schema:
    """Return the schema of every Arrow table of records. Headers are never null.

    A timestamp is null if the record has none, or if microseconds in 64 bits cannot hold it (beyond the year 294,246).
    Such a timestamp appears if a producer sends nanoseconds as milliseconds; ``Record`` has the number.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra to install.
    """
    schema: pyarrow.Schema = _schema(_pyarrow())
    return schema


def to_arrow(chunks: Iterable[RecordColumns], partition: int) -> pyarrow.Table:
    """Return one table in ``arrow_schema()``, with a chunk for each of ``chunks`` that has records.

    The chunks are read one by one. The table does not refer to their memory: a chunk's memory can be released before
    the next chunk is read. A chunk that needs more than 2 GiB in one column becomes several chunks.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra to install.
        ConfigError: a column is absent; the text names it.
        IndexError, TypeError, ValueError: the columns break the rules of ``RecordColumns``.
        OverflowError: one record needs more than 2 GiB in one column (only possible with overlapping columns).
    """
    return arrow_table(batch for chunk in chunks for batch in arrow_batches(chunk, partition))


def arrow_batches(chunk: RecordColumns, partition: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield columns as batches in ``arrow_schema()``: no batch without records, several if one would exceed 2 GiB.

    Raises:
        As ``to_arrow``.
    """
    schema = _schema(_pyarrow())
    partition = integer("partition", partition, 32)
    if chunk.count:
        yield from record_batches(chunk, partition, _LIMIT, schema)


def arrow_table(batches: Iterable[pyarrow.RecordBatch]) -> pyarrow.Table:
    """Return one table of batches in ``arrow_schema()``; each batch is one chunk of the table.

    Raises:
        PluginImportError: pyarrow is not installed; the text names the extra to install.
    """
    pa = _pyarrow()
    table: pyarrow.Table = pa.Table.from_batches(list(batches), schema=_schema(pa))
    return table


class ArrowBuffers(NamedTuple):
    """The buffers of one batch in ``arrow_schema()``, for kernels that fill Arrow's memory themselves.

    The buffers are from ``allocator`` or ``repeated``, in the layout of Arrow's columnar format. A nullable column is a
    pair: the number of its nulls, and its buffers with the validity bitmap first (None without nulls). If
    ``header_rows`` is 0, ``names`` and ``contents`` are not used.
    """

    rows: int
    header_rows: int
    fixed: Sequence[Any]
    """Partition, offset, timestamp (us), timestamp type, leader epoch."""
    stamped: tuple[int, Any]
    """Number of nulls and validity bitmap of the timestamps."""
    keys: tuple[int, list[Any]]
    values: tuple[int, list[Any]]
    list_offsets: Any
    """Index of the first header of each row: int32, one more than rows."""
    names: list[Any]
    contents: tuple[int, list[Any]]

    @staticmethod
    def allocator() -> Callable[..., Any]:
        """Return the allocator of buffers for ``ArrowBuffers``: pyarrow's ``allocate_buffer(size, resizable=False)``.

        Raises:
            PluginImportError: pyarrow is not installed; the text names the extra to install.
        """
        allocate: Callable[..., Any] = _pyarrow().allocate_buffer
        return allocate

    @staticmethod
    def repeated(number: int, rows: int) -> Any:
        """Return a buffer with the same int32 ``rows`` times, for the many columns with one number.

        Other batches may share the buffer.

        Raises:
            OverflowError: ``number`` does not fit 32 bits.
            PluginImportError: pyarrow is not installed; the text names the extra to install.
        """
        pa = _pyarrow()
        if rows > _SHARED_ROWS:
            return _repeated(pa, number, rows).slice(0)
        return _shared(pa, number, max(_LEAST_SHARED_ROWS, 1 << (rows - 1).bit_length())).slice(0, 4 * rows)

    def batch(self) -> pyarrow.RecordBatch:
        """Return the batch with these buffers; nothing is copied or checked."""
        pa = _pyarrow()
        schema = _schema(pa)
        batch: pyarrow.RecordBatch = pa.RecordBatch.from_arrays(_wrapped(pa, self), schema=schema)
        return batch


def _repeated(pa: Any, number: int, rows: int) -> Any:
    return pa.py_buffer(array("i", (number,)) * rows)


@lru_cache(maxsize=16)
def _shared(pa: Any, number: int, rows: int) -> Any:
    """Return a shared buffer. At most 8 MiB of them in total stay in memory."""
    return _repeated(pa, number, rows)


# --- compiled ----------------------------------------------------------------------------------------------------


def packed_batches(kernel: ModuleType) -> Batches:
    """Return the function that converts columns with the compiled twin, which fills Arrow's buffers."""

    def batches(chunk: RecordColumns, partition: int, limit: int, schema: Any) -> Iterator[Any]:
        pa, start = _pyarrow(), 0
        while start < chunk.count:
            buffers = ArrowBuffers(*kernel.pack(chunk, start, partition, limit, pa.allocate_buffer))
            yield pa.RecordBatch.from_arrays(_wrapped(pa, buffers), schema=schema)
            start += buffers.rows

    return batches


def _wrapped(pa: Any, packed: ArrowBuffers) -> list[Any]:
    """Return the columns of the schema."""
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
    """Return the types of the schema's columns, and an empty array of headers."""
    kinds = _schema(pa).types
    return kinds, _pairs(pa, kinds[6], [pa.array([], pa.string()), pa.array([], pa.binary())])


def _pairs(pa: Any, kind: Any, parts: list[Any]) -> Any:
    """Return an array of headers from their names and values; ``kind`` is the type of the headers column."""
    return pa.Array.from_buffers(kind.value_type, len(parts[0]), [None], children=parts)


# --- pure Python -------------------------------------------------------------------------------------------------


def converted_batches(chunk: RecordColumns, partition: int, limit: int, schema: Any) -> Iterator[Any]:
    """Yield Arrow batches without compiled code: pyarrow converts lists. Any: pyarrow is optional."""
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
    """Return a copy of a column of numbers; the original may be a small slice of a large buffer."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column.tobytes())])


def _timestamps(pa: Any, timestamp_ms: memoryview) -> Any:
    """Return timestamps in microseconds, null if there is no timestamp or 64 bits cannot hold it."""
    pc = import_module("pyarrow.compute")  # part of the extra
    ms = _copied(pa, pa.int64(), timestamp_ms)
    fits = pc.and_(pc.greater_equal(ms, _MIN_ARROW_MS), pc.less_equal(ms, _MAX_ARROW_MS))
    return pc.multiply(pc.if_else(pc.and_(fits, pc.not_equal(ms, NO_TIMESTAMP)), ms, None), 1000)


def _cuts(chunk: RecordColumns, limit: int) -> Iterator[int]:
    """Yield the end rows of the batches into which a chunk is split; a batch may be smaller than the limit allows."""
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
            raise OverflowError(f"record {row} does not fit Arrow's 32-bit offsets")
        used = [a + b for a, b in zip(used, more, strict=True)]
        if max(used) > limit:
            yield row
            start, used = row, list(more)
    if start < chunk.count:
        yield chunk.count


def _largest(chunk: RecordColumns) -> int:
    """Return an upper bound of the largest column of the chunk."""
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
    """Return the total size of the headers of each record."""
    before = [0, *accumulate(sizes)]
    total = len(sizes)
    result = []
    for first, count in zip(chunk.header_first, chunk.header_count, strict=True):
        if count and (first < 0 or count < 0 or first + count > total):
            outside_headers(first, count, total)
        result.append(before[first + count] - before[first] if count else 0)
    return result


# --- choice of the twin ------------------------------------------------------------------------------------------


def _chosen() -> Batches:
    kernel = extension("stratalog.model.arrow_c")
    return converted_batches if kernel is None else packed_batches(kernel)


record_batches: Final = _chosen()
"""The twin that this process uses."""


@cache
def _schema(pa: Any) -> Any:
    """Return the schema. ``pa`` is pyarrow, an optional dependency: only public signatures name its types."""
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
        import pyarrow as pa  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "arrow", "stratalog[arrow]") from error
    return pa
