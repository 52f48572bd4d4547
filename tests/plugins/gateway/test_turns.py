from __future__ import annotations

import threading

import pytest

from stratalog_gateway import turns as turns_module
from stratalog_gateway.turns import Turns


def test_one_thread_at_a_time_has_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "_STUCK_S", 60)
    turns, taken = Turns(), list[threading.Lock]()
    first = turns.take()
    other = threading.Thread(target=lambda: taken.append(turns.take()))
    other.start()
    first.release()
    other.join()
    assert taken == [first]
    assert first.locked()


def test_a_turn_that_does_not_end_blocks_no_other_turns() -> None:
    turns = Turns()
    blocked = turns.take()
    second = turns.take()
    second.release()
    third = turns.take()
    assert third is second is not blocked
    blocked.release()
    assert third.locked()
