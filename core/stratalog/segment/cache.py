"""A cache bounded by bytes: what was used longest ago goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheMetrics:
    """What a cache holds, and how often it helped."""

    size_bytes: int
    items: int
    hits: int
    misses: int


class ByteCache:
    """Immutable byte strings under keys. Thread-safe; one loader a key, others wait for it, other keys do not.

    An item above the limit is loaded and not kept. A failed load is not remembered.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, bytes] = OrderedDict()  # least recently used first; under _lock
        self._loading: dict[Hashable, Future[bytes]] = {}  # under _lock
        self._size_bytes = self._hits = self._misses = 0  # under _lock

    def get_or_load(self, key: Hashable, load: Callable[[], bytes]) -> bytes:
        """The item under ``key``, loaded if need be; errors are those of ``load``, for all who wait for it."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
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

    def drop(self, wanted: Callable[[Hashable], bool]) -> None:
        """Forget the items whose key is ``wanted``; loads under way are not kept either."""
        with self._lock:
            for key in [key for key in self._items if wanted(key)]:
                self._size_bytes -= len(self._items.pop(key))
            for key in [key for key in self._loading if wanted(key)]:
                del self._loading[key]

    def discard(self, keys: Iterable[Hashable]) -> None:
        """Forget these keys; loads under way are not kept either."""
        with self._lock:
            for key in keys:
                self._size_bytes -= len(self._items.pop(key, b""))
                self._loading.pop(key, None)

    def metrics(self) -> CacheMetrics:
        """What it holds now, and hits and misses so far."""
        with self._lock:
            return CacheMetrics(self._size_bytes, len(self._items), self._hits, self._misses)

    def _loaded(self, key: Hashable, mine: Future[bytes], data: bytes | None) -> None:
        with self._lock:
            if self._loading.get(key) is not mine:
                return  # dropped meanwhile
            del self._loading[key]
            if data is None or len(data) > self._limit_bytes:
                return
            self._items[key] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._limit_bytes:
                self._size_bytes -= len(self._items.popitem(last=False)[1])
