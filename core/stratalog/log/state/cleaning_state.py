"""State of the compaction of one log."""

from __future__ import annotations

from stratalog.env.lock_order import LockRank


class CleanedPart:
    """State of the compaction of the local or the tier part of a log.

    Attributes:
        busy: lock held while segments of the part are rewritten. The lock of the local part is also held during an
            offload, because a segment must not change while it is uploaded.
        uncleanable: the reason not to compact the part until the log is opened again; "" if there is none.
    """

    __slots__ = ("busy", "uncleanable")

    def __init__(self, rank: LockRank) -> None:
        self.busy, self.uncleanable = rank.lock(), ""

    def mark_uncleanable(self, reason: str) -> bool:
        """Mark the part as uncleanable until the log is opened again. Return True if ``reason`` is new."""
        before, self.uncleanable = self.uncleanable, reason
        return reason != before


class CleaningState:
    """State of the compaction of one log. Fields are changed under the log's lock.

    Attributes:
        local: state of the local part.
        tier: state of the tier part.
        dirty_start: first offset of the local part that is not compacted yet, from the cleaner's checkpoint; None if
            there is none.
        generation: number of calls of ``void``. A compaction in progress is invalid if the number has changed.
        tier_doubt: damage that the last read from the tier found, "" if none. It may be a transfer error.
    """

    __slots__ = ("dirty_start", "generation", "local", "tier", "tier_doubt")

    def __init__(self) -> None:
        self.local, self.tier = CleanedPart(LockRank.CLEANING), CleanedPart(LockRank.TIER_CLEANING)
        self.dirty_start: int | None = None
        self.generation, self.tier_doubt = 0, ""

    def part(self, name: str) -> CleanedPart:
        """Return the state of the part with the name ``"local"`` or ``"tier"``."""
        return self.local if name == "local" else self.tier

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
        """Set the first dirty offset from a checkpoint. A checkpoint above the log end is stale and is ignored.

        The caller holds the log's lock.
        """
        is_valid = dirty_start is not None and 0 <= dirty_start <= log_end
        self.dirty_start = dirty_start if is_valid else None

    def note_cleaned(self, end: int, generation: int) -> None:
        """Record that all offsets below ``end`` are compacted, if ``self.generation`` is still ``generation``.

        The caller holds the log's lock.
        """
        if generation == self.generation:
            self.dirty_start = end

    def doubt_tier(self, damage: str) -> bool:
        """Record the damage that a read from the tier found, "" if none.

        Return True if the previous read found the same ``damage``.
        """
        before, self.tier_doubt = self.tier_doubt, damage
        return damage == before
