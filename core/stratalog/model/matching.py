"""Search for the records that have a given key. ``matching_c`` is the compiled twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stratalog.extensions import extension
from stratalog.model.records import EXTENSIONS, RecordColumns

_SAME, _OTHER = b"\1", b"\0"


def python_rows_of_key(records: RecordColumns, key: bytes) -> bytes:
    """Return the result of ``rows_of_key``, in pure Python."""
    keys = records.keys()
    if len(keys) != records.count:
        raise ValueError(f"{len(keys)} keys of {records.count} records")
    return b"".join([_SAME if found == key else _OTHER for found in keys])


_twin: Final = extension(EXTENSIONS[2])

rows_of_key: Final[Callable[[RecordColumns, bytes], bytes]] = python_rows_of_key if _twin is None else _twin.rows_of_key
"""Return one byte per record: 1 if it has the key, 0 if it has another key or none.

Args:
    records: records with the field KEY.
    key: the whole key.

Raises:
    IndexError: a key is not inside the arena.
    TypeError, ValueError: a column has a wrong format, or another length than the records.
"""
