"""Durability of one open log: the recovery point, and what the next sync must cover."""

from __future__ import annotations

from stratalog.env.lock_order import LockRank
from stratalog.log.state.sync_turns import SyncTurns


class DurabilityState:
    """Durability of one open log. The methods are called under the log's lock.

    Attributes:
        recovery_point: everything below this offset is durable.
        has_removed_bytes: True if a failed append has removed bytes from the active segment, perhaps not durably.
            Recovery does not scan closed segments, so a roll then syncs the segment, even if all records are durable.
        names_version: number of changes of file names in the folder.
        synced_ns: end of the last sync (monotonic ns); 0 before the first sync.
        sync_took_ns: duration of the last sync (ns); 0 before the first sync.
        turns: the syncing thread, the waiting threads, and the queue of batches of group commit.
        syncing: lock held during a sync, a truncation, an addition of finished segments, and the closing of the log.
    """

    __slots__ = (
        "_synced_version",
        "has_removed_bytes",
        "names_version",
        "recovery_point",
        "sync_took_ns",
        "synced_ns",
        "syncing",
        "turns",
    )

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point, self.names_version, self._synced_version = recovery_point, 1, 0
        self.has_removed_bytes = False
        self.synced_ns = self.sync_took_ns = 0
        self.turns, self.syncing = SyncTurns(), LockRank.SYNC.rlock()

    @property
    def folder_dirty(self) -> bool:
        """True if the folder has file names that are not durable. Needs no lock."""
        return self._synced_version != self.names_version

    def note_names_changed(self) -> None:
        """Make the next sync also cover the folder, because files were created, renamed or removed."""
        self.names_version += 1

    def note_bytes_removed(self) -> None:
        """Make the next roll sync the active segment, because a failed append has removed bytes from it."""
        self.has_removed_bytes = True

    def note_segment_synced(self) -> None:
        """Record that a roll has synced the active segment."""
        self.has_removed_bytes = False

    def note_synced(self, end: int, names_version: int, began_ns: int, now_ns: int) -> None:
        """Record that a sync has made everything below ``end``, and this version of the file names, durable.

        ``began_ns`` and ``now_ns`` are the monotonic times of its start and end.
        """
        self.raise_to(end)
        self._synced_version = names_version
        self.synced_ns, self.sync_took_ns = now_ns, now_ns - began_ns

    def raise_to(self, offset: int) -> None:
        """Increase the recovery point to ``offset``, because everything below is durable."""
        self.recovery_point = max(self.recovery_point, offset)

    def lower_to(self, end: int) -> None:
        """Lower the recovery point to ``end``, because the log was truncated there."""
        self.recovery_point = min(self.recovery_point, end)

    def restart_at(self, offset: int) -> None:
        """Set the recovery point to ``offset``, because the log has no records and continues at ``offset``."""
        self.recovery_point = offset
