"""Encoding records as the records section of a batch of magic 2.

One list of small bytes objects, joined once; numbers below 4,096 come from a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from stratalog.spi import NO_TIMESTAMP, Headers, InvalidRecordError, Record
from stratalog_formats.records.layout import BATCH_HEADER_BYTES
from stratalog_formats.records.varint import SMALL, varint

NULL: Final = b"\x01"
_NO_HEADERS: Final = b"\0"
_LAST_MS: Final = (1 << 63) - 1
_ROOM: Final = bytes(BATCH_HEADER_BYTES)


class Body(NamedTuple):
    """Encoded records behind room for the header, so that sealing copies nothing. Timestamps are in ms."""

    buffer: bytearray
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode_records(records: Sequence[Record]) -> Body:
    """Encode records with the offset deltas 0, 1, 2, ...

    Raises:
        InvalidRecordError: there are none; a timestamp that ``check_timestamp`` refuses; a header's name is no text.
    """
    if not records:
        raise InvalidRecordError("a batch has at least one record")
    parts = [_ROOM]
    extend, small, limit = parts.extend, SMALL, len(SMALL)
    first_ms = max_ms = records[0].timestamp_ms
    delta = -1
    for _, ms, _, key, value, headers, _, _ in records:
        delta += 1
        max_ms = max(max_ms, ms)
        if not -1 <= ms <= _LAST_MS:
            check_timestamp(ms, delta)
        since = ms - first_ms
        since_bytes = small[since] if 0 <= since < limit else varint(since)
        delta_bytes = small[delta] if delta < limit else varint(delta)
        if key is None:
            key, key_size, key_bytes = b"", 0, NULL  # noqa: PLW2901 - a second name would cost more than it says
        else:
            key_size = len(key)
            key_bytes = small[key_size] if key_size < limit else varint(key_size)
        if value is None:
            value, value_size, value_bytes = b"", 0, NULL  # noqa: PLW2901 - the same
        else:
            value_size = len(value)
            value_bytes = small[value_size] if value_size < limit else varint(value_size)
        header_bytes = _encode_headers(headers, delta) if headers else _NO_HEADERS
        body = 1 + len(since_bytes) + len(delta_bytes) + len(key_bytes) + key_size
        body += len(value_bytes) + value_size + len(header_bytes)
        body_bytes = small[body] if body < limit else varint(body)
        extend((body_bytes, b"\0", since_bytes, delta_bytes, key_bytes, key, value_bytes, value, header_bytes))
    return Body(bytearray().join(parts), first_ms, max_ms)


def check_timestamp(ms: int, index: int) -> None:
    """Refuse what is below -1 or above 64 bits, with InvalidRecordError; ``index`` is the record's."""
    if not NO_TIMESTAMP <= ms <= _LAST_MS:
        text = f"timestamp {ms} is {'negative' if ms < 0 else 'above 64 bits'}"
        raise InvalidRecordError(text, ((index, text),))


def _encode_headers(headers: Headers, index: int) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            text = f"header name {name!r} is not Unicode text"
            raise InvalidRecordError(text, ((index, text),)) from error
        parts += (varint(len(raw)), raw)
        parts += (NULL,) if value is None else (varint(len(value)), value)
    return b"".join(parts)
