"""Numbers in headers of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stratalog.spi import Headers, RecordColumns
from stratalog_compaction.sections import INT64

_INT64_BYTES: Final = 8
_LONGEST_TEXT: Final = 20
_BOUND: Final = 1 << 63


def header_numbers(records: RecordColumns, name: str, encoding: str) -> Iterator[int | None]:
    """Of each record the number in its last header of this name; None if it has none that can be read.

    Args:
        records: with headers.
        name: of the header.
        encoding: ``int64`` is 8 bytes, the highest first, as Java's LongSerializer writes them; ``text`` is decimal.
    """
    for headers in records.headers():
        yield _number(headers, name, encoding)


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
