"""Observed operations: each latency is counted once. An error of the tracer is not an error of the operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from stratalog.env.clock import ManualClock
from stratalog.env.latencies import Latencies, Watch


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def latencies(clock: ManualClock) -> Latencies:
    return Latencies(clock.monotonic_ns)


def counts(latencies: Latencies) -> dict[float, int]:
    """Return the number of fetches in each bucket by its upper bound, without empty buckets."""
    fetches_by_bound, before = {}, 0
    for bound, count in latencies.fetch.snapshot().buckets:
        if count > before:
            fetches_by_bound[bound] = count - before
        before = count
    return fetches_by_bound


def test_a_latency_counts_in_the_first_bucket_that_holds_it(latencies: Latencies, clock: ManualClock) -> None:
    for duration_ms in (0, 1, 2, 40_000):
        began_ns = latencies.fetch.now_ns()
        clock.advance_ms(duration_ms)
        latencies.fetch.count_since(began_ns)
    assert counts(latencies) == {10e-6: 1, 0.001: 1, 0.0025: 1, float("inf"): 1}
    assert latencies.fetch.snapshot().sum_s == pytest.approx(40.003)
    assert latencies.append.snapshot().sum_s == 0


def test_an_operation_that_raises_is_measured_and_its_span_gets_the_error(
    latencies: Latencies, clock: ManualClock
) -> None:
    watch, recorded = Watch(), list[object]()

    @contextmanager
    def begin(name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        recorded.append((name, dict(attributes)))
        try:
            yield
        except KeyError as error:
            recorded.append(error)
            raise

    watch.latencies, watch.begin_span = latencies, begin
    error = KeyError("x")

    def operation() -> None:
        with watch.observe("read", {"key": "k"}, lambda histograms: histograms.fetch):
            clock.advance_ms(3)
            raise error

    with pytest.raises(KeyError) as raised:
        operation()
    assert raised.value is error
    assert recorded == [("read", {"key": "k"}), error]
    assert counts(latencies) == {0.005: 1}


def test_a_span_that_can_not_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()

    @contextmanager
    def begin(name: str, attributes: Mapping[str, str]) -> Iterator[None]:
        yield
        raise RuntimeError(f"lost {name} {attributes}")

    watch.begin_span = begin
    with watch.observe("read", {}):
        pass
    assert "a span could not be ended: name=read" in caplog.text


def test_nothing_is_observed_at_first() -> None:
    watch = Watch()
    with watch.observe("read", {}, lambda histograms: histograms.fetch):
        assert watch.latencies is None
