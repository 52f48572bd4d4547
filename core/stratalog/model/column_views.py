"""The columns of records, and the errors for wrong columns, for both twins of every kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

from stratalog.errors import ConfigError
from stratalog.model.batches import Buffer

if TYPE_CHECKING:
    from stratalog.model.records import RecordColumns

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
        ConfigError: a column is absent, because it was not requested when decoding.
        TypeError: a column is not of its format.
        ValueError: a column has another length than the others.
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
    """Return a view of one column; TypeError if it is not of this format."""
    view = memoryview(column)
    if view.format != code or view.ndim != 1 or not view.c_contiguous:
        raise TypeError(f"the column {name} is a memoryview of format {code}, not {view.format}")
    return view


def outside(position: int, size: int) -> Never:
    """Raise the error for a field that is not inside the arena."""
    raise IndexError(f"a field of {size} bytes at {position} is not inside the arena")


def outside_headers(first: int, count: int, total: int) -> Never:
    """Raise the error for headers that are not inside the flat columns."""
    raise IndexError(f"headers [{first}, {first + count}) are not inside {total}")


def null_name() -> Never:
    """Raise the error for a header without a name."""
    raise IndexError("a header's name is null")
