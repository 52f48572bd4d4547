"""Map from each key to its greatest version, in bounded memory. A slot has 32 bytes for a key of any length.

A version consists of a number and an offset. If the numbers of two versions are equal, the version with the later
offset is greater. Like ``keymap``, the map stores a keyed 128-bit hash of each key. ``versions_c`` is the compiled
version of this module.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from stratalog import RecordColumns
from stratalog.spi import Verdict, extension
from stratalog_compaction.keymap import check_sizes

SLOT_BYTES: Final = 32
EXTENSIONS: Final = ("stratalog_compaction.versions_c",)
_HASH_BYTES: Final = 16


class VersionMap:
    """Map from each key to its greatest version, in pure Python: open addressing over two arrays, with linear probing.

    Not thread-safe. ``CompiledVersionMap`` of ``versions_c`` has the same methods. The arguments are those of
    ``KeyMap``.
    """

    def __init__(self, slots: int, usable: int, secret: bytes) -> None:
        check_sizes(slots, usable, secret)
        self._slots, self._usable, self._secret = slots, usable, secret
        self._hashes = array("Q", bytes(slots * _HASH_BYTES))
        self._versions = array("q", bytes(slots * (SLOT_BYTES - _HASH_BYTES)))
        self._count = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    def observe(self, records: RecordColumns, numbers: Sequence[int]) -> int:
        """Store the greatest version of each key. Return the number of processed records.

        A record without a key is skipped, and counts as processed. If the map is full, the call ends before the first
        record whose key is not in the map.

        Args:
            records: records with offsets and keys.
            numbers: for each record, the number of its version; a column of int64.
        """
        for row, (key, number, offset) in enumerate(zip(records.keys(), numbers, records.offset, strict=True)):
            if key is not None and not self._raise_to(key, (number, offset)):
                return row
        return records.count

    def judge(self, records: RecordColumns, numbers: Sequence[int], verdicts: bytearray) -> None:
        """Write one verdict per record: DROP if it has no key, or if the map has a greater version of its key.

        A tombstone that is not dropped gets DROP_AT_HORIZON. A record's version replaces a lower version in the map.
        Keys that are not in the map are not added.
        """
        rows = zip(records.keys(), numbers, records.offset, records.value_size, strict=True)
        verdicts[: records.count] = bytes(self._verdict(*row) for row in rows)

    def _verdict(self, key: bytes | None, number: int, offset: int, value_size: int) -> int:
        if key is None:
            return Verdict.DROP
        index, _, _ = self._find(key)
        if self._hashes[index + 1]:
            if (self._versions[index], self._versions[index + 1]) > (number, offset):
                return Verdict.DROP
            self._versions[index], self._versions[index + 1] = number, offset
        return Verdict.KEEP if value_size >= 0 else Verdict.DROP_AT_HORIZON

    def _raise_to(self, key: bytes, version: tuple[int, int]) -> bool:
        """Store a version unless the map has a greater one. Return False if the map is full and lacks the key."""
        index, high, low = self._find(key)
        if not self._hashes[index + 1]:
            if self._count >= self._usable:
                return False
            self._count += 1
            self._hashes[index], self._hashes[index + 1] = high, low
        elif version <= (self._versions[index], self._versions[index + 1]):
            return True
        self._versions[index], self._versions[index + 1] = version
        return True

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Return the index in ``_hashes`` of the key's slot or of a free slot, and the two words of the key's hash."""
        digest = blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest()
        high, low = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") or 1
        hashes, slot = self._hashes, high % self._slots
        while True:
            index = slot * 2
            if not hashes[index + 1] or (hashes[index] == high and hashes[index + 1] == low):
                return index, high, low
            slot = (slot + 1) % self._slots


def open_version_map(slots: int, usable: int, secret: bytes) -> VersionMap:
    """Return a version map: a ``CompiledVersionMap`` if the extension is available, otherwise a ``VersionMap``."""
    twin = extension(EXTENSIONS[0])
    if twin is None:
        return VersionMap(slots, usable, secret)
    version_map: VersionMap = twin.CompiledVersionMap(slots, usable, secret)
    return version_map
