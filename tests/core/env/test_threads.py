from __future__ import annotations

import logging
import sys
import threading
from functools import partial

import pytest

from stratalog.env.threads import OwnThread, Worker


def started(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def refuse_thread(_: OwnThread) -> None:
    raise RuntimeError("can't start new thread")


def test_jobs_run_in_order_on_a_named_thread() -> None:
    worker = Worker("test-order")
    calls: list[tuple[int, str]] = []

    def note(number: int) -> None:
        calls.append((number, threading.current_thread().name))

    for number in range(100):
        worker.submit(partial(note, number))
    worker.drain()
    assert calls == [(number, "test-order") for number in range(100)]
    worker.close()


def test_a_worker_without_jobs_starts_no_thread() -> None:
    worker = Worker("test-idle")
    worker.drain()
    assert started("test-idle") == []
    worker.close()
    worker.close()


def test_a_thread_that_cannot_be_started_is_started_by_a_later_job(monkeypatch: pytest.MonkeyPatch) -> None:
    unused, worker, ran = Worker("test-start"), Worker("test-start"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(OwnThread, "start", refuse_thread)
        for refused_worker in (unused, worker):
            with pytest.raises(RuntimeError):
                refused_worker.submit(ran.set)
    unused.close()
    assert worker.submit(ran.set)
    worker.close()
    assert ran.is_set()


def test_closing_runs_what_is_queued_and_ends_the_thread() -> None:
    worker, gate = Worker("test-close"), threading.Event()
    calls: list[int] = []
    worker.submit(lambda: calls.append(int(gate.wait())))
    for number in range(5):
        worker.submit(partial(calls.append, number))
    gate.set()
    worker.close()
    worker.close()
    assert calls == [1, 0, 1, 2, 3, 4]
    assert started("test-close") == []
    worker.submit(lambda: calls.append(9))
    worker.drain()
    assert calls[-1] == 4


def test_tasks_above_the_limit_are_dropped_and_counted() -> None:
    worker, running, gate = Worker("test-full", limit=2), threading.Event(), threading.Event()
    calls: list[int] = []

    def hold() -> None:
        running.set()
        gate.wait()

    worker.submit(hold)
    running.wait()
    for number in range(5):
        worker.submit(partial(calls.append, number))
    gate.set()
    worker.close()
    assert calls == [0, 1]
    assert worker.dropped == 3


def test_a_job_that_raises_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """Such an error once ended the thread, and the next ``drain`` waited for ever."""
    worker = Worker("test-raise")
    calls: list[int] = []

    def fail() -> None:
        raise ValueError("on purpose")

    with caplog.at_level(logging.ERROR):
        worker.submit(fail)
        worker.submit(lambda: calls.append(1))
        worker.drain()
    worker.close()
    assert calls == [1]
    assert "test-raise" in caplog.text
    assert "on purpose" in caplog.text


def test_a_job_may_close_its_worker() -> None:
    """A listener that closed its engine once waited for itself, also if the queue was full."""
    worker, running, gate = Worker("test-inside", limit=2), threading.Event(), threading.Event()
    calls: list[object] = []

    def end() -> None:
        running.set()
        gate.wait()
        worker.close()
        worker.drain()
        worker.submit(lambda: calls.append("late"))
        calls.append("closed")

    worker.submit(end)
    running.wait()
    for number in range(2):
        worker.submit(partial(calls.append, number))
    gate.set()
    worker.close()
    worker.drain()
    assert calls == ["closed", 0, 1]
    assert started("test-inside") == []


def test_many_threads_may_submit_the_first_job() -> None:
    """Two threads once both tried to start the worker's thread, and the second one failed."""
    worker, gate = Worker("test-start"), threading.Barrier(8)
    calls: list[int] = []

    def submit() -> None:
        gate.wait()
        worker.submit(lambda: calls.append(1))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker.close()
    assert len(calls) == 8


def test_an_exit_ends_no_thread() -> None:
    """A listener that called ``sys.exit`` once silenced all listeners of the engine."""
    worker, calls = Worker("test-exit"), list[int]()
    worker.submit(lambda: sys.exit(2))
    worker.submit(lambda: calls.append(1))
    worker.close()
    assert calls == [1]


def test_a_close_waits_until_its_deadline_and_runs_nothing_afterwards() -> None:
    worker, running, gate = Worker("test-hang", limit=1), threading.Event(), threading.Event()
    calls: list[int] = []

    def hang() -> None:
        running.set()
        gate.wait()

    worker.submit(hang)
    running.wait()
    worker.submit(lambda: calls.append(1))
    assert not worker.close(0.0)
    worker.drain()
    gate.set()
    assert worker.close()
    assert calls == []
