"""Bloom filters of the keys of segments.

Sources: Burton H. Bloom, Space/time trade-offs in hash coding with allowable errors (1970). The positions of a key are
computed from the two halves of one hash: Kirsch and Mitzenmacher, Less hashing, same performance (2006).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from math import log
from struct import Struct
from typing import Final

from bloom_index.settings import BloomSection
from stratalog import RecordColumns
from stratalog.errors import CorruptIndexError
from stratalog.spi import Buffer, ExtraIndex, ExtraIndexBuilder, ExtraIndexReader, TopicConfig

_HEAD: Final = Struct("<IB")  # size of the filter in bytes, number of positions of a key; the filter follows
_HALF: Final = (1 << 32) - 1
_MOST_POSITIONS: Final = 30


class BloomIndex(ExtraIndex):
    """Extra index with one filter per segment, which contains all keys that are not null."""

    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """Return a builder with the topic's settings."""
        section = config.sections.get("bloom_index")
        return BloomBuilder(section if isinstance(section, BloomSection) else BloomSection())

    def reader(self, data: Buffer) -> ExtraIndexReader:
        """Return a reader. Raise CorruptIndexError if ``data`` is too short, or if its header contradicts its size."""
        return BloomReader(data)


class BloomBuilder(ExtraIndexBuilder):
    """Builder that keeps a hash of each key until ``finish``: the number of keys determines the filter's size.

    After more than ``max_keys`` different keys, further keys are ignored, and there is no filter.
    """

    def __init__(self, section: BloomSection) -> None:
        self._section = section
        self._hashes = array("Q")
        self._is_full = False

    def add(self, records: RecordColumns) -> None:
        """Add the hashes of the records' keys; null keys are ignored."""
        if self._is_full:
            return
        self._hashes.extend(hash_of(key) for key in set(records.keys()) if key is not None)
        if len(self._hashes) > 2 * self._section.max_keys:
            self._hashes = _distinct(self._hashes)
            self._is_full = len(self._hashes) > self._section.max_keys

    def finish(self) -> bytes:
        """Return the filter with its header; b"" if the segment has more than ``max_keys`` different keys."""
        hashes = _distinct(self._hashes)
        if self._is_full or len(hashes) > self._section.max_keys:
            return b""
        bits = self._section.bits_per_key
        count = min(max(round(bits * log(2)), 1), _MOST_POSITIONS)
        bloom_filter = bytearray(max(-(-len(hashes) * bits // 8), 1))
        for hashed in hashes:
            for position in _positions(hashed, count, 8 * len(bloom_filter)):
                bloom_filter[position >> 3] |= 1 << (position & 7)
        return _HEAD.pack(len(bloom_filter), count) + bloom_filter


class BloomReader(ExtraIndexReader):
    """Reader that looks up keys in a filter.

    Raises:
        CorruptIndexError: the bytes are too short, or the header contradicts their size.
    """

    def __init__(self, data: Buffer) -> None:
        view = memoryview(data)
        if len(view) <= _HEAD.size:
            raise CorruptIndexError("the file is shorter than the header of a filter", "", 0)
        size_bytes, self._count = _HEAD.unpack_from(view)
        if size_bytes != len(view) - _HEAD.size or not 1 <= self._count <= _MOST_POSITIONS:
            raise CorruptIndexError(f"the head says {size_bytes} bytes, {self._count} positions", "", 0)
        self._filter = view[_HEAD.size :]

    def may_hold_key(self, key: bytes) -> bool:
        """Return False if the segment cannot contain the key, and True if the segment may contain the key."""
        bloom_filter = self._filter
        positions = _positions(hash_of(key), self._count, 8 * len(bloom_filter))
        return all(bloom_filter[position >> 3] & 1 << (position & 7) for position in positions)


def hash_of(key: bytes) -> int:
    """Return the 64-bit hash of a key, which is equal on all machines."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def _positions(hashed: int, count: int, bits: int) -> Iterator[int]:
    """Yield the ``count`` positions of a hash in a filter of ``bits`` bits."""
    position, step = hashed & _HALF, hashed >> 32 | 1
    for _ in range(count):
        yield position % bits
        position += step


def _distinct(hashes: Iterable[int]) -> array[int]:
    return array("Q", sorted(set(hashes)))
