"""The order in which one thread acquires the locks of an engine and of its logs.

A thread acquires a lock only if it holds no lock of the same or a higher rank. Two threads can then never wait for each
other. The tests of logs and engines replace the locks by locks that check this order.

All other locks of the core protect a few fields of one object. While a thread holds such a lock, it acquires no lock of
``LockRank``. A thread waits for the ``gate`` of a ``Waiter`` only while it holds no lock of ``LockRank``.
"""

from __future__ import annotations

import threading
from enum import IntEnum


class LockRank(IntEnum):
    """Ranks of locks. If a thread needs two locks, it acquires the lock of the lower rank first."""

    TOPICS = 1
    """``EngineLogs._changing``: topics are created, altered, moved or deleted."""
    TIER_CLEANING = 2
    """``CleaningState.tier.busy``: committed segments of one log are rewritten."""
    CLEANING = 3
    """``CleaningState.local.busy``: local segments of one log are rewritten or uploaded."""
    SYNC = 4
    """``DurabilityState.syncing``: one log is synced, or bytes of the log are removed."""
    LOG = 5
    """``LogState.lock``: the state of one log changes."""
    TIER_NOTE = 6
    """``TierLink.noting``: the tier note of one log is replaced."""
    LEAF = 7
    """Locks inside ``SyncTurns``, ``Subscribers`` and ``HandlePool``."""

    def lock(self) -> threading.Lock:
        """Return a new lock for an object of this rank. The lock itself does not check the order; only tests do."""
        return threading.Lock()

    def rlock(self) -> threading.RLock:
        """Return a new reentrant lock of this rank."""
        return threading.RLock()
