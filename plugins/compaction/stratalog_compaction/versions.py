"""The greatest version of each key, in bounded memory: 32 bytes a slot, whatever the keys' lengths.

A version is a number and, among equal ones, the offset: the later record wins. Keys are told apart by a keyed hash of 128
bits, as in ``keymap``.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

SLOT_BYTES: Final = 32
_HASH_BYTES: Final = 16


class VersionMap:
    """Open addressing over two arrays, with linear probing; nothing is ever removed. Used by one thread.

    Args:
        slots: how many there are.
        usable: how many may be filled, below ``slots``: a search ends at a free one.
        secret: 16 bytes that nobody else knows, so that nobody can make keys that collide.
    """

    def __init__(self, slots: int, usable: int, secret: bytes) -> None:
        if not 0 < usable < slots:
            raise ValueError(f"no map of {slots} slots, {usable} of them usable")
        self._slots, self._usable, self._secret = slots, usable, secret
        self._hashes = array("Q", bytes(slots * _HASH_BYTES))
        self._versions = array("q", bytes(slots * (SLOT_BYTES - _HASH_BYTES)))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def raise_to(self, key: bytes, version: tuple[int, int]) -> bool:
        """Remember a version and its offset unless a greater one is known; False if the map is full without the key."""
        at, high, low = self._find(key)
        if not self._hashes[at + 1]:
            if self._count >= self._usable:
                return False
            self._count += 1
            self._hashes[at], self._hashes[at + 1] = high, low
        elif version <= (self._versions[at], self._versions[at + 1]):
            return True
        self._versions[at], self._versions[at + 1] = version
        return True

    def greatest(self, key: bytes) -> tuple[int, int] | None:
        """The greatest version of a key, and the offset of the record that has it."""
        at, _, _ = self._find(key)
        return (self._versions[at], self._versions[at + 1]) if self._hashes[at + 1] else None

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Where the key stands or would stand, and its hash, whose second half is never 0."""
        digest = blake2b(key, digest_size=_HASH_BYTES, key=self._secret).digest()
        high, low = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little") or 1
        hashes, slot = self._hashes, high % self._slots
        while True:
            at = slot * 2
            if not hashes[at + 1] or (hashes[at] == high and hashes[at + 1] == low):
                return at, high, low
            slot = (slot + 1) % self._slots
