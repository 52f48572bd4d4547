"""Records as Arrow tables. If pyarrow is not installed, functions raise PluginImportError with the extra to install."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import ConfigError, PluginImportError
from stratalog.extensions import extension
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.column_views import FLAT_COLUMNS, split_rows, views_of
from stratalog.model.record_checks import integer
from stratalog.model.records import Fields, RecordColumns

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - inside functions pa is the module at run time

_MAX_ARROW_MS: Final = ((1 << 63) - 1) // 1000
_LIMIT: Final = (1 << 31) - 1  # Arrow's offsets have 32 bits
_LEAST_SHARED_ROWS, _SHARED_ROWS = 1 << 12, 1 << 17  # bounds of the number of rows of a shared buffer
_SOURCES: Final = {
    "partition": Fields(0),
    "offset": Fields.OFFSET,
    "timestamp": Fields.TIMESTAMP,
    "timestamp_type": Fields.TIMESTAMP,
    "key": Fields.KEY,
    "value": Fields.VALUE,
    "headers": Fields.HEADERS,
    "leader_epoch": Fields.OFFSET,
}
ARROW_COLUMNS: Final = tuple(_SOURCES)
"""Names of the columns of ``arrow_schema()``, in its order."""

Batches = Callable[[RecordColumns, int, int, Any], Iterator[Any]]
"""Function that yields the Arrow batches of columns, which have every field. Its other arguments are the partition, the
maximum size (bytes) of one column of a batch, and the schema. Schema and batches are typed as Any, because pyarrow is
optional."""


def arrow_schema(columns: Sequence[str] | None = None) -> pyarrow.Schema:
    """Return the schema of Arrow tables of records with these columns. The headers column is never null.

    A timestamp is null if the record has none, or if 64 bits cannot hold the microseconds (after the year 294,246).
    The latter happens if a producer sends nanoseconds as milliseconds. ``Record.timestamp_ms`` has every timestamp.

    Args:
        columns: names of the columns, in the order of the result; None means all columns.

    Raises:
        ConfigError: a name is not the name of a column, a column is named twice, or ``columns`` is one string.
    """
    schema: pyarrow.Schema = _schema(_pyarrow(), check_columns(columns))
    return schema


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Check names of columns of ``arrow_schema()``, and return the names as a tuple; return all names for None."""
    if columns is None:
        return ARROW_COLUMNS
    if isinstance(columns, str):
        raise ConfigError(f"columns is one string, {columns!r}, and must be a list of names: [{columns!r}]")
    names = tuple(columns)
    for name in names:
        if name not in _SOURCES:
            matches = get_close_matches(str(name), ARROW_COLUMNS, 1)
            suggestion = f"; did you mean {matches[0]!r}?" if matches else ""
            raise ConfigError(f"there is no column {name!r}: the columns are {', '.join(ARROW_COLUMNS)}{suggestion}")
    if len(set(names)) < len(names):
        raise ConfigError(f"a column is named twice: {', '.join(names)}")
    return names


def arrow_fields(columns: Sequence[str] | None) -> Fields:
    """Return the fields that a decoder must fill for these columns. Raise the errors of ``arrow_schema``."""
    fields = Fields(0)
    for name in check_columns(columns):
        fields |= _SOURCES[name]
    return fields


def to_arrow(chunks: Iterable[RecordColumns], partition: int, columns: Sequence[str] | None = None) -> pyarrow.Table:
    """Return one table in ``arrow_schema(columns)`` with the records of all ``chunks``.

    ``partition`` is the value of the column ``partition``. Each of ``chunks`` that has records becomes one chunk of the
    table, or several if a column needs more than 2 GiB. The records are copied: the memory of a chunk
    may be reused as soon as the next chunk is requested.

    Raises:
        ConfigError: a chunk does not have a needed field; the text names the column. Or ``columns`` breaks a rule of
            ``arrow_schema``.
        InvalidRecordError: ``partition`` does not fit 32 bits.
        IndexError, TypeError, ValueError: the columns break the rules of ``RecordColumns``.
        OverflowError: one record needs more than 2 GiB in one column (only possible with overlapping columns).
    """
    return arrow_table((batch for chunk in chunks for batch in arrow_batches(chunk, partition, columns)), columns)


def arrow_batches(
    chunk: RecordColumns, partition: int, columns: Sequence[str] | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a chunk as batches in ``arrow_schema(columns)``.

    If there are no records, no batch is yielded. If a column needs more than 2 GiB, several batches are yielded. Fields
    that ``columns`` does not need may be absent. The iteration raises the same errors as ``to_arrow``.
    """
    names = check_columns(columns)
    schema = _schema(_pyarrow(), names)
    partition = integer("partition", partition, 32)
    if chunk.count:
        yield from record_batches(_only(chunk, arrow_fields(names)), partition, _LIMIT, schema)


def arrow_table(batches: Iterable[pyarrow.RecordBatch], columns: Sequence[str] | None = None) -> pyarrow.Table:
    """Return one table of batches that have the schema ``arrow_schema(columns)``. Each batch is one chunk of the table.

    Raises:
        ConfigError: ``columns`` breaks a rule of ``arrow_schema``.
    """
    pa = _pyarrow()
    table: pyarrow.Table = pa.Table.from_batches(list(batches), schema=_schema(pa, check_columns(columns)))
    return table


def _only(chunk: RecordColumns, fields: Fields) -> RecordColumns:
    """Return the chunk with neutral constants in the columns that ``fields`` does not include."""
    count, neutral = chunk.count, dict[str, Any]()
    if not fields & Fields.OFFSET:
        neutral |= {"offset": _same("q", 0, count), "leader_epoch": _same("i", 0, count)}
    if not fields & Fields.TIMESTAMP:
        neutral |= {"timestamp_ms": _same("q", 0, count), "timestamp_type": _same("i", 0, count)}
    if not fields & Fields.KEY:
        neutral |= {"key_position": _same("i", 0, count), "key_size": _same("i", -1, count)}
    if not fields & Fields.VALUE:
        neutral |= {"value_position": _same("i", 0, count), "value_size": _same("i", -1, count)}
    if not fields & Fields.HEADERS:
        neutral |= {"header_first": _same("i", 0, count), "header_count": _same("i", 0, count)}
        neutral |= {name: _same("i", 0, 0) for name in FLAT_COLUMNS}
    return replace(chunk, **neutral) if neutral else chunk


def _same(code: str, number: int, count: int) -> memoryview:
    return memoryview(array(code, (number,)) * count)


class ArrowBuffers(NamedTuple):
    """The buffers of one batch of records, for compiled code that fills Arrow's memory.

    The buffers are from ``allocator`` or ``repeated``, in the layout of Arrow's columnar format. A nullable column is a
    pair: the number of its nulls, and the list of its buffers. The first buffer of the list is the validity bitmap,
    which is None if there are no nulls. If ``header_rows`` is 0, ``names`` and ``contents`` are not used. The buffers
    of columns that are not requested from ``batch`` are not used.
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
    """Index of each row's first header, then the number of all headers: int32, ``rows`` + 1 numbers."""
    names: list[Any]
    contents: tuple[int, list[Any]]

    @staticmethod
    def allocator() -> Callable[..., Any]:
        """Return the allocator of buffers for ``ArrowBuffers``: pyarrow's ``allocate_buffer(size, resizable=False)``."""
        allocate: Callable[..., Any] = _pyarrow().allocate_buffer
        return allocate

    @staticmethod
    def needed_fields(columns: Sequence[str] | None) -> Fields:
        """Return the fields of records that these columns of a batch need. Raise the errors of ``arrow_schema``."""
        return arrow_fields(columns)

    @staticmethod
    def schema(columns: Sequence[str] | None = None) -> pyarrow.Schema:
        """Return the schema of a batch with these columns. Raise the errors of ``arrow_schema``."""
        return arrow_schema(columns)

    @staticmethod
    def repeated(number: int, rows: int) -> Any:
        """Return a buffer with ``rows`` copies of an int32. Other batches may share its memory: do not write to it.

        Raises:
            OverflowError: ``number`` does not fit 32 bits.
        """
        pa = _pyarrow()
        if rows > _SHARED_ROWS:
            return _repeat(pa, number, rows).slice(0)
        return _shared_buffer(pa, number, max(_LEAST_SHARED_ROWS, 1 << (rows - 1).bit_length())).slice(0, 4 * rows)

    def batch(self, columns: Sequence[str] | None = None) -> pyarrow.RecordBatch:
        """Return the batch in ``arrow_schema(columns)`` with these buffers, which are neither copied nor checked.

        Raises:
            ConfigError: ``columns`` breaks a rule of ``arrow_schema``.
        """
        pa = _pyarrow()
        batch: pyarrow.RecordBatch = _wrap_buffers(pa, self, _schema(pa, check_columns(columns)))
        return batch


def _repeat(pa: Any, number: int, rows: int) -> Any:
    return pa.py_buffer(array("i", (number,)) * rows)


@lru_cache(maxsize=16)
def _shared_buffer(pa: Any, number: int, rows: int) -> Any:
    """Return a shared buffer with ``rows`` copies of ``number``. The cache holds at most 8 MiB."""
    return _repeat(pa, number, rows)


# --- compiled ----------------------------------------------------------------------------------------------------


def compiled_batches(kernel: ModuleType) -> Batches:
    """Return a function with the arguments of ``convert_batches`` that calls ``kernel``, the module ``arrow_c``."""

    def batches(chunk: RecordColumns, partition: int, limit: int, schema: Any) -> Iterator[Any]:
        pa, start = _pyarrow(), 0
        while start < chunk.count:
            buffers = ArrowBuffers(*kernel.pack(chunk, start, partition, limit, pa.allocate_buffer))
            yield _wrap_buffers(pa, buffers, schema)
            start += buffers.rows

    return batches


def _batch(pa: Any, rows: int, arrays: list[Any], schema: Any) -> Any:
    """Return a batch of arrays; without arrays, a batch that has ``rows`` rows and no columns."""
    if not arrays:
        return pa.record_batch([pa.nulls(rows)], names=["rows"]).select([])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _wrap_buffers(pa: Any, buffers: ArrowBuffers, schema: Any) -> Any:
    """Return the batch of the columns of a schema, without copies."""
    return _batch(pa, buffers.rows, [_WRAPPERS[name](pa, buffers) for name in schema.names], schema)


def _number(index: int, kind: str) -> Callable[[Any, ArrowBuffers], Any]:
    """Return a function that wraps buffer ``index`` of ``ArrowBuffers.fixed`` as an Arrow array of type ``kind``."""
    return lambda pa, buffers: pa.Array.from_buffers(getattr(pa, kind)(), buffers.rows, [None, buffers.fixed[index]])


def _stamps(pa: Any, buffers: ArrowBuffers) -> Any:
    nulls, bits = buffers.stamped
    return pa.Array.from_buffers(_types(pa)["timestamp"], buffers.rows, [bits, buffers.fixed[2]], nulls)


def _headers(pa: Any, buffers: ArrowBuffers) -> Any:
    kind, pairs = _types(pa)["headers"], _no_pairs(pa)
    if buffers.header_rows:
        nulls, contents = buffers.contents
        names = pa.Array.from_buffers(pa.string(), buffers.header_rows, buffers.names)
        parts = [names, pa.Array.from_buffers(pa.binary(), buffers.header_rows, contents, nulls)]
        pairs = _pairs(pa, kind, parts)
    return pa.Array.from_buffers(kind, buffers.rows, [None, buffers.list_offsets], 0, 0, [pairs])


_WRAPPERS: Final[dict[str, Callable[[Any, ArrowBuffers], Any]]] = {
    "partition": _number(0, "int32"),
    "offset": _number(1, "int64"),
    "timestamp": _stamps,
    "timestamp_type": _number(3, "int32"),
    "key": lambda pa, packed: pa.Array.from_buffers(pa.binary(), packed.rows, packed.keys[1], packed.keys[0]),
    "value": lambda pa, packed: pa.Array.from_buffers(pa.binary(), packed.rows, packed.values[1], packed.values[0]),
    "headers": _headers,
    "leader_epoch": _number(4, "int32"),
}


@cache
def _types(pa: Any) -> dict[str, Any]:
    """Return the Arrow type of each column, by name."""
    schema = _schema(pa, ARROW_COLUMNS)
    return dict(zip(schema.names, schema.types, strict=True))


@cache
def _no_pairs(pa: Any) -> Any:
    """Return an empty array of headers."""
    return _pairs(pa, _types(pa)["headers"], [pa.array([], pa.string()), pa.array([], pa.binary())])


def _pairs(pa: Any, kind: Any, parts: list[Any]) -> Any:
    """Return an array of headers from their names and values; ``kind`` is the type of the headers column."""
    return pa.Array.from_buffers(kind.value_type, len(parts[0]), [None], children=parts)


# --- pure Python -------------------------------------------------------------------------------------------------


def convert_batches(chunk: RecordColumns, partition: int, limit: int, schema: Any) -> Iterator[Any]:
    """Implement ``Batches`` without compiled code: pyarrow converts lists of Python objects."""
    pa, start = _pyarrow(), 0
    views_of(chunk)
    if not chunk.count:
        return
    for end in split_rows(chunk, limit):
        part = chunk if (start, end) == (0, chunk.count) else chunk.take(start, end)
        yield _batch(pa, part.count, _convert(pa, schema, part, partition), schema)
        start = end


def _convert(pa: Any, schema: Any, chunk: RecordColumns, partition: int) -> list[Any]:
    columns: dict[str, Callable[[], Any]] = {
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), chunk.count),
        "offset": lambda: _copy_column(pa, pa.int64(), chunk.offset),
        "timestamp": lambda: _timestamps(pa, chunk.timestamp_ms).cast(_types(pa)["timestamp"]),
        "timestamp_type": lambda: _copy_column(pa, pa.int32(), chunk.timestamp_type),
        "key": lambda: pa.array(chunk.keys(), type=pa.binary()),
        "value": lambda: pa.array(chunk.values(), type=pa.binary()),
        "headers": lambda: _convert_headers(pa, chunk),
        "leader_epoch": lambda: _copy_column(pa, pa.int32(), chunk.leader_epoch),
    }
    return [columns[name]() for name in schema.names]


def _convert_headers(pa: Any, chunk: RecordColumns) -> Any:
    headers, kind = chunk.headers(), _types(pa)["headers"]
    list_offsets = pa.py_buffer(array("i", accumulate(map(len, headers), initial=0)))
    header_parts = [
        pa.array([name for row in headers for name, _ in row], type=pa.string()),
        pa.array([value for row in headers for _, value in row], type=pa.binary()),
    ]
    return pa.Array.from_buffers(kind, chunk.count, [None, list_offsets], children=[_pairs(pa, kind, header_parts)])


def _copy_column(pa: Any, kind: Any, column: memoryview) -> Any:
    """Return a copy of a column of numbers, because the column may be a small slice of a large buffer."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column.tobytes())])


def _timestamps(pa: Any, timestamp_ms: memoryview) -> Any:
    """Return timestamps in microseconds, null if there is no timestamp, or if 64 bits cannot hold the number."""
    pc = import_module("pyarrow.compute")  # part of the extra ``arrow``
    ms = _copy_column(pa, pa.int64(), timestamp_ms)
    fits = pc.and_(pc.greater_equal(ms, -_MAX_ARROW_MS), pc.less_equal(ms, _MAX_ARROW_MS))
    return pc.multiply(pc.if_else(pc.and_(fits, pc.not_equal(ms, NO_TIMESTAMP)), ms, None), 1000)


# --- choice of the twin ------------------------------------------------------------------------------------------


_kernel: Final = extension("stratalog.model.arrow_c")
record_batches: Final = convert_batches if _kernel is None else compiled_batches(_kernel)
"""Function that yields the Arrow batches of columns (see ``Batches``): the compiled one, if it is available."""


@cache
def _schema(pa: Any, columns: tuple[str, ...]) -> Any:
    """Return the schema of these columns. ``pa`` is the module pyarrow, an optional dependency."""
    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    full_schema = pa.schema(
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
    return pa.schema([full_schema.field(name) for name in columns])


def _pyarrow() -> Any:
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise PluginImportError("pyarrow is not installed", "arrow", "stratalog[arrow]") from error
    return pa
