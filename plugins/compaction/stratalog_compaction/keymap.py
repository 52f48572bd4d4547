"""The newest offset of each key, in bounded memory: 24 bytes a slot, whatever the keys' lengths.

A slot holds a keyed 128-bit hash of the key and an offset; equal hashes count as equal keys. Only the log's own files hold
the secret, so that nobody can make keys that collide. ``keymap_c`` is the compiled twin.

Source: apache/kafka SkimpyOffsetMap, Cleaner.buildOffsetMapForSegment; there the hash is MD5 without a secret.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from array import array
from hashlib import blake2b
from typing import Final, Protocol

from stratalog.spi import RecordColumns, Verdict, extension
from stratalog_compaction.keydigest import HashBuffer, holds_any

SLOT_BYTES: Final = 24
EXTENSIONS: Final = ("stratalog_compaction.keymap_c",)
_WORDS: Final = SLOT_BYTES // 8
_HASH_BYTES: Final = 16
_KEEP, _DROP, _DROP_AT_HORIZON = bytes((Verdict.KEEP,)), bytes((Verdict.DROP,)), bytes((Verdict.DROP_AT_HORIZON,))


class KeyMap(Protocol):
    """Remembers offsets of keys, and judges by them. Used by one thread.

    Attributes:
        hash_name: of the hash, which digests are made with too.
    """

    hash_name: str

    def __len__(self) -> int:
        """Keys in it."""

    def observe(self, records: RecordColumns) -> int:
        """Remember the offset of each key, the last one winning; how many records were taken, from the first on.

        A record without a key is passed over. One with a key is not taken when the map is full, even if its key is in it.
        """

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """One verdict a record: without a key, or older than what the map knows of the key, it goes."""

    def digest(self, *, end: bool) -> list[bytes]:
        """Sections that sum up the keys of records that were not dropped, if the map was made to do so."""

    def holds_any_of(self, section: memoryview) -> bool:
        """Whether the map seems to hold a key that a section sums up; it never says no if it does."""


class PythonKeyMap:
    """The pure twin: open addressing over one array.

    Args:
        slots: how many there are.
        usable: how many may be filled, below ``slots``.
        secret: 16 bytes that nobody else knows.
        sums_up: whether ``judge`` keeps hashes for ``digest``: 2 MiB of them, and what was not taken yet.
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
        """Remember offsets."""
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
        """Write verdicts."""
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
        """What was judged since the last call."""
        return [] if self._kept is None else self._kept.take(end=end)

    def holds_any_of(self, section: memoryview) -> bool:
        """Look for every key of the map."""
        words = self._words
        return holds_any(section, (words[at] for at in range(0, len(words), _WORDS) if words[at] or words[at + 1]))

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Where the key stands or would stand (words), and its hash, which is never 0."""
        digest = blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest()
        high, low = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") or 1
        words, slot = self._words, high % self._slots
        while True:
            at = slot * _WORDS
            if (words[at] == high and words[at + 1] == low) or not (words[at] or words[at + 1]):
                return at, high, low
            slot = (slot + 1) % self._slots


def mark_bytes(marked: range) -> int:
    """What a bit for each of these offsets takes."""
    return -(-len(marked) // 8)


def check_sizes(slots: int, usable: int, secret: bytes) -> None:
    """Raise ValueError unless these make a map: a search ends at a free slot, so there always is one."""
    if not 0 < usable < slots or len(secret) != _HASH_BYTES:
        raise ValueError(f"no map of {slots} slots, {usable} of them usable, with a secret of {len(secret)} bytes")


def table_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed memory that costs nothing until it is touched, in large pages where the system has them."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has no large pages
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # a kernel may have been built without them
            memory.madvise(advice)
    return memory


def open_key_map(slots: int, usable: int, secret: bytes, *, sums_up: bool = False, marked: range = range(0)) -> KeyMap:
    """A map, compiled if it could be built.

    That one keeps a bit for each offset of ``marked`` beside its slots: set, a later record has the key, and judging the
    one at that offset needs no search.
    """
    twin = extension(EXTENSIONS[0])
    if twin is None:
        return PythonKeyMap(slots, usable, secret, sums_up=sums_up)
    made: KeyMap = twin.CompiledKeyMap(slots, usable, secret, sums_up=sums_up, marked=marked)
    return made
