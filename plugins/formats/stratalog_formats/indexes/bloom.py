"""Extra index ``bloom``: a Bloom filter of the keys of a segment.

docs/formats/bloom.md describes the bytes of the filter. The positions of a key in the filter are computed from the two
halves of one hash. Source: Kirsch and Mitzenmacher, Less Hashing, Same Performance (2006).
"""

from __future__ import annotations

from math import log
from struct import Struct
from typing import Final

from stratalog import RecordColumns
from stratalog.errors import CorruptIndexError
from stratalog.spi import Buffer, ExtraIndex, ExtraIndexBuilder, ExtraIndexReader, TopicConfig
from stratalog_formats.indexes.bloom_section import NAME, BloomSection
from stratalog_formats.kernels.dispatch import KERNELS, Kernels

_HEAD: Final = Struct("<IB")  # size of the filter, number of positions of a key; the filter follows
_HASH_BYTES: Final = 8
_MOST_POSITIONS: Final = 30


class BloomIndex(ExtraIndex):
    """Extra index with one Bloom filter for each segment, which contains all keys of the segment that are not null."""

    def __init__(self, kernels: Kernels = KERNELS) -> None:
        self._kernels = kernels

    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        """Return a builder with the topic's settings. If the topic has none, use the defaults."""
        section = config.sections.get(NAME)
        return BloomBuilder(section if isinstance(section, BloomSection) else BloomSection(), self._kernels)

    def reader(self, data: Buffer) -> ExtraIndexReader:
        """Return a reader over ``data``."""
        return BloomReader(data, self._kernels)


class BloomBuilder(ExtraIndexBuilder):
    """Builder of a filter.

    It keeps a hash of each key until ``finish``, because the number of keys determines the size.

    If the segment has more than ``max_keys`` different keys, ``finish`` returns no filter.
    """

    def __init__(self, section: BloomSection, kernels: Kernels) -> None:
        self._section, self._kernels = section, kernels
        self._hashes = bytearray()
        self._is_full = False

    def add(self, records: RecordColumns) -> None:
        """Add the hashes of the records' keys. Null keys are ignored."""
        if self._is_full:
            return
        self._hashes += self._kernels.hash_keys(records)
        most_bytes = _HASH_BYTES * self._section.max_keys
        if len(self._hashes) > 2 * most_bytes:
            self._hashes = bytearray(self._kernels.distinct(self._hashes))
            self._is_full = len(self._hashes) > most_bytes

    def finish(self) -> bytes:
        """Return a header and the filter. Return b"" if the segment has more than ``max_keys`` different keys."""
        hashes = self._kernels.distinct(self._hashes)
        keys = len(hashes) // _HASH_BYTES
        if self._is_full or keys > self._section.max_keys:
            return b""
        bits = self._section.bits_per_key
        count = min(max(round(bits * log(2)), 1), _MOST_POSITIONS)
        bloom_filter = self._kernels.fill_filter(hashes, count, max(-(-keys * bits // 8), 1))
        return _HEAD.pack(len(bloom_filter), count) + bloom_filter


class BloomReader(ExtraIndexReader):
    """Reader of the Bloom filter of a segment: ``data``, which ``BloomBuilder.finish`` returned."""

    def __init__(self, data: Buffer, kernels: Kernels = KERNELS) -> None:
        view = memoryview(data)
        if len(view) <= _HEAD.size:
            raise CorruptIndexError("the index is shorter than the header of a filter", "", 0)
        size_bytes, self._count = _HEAD.unpack_from(view)
        if size_bytes != len(view) - _HEAD.size or not 1 <= self._count <= _MOST_POSITIONS:
            text = f"the header claims a filter of {size_bytes} bytes with {self._count} positions for each key"
            raise CorruptIndexError(text, "", 0)
        self._filter, self._may_hold = view[_HEAD.size :], kernels.may_hold

    def may_hold_key(self, key: bytes) -> bool:
        """Return False if the segment certainly does not contain the key; otherwise True."""
        return self._may_hold(self._filter, key, self._count)
