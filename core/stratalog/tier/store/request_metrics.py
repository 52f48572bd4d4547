"""How many requests a store was asked, by kind: what a tier costs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """One kind of request. Each try counts; ``moved_bytes`` are those of successful ones."""

    requests: int = 0
    failures: int = 0
    retries: int = 0
    moved_bytes: int = 0

    def __sub__(self, earlier: Self) -> RequestMetrics:
        return RequestMetrics(
            *(getattr(self, found.name) - getattr(earlier, found.name) for found in fields(RequestMetrics))
        )


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """All requests of one store since it was opened; subtract an earlier snapshot to see what lies between.

    ``puts`` are uploads, ``creates`` the create-only-if-absent requests.
    """

    puts: RequestMetrics = RequestMetrics()
    creates: RequestMetrics = RequestMetrics()
    reads: RequestMetrics = RequestMetrics()
    lists: RequestMetrics = RequestMetrics()
    deletes: RequestMetrics = RequestMetrics()

    @property
    def requests(self) -> int:
        """Of every kind."""
        return sum(getattr(self, found.name).requests for found in fields(self))

    def __sub__(self, earlier: Self) -> StoreMetrics:
        return StoreMetrics(*(getattr(self, found.name) - getattr(earlier, found.name) for found in fields(self)))


class RequestCounter:
    """Counts one kind of request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._failures = self._retries = self._moved_bytes = 0  # under _lock

    def succeeded(self, moved_bytes: int) -> None:
        """A try went well."""
        with self._lock:
            self._requests += 1
            self._moved_bytes += moved_bytes

    def failed(self) -> None:
        """A try went wrong."""
        with self._lock:
            self._requests += 1
            self._failures += 1

    def repeated(self) -> None:
        """The next try is a repetition."""
        with self._lock:
            self._retries += 1

    def snapshot(self) -> RequestMetrics:
        """The counts now."""
        with self._lock:
            return RequestMetrics(self._requests, self._failures, self._retries, self._moved_bytes)
