"""Durability of one open log: the recovery point, and what the next sync must cover."""

from __future__ import annotations

from stratalog.env.lock_order import LockRank
from stratalog.log.state.sync_turns import SyncTurns


class DurabilityState:
    """Durability of one open log. The methods are called under the log's lock.

    Attributes:
        recovery_point: everything below this offset is durable.
        folder_dirty: True if the folder has file names that are not durable.
        synced_ns: end of the last sync (monotonic).
        sync_took_ns: duration of the last sync.
        turns: the syncing thread, the waiting threads, and the queue of batches.
        syncing: lock held during a sync, and while bytes are removed.
    """

    __slots__ = ("folder_dirty", "recovery_point", "sync_took_ns", "synced_ns", "syncing", "turns")

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point, self.folder_dirty = recovery_point, True
        self.synced_ns = self.sync_took_ns = 0
        self.turns, self.syncing = SyncTurns(), LockRank.SYNC.rlock()

    def names_changed(self) -> None:
        """Let the next sync also cover the folder, because files were created, renamed or removed."""
        self.folder_dirty = True

    def begin_sync(self) -> bool:
        """Return True if the sync that begins must cover the folder. A later sync covers names that change from now."""
        was_dirty, self.folder_dirty = self.folder_dirty, False
        return was_dirty

    def synced(self, end: int, began_ns: int, now_ns: int) -> None:
        """Record a sync that has made everything below ``end`` durable."""
        self.raise_to(end)
        self.synced_ns, self.sync_took_ns = now_ns, now_ns - began_ns

    def raise_to(self, offset: int) -> None:
        """Record that everything below ``offset`` is durable or no longer needed."""
        self.recovery_point = max(self.recovery_point, offset)

    def lower_to(self, end: int) -> None:
        """Record that the log ends at ``end`` after a truncation."""
        self.recovery_point = min(self.recovery_point, end)

    def restart_at(self, offset: int) -> None:
        """Record that the log has no records and continues at ``offset``."""
        self.recovery_point = offset
