from __future__ import annotations

import threading

import pytest

from stratalog.env.threads import outcomes

NAME = "test-outcomes"


def left_running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(NAME)]


@pytest.mark.parametrize("threads", [1, 2, 7, 50])
def test_outcomes_stand_in_the_order_of_the_items(threads: int) -> None:
    def work(number: int) -> int:
        if number % 3 == 0:
            raise ValueError(number)
        return number * number

    results = outcomes(range(20), work, threads, NAME)
    for number, result in enumerate(results):
        if number % 3:
            assert result == number * number
        else:
            assert isinstance(result, ValueError)
            assert result.args == (number,)
    assert left_running() == []


def test_so_many_are_at_work_at_a_time() -> None:
    meeting = threading.Barrier(3, timeout=30)  # times out unless three threads wait at the same time
    assert outcomes(range(3), lambda _: meeting.wait() >= 0, 3, NAME) == [True, True, True]


@pytest.mark.parametrize(("items", "threads"), [(1, 8), (5, 1), (0, 4)])
def test_where_one_thread_does_it_is_the_callers(items: int, threads: int) -> None:
    caller = threading.current_thread()
    assert outcomes(range(items), lambda _: threading.current_thread() is caller, threads, NAME) == [True] * items


@pytest.mark.parametrize("in_caller", [True, False])
def test_after_an_interrupt_nothing_further_begins(*, in_caller: bool) -> None:
    caller, started = threading.current_thread(), list[int]()
    interrupted = threading.Event()

    def work(number: int) -> None:
        started.append(number)
        if (threading.current_thread() is caller) == in_caller:
            interrupted.set()
            raise KeyboardInterrupt
        interrupted.wait(30)

    with pytest.raises(KeyboardInterrupt):
        outcomes(range(100), work, 2, NAME)
    assert len(started) < 100
    assert left_running() == []
