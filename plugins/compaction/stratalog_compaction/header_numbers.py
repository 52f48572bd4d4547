"""Numbers in headers of records. ``headers_c`` contains the compiled form of ``header_numbers``."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from stratalog import RecordColumns
from stratalog.spi import Headers, extension
from stratalog_compaction.sections import INT64

EXTENSIONS: Final = ("stratalog_compaction.headers_c",)
_INT64_BYTES: Final = 8
_LONGEST_TEXT: Final = 20
_BOUND: Final = 1 << 63
# replaces invalid UTF-8 in names; only the pure Python function decodes names, so only it can compare such names
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def header_numbers(records: RecordColumns, name: str, encoding: str, missing: int) -> memoryview:
    """Return the number in a header of each record, as a column of int64.

    Args:
        records: records that were decoded with their headers.
        name: name of the header. If a record has several headers with this name, the last one counts.
        encoding: ``int64`` (8 bytes, big-endian, the format of Java's LongSerializer) or ``text`` (decimal digits).
        missing: result for a record that has no header with this name, or whose number is not a valid int64.
    """
    twin = None if _REPLACEMENT in name else extension(EXTENSIONS[0])
    if twin is None:
        return memoryview(array("q", python_numbers(records, name, encoding, missing)))
    numbers: memoryview = twin.header_numbers(records, name.encode(), encoding == INT64, missing)
    return numbers


def python_numbers(records: RecordColumns, name: str, encoding: str, missing: int) -> Iterator[int]:
    """Yield the numbers that ``header_numbers`` returns, in pure Python."""
    for headers in records.headers():
        number = _number(headers, name, encoding)
        yield missing if number is None else number


def _number(headers: Headers, name: str, encoding: str) -> int | None:
    value = next((value for key, value in reversed(headers) if key == name), None)
    if value is None:
        return None
    if encoding == INT64:
        return int.from_bytes(value, "big", signed=True) if len(value) == _INT64_BYTES else None
    digits = value[1:] if value[:1] == b"-" else value
    if not digits.isdigit() or len(value) > _LONGEST_TEXT:
        return None
    number = int(value)
    return number if -_BOUND <= number < _BOUND else None
