from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stratalog.env.helper_threads import HelperThreads

WAIT_S = 30.0

FORKS = """
import os
from stratalog.env.helper_threads import HelperThreads
helpers = HelperThreads()
assert helpers.results(range(8), lambda n: n + 1, 2) == list(range(1, 9))
child = os.fork()
if child == 0:
    found = helpers.results(range(8), lambda n: n + 1, 2)
    os._exit(0 if found == list(range(1, 9)) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def together() -> Callable[[object], bool]:
    """Return a job that needs two threads at the same time: with one thread, its barrier times out."""
    meeting = threading.Barrier(2, timeout=WAIT_S)
    return lambda _: meeting.wait() >= 0


@contextmanager
def busy(helpers: HelperThreads) -> Iterator[None]:
    """Keep one helper thread busy for another caller."""
    started, may_end = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number and not started.is_set():
            started.set()
            assert may_end.wait(WAIT_S)
        else:
            assert started.wait(WAIT_S)

    caller = threading.Thread(target=helpers.results, args=([0, 1], work, 2))
    caller.start()
    assert started.wait(WAIT_S)
    try:
        yield
    finally:
        may_end.set()
        caller.join()


@pytest.mark.parametrize("threads", [1, 2, 7, 50])
def test_results_stand_in_the_order_of_the_items(threads: int) -> None:
    helpers = HelperThreads(8)
    for _ in range(20):
        assert helpers.results(range(20), lambda number: number * number, threads) == [n * n for n in range(20)]


def test_the_caller_and_a_helper_work_at_a_time_again_and_again() -> None:
    helpers = HelperThreads(1)
    for _ in range(5):
        assert helpers.results([1, 2], together(), 2) == [True, True]


@pytest.mark.parametrize(("items", "threads"), [(1, 8), (5, 1), (0, 4)])
def test_where_one_thread_does_it_is_the_callers(items: int, threads: int) -> None:
    caller = threading.current_thread()
    assert (
        HelperThreads(4).results(range(items), lambda _: threading.current_thread() is caller, threads)
        == [True] * items
    )


def test_a_caller_without_helpers_does_all_work() -> None:
    helpers, caller = HelperThreads(1), threading.current_thread()
    with busy(helpers):
        assert helpers.results(range(9), lambda _: threading.current_thread() is caller, 2) == [True] * 9
    assert helpers.results([1, 2], together(), 2) == [True, True]


def test_where_the_system_gives_no_thread_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    helpers = HelperThreads(1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        assert helpers.results(range(9), lambda number: number, 2) == list(range(9))
    assert helpers.results([1, 2], together(), 2) == [True, True]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_first_items_error_is_raised_and_little_else_begun(threads: int) -> None:
    started = list[int]()

    def work(number: int) -> int:
        started.append(number)
        if number >= 3:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="3"):
        HelperThreads(4).results(range(1000), work, threads)
    assert len(started) < 3 + 2 * threads
    assert started[:1] == [0]


@pytest.mark.parametrize("in_caller", [True, False])
def test_after_an_interrupt_nothing_further_begins(*, in_caller: bool) -> None:
    caller, started, interrupted = threading.current_thread(), list[int](), threading.Event()
    items = range(1_000_000)  # the other thread may begin thousands before the exception has left its function

    def work(number: int) -> None:
        started.append(number)
        if (threading.current_thread() is caller) == in_caller:
            interrupted.set()
            raise KeyboardInterrupt
        assert interrupted.wait(WAIT_S)

    with pytest.raises(KeyboardInterrupt):
        HelperThreads(1).results(items, work, 2)
    assert len(started) < len(items)


def test_an_idle_helper_thread_ends() -> None:
    helpers, threads = HelperThreads(1, idle_s=0), set[threading.Thread]()
    meeting = threading.Barrier(2, timeout=WAIT_S)

    def work(_: int) -> None:
        threads.add(threading.current_thread())
        meeting.wait()

    for _ in range(2):
        helpers.results([1, 2], work, 2)
        for thread in threads - {threading.current_thread()}:
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_nothing_of_the_work_is_kept() -> None:
    class Item:
        pass

    helpers, items = HelperThreads(1), [Item() for _ in range(4)]
    references = [weakref.ref(item) for item in items]
    with busy(helpers):  # the helper is busy: the caller does all the work itself
        helpers.results(items, id, 2)
        del items
        assert [reference() for reference in references] == [None] * 4


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_fork_takes_no_helper_along_and_gets_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    subprocess.run(command, check=True, timeout=2 * WAIT_S)  # noqa: S603 - our own program
