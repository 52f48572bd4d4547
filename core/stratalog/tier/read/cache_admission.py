"""Which bytes of a tier are worth keeping: those that somebody came back for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

_NEW_SHARE: Final = 0.25
_REMEMBERED: Final = 8  # times the limit; a key is nothing beside a chunk


class TwoQueues:
    """A ``CacheOrder`` that a replay of history does not wash out.

    What comes for the first time stands in a queue, and using it there changes nothing: a reader that goes through a
    chunk in steps has used it once. What leaves the queue is remembered for a while by its key alone. If it comes again,
    it is kept among what is used again and again, where the least recently used goes first. A reader of history asks for
    everything once and so never gets there, while what several readers of the tail need does, at the second request.

    Source: Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm", 1994, the
    full version, a quarter for what is new as there. It remembers keys for half of the limit; here it is eight times the
    limit, so that somebody who replays history quickly does not make forgotten what the tail asked for.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._new_bytes = 0
        self._kept_bytes = 0
        self._remembered_bytes = 0
        self._new: OrderedDict[Hashable, int] = OrderedDict()  # oldest first
        self._kept: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first
        self._remembered: OrderedDict[Hashable, int] = OrderedDict()  # keys alone, oldest first

    @property
    def size_bytes(self) -> int:
        """Of all items."""
        return self._new_bytes + self._kept_bytes

    def __len__(self) -> int:
        return len(self._new) + len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._new or key in self._kept

    def keys(self) -> list[Hashable]:
        """Of all items."""
        return [*self._new, *self._kept]

    def touch(self, key: Hashable) -> None:
        """An item was used."""
        if key in self._kept:
            self._kept.move_to_end(key)

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """An item came. The keys of those that go for it; its own, if it is larger than all may be."""
        if size_bytes > self._limit_bytes:
            return [key]
        remembered = self._remembered.pop(key, None)
        if remembered is None:
            self._new[key] = size_bytes
            self._new_bytes += size_bytes
        else:
            self._remembered_bytes -= remembered
            self._kept[key] = size_bytes
            self._kept_bytes += size_bytes
        gone = []
        while self.size_bytes > self._limit_bytes:
            gone.append(self._evict())
        return gone

    def remove(self, key: Hashable) -> bool:
        """An item is gone."""
        for sizes in (self._new, self._kept):
            if key in sizes:
                size_bytes = sizes.pop(key)
                if sizes is self._new:
                    self._new_bytes -= size_bytes
                else:
                    self._kept_bytes -= size_bytes
                return True
        return False

    def _evict(self) -> Hashable:
        if self._new and (not self._kept or self._new_bytes > self._limit_bytes * _NEW_SHARE):
            key, size_bytes = self._new.popitem(last=False)
            self._new_bytes -= size_bytes
            self._remember(key, size_bytes)
        else:
            key, size_bytes = self._kept.popitem(last=False)
            self._kept_bytes -= size_bytes
        return key

    def _remember(self, key: Hashable, size_bytes: int) -> None:
        self._remembered[key] = size_bytes
        self._remembered_bytes += size_bytes
        while self._remembered_bytes > self._limit_bytes * _REMEMBERED:
            self._remembered_bytes -= self._remembered.popitem(last=False)[1]
