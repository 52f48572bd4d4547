"""Choice of the bytes of a tier to cache: those that are read repeatedly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

_NEW_SHARE: Final = 0.25
_REMEMBERED: Final = 8  # times the limit; keys are small compared with chunks


class TwoQueues:
    """A ``CacheOrder`` whose frequently used items survive a replay of history.

    A new item enters a queue. Its use there changes nothing, because a reader that reads a chunk in steps uses it only
    once. After an item leaves the queue, its key is remembered for a while. If the item returns in that time, it moves
    to the frequently used items, of which the least recently used one is evicted first. A reader of history asks for
    each item once, so its items never get there. Items that several readers of the tail need get there at the second
    request.

    Source: Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm", 1994, the
    full version, with a quarter for new items as in the paper. The paper remembers keys for half of the limit. Here it
    is eight times the limit: a fast replay of history does not push out the keys that readers of the tail asked for.
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
        """The size of all items."""
        return self._new_bytes + self._kept_bytes

    def __len__(self) -> int:
        return len(self._new) + len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._new or key in self._kept

    def keys(self) -> list[Hashable]:
        """Return the keys of all items."""
        return [*self._new, *self._kept]

    def touch(self, key: Hashable) -> None:
        """Record a use of an item."""
        if key in self._kept:
            self._kept.move_to_end(key)

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """Add an item; return the keys of the evicted items, or its own key if it is larger than the limit."""
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
        """Remove an item; return False if it is not cached."""
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
