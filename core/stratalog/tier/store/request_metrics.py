"""Counts of requests to a store, by kind; they determine the cost of a tier."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts of one kind of request. Each try counts; ``moved_bytes`` are those of successful tries."""

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
    """All requests of one store since it was opened; subtract an earlier snapshot to get the requests between the two.

    ``puts`` are uploads, ``creates`` the create-only-if-absent requests.
    """

    puts: RequestMetrics = RequestMetrics()
    creates: RequestMetrics = RequestMetrics()
    reads: RequestMetrics = RequestMetrics()
    lists: RequestMetrics = RequestMetrics()
    deletes: RequestMetrics = RequestMetrics()

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return sum(getattr(self, found.name).requests for found in fields(self))

    def __sub__(self, earlier: Self) -> StoreMetrics:
        return StoreMetrics(*(getattr(self, found.name) - getattr(earlier, found.name) for found in fields(self)))


class RequestCounter:
    """Counts one kind of request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._failures = self._retries = self._moved_bytes = 0  # under _lock

    def succeeded(self, moved_bytes: int) -> None:
        """Count a successful try."""
        with self._lock:
            self._requests += 1
            self._moved_bytes += moved_bytes

    def failed(self) -> None:
        """Count a failed try."""
        with self._lock:
            self._requests += 1
            self._failures += 1

    def repeated(self) -> None:
        """Count a retry."""
        with self._lock:
            self._retries += 1

    def snapshot(self) -> RequestMetrics:
        """Return the current counts."""
        with self._lock:
            return RequestMetrics(self._requests, self._failures, self._retries, self._moved_bytes)
