"""Bloom filters of keys, in pure Python.

docs/formats/bloom.md describes the hash and the positions. Source: Burton H. Bloom, Space/time trade-offs in hash
coding (1970).
"""

from __future__ import annotations

from array import array
from zlib import crc32

from crc32c import crc32c

from stratalog import RecordColumns
from stratalog.spi import Buffer

_ALL = (1 << 64) - 1
_HALF = (1 << 32) - 1
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53  # constants of MurmurHash3's finalizer


def hash_of(key: Buffer) -> int:
    """Return the 64-bit hash of a key: its CRC-32C and CRC-32, mixed by MurmurHash3's finalizer."""
    mixed = crc32c(bytes(key)) | crc32(key) << 32
    mixed = (mixed ^ mixed >> 33) * _FIRST & _ALL
    mixed = (mixed ^ mixed >> 33) * _SECOND & _ALL
    return mixed ^ mixed >> 33


def hash_keys(records: RecordColumns) -> bytes:
    """Return the hashes of the keys that are not null: 8 bytes each, in native byte order.

    The order of the hashes is undefined. The hash of a repeated key may be returned once or several times. Raise
    IndexError if a key is not inside the arena.
    """
    return array("Q", [hash_of(key) for key in set(records.keys()) if key is not None]).tobytes()


def distinct(hashes: Buffer) -> bytes:
    """Return the different hashes in ascending order: 8 bytes each, in native byte order."""
    return array("Q", sorted(set(memoryview(hashes).cast("B").cast("Q")))).tobytes()


def fill_filter(hashes: Buffer, count: int, size_bytes: int) -> bytearray:
    """Return a filter of ``size_bytes`` in which up to ``count`` bits are set for each hash.

    Raise ValueError if ``size_bytes`` is below 1.
    """
    if size_bytes < 1:
        raise ValueError("a filter has at least one byte")
    bloom_filter, bits = bytearray(size_bytes), 8 * size_bytes
    for hashed in memoryview(hashes).cast("B").cast("Q"):
        position, step = hashed & _HALF, hashed >> 32 | 1
        for _ in range(count):
            bit = position % bits
            bloom_filter[bit >> 3] |= 1 << (bit & 7)
            position += step
    return bloom_filter


def may_hold(bloom_filter: Buffer, key: bytes, count: int) -> bool:
    """Return False if the key was certainly not added to ``bloom_filter``; otherwise True.

    ``count`` must be the ``count`` with which ``fill_filter`` was called. Raise ValueError if the filter is empty.
    """
    view, hashed = memoryview(bloom_filter), hash_of(key)
    if not view:
        raise ValueError("a filter has at least one byte")
    position, step, bits = hashed & _HALF, hashed >> 32 | 1, 8 * len(view)
    for _ in range(count):
        bit = position % bits
        if not view[bit >> 3] & 1 << (bit & 7):
            return False
        position += step
    return True
