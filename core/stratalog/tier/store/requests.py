"""Requests to an object store: each has a deadline, is retried after a retriable error, and is counted.

All requests to a store share a retry budget. The budget limits the load by retries while the store is unavailable.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Final, Self, TypeVar

from stratalog.config.engine_settings import EngineConfig
from stratalog.env import Env
from stratalog.env.deadlines import OverdueError
from stratalog.env.latencies import REQUEST_KINDS
from stratalog.errors import PluginError, StoreError, StoreThrottledError, StoreTimeoutError
from stratalog.registry.guard import Guard


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


_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 5_000
_GRACE_MS: Final = 1_000  # extra wait, because the store's thread may be scheduled late
_BUDGET_RETRIES: Final = 32.0
_BUDGET_REFILL: Final = 0.1
_UNOBSERVED: Final = contextlib.nullcontext()

T = TypeVar("T")


class RetryBudget:
    """The number of retries that all requests to a store may still use. Thread-safe.

    Each retry subtracts 1, and each successful request adds 0.1, up to the initial value.
    """

    def __init__(self, retries: float = _BUDGET_RETRIES) -> None:
        self._retries = self._limit = retries
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Subtract one retry and return True; return False if less than one is left."""
        with self._lock:
            if self._retries < 1:
                return False
            self._retries -= 1
            return True

    def refill(self) -> None:
        """Add a tenth of a retry, up to the initial value."""
        with self._lock:
            self._retries = min(self._limit, self._retries + _BUDGET_REFILL)


class Requests:
    """Sender of the requests to one store. Thread-safe.

    Args:
        config: ``store.deadline.ms`` limits one request with its retries, ``store.retries`` the number of its retries.

    Attributes:
        deadline_ms: deadline of one request with its retries, in milliseconds.
    """

    def __init__(self, uri: str, env: Env, config: EngineConfig, guard: Guard) -> None:
        self._uri, self._env, self._guard = uri, env, guard
        self.deadline_ms, self._retries = config.store_deadline_ms, config.store_retries
        self._budget, self._lock = RetryBudget(), threading.Lock()
        self._counts = {kind: [0, 0, 0, 0] for kind in REQUEST_KINDS}  # fields of RequestMetrics; under _lock

    def metrics(self) -> StoreMetrics:
        """Return the counts of requests so far."""
        with self._lock:
            return StoreMetrics(**{kind: RequestMetrics(*counts) for kind, counts in self._counts.items()})

    def count(self, kind: str, moved_bytes: int, failures: int = 0, retries: int = 0) -> None:
        """Count a try. ``kind`` is one of ``REQUEST_KINDS``. ``failures`` is 1 if it failed, ``retries`` for a retry."""
        with self._lock:
            counts = self._counts[kind]
            counts[0] += 1
            counts[1] += failures
            counts[2] += retries
            counts[3] += moved_bytes

    def send(
        self,
        kind: str,
        method: str,
        key: str,
        request: Callable[[int], T],
        count_bytes: Callable[[T], int],
        *,
        deadlines: int = 1,
        overdue: T | None = None,
    ) -> T:
        """Return the result of a request; retry the request after a retriable error.

        Args:
            kind: one of ``REQUEST_KINDS``.
            method: name of the method of the store, for errors and traces.
            key: key of the object, or prefix of the listed keys, for traces.
            request: makes one try; called with the deadline of the try, in nanoseconds of the monotonic clock.
            count_bytes: called with the result; returns the number of bytes that were uploaded or read.
            deadlines: factor by which ``store.deadline.ms`` is multiplied for this request.
            overdue: the result if the store does not return by its deadline; None raises StoreTimeoutError.

        Raises:
            StoreError: a try failed with an error that is not retriable, or the number of retries, the time or the
                retry budget is used up.
            PluginError: the store broke the plugin interface.
        """
        end_ns, retries = self._env.clock.monotonic_ns() + deadlines * self.deadline_ms * 1_000_000, 0
        while True:
            try:
                with self._observe(kind, method, key):
                    takes_all = kind == "puts" or retries >= self._retries
                    answer = self._try_once(method, end_ns, request, overdue, takes_all=takes_all)
            except StoreError as error:
                self.count(kind, 0, failures=1, retries=min(retries, 1))
                if not error.retriable or not self._may_repeat(end_ns, retries, error):
                    raise
                retries += 1
            else:
                self.count(kind, count_bytes(answer), retries=min(retries, 1))
                self._budget.refill()
                return answer

    def _observe(self, kind: str, method: str, key: str) -> AbstractContextManager[object]:
        watch = self._env.watch
        if watch.latencies is None and watch.begin_span is None:  # the usual case: nothing observes requests
            return _UNOBSERVED
        attributes = {"stratalog.store": self._uri, "stratalog.request": kind, "stratalog.key": key}
        return watch.observe(f"store {method}", attributes, lambda latencies: latencies.requests[kind])

    def _try_once(
        self, method: str, end_ns: int, request: Callable[[int], T], overdue: T | None, *, takes_all: bool
    ) -> T:
        """Make one try. If the store does not return by its deadline, return ``overdue`` or raise StoreTimeoutError.

        A try gets half of the remaining time; with ``takes_all``, all of it.
        """
        now_ns = self._env.clock.monotonic_ns()
        remaining_ns = end_ns - now_ns
        if not takes_all:
            remaining_ns = max(0, remaining_ns) // 2
        deadline_ns = now_ns + remaining_ns
        if self._guard.is_bundled:
            return request(deadline_ns)  # stratalog's own stores keep the deadline
        wait_ms = remaining_ns / 1_000_000 + _GRACE_MS
        try:
            return self._guard.call(method, lambda: request(deadline_ns), wait_ms=wait_ms)
        except PluginError as error:
            if not isinstance(error.__cause__, OverdueError):
                raise
            if overdue is not None:
                return overdue
            raise StoreTimeoutError(error.reason, self._uri) from error

    def _may_repeat(self, end_ns: int, retries: int, error: StoreError) -> bool:
        """Wait before the next try and return True; return False if the request must not be retried."""
        if retries >= self._retries:
            return False
        longest = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS << retries)
        pause_ms = round(longest * (0.5 + self._env.chance.random() / 2))
        if isinstance(error, StoreThrottledError):
            pause_ms += error.retry_after_ms
        if self._env.clock.monotonic_ns() + pause_ms * 1_000_000 >= end_ns or not self._budget.take():
            return False
        self._env.clock.sleep_ms(pause_ms)
        return True
