"""The scheduler of duties, with a clock that moves only on request."""

from __future__ import annotations

import sys
import threading

import pytest

from stratalog.engine.duties.scheduler import Duty, Scheduler
from stratalog.env.clock import ManualClock
from stratalog.env.threads import OwnThread


class Work:
    """A duty that counts its runs, and fails in the first ``failures`` of them."""

    def __init__(self, failures: int = 0) -> None:
        self.runs, self._failures = 0, failures

    def __call__(self) -> None:
        self.runs += 1
        if self.runs <= self._failures:
            raise ValueError(f"run {self.runs}")


def test_a_duty_runs_once_an_interval() -> None:
    clock, often, seldom = ManualClock(), Work(), Work()
    scheduler = Scheduler(clock, [Duty("often", 100, often), Duty("seldom", 250, seldom)])
    waits = []
    for _ in range(5):
        waits.append(scheduler.run_due())
        clock.advance_ms(100)
    assert scheduler.run_due() == 50
    assert waits == [100, 100, 50, 100, 100]
    assert (often.runs, seldom.runs) == (5, 1)
    assert [(status.name, status.runs, status.failures) for status in scheduler.status()] == [
        ("often", 5, 0),
        ("seldom", 1, 0),
    ]


def test_time_that_passed_unnoticed_is_not_made_up_for() -> None:
    clock, work = ManualClock(), Work()
    scheduler = Scheduler(clock, [Duty("work", 100, work)])
    clock.advance_ms(10_000)
    assert (scheduler.run_due(), scheduler.run_due(), work.runs) == (100, 100, 1)


def test_a_duty_that_fails_waits_longer_each_time_and_keeps_no_other_from_running() -> None:
    clock, bad_work, good_work = ManualClock(), Work(failures=3), Work()
    scheduler = Scheduler(clock, [Duty("bad", 100, bad_work), Duty("good", 100, good_work)])
    ran_at = []
    for tick in range(1, 90):
        clock.advance_ms(100)
        before = bad_work.runs
        scheduler.run_due()
        if bad_work.runs > before:
            ran_at.append(tick)
    assert good_work.runs == 89
    assert ran_at[:5] == [1, 11, 31, 71, 72]
    status = scheduler.status()[0]
    assert (status.failures, status.failing, status.error) == (3, 0, "ValueError: run 3")


def test_a_pause_has_an_end() -> None:
    clock, bad_work = ManualClock(), Work(failures=100)
    scheduler = Scheduler(clock, [Duty("bad", 1, bad_work)])
    for _ in range(40):
        clock.advance_ms(300_000)
        scheduler.run_due()
    assert bad_work.runs == 40


def test_the_thread_runs_what_is_due_and_ends_in_order() -> None:
    ran, go_on = threading.Event(), threading.Event()

    def work() -> None:
        ran.set()
        assert go_on.wait(30)

    clock = ManualClock()
    scheduler = Scheduler(clock, [Duty("work", 1, work)])
    clock.advance_ms(1)
    scheduler.start()
    scheduler.start()
    assert ran.wait(30)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    assert closing.is_alive(), "a duty that runs is waited for"
    go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    clock.advance_ms(1000)
    scheduler.run_due()
    assert scheduler.status()[0].runs == 1


def test_a_duty_may_close_its_scheduler() -> None:
    closed, clock = threading.Event(), ManualClock()

    def work() -> None:
        scheduler.close()
        closed.set()

    scheduler = Scheduler(clock, [Duty("work", 1, work)])
    clock.advance_ms(1)
    scheduler.start()
    assert closed.wait(30)
    scheduler.close()


def test_an_exit_in_a_duty_is_a_failure_of_the_duty_on_our_thread_and_an_exit_on_the_callers() -> None:
    clock = ManualClock()
    scheduler = Scheduler(clock, [Duty("leaving", 10, lambda: sys.exit(2))])
    clock.sleep_ms(10)
    with pytest.raises(SystemExit):
        scheduler.run_due()
    thread = OwnThread(scheduler.run_due, "test")
    thread.start()
    thread.join()
    (status,) = scheduler.status()
    assert (status.failing, status.error) == (1, "SystemExit: 2")
