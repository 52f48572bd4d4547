"""Map from each key to its latest offset, in bounded memory. A slot has 24 bytes for a key of any length.

A slot contains a keyed 128-bit hash of the key, and an offset. Equal hashes count as equal keys. The secret of the hash
is only in memory or in the log's own files, so an attacker cannot create keys that collide. ``keymap_c`` is the
compiled version.

Source: apache/kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment. Unlike stratalog, Kafka uses MD5 without a
secret.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from array import array
from hashlib import blake2b
from typing import Final

from stratalog import RecordColumns
from stratalog.spi import Verdict, extension
from stratalog_compaction.keydigest import HashBuffer, holds_any

SLOT_BYTES: Final = 24
EXTENSIONS: Final = ("stratalog_compaction.keymap_c",)
SECRET_BYTES: Final = 16
HASH_BYTES: Final = 16
_KEEP, _DROP, _DROP_AT_HORIZON = bytes((Verdict.KEEP,)), bytes((Verdict.DROP,)), bytes((Verdict.DROP_AT_HORIZON,))


class HashTable:
    """Base class of the maps in pure Python: open addressing over an array of hashes, with linear probing.

    Not thread-safe. The compiled maps have the same methods. The second word of a hash is 0 in a free slot.

    Args:
        slots: number of slots.
        usable: number of slots that may be filled, below ``slots``.
        secret: 16 random bytes, unknown to writers.
    """

    def __init__(self, slots: int, usable: int, secret: bytes) -> None:
        check_sizes(slots, usable, secret)
        self._slots, self._usable, self._secret = slots, usable, secret
        self._hashes, self._count = array("Q", bytes(slots * HASH_BYTES)), 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Return the index in ``_hashes`` of the key's slot or of a free slot, and the two words of the key's hash."""
        digest = blake2b(key, digest_size=HASH_BYTES, key=self._secret).digest()
        high, low = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") or 1
        hashes, slot = self._hashes, high % self._slots
        while True:
            index = slot * 2
            if not hashes[index + 1] or (hashes[index] == high and hashes[index + 1] == low):
                return index, high, low
            slot = (slot + 1) % self._slots

    def _fill(self, index: int, high: int, low: int) -> None:
        self._hashes[index], self._hashes[index + 1] = high, low
        self._count += 1


class KeyMap(HashTable):
    """Map from each key to its latest offset.

    Args:
        slots, usable, secret: see ``HashTable``.
        sums_up: True if ``judge`` stores the hashes of kept keys for ``digest``. The hashes use up to 2 MiB. Finished
            sections use more memory until ``digest`` returns them.

    Attributes:
        hash_name: name of the hash function of the map and its digest sections.
    """

    hash_name = "blake2b"

    def __init__(self, slots: int, usable: int, secret: bytes, *, sums_up: bool = False) -> None:
        super().__init__(slots, usable, secret)
        self._kept_hashes = HashBuffer() if sums_up else None
        self._offsets = array("Q", bytes(slots * (SLOT_BYTES - HASH_BYTES)))

    def observe(self, records: RecordColumns) -> int:
        """Store the latest offset of each key. Return the number of processed records.

        A record without a key is skipped, and counts as processed. If the map is full, the call ends before the next
        record that has a key, even if the map contains the key.
        """
        for row, (key, offset) in enumerate(zip(records.keys(), records.offset, strict=True)):
            if key is None:
                continue
            if self._count >= self._usable:
                return row
            index, high, low = self._find(key)
            if not self._hashes[index + 1]:
                self._fill(index, high, low)
            self._offsets[index // 2] = offset
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: DROP if it has no key, or if the map has a greater offset for its key.

        A tombstone that is not dropped gets DROP_AT_HORIZON.
        """
        codes = [
            self._verdict(key, offset, size)
            for key, offset, size in zip(records.keys(), records.offset, records.value_size, strict=True)
        ]
        verdicts[: records.count] = b"".join(codes)

    def _verdict(self, key: bytes | None, offset: int, value_size: int) -> bytes:
        if key is None:
            return _DROP
        index, high, _ = self._find(key)
        if self._hashes[index + 1] and self._offsets[index // 2] > offset:
            return _DROP
        if self._kept_hashes is not None:
            self._kept_hashes.add(high)
        return _KEEP if value_size >= 0 else _DROP_AT_HORIZON

    def digest(self, *, end: bool) -> list[bytes]:
        """Remove and return the finished digest sections of the keys of records that ``judge`` kept.

        At the ``end`` of a segment, add the incomplete section. Without ``sums_up``, the result is [].
        """
        return [] if self._kept_hashes is None else self._kept_hashes.take(end=end)

    def holds_any_of(self, section: memoryview) -> bool:
        """Return True if the map may contain a key of the digest section, or if the section is malformed."""
        hashes = self._hashes
        return holds_any(section, (hashes[index] for index in range(0, len(hashes), 2) if hashes[index + 1]))


def mark_bytes(marked: range) -> int:
    """Return the number of bytes for one bit for each offset in ``marked``."""
    return -(-len(marked) // 8)


def check_sizes(slots: int, usable: int, secret: bytes) -> None:
    """Raise ValueError unless 0 < ``usable`` < ``slots``, and the secret has 16 bytes.

    A search ends at a free slot, so one slot must stay free.
    """
    if not 0 < usable < slots or len(secret) != SECRET_BYTES:
        raise ValueError(f"wrong sizes: slots={slots}, usable={usable}, secret of {len(secret)} bytes")


def table_memory(size_bytes: int) -> mmap.mmap:
    """Return zeroed memory. The system allocates it on first access, in large pages if it supports them."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no large pages
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # the kernel may not support large pages
            memory.madvise(advice)
    return memory


def open_key_map(slots: int, usable: int, secret: bytes, *, sums_up: bool = False, marked: range = range(0)) -> KeyMap:
    """Return a key map: a ``CompiledKeyMap`` if the extension is available, otherwise a ``KeyMap``.

    The compiled map has a bit for each offset in ``marked``. The bit is set if a later record has the same key as the
    record at this offset. ``judge`` drops such a record without a search in the map.
    """
    twin = extension(EXTENSIONS[0])
    if twin is None:
        return KeyMap(slots, usable, secret, sums_up=sums_up)
    key_map: KeyMap = twin.CompiledKeyMap(slots, usable, secret, sums_up=sums_up, marked=marked)
    return key_map
