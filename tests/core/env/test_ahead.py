from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from stratalog.env.ahead import made_ahead

NAME = "test-ahead"
PATTERNS: dict[str, Callable[[int], bool]] = {
    "always": lambda _: True,
    "never": lambda _: False,
    "now and then": lambda number: number % 3 == 0,
}


def left_running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_the_items_come_in_order(pattern: str, count: int) -> None:
    assert list(made_ahead(iter(range(count)), NAME, PATTERNS[pattern])) == list(range(count))
    assert left_running() == []


def test_the_next_item_is_made_while_one_is_used() -> None:
    meeting = threading.Barrier(2, timeout=30)  # breaks unless two come together

    def items() -> Iterator[int]:
        yield 0
        for number in (1, 2):
            meeting.wait()
            yield number

    for number in made_ahead(items(), NAME, lambda number: number < 2):
        if number < 2:
            meeting.wait()


def test_what_nobody_goes_on_to_is_made_when_it_is_asked_for() -> None:
    made = list[int]()

    def items() -> Iterator[str]:
        for number in range(3):
            made.append(number)
            yield threading.current_thread().name

    for number, thread in enumerate(made_ahead(items(), NAME, lambda _: False)):
        assert (made[-1], thread) == (number, threading.current_thread().name)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_in_its_place(pattern: str, error: type[BaseException]) -> None:
    def items() -> Iterator[int]:
        yield from range(4)
        raise error("the fifth")

    found = list[int]()
    with pytest.raises(error, match="the fifth"):
        deque(map(found.append, made_ahead(items(), NAME, PATTERNS[pattern])), maxlen=0)
    assert found == [0, 1, 2, 3]
    assert left_running() == []


def test_who_stops_early_waits_for_what_is_being_made_and_nothing_else_is() -> None:
    begun, made = threading.Event(), list[int]()

    def items() -> Iterator[int]:
        for number in range(100):
            if number:
                begun.set()
            made.append(number)
            yield number

    ahead = made_ahead(items(), NAME, lambda _: True)
    assert next(ahead) == 0
    assert begun.wait(30)
    ahead.close()
    assert (made, left_running()) == ([0, 1], [])


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(made_ahead(iter(range(5)), NAME, lambda _: True)) == list(range(5))
