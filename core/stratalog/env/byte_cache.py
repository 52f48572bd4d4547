"""A cache bounded by bytes: what goes first is for an order to say, by default what was used longest ago."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from stratalog.env.forks import ends_with_fork


@dataclass(frozen=True, slots=True)
class CacheMetrics:
    """What a cache holds, and how often it helped."""

    size_bytes: int
    items: int
    hits: int
    misses: int


class CacheOrder(Protocol):
    """Which items a cache keeps, by key and size alone. Not thread-safe: whoever holds the items has the lock."""

    @property
    def size_bytes(self) -> int:
        """Of all items."""

    def __len__(self) -> int: ...

    def touch(self, key: Hashable) -> None:
        """An item was used."""

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """An item came, which is not there yet. The keys of those that go for it; its own, if it is not to stay."""

    def remove(self, key: Hashable) -> bool:
        """An item is gone; whether it was there."""


class LeastRecent:
    """A ``CacheOrder``: what was used longest ago goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()  # least recently used first
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def touch(self, key: Hashable) -> None:
        """An item was used."""
        self._sizes.move_to_end(key)

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """An item came."""
        if size_bytes > self._limit_bytes:
            return [key]
        self._sizes[key] = size_bytes
        self.size_bytes += size_bytes
        gone = []
        while self.size_bytes > self._limit_bytes:
            oldest, oldest_bytes = self._sizes.popitem(last=False)
            self.size_bytes -= oldest_bytes
            gone.append(oldest)
        return gone

    def remove(self, key: Hashable) -> bool:
        """An item is gone."""
        size_bytes = self._sizes.pop(key, None)
        self.size_bytes -= size_bytes or 0
        return size_bytes is not None


class ByteCache:
    """Immutable byte strings under keys. Thread-safe; one loader a key, others wait for it, other keys do not.

    An item above the limit is loaded and not kept. A failed load is not remembered.

    Args:
        limit_bytes: of all items.
        order: which items go for others; ``LeastRecent`` if none is given.
    """

    def __init__(self, limit_bytes: int, order: CacheOrder | None = None) -> None:
        self._lock = threading.Lock()
        self._items: dict[Hashable, bytes] = {}  # under _lock
        self._order = LeastRecent(limit_bytes) if order is None else order  # under _lock
        self._loading: dict[Hashable, Future[bytes]] = {}  # under _lock
        self._hits = self._misses = 0  # under _lock
        ends_with_fork(self)

    def get_or_load(self, key: Hashable, load: Callable[[], bytes]) -> bytes:
        """The item under ``key``, loaded if need be; errors are those of ``load``, for all who wait for it."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._order.touch(key)
                self._hits += 1
                return found
            self._misses += 1
            waiting = self._loading.get(key)
            if waiting is None:
                mine = self._loading[key] = Future()
        if waiting is not None:
            return waiting.result()
        try:
            data = load()
        except BaseException as error:
            self._loaded(key, mine, None)
            mine.set_exception(error)
            raise
        self._loaded(key, mine, data)
        mine.set_result(data)
        return data

    def __contains__(self, key: Hashable) -> bool:
        """Whether an item is there, or on its way; that is no use of it."""
        with self._lock:
            return key in self._items or key in self._loading

    def peek(self, key: Hashable) -> bytes | None:
        """The item, if it is there; that is no use of it."""
        with self._lock:
            return self._items.get(key)

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep an item that came along with another one; nothing, if it is there or on its way."""
        with self._lock:
            if key not in self._items and key not in self._loading:
                self._keep(key, data)

    def drop(self, wanted: Callable[[Hashable], bool]) -> None:
        """Forget the items whose key is ``wanted``; loads under way are not kept either."""
        with self._lock:
            self._discard([key for key in (*self._items, *self._loading) if wanted(key)])

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Forget these keys; loads under way are not kept either."""
        with self._lock:
            self._discard(keys)

    def metrics(self) -> CacheMetrics:
        """What it holds now, and hits and misses so far."""
        with self._lock:
            return CacheMetrics(self._order.size_bytes, len(self._items), self._hits, self._misses)

    def _loaded(self, key: Hashable, mine: Future[bytes], data: bytes | None) -> None:
        with self._lock:
            if self._loading.get(key) is not mine:
                return  # dropped meanwhile
            del self._loading[key]
            if data is not None:
                self._keep(key, data)

    def _keep(self, key: Hashable, data: bytes) -> None:
        self._items[key] = data
        for gone in self._order.add(key, len(data)):
            del self._items[gone]

    def _discard(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if self._items.pop(key, None) is not None:
                self._order.remove(key)
            self._loading.pop(key, None)
