"""``SyncTurns``: only one sync at a time. Each waiting thread is woken once, even if another thread stops waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from stratalog.log.state.sync_turns import SyncTurns, Waiter

WAIT_S = 30.0
NEVER_S = 100 * WAIT_S  # a thread that waits for so long is reported by the thread that joins it after WAIT_S


def taken(turns: SyncTurns, end: int, *, first: bool = False) -> Waiter:
    waiter = Waiter(end)
    assert turns.take(waiter) is first
    return waiter


def is_woken(waiter: Waiter) -> bool:
    return waiter.gate.acquire(blocking=False)


def test_finished_threads_continue_and_one_of_the_others_is_next() -> None:
    turns = SyncTurns()
    first = taken(turns, 1, first=True)
    finished, next_one, later = taken(turns, 2), taken(turns, 5), taken(turns, 6)
    turns.leave(first, 3)
    assert [is_woken(waiter) for waiter in (finished, next_one, later)] == [True, True, False]
    turns.leave(finished, 3)
    assert turns.take(next_one)
    turns.leave(next_one, 6)
    assert is_woken(later)
    turns.leave(later, 6)
    assert turns.take(Waiter(7))


def test_a_turn_passes_to_the_next_thread_if_its_owner_gives_up() -> None:
    """Ctrl-C can interrupt a waiting thread before it is woken, or before it begins its sync."""
    turns = SyncTurns()
    first = taken(turns, 1, first=True)
    cancelled, interrupted, last = taken(turns, 2), taken(turns, 3), taken(turns, 4)
    turns.leave(cancelled, 0)
    turns.leave(first, 1)
    assert is_woken(interrupted)
    turns.leave(interrupted, 1)
    assert is_woken(last)
    assert turns.take(last)
    assert not is_woken(cancelled)


def test_leaving_twice_takes_no_turn_of_another_thread() -> None:
    turns = SyncTurns()
    first = taken(turns, 1, first=True)
    second = taken(turns, 2)
    turns.leave(first, 1)
    turns.leave(first, 1)
    assert turns.take(second)
    assert not turns.take(Waiter(3))


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_company_is_waited_for_until_it_is_there() -> None:
    turns = SyncTurns()
    first = taken(turns, 1, first=True)
    waiters = [taken(turns, 1), taken(turns, 2)]
    turns.leave(first, 1)
    assert [is_woken(waiter) for waiter in waiters] == [True, True]
    leader = waiters[1]
    assert turns.take(leader)
    gathered = in_thread(lambda: turns.gather(leader, NEVER_S))
    taken(turns, 3)
    gathered.join(WAIT_S)
    assert not gathered.is_alive()


@pytest.mark.parametrize("at_most_s", [0.0, 1e-6])
def test_company_that_stays_away_is_not_waited_for(at_most_s: float) -> None:
    turns = SyncTurns()
    first = taken(turns, 1, first=True)
    back, leader = taken(turns, 1), taken(turns, 2)
    turns.leave(first, 1)
    assert is_woken(back)
    assert turns.take(leader)
    turns.gather(leader, at_most_s)
    turns.leave(leader, 2)
    assert turns.take(Waiter(3))


def test_a_single_waiter_waits_for_no_other() -> None:
    turns = SyncTurns()
    for end in range(3):
        waiter = taken(turns, end, first=True)
        gathered = in_thread(partial(turns.gather, waiter, NEVER_S))
        gathered.join(WAIT_S)
        assert not gathered.is_alive()
        turns.leave(waiter, end)
