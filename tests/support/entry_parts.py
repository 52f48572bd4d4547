"""Splits valid entries into named fields, for mutations and tests of record formats.

Source: apache/kafka LegacyRecord, DefaultRecordBatch, DefaultRecord.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, TypeAlias
from zlib import crc32

from crc32c import crc32c

Part: TypeAlias = tuple[str, bytes]
"""Name and bytes of a field."""

OVERHEAD_BYTES: Final = 12
SIZE_POSITION: Final = 8
MAGIC_POSITION: Final = 16
BATCH_ATTRIBUTES_POSITION: Final = 22
_BATCH: Final = (
    ("base offset", 8),
    ("size", 4),
    ("leader epoch", 4),
    ("magic", 1),
    ("CRC", 4),
    ("attributes", 2),
    ("last offset delta", 4),
    ("base timestamp", 8),
    ("max timestamp", 8),
    ("producer id", 8),
    ("producer epoch", 2),
    ("base sequence", 4),
    ("record count", 4),
)
_MESSAGE: Final = (("offset", 8), ("size", 4), ("CRC", 4), ("magic", 1), ("attributes", 1))
_STAMPED: Final = (*_MESSAGE, ("timestamp", 8))


def entries_of(data: bytes) -> list[bytes]:
    """Return the entries of a valid sequence of entries."""
    entries, position = [], 0
    while position < len(data):
        end = position + OVERHEAD_BYTES + number_of(data[position + SIZE_POSITION : position + OVERHEAD_BYTES])
        entries.append(data[position:end])
        position = end
    return entries


def parts_of_entry(entry: bytes) -> list[Part]:
    """Return the fields of a valid entry of any magic, in order; the records of a batch are one field, the last one."""
    magic = entry[MAGIC_POSITION]
    if magic == 2:
        parts, position = _fixed(entry, _BATCH)
        return [*parts, ("records", entry[position:])]
    parts, position = _fixed(entry, _STAMPED if magic else _MESSAGE)
    for name in ("key", "value"):
        end = position + 4 + max(number_of(entry[position : position + 4]), 0)
        parts += [(f"{name} length", entry[position : position + 4]), (name, entry[position + 4 : end])]
        position = end
    return [*parts, ("rest", entry[position:])] if position < len(entry) else parts


def parts_of_records(section: bytes) -> list[list[Part]]:
    """Return the fields of each record of a valid, uncompressed batch of magic 2."""
    records, position = [], 0
    while position < len(section):
        record: list[Part] = []
        position = take_varint(section, position, "length", record)[0] + 1
        record.append(("attributes", section[position - 1 : position]))
        for name in ("timestamp delta", "offset delta"):
            position, _ = take_varint(section, position, name, record)
        for name in ("key", "value"):
            position = _take_field(section, position, name, record)
        position, headers = take_varint(section, position, "header count", record)
        for _ in range(headers):
            for name in ("header key", "header value"):
                position = _take_field(section, position, name, record)
        records.append(record)
    return records


def seal(entry: bytearray) -> None:
    """Write the correct CRC for the magic over the bytes that the size field covers, if the size is valid."""
    end = OVERHEAD_BYTES + number_of(entry[SIZE_POSITION:OVERHEAD_BYTES])
    if not 26 <= end <= len(entry):
        return
    with memoryview(entry) as view:
        if entry[MAGIC_POSITION] == 2:
            place, crc = slice(17, 21), crc32c(view[21:end])
        else:
            place, crc = slice(12, 16), crc32(view[16:end])
    entry[place] = crc.to_bytes(4, "big")


def _fixed(entry: bytes, layout: Sequence[tuple[str, int]]) -> tuple[list[Part], int]:
    ends = list(accumulate(width for _, width in layout))
    parts = [(name, entry[end - width : end]) for (name, width), end in zip(layout, ends, strict=True)]
    return parts, ends[-1]


def take_varint(raw: bytes, at: int, name: str, into: list[Part]) -> tuple[int, int]:
    """Append the bytes of the varint at ``at`` to ``into``; return the position after it, and its value."""
    end = at + 1
    while raw[end - 1] > 127:
        end += 1
    into.append((name, raw[at:end]))
    number = sum((byte & 127) << 7 * place for place, byte in enumerate(raw[at:end]))
    return end, number >> 1 ^ -(number & 1)


def varint(number: int) -> bytes:
    """Return the zigzag varint of a number of up to 64 bits."""
    number = (number << 1 ^ number >> 63) & (1 << 64) - 1
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes((*encoded, number))


def _take_field(raw: bytes, position: int, name: str, parts: list[Part]) -> int:
    position, size = take_varint(raw, position, f"{name} length", parts)
    end = position + max(size, 0)
    parts.append((name, raw[position:end]))
    return end


def number_of(raw: bytes | bytearray) -> int:
    """Return the signed big-endian integer of any width."""
    return int.from_bytes(raw, "big", signed=True)


def joined(parts: Sequence[Part]) -> bytes:
    """Join the bytes of all parts."""
    return b"".join(raw for _, raw in parts)
