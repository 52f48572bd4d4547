"""The columns of records: checked views, the errors for wrong columns, and splits of columns by size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Never

from stratalog.errors import ConfigError
from stratalog.model.batches import Buffer

if TYPE_CHECKING:
    from stratalog.model.records import RecordColumns

_REPLACEMENT_BYTES: Final = 3  # size of U+FFFD, which may replace one byte
ROW_COLUMNS: Final = {
    "offset": "q",
    "timestamp_ms": "q",
    "timestamp_type": "i",
    "leader_epoch": "i",
    "key_position": "i",
    "key_size": "i",
    "value_position": "i",
    "value_size": "i",
    "header_first": "i",
    "header_count": "i",
}
FLAT_COLUMNS: Final = {
    "header_key_position": "i",
    "header_key_size": "i",
    "header_value_position": "i",
    "header_value_size": "i",
}
_COLUMNS: Final = ROW_COLUMNS | FLAT_COLUMNS


def views_of(columns: RecordColumns) -> list[memoryview]:
    """Return every column, in the order of ``ROW_COLUMNS`` and ``FLAT_COLUMNS``, after checks of format and length.

    Raises:
        ConfigError: a column is absent, because the decoder was not asked for its field.
        TypeError: a column does not have its format.
        ValueError: the columns differ in length.
    """
    views = [typed_view(getattr(columns, name), code, name) for name, code in _COLUMNS.items()]
    lengths = [columns.count] * len(ROW_COLUMNS) + [len(columns.header_key_position)] * len(FLAT_COLUMNS)
    for name, view, length in zip(_COLUMNS, views, lengths, strict=True):
        if not len(view) and length:
            raise ConfigError(f"the column {name} is absent: decode with Fields.ALL")
        if len(view) != length:
            raise ValueError(f"the column {name} has {len(view)} rows instead of {length}")
    return views


def typed_view(column: Buffer, code: str, name: str) -> memoryview:
    """Return a view of one column; raise TypeError unless the column is contiguous and has the format ``code``."""
    view = memoryview(column)
    if view.format != code:
        raise TypeError(f"the column {name} is a memoryview of format {code}, not {view.format}")
    if view.ndim != 1 or not view.c_contiguous:
        raise TypeError(f"the column {name} is not a contiguous memoryview of one dimension")
    return view


def outside(position: int, size: int) -> Never:
    """Raise IndexError: a field of ``size`` bytes at ``position`` is not inside the arena."""
    raise IndexError(f"a field of {size} bytes at {position} is not inside the arena")


def outside_headers(first: int, count: int, total: int) -> Never:
    """Raise IndexError: the rows [first, first + count) are not inside the ``total`` rows of the header columns."""
    raise IndexError(f"headers [{first}, {first + count}) are not inside the {total} headers of the columns")


def null_name() -> Never:
    """Raise IndexError: a header has no name."""
    raise IndexError("a header's name is null")


def split_rows(chunk: RecordColumns, limit: int) -> Iterator[int]:
    """Split a chunk by size, and yield the end row (exclusive) of each part. The chunk must have records.

    In a part, the keys, the values, the header names and the header values each have at most ``limit`` bytes, and there
    are at most ``limit`` headers. Each byte of a header's name counts as three, because U+FFFD may replace it.

    Raises:
        OverflowError: one record is larger than the limit.
        IndexError: headers are not inside the flat columns.
    """
    if _largest(chunk) <= limit:
        yield chunk.count
        return
    start, used_bytes = 0, [0] * 5
    sizes = zip(
        _positive(chunk.key_size),
        _positive(chunk.value_size),
        _sums(chunk, [_REPLACEMENT_BYTES * size for size in _positive(chunk.header_key_size)]),
        _sums(chunk, _positive(chunk.header_value_size)),
        chunk.header_count,
        strict=True,
    )
    for row, record_sizes in enumerate(sizes):
        if max(record_sizes) > limit:
            raise OverflowError(f"record {row} does not fit Arrow's 32-bit offsets")
        used_bytes = [a + b for a, b in zip(used_bytes, record_sizes, strict=True)]
        if max(used_bytes) > limit:
            yield row
            start, used_bytes = row, list(record_sizes)
    if start < chunk.count:
        yield chunk.count


def _largest(chunk: RecordColumns) -> int:
    """Return an upper bound of the size (bytes) of the largest column of the chunk."""
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
    """Return the sum of ``sizes`` over the headers of each record."""
    before = [0, *accumulate(sizes)]
    total = len(sizes)
    result = []
    for first, count in zip(chunk.header_first, chunk.header_count, strict=True):
        if count and (first < 0 or count < 0 or first + count > total):
            outside_headers(first, count, total)
        result.append(before[first + count] - before[first] if count else 0)
    return result
