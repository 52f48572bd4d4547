"""State of the compaction of one log."""

from __future__ import annotations

from stratalog.env.lock_order import LockRank


class CleaningState:
    """State of the compaction of one log. Fields are changed under the log's lock.

    Attributes:
        dirty_start: first offset that is not compacted yet, from the cleaner's checkpoint; None if there is none.
        generation: number of calls of ``void``. A compaction in progress is invalid if the number has changed.
        uncleanable: the reason not to compact the log until it is opened again; "" if there is none.
        busy: lock held during a compaction and during an offload, because a segment must not change while it is
            uploaded.
        tier_busy: lock held while committed segments are rewritten.
        tier_uncleanable: the reason not to compact the tier's part of the log; "" if there is none.
        tier_doubt: damage that the last read from the tier found, "" if none. It may be a transfer error.
    """

    __slots__ = ("busy", "dirty_start", "generation", "tier_busy", "tier_doubt", "tier_uncleanable", "uncleanable")

    def __init__(self) -> None:
        self.dirty_start: int | None = None
        self.generation, self.uncleanable = 0, ""
        self.tier_uncleanable = self.tier_doubt = ""
        self.tier_busy, self.busy = LockRank.TIER_CLEANING.lock(), LockRank.CLEANING.lock()

    def void(self, end: int | None = None) -> None:
        """Invalidate a compaction in progress, because the log is truncated or has a new cleanup policy.

        The caller holds the log's lock. ``end`` is the new log end, or 0 for a new policy: nothing at or above it
        counts as compacted.

        Source: apache/kafka LogManager.truncateTo (abortAndPauseCleaning, maybeTruncateCleanerCheckpoint...).
        """
        self.generation += 1
        if end is not None and self.dirty_start is not None:
            self.dirty_start = min(self.dirty_start, end)

    def resume(self, dirty_start: int | None, log_end: int) -> None:
        """Set the first dirty offset from a checkpoint. A checkpoint above the log end is stale, and counts as none.

        The caller holds the log's lock.
        """
        is_valid = dirty_start is not None and 0 <= dirty_start <= log_end
        self.dirty_start = dirty_start if is_valid else None

    def cleaned_up_to(self, end: int, generation: int) -> None:
        """Record that everything below ``end`` is compacted, unless ``generation`` has changed in the meantime.

        The caller holds the log's lock.
        """
        if generation == self.generation:
            self.dirty_start = end

    def mark_uncleanable(self, part: str, reason: str) -> bool:
        """Do not compact a part of the log until it is opened again. Return True if ``reason`` is new.

        ``part`` is ``"local"`` or ``"tier"``.
        """
        if part == "local":
            before, self.uncleanable = self.uncleanable, reason
        else:
            before, self.tier_uncleanable = self.tier_uncleanable, reason
        return reason != before

    def doubt_tier(self, damage: str) -> bool:
        """Record the damage that a read from the tier found, "" if none.

        Return True if the previous read found the same ``damage``.
        """
        before, self.tier_doubt = self.tier_doubt, damage
        return damage == before
