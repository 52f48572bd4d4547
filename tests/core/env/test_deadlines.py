from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from queue import Queue

import pytest

from stratalog.env.deadlines import DeadlineCalls, OverdueError

LONG_S = 600.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield an event that calls wait for. It is set when the test ends."""
    event = threading.Event()
    yield event
    event.set()


def laggards() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("stratalog-call-")]


def left_behind(calls: DeadlineCalls, component: str, gate: threading.Event) -> None:
    with pytest.raises(OverdueError, match="did not return in"):
        calls.call(component, "write", gate.wait, 0.0)


def test_a_call_gives_its_result_or_its_error() -> None:
    calls = DeadlineCalls()
    assert calls.call("a", "plan", lambda: 7, LONG_S) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call("a", "plan", lambda: 1 // 0, LONG_S)
    with pytest.raises(SystemExit):
        calls.call("a", "plan", lambda: (_ for _ in ()).throw(SystemExit(3)), LONG_S)


def test_a_call_runs_on_a_thread_of_its_own() -> None:
    assert DeadlineCalls().call("a", "plan", threading.current_thread, LONG_S) is not threading.current_thread()


def test_a_call_that_is_late_is_left_behind_and_the_log_names_its_thread(
    gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stratalog.env.deadlines"):
        left_behind(DeadlineCalls(), "layout", gate)
    assert "component=layout method=write thread=stratalog-call-write" in caplog.text
    assert laggards()


def test_the_result_of_a_call_that_is_late_is_closed(gate: threading.Event) -> None:
    closed = Queue[int]()

    def work() -> int:
        gate.wait()
        return 7

    with pytest.raises(OverdueError):
        DeadlineCalls().call("store", "open", work, 0.0, closed.put)
    assert closed.empty()
    gate.set()
    assert closed.get() == 7


def test_laggards_are_bounded_for_each_component_and_counted_off_when_they_return(gate: threading.Event) -> None:
    calls = DeadlineCalls(max_laggards=2)
    for _ in range(2):
        left_behind(calls, "layout", gate)
    before = laggards()
    with pytest.raises(OverdueError, match="was not called: 2 earlier calls are still running"):
        calls.call("layout", "write", lambda: 7, LONG_S)
    assert laggards() == before
    assert calls.call("policy", "plan", lambda: 7, LONG_S) == 7, "another component"
    gate.set()
    for thread in before:
        thread.join()
    assert calls.call("layout", "write", lambda: 7, LONG_S) == 7


def test_a_call_that_is_under_way_is_not_waited_for_when_the_engine_closes(gate: threading.Event) -> None:
    calls, started, errors = DeadlineCalls(), threading.Event(), list[OverdueError]()

    def work() -> None:
        started.set()
        gate.wait()

    def wait() -> None:
        with pytest.raises(OverdueError) as caught:
            calls.call("layout", "write", work, LONG_S)
        errors.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    started.wait()
    calls.hurry(0.0)
    waiting.join()
    assert len(errors) == 1


def test_the_error_of_a_close_is_raised_once(gate: threading.Event) -> None:
    def close() -> None:
        gate.wait()
        raise ZeroDivisionError

    calls = DeadlineCalls()
    calls.register("a plugin")
    with pytest.raises(OverdueError, match="a plugin did not return"):
        calls.run_unless_stuck(close, 0.0)
    gate.set()
    calls.unregister("a plugin")
    with pytest.raises(ZeroDivisionError):
        calls.run_unless_stuck(lambda: None, LONG_S)
    calls.run_unless_stuck(lambda: pytest.fail("closed twice"), LONG_S)


def test_an_opening_that_does_not_end_is_not_waited_for_and_its_result_is_closed(gate: threading.Event) -> None:
    calls, closed = DeadlineCalls(), Queue[int]()

    def work() -> int:
        calls.register("store: list")
        gate.wait()
        calls.unregister("store: list")
        return 7

    with pytest.raises(OverdueError, match=r"store: list did not return in 0\.0 s"):
        calls.open_unless_stuck(work, closed.put, 0.0)
    gate.set()
    assert closed.get() == 7


def test_what_opens_in_time_is_returned_and_its_error_is_raised() -> None:
    calls, closed = DeadlineCalls(), Queue[int]()
    assert calls.open_unless_stuck(lambda: 7, closed.put, LONG_S) == 7
    with pytest.raises(ZeroDivisionError):
        calls.open_unless_stuck(lambda: 7 // 0, closed.put, LONG_S)
    assert closed.empty()
