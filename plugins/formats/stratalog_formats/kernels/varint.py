"""Zigzag varints of the fields of records in batches of magic 2.

Source: apache/kafka ByteUtils.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Bytes: TypeAlias = bytes | bytearray


def read_varint(raw: Bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """Return the number at ``at`` and the position after it.

    Bits that do not fit are dropped, as in Kafka; non-minimal forms are accepted.

    Raises:
        ValueError: a sixth (for 64 bits an eleventh) byte would follow.
        IndexError: the bytes end inside the number.
    """
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value &= (1 << bits) - 1
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift >= bits:
            raise ValueError("varint too long")


def varint(value: int) -> bytes:
    """Return the shortest form. A 64-bit difference that overflowed wraps, as a Java long does."""
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


SMALL: Final = tuple(varint(value) for value in range(4096))
"""Precomputed forms of lengths, offset deltas and small timestamp deltas."""
