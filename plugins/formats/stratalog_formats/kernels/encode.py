"""Encoding records of magic 2, in pure Python.

One list of small bytes objects, joined once; numbers below 4,096 come from a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from stratalog.spi import NO_TIMESTAMP, Headers, InvalidRecordError, Record, RecordColumns
from stratalog_formats.kernels.layout import BATCH_HEADER_BYTES, MAX_ARENA_BYTES
from stratalog_formats.kernels.varint import SMALL, varint

NULL: Final = b"\x01"
_NO_HEADERS: Final = b"\0"
_LAST_MS: Final = (1 << 63) - 1
_ROOM: Final = bytes(BATCH_HEADER_BYTES)


class Body(NamedTuple):
    """Encoded records behind room for the header, so that sealing copies nothing. Timestamps are in ms."""

    buffer: bytearray
    record_count: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int


def encode_records(records: Sequence[Record]) -> Body:
    """Encode records with the offset deltas 0, 1, 2, ...

    Raises:
        InvalidRecordError: there are none; a timestamp below -1; a header's name is no text; they need over 2 GiB.
    """
    if not records:
        raise no_records()
    return _joined(
        (delta, ms, key, value, _encode_headers(headers, delta) if headers else _NO_HEADERS)
        for delta, (_, ms, _, key, value, headers, _, _) in enumerate(records)
    )


def encode_columns(columns: RecordColumns, keep_offsets: bool) -> Body:  # noqa: FBT001 - as its twin
    """Encode columns with the offset deltas 0, 1, 2, ... or, with ``keep_offsets``, those of the offset column.

    Raises:
        InvalidRecordError: as ``encode_records``; offsets that do not ascend or span more than 32 bits.
        IndexError: positions that are not inside the arena.
    """
    if not columns.count:
        raise no_records()
    if keep_offsets:
        first = columns.offset[0]
        deltas: Iterable[int] = (offset - first for offset in columns.offset)
        _check_offsets(columns.offset)
    else:
        deltas = range(columns.count)
    _check_places(columns)
    return _joined(zip(deltas, columns.timestamp_ms, columns.keys(), columns.values(), _headers(columns), strict=True))


def _joined(rows: Iterable[tuple[int, int, bytes | None, bytes | None, bytes]]) -> Body:
    """The body of rows of offset delta, timestamp, key, value and encoded headers."""
    parts = [_ROOM]
    extend, small, limit = parts.extend, SMALL, len(SMALL)
    first_ms = max_ms = delta = count = 0
    for delta, ms, key, value, header_bytes in rows:
        if not count:
            first_ms = max_ms = ms
        elif ms > max_ms:
            max_ms = ms
        if not -1 <= ms <= _LAST_MS:
            check_timestamp(ms, count)
        count += 1
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
        body = 1 + len(since_bytes) + len(delta_bytes) + len(key_bytes) + key_size
        body += len(value_bytes) + value_size + len(header_bytes)
        body_bytes = small[body] if body < limit else varint(body)
        extend((body_bytes, b"\0", since_bytes, delta_bytes, key_bytes, key, value_bytes, value, header_bytes))
    if sum(map(len, parts)) > MAX_ARENA_BYTES:
        raise too_large(count - 1)
    return Body(bytearray().join(parts), count, delta, first_ms, max_ms)


def _encode_headers(headers: Headers, index: int) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            raise bad_header_name(name, index) from error
        parts += (varint(len(raw)), raw)
        parts += (NULL,) if value is None else (varint(len(value)), value)
    return b"".join(parts)


# --- columns -----------------------------------------------------------------------------------------------------


def _headers(columns: RecordColumns) -> Iterator[bytes]:
    """The encoded headers of each record; names stay the bytes they are, UTF-8 or not."""
    arena = columns.arena if isinstance(columns.arena, bytes) else bytes(columns.arena)
    for first, count in zip(columns.header_first, columns.header_count, strict=True):
        if not count:
            yield _NO_HEADERS
            continue
        parts = [varint(count)]
        for index in range(first, first + count):
            for position, size in (
                (columns.header_key_position[index], columns.header_key_size[index]),
                (columns.header_value_position[index], columns.header_value_size[index]),
            ):
                parts += (NULL,) if size < 0 else (varint(size), arena[position : position + size])
        yield b"".join(parts)


def _check_offsets(offsets: memoryview) -> None:
    before = offsets[0] - 1
    for index, offset in enumerate(offsets):
        if not before < offset <= offsets[0] + MAX_ARENA_BYTES:
            raise bad_offset(offset, index)
        before = offset


def _check_places(columns: RecordColumns) -> None:
    """Every field lies in the arena, every header in the flat columns, and no header's name is null."""
    arena_bytes, total = memoryview(columns.arena).nbytes, len(columns.header_key_position)
    for positions, sizes in (
        (columns.key_position, columns.key_size),
        (columns.value_position, columns.value_size),
        (columns.header_key_position, columns.header_key_size),
        (columns.header_value_position, columns.header_value_size),
    ):
        for position, size in zip(positions, sizes, strict=True):
            if size >= 0 and (position < 0 or position + size > arena_bytes):
                raise IndexError(f"a field of {size} bytes at {position} is not inside the arena")
    for first, count in zip(columns.header_first, columns.header_count, strict=True):
        if count and (first < 0 or count < 0 or first + count > total):
            raise IndexError(f"headers {first} to {first + count} are not inside {total}")
    if total and min(columns.header_key_size) < 0:
        raise IndexError("a header's name is null")


# --- refusals ----------------------------------------------------------------------------------------------------


def check_timestamp(ms: int, index: int) -> None:
    """Refuse what is below -1 or above 64 bits, with InvalidRecordError; ``index`` is the record's."""
    if not NO_TIMESTAMP <= ms <= _LAST_MS:
        raise bad_timestamp(ms, index)


def bad_timestamp(ms: int, index: int) -> InvalidRecordError:
    """A timestamp that no record has."""
    return _refused(f"timestamp {ms} is {'negative' if ms < 0 else 'above 64 bits'}", index)


def bad_header_name(name: str, index: int) -> InvalidRecordError:
    """A header's name that UTF-8 cannot hold."""
    return _refused(f"header name {name!r} is not Unicode text", index)


def bad_offset(offset: int, index: int) -> InvalidRecordError:
    """An offset that does not follow those before it, or is too far from the first."""
    return _refused(f"offset {offset} is not above the one before it and within 32 bits of the first", index)


def too_large(index: int) -> InvalidRecordError:
    """More bytes than the size field of a batch can say."""
    return _refused("the records of a batch need more than 2 GiB", index)


def no_records() -> InvalidRecordError:
    """An empty batch is written by cleaning alone."""
    return InvalidRecordError("a batch has at least one record")


def _refused(text: str, index: int) -> InvalidRecordError:
    return InvalidRecordError(text, ((index, text),))
