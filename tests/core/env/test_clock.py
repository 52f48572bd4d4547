from __future__ import annotations

import datetime as dt
import threading

import pytest

from stratalog.env import Env, SystemClock
from stratalog.env.clock import ManualClock


def test_the_system_clock_returns_unix_milliseconds() -> None:
    before = dt.datetime.now(dt.UTC)
    now_ms = SystemClock().now_ms()
    after = dt.datetime.now(dt.UTC)
    assert int(before.timestamp() * 1000) <= now_ms <= after.timestamp() * 1000


def test_the_system_clock_does_not_decrease() -> None:
    clock = SystemClock()
    first = clock.monotonic_ns()
    clock.sleep_ms(1)
    assert clock.monotonic_ns() - first >= 1_000_000


def test_an_event_ends_the_longest_wait() -> None:
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    assert SystemClock().wait(event, (1 << 63) - 1)


def test_a_manual_clock_moves_only_on_request() -> None:
    clock = ManualClock(now_ms=5)
    assert (clock.now_ms(), clock.monotonic_ns()) == (5, 5_000_000)
    clock.advance_ms(3)
    clock.sleep_ms(2)
    assert (clock.now_ms(), clock.monotonic_ns()) == (10, 10_000_000)
    with pytest.raises(ValueError, match="earlier time"):
        clock.advance_ms(-1)
    assert clock.now_ms() == 10


def test_chance_of_an_environment_is_not_shared() -> None:
    assert Env().chance is not Env().chance
