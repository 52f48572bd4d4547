"""Observation of an engine's operations: histograms of latencies, and spans for a tracer. Both are off by default."""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, TypeAlias

_LOGGER: Final = logging.getLogger(__name__)
_BOUNDS_US: Final = (
    *(10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000),
)
_BOUNDS_NS: Final = tuple(bound * 1000 for bound in _BOUNDS_US)
REQUEST_KINDS: Final = ("puts", "creates", "reads", "lists", "deletes")
"""Kinds of requests to a store."""

BeginSpan: TypeAlias = Callable[[str, Mapping[str, str]], AbstractContextManager[object]]
"""Function of a tracer that begins a span.

The function receives the name and the attributes of the span, and returns a context manager that ends the span.
"""


class LatencyCounts(NamedTuple):
    """Snapshot of a histogram.

    Attributes:
        buckets: pairs of an upper bound (seconds, inclusive) and the number of all latencies up to this bound. The last
            bound is infinite.
        sum_s: sum of all latencies.
    """

    buckets: tuple[tuple[float, int], ...]
    sum_s: float


class Latency:
    """Histogram of the latencies of one kind of operation. Thread-safe."""

    __slots__ = ("_counts", "_lock", "_sum_ns", "now_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self._lock = threading.Lock()
        self._counts = [0] * (len(_BOUNDS_NS) + 1)  # _counts and _sum_ns are under _lock
        self._sum_ns = 0

    def count_since(self, began_ns: int) -> None:
        """Count an operation that began at ``began_ns`` and ends now."""
        latency_ns = self.now_ns() - began_ns
        index = bisect_left(_BOUNDS_NS, latency_ns)
        with self._lock:
            self._counts[index] += 1
            self._sum_ns += latency_ns

    def snapshot(self) -> LatencyCounts:
        """Return the counts of all operations that have ended so far."""
        with self._lock:
            counts, sum_ns = tuple(self._counts), self._sum_ns
        bounds = [*(bound / 1_000_000 for bound in _BOUNDS_US), float("inf")]
        return LatencyCounts(
            tuple((bound, sum(counts[: index + 1])) for index, bound in enumerate(bounds)), sum_ns / 1_000_000_000
        )


class Latencies:
    """Histograms of the latencies of an engine's operations since the measurement began.

    Attributes:
        append: successful appends of a leader, except appends with ``wait=False``. The latency of a durable append
            includes the sync.
        fetch: successful fetches, from local disk and from the tier.
        offload: offloads of one log with segments to copy, including failed offloads.
        requests: requests to the store by kind, including failed requests. Each retry counts as a request.
    """

    __slots__ = ("append", "fetch", "offload", "requests")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.append, self.fetch, self.offload = Latency(now_ns), Latency(now_ns), Latency(now_ns)
        self.requests = {kind: Latency(now_ns) for kind in REQUEST_KINDS}


class Watch:
    """Observers of the operations of an engine.

    Attributes:
        latencies: histograms of the latencies; None if they are not measured.
        begin_span: begins a span of a tracer; None if nothing is traced.
    """

    __slots__ = ("begin_span", "latencies")

    def __init__(self) -> None:
        self.latencies: Latencies | None = None
        self.begin_span: BeginSpan | None = None

    def observe(
        self, name: str, attributes: Mapping[str, str], latency: Callable[[Latencies], Latency] | None = None
    ) -> AbstractContextManager[object]:
        """Return a context manager that measures and traces the operation in its block, even if the operation fails.

        Errors of the tracer are logged, and do not affect the operation.

        Args:
            name: name of the span.
            attributes: attributes of the span.
            latency: returns the histogram for the operation; None to trace the operation without measuring it.
        """
        if self.latencies is None and self.begin_span is None:
            return _UNOBSERVED
        measured = None if latency is None or self.latencies is None else latency(self.latencies)
        return _observe(measured, self.begin_span, name, attributes)


_UNOBSERVED: Final = contextlib.nullcontext()


@contextlib.contextmanager
def _observe(
    latency: Latency | None, begin_span: BeginSpan | None, name: str, attributes: Mapping[str, str]
) -> Iterator[None]:
    span = None if begin_span is None else _begin(begin_span, name, attributes)
    began_ns = 0 if latency is None else latency.now_ns()
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
        raise
    finally:
        if latency is not None:
            latency.count_since(began_ns)
        if span is not None:
            _end(span, name, raised)


def _begin(begin_span: BeginSpan, name: str, attributes: Mapping[str, str]) -> AbstractContextManager[object] | None:
    try:
        span = begin_span(name, attributes)
        span.__enter__()
    except Exception:
        _LOGGER.warning("a span could not be started: name=%s", name, exc_info=True)
        return None
    return span


def _end(span: AbstractContextManager[object], name: str, raised: BaseException | None) -> None:
    try:
        span.__exit__(
            None if raised is None else type(raised), raised, None if raised is None else raised.__traceback__
        )
    except Exception as error:
        if error is not raised:
            _LOGGER.warning("a span could not be ended: name=%s", name, exc_info=True)
