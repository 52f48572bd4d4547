"""The latest offset of each key, in bounded memory: 24 bytes per slot, independent of the keys' lengths.

A slot holds a keyed 128-bit hash of the key and an offset. Equal hashes count as equal keys. Only the log's own files
hold the secret, so an attacker cannot create keys that collide. ``keymap_c`` is the compiled twin.

Source: apache/kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment. Kafka hashes by MD5 without a secret.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from array import array
from hashlib import blake2b
from typing import Final, Protocol

from stratalog import RecordColumns
from stratalog.spi import Verdict, extension
from stratalog_compaction.keydigest import HashBuffer, holds_any

SLOT_BYTES: Final = 24
EXTENSIONS: Final = ("stratalog_compaction.keymap_c",)
_WORDS: Final = SLOT_BYTES // 8
_HASH_BYTES: Final = 16
_KEEP, _DROP, _DROP_AT_HORIZON = bytes((Verdict.KEEP,)), bytes((Verdict.DROP,)), bytes((Verdict.DROP_AT_HORIZON,))


class KeyMap(Protocol):
    """Map from keys to their latest offsets, which judges records by them. Used by one thread.

    Attributes:
        hash_name: name of the hash, which digests use too.
    """

    hash_name: str

    def __len__(self) -> int:
        """Return the number of keys."""

    def observe(self, records: RecordColumns) -> int:
        """Remember the offset of each key; a later offset replaces an earlier one.

        Return how many records, from the first on, were observed.

        A record without a key is skipped. A record with a key is not observed if the map is full, even if its key is
        known.
        """

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record. Drop a record without a key, or with an offset below the key's latest one."""

    def digest(self, *, end: bool) -> list[bytes]:
        """Return sections that sum up the keys of kept records, if the map was created with ``sums_up``."""

    def holds_any_of(self, section: memoryview) -> bool:
        """Return True if the map may hold a key of a section. The answer False is always correct."""


class PythonKeyMap:
    """Key map in pure Python: open addressing over one array.

    Args:
        slots: number of slots.
        usable: number of slots that may be filled, below ``slots``.
        secret: 16 random bytes, unknown to writers.
        sums_up: True if ``judge`` keeps hashes for ``digest``: up to 2 MiB, and finished sections that are not yet
            returned.
    """

    hash_name = "blake2b"

    def __init__(self, slots: int, usable: int, secret: bytes, *, sums_up: bool = False) -> None:
        check_sizes(slots, usable, secret)
        self._kept = HashBuffer() if sums_up else None
        self._slots, self._usable, self._secret = slots, usable, secret
        self._words, self._count = array("Q", bytes(slots * SLOT_BYTES)), 0

    def __len__(self) -> int:
        return self._count

    def observe(self, records: RecordColumns) -> int:
        """Remember the offsets of the keys."""
        words = self._words
        for row, (key, offset) in enumerate(zip(records.keys(), records.offset, strict=True)):
            if key is None:
                continue
            if self._count >= self._usable:
                return row
            at, high, low = self._find(key)
            if not (words[at] or words[at + 1]):
                words[at], words[at + 1] = high, low
                self._count += 1
            words[at + 2] = offset
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record."""
        made = [
            self._verdict(key, offset, size)
            for key, offset, size in zip(records.keys(), records.offset, records.value_size, strict=True)
        ]
        verdicts[: records.count] = b"".join(made)

    def _verdict(self, key: bytes | None, offset: int, value_size: int) -> bytes:
        if key is None:
            return _DROP
        at, high, _ = self._find(key)
        words = self._words
        if (words[at] or words[at + 1]) and words[at + 2] > offset:
            return _DROP
        if self._kept is not None:
            self._kept.add(high)
        return _KEEP if value_size >= 0 else _DROP_AT_HORIZON

    def digest(self, *, end: bool) -> list[bytes]:
        """Return the sections finished since the last call."""
        return [] if self._kept is None else self._kept.take(end=end)

    def holds_any_of(self, section: memoryview) -> bool:
        """Look up every key of the map in the section."""
        words = self._words
        return holds_any(section, (words[at] for at in range(0, len(words), _WORDS) if words[at] or words[at + 1]))

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Return the position (in words) of the key's slot, or of its free slot, and the hash. The hash is never 0."""
        digest = blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest()
        high, low = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") or 1
        words, slot = self._words, high % self._slots
        while True:
            at = slot * _WORDS
            if (words[at] == high and words[at + 1] == low) or not (words[at] or words[at + 1]):
                return at, high, low
            slot = (slot + 1) % self._slots


def mark_bytes(marked: range) -> int:
    """Return the size of one bit for each of these offsets."""
    return -(-len(marked) // 8)


def check_sizes(slots: int, usable: int, secret: bytes) -> None:
    """Raise ValueError unless these sizes make a valid map.

    A search ends at a free slot, so one slot must stay free.
    """
    if not 0 < usable < slots or len(secret) != _HASH_BYTES:
        raise ValueError(f"no map of {slots} slots, {usable} of them usable, with a secret of {len(secret)} bytes")


def table_memory(size_bytes: int) -> mmap.mmap:
    """Return zeroed memory that is allocated on first access, in large pages if the system has them."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no large pages
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # the kernel may lack support
            memory.madvise(advice)
    return memory


def open_key_map(slots: int, usable: int, secret: bytes, *, sums_up: bool = False, marked: range = range(0)) -> KeyMap:
    """Return a key map, compiled if the extension is available.

    The compiled map also keeps a bit for each offset of ``marked``. If the bit is set, a later record has the key, and
    the record at that offset is judged without a search.
    """
    twin = extension(EXTENSIONS[0])
    if twin is None:
        return PythonKeyMap(slots, usable, secret, sums_up=sums_up)
    made: KeyMap = twin.CompiledKeyMap(slots, usable, secret, sums_up=sums_up, marked=marked)
    return made
