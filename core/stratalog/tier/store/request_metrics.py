"""Counts of requests to a store, by kind, from which the cost of a tier can be computed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Counts of one kind of request.

    ``requests`` counts each try, also retries. ``failures`` counts failed tries. ``moved_bytes`` is the number of bytes
    that successful tries uploaded or returned.
    """

    requests: int = 0
    failures: int = 0
    retries: int = 0
    moved_bytes: int = 0

    def __sub__(self, earlier: Self) -> RequestMetrics:
        return RequestMetrics(
            *(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(RequestMetrics))
        )


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """Counts of the requests to one store since it was opened. Subtract an earlier value to get the counts since then.

    ``puts`` are uploads. ``creates`` are requests that create an object only if its key does not exist.
    """

    puts: RequestMetrics = RequestMetrics()
    creates: RequestMetrics = RequestMetrics()
    reads: RequestMetrics = RequestMetrics()
    lists: RequestMetrics = RequestMetrics()
    deletes: RequestMetrics = RequestMetrics()

    @property
    def requests(self) -> int:
        """The number of requests of all kinds."""
        return sum(getattr(self, field.name).requests for field in fields(self))

    def __sub__(self, earlier: Self) -> StoreMetrics:
        return StoreMetrics(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)))
