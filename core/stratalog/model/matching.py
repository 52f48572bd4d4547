"""Search for records by key or timestamp. ``matching_c`` has the same functions as compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.extensions import extension
from stratalog.model.column_views import typed_view
from stratalog.model.records import RecordColumns

_SAME, _OTHER = b"\1", b"\0"


def python_rows_of_key(records: RecordColumns, key: bytes) -> bytes:
    """Return the result of ``rows_of_key``, in pure Python."""
    positions = typed_view(records.key_position, "i", "key_position")
    sizes = typed_view(records.key_size, "i", "key_size")
    if not len(positions) == len(sizes) == records.count:
        raise ValueError(f"{len(positions)} positions and {len(sizes)} sizes of the keys of {records.count} records")
    keys = records.keys()
    return b"".join([_SAME if record_key == key else _OTHER for record_key in keys])


def python_first_late_row(records: RecordColumns, timestamp_ms: int, min_offset: int) -> int | None:
    """Return the result of ``first_late_row``, in pure Python."""
    stamps = typed_view(records.timestamp_ms, "q", "timestamp_ms")
    offsets = typed_view(records.offset, "q", "offset")
    if len(stamps) != len(offsets):
        raise ValueError(f"{len(stamps)} timestamps and {len(offsets)} offsets")
    places = zip(stamps, offsets, strict=True)
    return next((row for row, (ms, offset) in enumerate(places) if ms >= timestamp_ms and offset >= min_offset), None)


_twin: Final = extension("stratalog.model.matching_c")

rows_of_key: Final[Callable[[RecordColumns, bytes], bytes]] = python_rows_of_key if _twin is None else _twin.rows_of_key
"""Return one byte per record: 1 if it has the key, 0 if it has another key or none.

Args:
    records: records with the field KEY.
    key: the whole key.

Raises:
    IndexError: a key is not inside the arena.
    TypeError, ValueError: a column has a wrong format, or another length than the records.
"""

first_late_row: Final[Callable[[RecordColumns, int, int], int | None]] = (
    python_first_late_row if _twin is None else _twin.first_late_row
)
"""Return the row of the first record that has neither an older timestamp nor a smaller offset; None if there is none.

Args:
    records: records with the fields OFFSET and TIMESTAMP.
    timestamp_ms: the smallest wanted timestamp.
    min_offset: the smallest wanted offset.

Raises:
    ValueError: the columns differ in length.
"""
