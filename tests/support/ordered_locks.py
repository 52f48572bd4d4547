"""Locks that check their order (see ``LockRank``), as replacements of the locks of production code."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self, cast

import pytest

from stratalog.env.lock_order import LockRank


class LockOrderError(AssertionError):
    """A thread acquires a lock while it holds a lock of the same or of a later rank."""


_LOCKS: ContextVar[Sequence[OrderedLock]] = ContextVar("locks", default=())
"""The locks of the thread that last acquired one in this context, which an engine's opening thread inherits."""


class _Held(threading.local):
    """The locks that the current thread holds, in the order in which it acquired them.

    ``around`` are the locks of the thread that started this thread and waits for it.
    """

    def __init__(self) -> None:
        self.locks: list[OrderedLock] = []
        self.around = tuple(_LOCKS.get())


_HELD = _Held()
FOUND: list[str] = []
"""Violations of all threads: an error in a background thread may reach no test."""


class OrderedLock:
    """A lock of one rank, which raises LockOrderError if it is acquired in the wrong order. ``Condition`` accepts it.

    An attempt that does not wait cannot cause a deadlock, and is not checked. Locks that the creating thread held when
    it created this lock are also ignored: a crash test opens a copy of a log within an operation on the log.
    """

    def __init__(self, rank: LockRank, *, is_reentrant: bool) -> None:
        self.rank, self._lock = rank, threading.RLock() if is_reentrant else threading.Lock()
        self._is_reentrant, self._around = is_reentrant, frozenset([*_HELD.locks, *_HELD.around])

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as threading.Lock
        if blocking:
            self._check()
        acquired = self._lock.acquire(blocking, timeout)
        if acquired:
            _HELD.locks.append(self)
            _LOCKS.set(_HELD.locks)
        return acquired

    def release(self) -> None:
        self._lock.release()
        held_locks = _HELD.locks
        del held_locks[len(held_locks) - 1 - held_locks[::-1].index(self)]

    def locked(self) -> bool:
        if self.acquire(blocking=False):
            self.release()
            return False
        return True

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _check(self) -> None:
        held_locks = _HELD.locks
        if self._is_reentrant and self in held_locks:
            return
        latest = max((lock.rank for lock in held_locks if lock not in self._around), default=0)
        if latest >= self.rank:
            names = [lock.rank.name for lock in held_locks]
            FOUND.append(f"{self.rank.name} is acquired by a thread that holds {names}")
            raise LockOrderError(FOUND[-1])

    # Condition calls these for a reentrant lock.

    def _is_owned(self) -> bool:
        return self in _HELD.locks

    def _release_save(self) -> int:
        count = _HELD.locks.count(self)
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self.acquire()


@contextmanager
def checked_lock_order() -> Iterator[None]:
    """Make all locks of a ``LockRank`` check their order if they are created within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LockRank, "lock", lambda rank: cast(threading.Lock, OrderedLock(rank, is_reentrant=False)))
        patch.setattr(LockRank, "rlock", lambda rank: cast("threading.RLock", OrderedLock(rank, is_reentrant=True)))
        yield


def violations() -> list[str]:
    """Return the violations since the last call."""
    violations = list(FOUND)
    FOUND.clear()
    return violations
