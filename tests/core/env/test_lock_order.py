"""The order of locks, and the locks of the tests that check this order."""

from __future__ import annotations

import threading

import pytest

from inside import log_state
from log_bed import LogBed, records
from ordered_locks import LockOrderError, OrderedLock, checked_lock_order, violations
from stratalog.env.lock_order import LockRank


def test_locks_are_acquired_in_the_order_of_their_ranks() -> None:
    cleaning, log = OrderedLock(LockRank.CLEANING, is_reentrant=False), OrderedLock(LockRank.LOG, is_reentrant=True)
    with cleaning, log, log:
        pass
    with log, pytest.raises(LockOrderError, match="CLEANING is acquired by a thread that holds"):
        cleaning.acquire()
    assert len(violations()) == 1
    assert not cleaning.locked()


def test_two_locks_of_one_rank_are_not_held_together() -> None:
    first, second = (OrderedLock(LockRank.LOG, is_reentrant=True) for _ in range(2))
    with first, pytest.raises(LockOrderError):
        second.acquire()
    assert len(violations()) == 1


def test_an_attempt_that_does_not_wait_is_allowed_in_any_order() -> None:
    cleaning, log = OrderedLock(LockRank.CLEANING, is_reentrant=False), OrderedLock(LockRank.LOG, is_reentrant=True)
    with log:
        assert cleaning.acquire(blocking=False)
        cleaning.release()


def test_a_condition_releases_the_lock_while_it_waits() -> None:
    lock = OrderedLock(LockRank.LOG, is_reentrant=True)
    room = threading.Condition(lock)  # type: ignore[arg-type]  # it has the methods that Condition calls

    def notify() -> None:
        with lock:
            room.notify_all()

    with lock, lock:
        thread = threading.Thread(target=notify)
        thread.start()
        assert room.wait(10)
        thread.join()


def test_the_locks_of_a_log_are_checked(bed: LogBed) -> None:
    with checked_lock_order():
        log = bed.open()
        log.append(records(1), "durable")
        state = log_state(log)
        with state.lock, pytest.raises(LockOrderError, match=r"CLEANING is acquired by a thread that holds \['LOG'\]"):
            state.cleaning.local.busy.acquire()
    assert len(violations()) == 1
