"""Sections of digest files: hashes of the keys of a segment, with 4.5 bytes per key.

With a segment's digest file, the cleaner can skip a segment that contains none of the keys in the dirty range.

A section contains up to ``SECTION_KEYS`` 64-bit hashes. The highest bits of a hash choose a bucket, which stores the
next 32 bits of the hash. docs/formats/digest.md describes the bytes. With a probability of 1 in 5 * 10^8, a section
seems to contain a key that it does not contain. The cleaner then reads the segment unnecessarily.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

SECTION_KEYS: Final = 1 << 18
BUCKET_KEYS: Final = 8  # approximate number of keys in a bucket
HEAD: Final = Struct("<II")  # number of keys, number of bits that choose the bucket
_WORD_BYTES: Final = 4
_HASH_BITS: Final = 64
_REST_BITS: Final = 32
_REST_MASK: Final = (1 << _REST_BITS) - 1
MAX_BITS: Final = 15


def bucket_bits(count: int) -> int:
    """Return the number of bits of a hash that choose its bucket, in a section of ``count`` hashes."""
    return max((count // BUCKET_KEYS).bit_length() - 1, 0)


def section_of(hashes: Iterable[int]) -> bytes:
    """Return the encoded section that contains the hashes (unsigned, 64 bits)."""
    sorted_hashes = sorted(hashes)
    count, bits = len(sorted_hashes), bucket_bits(len(sorted_hashes))
    starts = [bisect_left(sorted_hashes, bucket << (_HASH_BITS - bits)) for bucket in range(1 << bits)]
    rests = [hashed >> (_REST_BITS - bits) & _REST_MASK for hashed in sorted_hashes]
    return HEAD.pack(count, bits) + _words([*starts, count]) + _words(rests)


def holds_any(section: memoryview, hashes: Iterable[int]) -> bool:
    """Return True if a section may contain one of these hashes, or if the section is malformed."""
    if section.nbytes < HEAD.size:
        return True
    count, bits = HEAD.unpack_from(section)
    first = HEAD.size + ((1 << min(bits, _REST_BITS)) + 1) * _WORD_BYTES
    if bits > MAX_BITS or section.nbytes != first + count * _WORD_BYTES:
        return True
    starts, rests = list(_numbers(section[HEAD.size : first])), list(_numbers(section[first:]))
    if starts[0] or starts[-1] != count or starts != sorted(starts):
        return True
    for hashed in hashes:
        bucket = hashed >> (_HASH_BITS - bits)
        if hashed >> (_REST_BITS - bits) & _REST_MASK in rests[starts[bucket] : starts[bucket + 1]]:
            return True
    return False


def _words(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(_WORD_BYTES, "little") for number in numbers)


def _numbers(data: memoryview) -> Iterator[int]:
    return (number for (number,) in Struct("<I").iter_unpack(data))


class HashBuffer:
    """Buffer for the hashes of kept keys. Each ``SECTION_KEYS`` hashes become a digest section."""

    def __init__(self) -> None:
        self._hashes, self._sections = array("Q"), list[bytes]()

    def add(self, hashed: int) -> None:
        """Add the 64-bit hash of one key."""
        self._hashes.append(hashed)
        if len(self._hashes) == SECTION_KEYS:
            self._sections.append(section_of(self._hashes))
            self._hashes = array("Q")

    def take(self, *, end: bool) -> list[bytes]:
        """Remove and return the full sections. At the ``end`` of a segment, add a section of the remaining hashes.

        At the end, the result has at least one section. This section may contain no hashes.
        """
        if end and (self._hashes or not self._sections):
            self._sections.append(section_of(self._hashes))
            self._hashes = array("Q")
        sections, self._sections = self._sections, []
        return sections
