"""A cache of limited size. A ``CacheOrder`` chooses the items to evict: by default the least recently used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sized
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from stratalog.env.forks import ends_with_fork

_NEW_SHARE: Final = 0.25
_BEGUN_SHARE: Final = 0.625
_REMEMBERED: Final = 8  # remember the keys of evicted items up to 8 times the limit: keys are small

T = TypeVar("T", bound=Sized)


@dataclass(frozen=True, slots=True)
class CacheMetrics:
    """Size, number of items, hits and misses of a cache. A look-up that waits for a running load is a miss."""

    size_bytes: int
    items: int
    hits: int
    misses: int


class CacheOrder(Protocol):
    """Policy that chooses the items to evict from a cache.

    Not thread-safe: the cache calls the policy under the cache's lock.
    """

    @property
    def size_bytes(self) -> int:
        """Total size (bytes) of all cached items."""

    def __len__(self) -> int: ...

    def touch(self, key: Hashable) -> None:
        """Record the use of a cached item."""

    def begin(self, key: Hashable) -> None:
        """Record that a reader will probably use a cached item again."""

    def finish(self, key: Hashable) -> None:
        """Record that a reader has used all of a cached item."""

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """Add an item that is not cached yet, and return the keys of the items to evict.

        The order has already removed the returned keys. ``key`` is one of them if the new item must not be cached.
        """

    def remove(self, key: Hashable) -> bool:
        """Remove an item that the cache has discarded. Return True if the item was present."""


class _Queue:
    """Sizes of items by key, in an order: the oldest first."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._sizes

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._sizes)

    def push(self, key: Hashable, size_bytes: int) -> None:
        """Add an item, which is not in the queue, as the youngest one."""
        self._sizes[key] = size_bytes
        self.size_bytes += size_bytes

    def touch(self, key: Hashable) -> bool:
        """Make an item the youngest one. Return False if it is not in the queue."""
        if key not in self._sizes:
            return False
        self._sizes.move_to_end(key)
        return True

    def pop(self, key: Hashable) -> int | None:
        """Remove an item, and return its size; None if it is not in the queue."""
        size_bytes = self._sizes.pop(key, None)
        self.size_bytes -= size_bytes or 0
        return size_bytes

    def pop_oldest(self) -> tuple[Hashable, int]:
        """Remove the oldest item, and return its key and its size."""
        key, size_bytes = self._sizes.popitem(last=False)
        self.size_bytes -= size_bytes
        return key, size_bytes


class LeastRecent:
    """A ``CacheOrder`` that evicts the least recently used item first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._items = _Queue()

    @property
    def size_bytes(self) -> int:
        """Total size (bytes) of all cached items."""
        return self._items.size_bytes

    def __len__(self) -> int:
        return len(self._items)

    def touch(self, key: Hashable) -> None:
        """Make a cached item the most recently used one. Do nothing for an unknown key."""
        self._items.touch(key)

    def begin(self, key: Hashable) -> None:
        """Make a cached item the most recently used one."""
        self.touch(key)

    def finish(self, key: Hashable) -> None:
        """Do nothing: the order ignores how much of an item was used."""

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """Add an item, and return the keys to evict. If the item is larger than the limit, return [key] only."""
        self.remove(key)  # an interrupt may have come before the item was cached
        if size_bytes > self._limit_bytes:
            return [key]
        self._items.push(key, size_bytes)
        evicted_keys = []
        while self.size_bytes > self._limit_bytes:
            evicted_keys.append(self._items.pop_oldest()[0])
        return evicted_keys

    def remove(self, key: Hashable) -> bool:
        """Remove an item. Return True if the item was present."""
        return self._items.pop(key) is not None


class TwoQueues:
    """A ``CacheOrder`` that keeps frequently used items even if a reader reads the whole history of a log once.

    A new item enters a first-in, first-out queue. Uses of an item in the queue are ignored, because a reader may read
    one chunk in several steps. When the queue evicts an item, the order remembers the item's key. If the item is added
    again while its key is remembered, the item becomes a frequent item. The order evicts from the queue while the queue
    uses more than a quarter of the limit, or if there are no frequent items. In all other cases, the order evicts the
    least recently used frequent item. A reader of history adds each item once, so its items never become frequent.

    A reader can call ``begin`` for an item that it uses in several steps, and ``finish`` after the last step. Items
    between the two calls are evicted last. They use at most five eighths of the limit: above it, the item whose last
    ``begin`` was earliest is put back into its queue.

    Source: Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm", 1994, the
    full version. The paper remembers keys until the sizes of their items add up to half of the limit, and this class
    until the sizes add up to eight times the limit. A fast read of history therefore displaces fewer remembered keys.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._new, self._begun, self._frequent = _Queue(), _Queue(), _Queue()
        self._origins: dict[Hashable, _Queue] = {}  # of begun items
        self._remembered = _Queue()  # keys of evicted items

    @property
    def size_bytes(self) -> int:
        """Total size (bytes) of all cached items."""
        return self._new.size_bytes + self._begun.size_bytes + self._frequent.size_bytes

    def __len__(self) -> int:
        return len(self._new) + len(self._begun) + len(self._frequent)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._new or key in self._begun or key in self._frequent

    def keys(self) -> list[Hashable]:
        """Return the keys of all cached items."""
        return [*self._new, *self._begun, *self._frequent]

    def touch(self, key: Hashable) -> None:
        """Make a frequent item the most recently used one. Do nothing for an item in the queue of new items."""
        self._frequent.touch(key)

    def begin(self, key: Hashable) -> None:
        """Keep a cached item, because its reader will probably use it again. Do nothing for an unknown key."""
        if not self._begun.touch(key):
            for queue in (self._new, self._frequent):
                size_bytes = queue.pop(key)
                if size_bytes is not None:
                    self._begun.push(key, size_bytes)
                    self._origins[key] = queue
        while self._begun.size_bytes > self._limit_bytes * _BEGUN_SHARE:
            self.finish(next(iter(self._begun)))

    def finish(self, key: Hashable) -> None:
        """Put an item back into its queue, because its reader has used all of it. Do nothing for other items."""
        size_bytes = self._begun.pop(key)
        if size_bytes is not None:
            self._origins.pop(key).push(key, size_bytes)

    def add(self, key: Hashable, size_bytes: int) -> list[Hashable]:
        """Add an item, and return the keys to evict.

        If the item is larger than the limit, return [key] only. The result can also contain ``key`` if the item is
        large: a new item above a quarter of the limit, or a remembered item above three quarters.
        """
        self.remove(key)  # an interrupt may have come before the item was cached
        if size_bytes > self._limit_bytes:
            return [key]
        is_remembered = self._remembered.pop(key) is not None
        (self._frequent if is_remembered else self._new).push(key, size_bytes)
        evicted_keys = []
        while self.size_bytes > self._limit_bytes:
            evicted_keys.append(self._evict())
        return evicted_keys

    def remove(self, key: Hashable) -> bool:
        """Remove a cached item. Return True if the item was present."""
        self._origins.pop(key, None)
        return any(queue.pop(key) is not None for queue in (self._new, self._begun, self._frequent))

    def _evict(self) -> Hashable:
        if self._frequent and (not self._new or self._new.size_bytes <= self._limit_bytes * _NEW_SHARE):
            return self._frequent.pop_oldest()[0]
        key, size_bytes = self._new.pop_oldest()  # begun items alone are below the limit
        self._remembered.push(key, size_bytes)
        while self._remembered.size_bytes > self._limit_bytes * _REMEMBERED:
            self._remembered.pop_oldest()
        return key


class Cache(Generic[T]):
    """A cache of immutable items, such as byte strings, by key. The size of an item is its ``len``. Thread-safe.

    Only one thread at a time loads a key. Other threads that want this key wait for the load. Loads of other keys run
    in parallel. An item above the limit is loaded but not cached. A failed load is not cached.

    Args:
        limit: maximum total size of all items; ignored if there is an ``order``, which has its own limit.
        order: chooses the items to evict; ``LeastRecent`` if None.
    """

    def __init__(self, limit: int, order: CacheOrder | None = None) -> None:
        self._lock = threading.Lock()
        self._items: dict[Hashable, T] = {}  # under _lock
        self._order = LeastRecent(limit) if order is None else order  # under _lock
        self._loading: dict[Hashable, Future[T]] = {}  # under _lock
        self._hits = self._misses = 0  # under _lock
        ends_with_fork(self)

    def get_or_load(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the item of ``key``. If it is not cached, call ``load``, or wait for the load of another thread.

        If the load fails, its caller and all threads that wait for the load raise the error of ``load``. If the load
        was interrupted, for example by KeyboardInterrupt, one of the waiting threads loads the item instead.
        """
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._order.touch(key)
                self._hits += 1
                return item
            self._misses += 1
        own_load: Future[T] = Future()
        try:  # an interrupt ends the load
            with self._lock:
                item = self._items.get(key)
                if item is not None:
                    return item  # another thread has loaded it meanwhile
                running_load = self._loading.setdefault(key, own_load)
            if running_load is own_load:
                item = load()
                self._finish_load(key, own_load, item)
                own_load.set_result(item)
                return item
        except BaseException as error:
            self._finish_load(key, own_load, None)
            if isinstance(error, Exception):
                own_load.set_exception(error)
            elif not own_load.done():
                own_load.cancel()
            raise
        try:
            return running_load.result()
        except CancelledError:
            return self.get_or_load(key, load)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if an item is cached or being loaded. The call does not count as a use of the item."""
        with self._lock:
            return key in self._items or key in self._loading

    def peek(self, key: Hashable) -> T | None:
        """Return the item of ``key``, or None if it is not cached. The call does not count as a use of the item."""
        with self._lock:
            return self._items.get(key)

    def put(self, key: Hashable, data: T) -> None:
        """Cache ``data`` as the item of ``key``. Do nothing if ``key`` is cached or being loaded."""
        with self._lock:
            if key not in self._items and key not in self._loading:
                self._keep(key, data)

    def begin(self, key: Hashable) -> None:
        """Record that a reader will probably use an item again: ``TwoQueues`` evicts such items last.

        Call ``finish`` when the reader has used all of the item.
        """
        with self._lock:
            self._order.begin(key)

    def finish(self, key: Hashable) -> None:
        """Record that a reader has used all of an item, for which it may have called ``begin``."""
        with self._lock:
            self._order.finish(key)

    def drop(self, should_drop: Callable[[Hashable], bool]) -> None:
        """Remove the items for whose keys ``should_drop`` returns True.

        Running loads of such keys continue, but their results are not cached. ``should_drop`` is called under the
        cache's lock: it must not call the cache.
        """
        with self._lock:
            self._discard([key for key in (*self._items, *self._loading) if should_drop(key)])

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Remove the items of ``keys``. Running loads of ``keys`` continue, but their results are not cached."""
        with self._lock:
            self._discard(keys)

    def metrics(self) -> CacheMetrics:
        """Return the current size and number of items, and the hits and misses since the cache was created."""
        with self._lock:
            return CacheMetrics(self._order.size_bytes, len(self._items), self._hits, self._misses)

    def _finish_load(self, key: Hashable, load: Future[T], data: T | None) -> None:
        with self._lock:
            if self._loading.get(key) is not load:
                return  # dropped meanwhile
            del self._loading[key]
            if data is not None:
                self._keep(key, data)

    def _keep(self, key: Hashable, data: T) -> None:
        evicted_keys = self._order.add(key, len(data))
        self._items[key] = data
        for evicted_key in evicted_keys:
            self._items.pop(evicted_key, None)

    def _discard(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            if self._items.pop(key, None) is not None:
                self._order.remove(key)
            self._loading.pop(key, None)
