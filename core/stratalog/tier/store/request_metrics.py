"""Counts of requests to a store, by kind; they determine the cost of a tier."""

from __future__ import annotations

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
