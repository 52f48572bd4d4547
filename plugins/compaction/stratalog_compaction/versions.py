"""Map from each key to its greatest version, in bounded memory. A slot has 32 bytes for a key of any length.

A version consists of a number and an offset. If the numbers of two versions are equal, the version with the later
offset is greater. Like ``keymap``, the map stores a keyed 128-bit hash of each key. ``versions_c`` is the compiled
version of this module.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from stratalog import RecordColumns
from stratalog.spi import Verdict, extension
from stratalog_compaction.keymap import HASH_BYTES, HashTable

SLOT_BYTES: Final = 32
EXTENSIONS: Final = ("stratalog_compaction.versions_c",)


class VersionMap(HashTable):
    """Map from each key to its greatest version, in pure Python; the arguments are those of ``HashTable``."""

    def __init__(self, slots: int, usable: int, secret: bytes) -> None:
        super().__init__(slots, usable, secret)
        self._versions = array("q", bytes(slots * (SLOT_BYTES - HASH_BYTES)))

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
            self._fill(index, high, low)
        elif version <= (self._versions[index], self._versions[index + 1]):
            return True
        self._versions[index], self._versions[index + 1] = version
        return True


def open_version_map(slots: int, usable: int, secret: bytes) -> VersionMap:
    """Return a version map: a ``CompiledVersionMap`` if the extension is available, otherwise a ``VersionMap``."""
    twin = extension(EXTENSIONS[0])
    if twin is None:
        return VersionMap(slots, usable, secret)
    version_map: VersionMap = twin.CompiledVersionMap(slots, usable, secret)
    return version_map
