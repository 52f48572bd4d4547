from __future__ import annotations

import threading

import pytest

from stratalog_gateway import run_lock
from stratalog_gateway.run_lock import RunLock


def test_one_thread_at_a_time_has_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_STUCK_S", 60)
    lock, taken = RunLock(), list[threading.Lock]()
    first = lock.acquire()
    other = threading.Thread(target=lambda: taken.append(lock.acquire()))
    other.start()
    first.release()
    other.join()
    assert taken == [first]
    assert first.locked()


def test_a_thread_that_keeps_the_lock_blocks_no_other_thread() -> None:
    lock = RunLock()
    blocked = lock.acquire()
    second = lock.acquire()
    second.release()
    third = lock.acquire()
    assert third is second is not blocked
    blocked.release()
    assert third.locked()
