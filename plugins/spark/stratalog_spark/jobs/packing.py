"""Compact encoding of the data that the tasks of a compaction exchange: hashes of keys, and offsets.

The latest offset of a key takes 20 bytes: 16 for the hash of the key, and 4 for the offset relative to the start of the
run. If the run is too long for 4 bytes, the offset takes 8. A kept offset is encoded as its distance to the previous
kept offset, usually in one byte.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from stratalog.errors import StorageError
from stratalog_spark.keys.hashes import DIFFERENT_KINDS, KIND
from stratalog_spark.keys.newest import Newest

# kind of hash or 0, size of an offset in bytes, number of rows; padded to align hashes to 8 bytes
_HEAD: Final = struct.Struct("<BB6xq")
_WIDTHS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SEED: Final = 42
_MASK: Final = 0xFFFFFFFF


def pack_newest(newest: Newest, start: int) -> bytes:
    """Return hashes and offsets encoded as bytes. All offsets must be at least ``start``."""
    offsets = newest.offsets - start
    width = 4 if not len(offsets) or int(offsets.max()) <= _MASK else 8
    head = _HEAD.pack(KIND, width, len(offsets))
    return b"".join((head, newest.hashes.tobytes(), offsets.astype(_WIDTHS[width]).tobytes()))


def unpack_newest(blob: bytes, start: int) -> Newest:
    """Return the value that was passed to ``pack_newest``.

    Raises:
        StorageError: the worker that packed the rows uses another hash function than this worker, because only one of
            the two workers has the compiled code.
    """
    kind, width, count = _HEAD.unpack_from(blob)
    if kind != KIND:
        raise StorageError(DIFFERENT_KINDS)
    position = _HEAD.size
    hashes = np.frombuffer(blob, np.uint64, 2 * count, position).reshape(-1, 2)
    offsets = np.frombuffer(blob, _WIDTHS[width], count, position + 16 * count)
    return Newest(hashes, offsets.astype(np.int64) + start)


def split_buckets(newest: Newest, bits: int) -> list[Newest]:
    """Divide rows into 2^``bits`` buckets by the first bits of their hashes. Return the rows of each bucket."""
    if not bits:
        return [newest]
    buckets = (newest.hashes[:, 0] >> np.uint64(64 - bits)).astype(np.uint16 if bits <= 16 else np.uint64)
    order = np.argsort(buckets, kind="stable")  # numpy sorts numbers of 16 bits by radix sort
    hashes, offsets = newest.hashes[order], newest.offsets[order]
    cuts: Any = np.searchsorted(buckets[order], np.arange(1, 1 << bits))
    return [Newest(*part) for part in zip(np.split(hashes, cuts), np.split(offsets, cuts), strict=True)]


def pack_offsets(offsets: Any, start: int) -> bytes:
    """Return ascending offsets, all at least ``start``, encoded as bytes."""
    gaps = np.diff(offsets, prepend=start).astype(np.uint64)
    largest = int(gaps.max()) if len(gaps) else 0
    width = next(width for width in _WIDTHS if largest < 1 << 8 * width)
    packed_gaps: bytes = gaps.astype(_WIDTHS[width]).tobytes()
    return _HEAD.pack(0, width, len(gaps)) + packed_gaps


def unpack_offsets(blob: bytes, start: int) -> Any:
    """Return the offsets that were passed to ``pack_offsets``, as a numpy array of int64."""
    _, width, count = _HEAD.unpack_from(blob)
    gaps = np.frombuffer(blob, _WIDTHS[width], count, _HEAD.size).astype(np.int64)
    return np.cumsum(gaps) + start


def partition_keys(count: int) -> list[int]:
    """Return one number for each of ``count`` Spark partitions, which Spark's hash partitioning maps to that partition.

    Source: apache/spark HashPartitioning: the Murmur3 hash of an int with seed 42, modulo the count.
    """
    keys: dict[int, int] = {}
    number = 0
    while len(keys) < count:
        keys.setdefault(_murmur(number) % count, number)
        number += 1
    return [keys[partition] for partition in range(count)]


def _murmur(value: int) -> int:
    """Return Spark's hash of an int (Murmur3, 32 bits, seed 42) as a signed number.

    Source: A. Appleby, MurmurHash3_x86_32, for an input of one block of 4 bytes.
    """
    word = value * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    state = _SEED ^ word * 0x1B873593 & _MASK
    state = (state << 13 | state >> 19) & _MASK
    state = (state * 5 + 0xE6546B64) & _MASK
    state ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & _MASK
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state
