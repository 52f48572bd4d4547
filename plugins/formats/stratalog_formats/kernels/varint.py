"""Zigzag varints of the fields of records in batches of magic 2.

Source: apache/kafka ByteUtils.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Bytes: TypeAlias = bytes | bytearray


def read_varint(raw: Bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """Return the number at ``position``, and the position after the number.

    ``bits`` is 32 or 64. As in Kafka, higher bits are dropped. An encoding may be longer than necessary.

    Raises:
        ValueError: the number is longer than 5 bytes (10 bytes for 64 bits).
        IndexError: the bytes end inside the number.
    """
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value &= (1 << bits) - 1
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift >= bits:
            raise ValueError("a varint is too long")


def varint(value: int) -> bytes:
    """Return the shortest encoding of a number. The number is first wrapped to 64 bits like a Java long."""
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


SMALL: Final = tuple(varint(value) for value in range(4096))
"""Encoded varints of the numbers 0 to 4,095, for most lengths, offset deltas and timestamp deltas."""
