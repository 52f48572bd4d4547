"""Numbers in headers of records. ``headers_c`` is the compiled twin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.spi import Headers, RecordColumns, extension, int64_column
from stratalog_compaction.sections import INT64

EXTENSIONS: Final = ("stratalog_compaction.headers_c",)
_INT64_BYTES: Final = 8
_LONGEST_TEXT: Final = 20
_BOUND: Final = 1 << 63
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"  # stands in names where bytes are no UTF-8: only decoding tells


def header_numbers(records: RecordColumns, name: str, encoding: str, missing: int) -> memoryview:
    """Of each record the number in its last header of this name.

    Args:
        records: with headers.
        name: of the header.
        encoding: ``int64`` is 8 bytes, the highest first, as Java's LongSerializer writes them; ``text`` is decimal.
        missing: stands for the number of a record that has none that can be read.

    Returns:
        A column of int64.
    """
    twin = None if _REPLACEMENT in name else extension(EXTENSIONS[0])
    if twin is None:
        return int64_column(python_numbers(records, name, encoding, missing))
    found: memoryview = twin.header_numbers(records, name.encode(), encoding == INT64, missing)
    return found


def python_numbers(records: RecordColumns, name: str, encoding: str, missing: int) -> Iterator[int]:
    """The pure twin."""
    for headers in records.headers():
        found = _number(headers, name, encoding)
        yield missing if found is None else found


def _number(headers: Headers, name: str, encoding: str) -> int | None:
    value = next((value for key, value in reversed(headers) if key == name), None)
    if value is None:
        return None
    if encoding == INT64:
        return int.from_bytes(value, "big", signed=True) if len(value) == _INT64_BYTES else None
    digits = value[1:] if value[:1] == b"-" else value
    if not digits.isdigit() or len(value) > _LONGEST_TEXT:
        return None
    found = int(value)
    return found if -_BOUND <= found < _BOUND else None
