"""Letting go of the oldest part of a tiered log: one commit raises the log start and removes what ends below it.

The objects are deleted later, by the collector, so that readers of an older root finish undisturbed.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest import Change, ChangeKind, Root


@dataclass(frozen=True, slots=True)
class ExpireReport:
    """What one call removed from the head, and the log start that was committed."""

    log_start: int
    removed: tuple[StoredSegment, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the ``.log`` files removed."""
        return sum(entry.info.size_bytes for entry in self.removed)


class Expiry:
    """One decision to expire; keeps what the last decided change removed. Used for one commit.

    Args:
        log_start: the new log start; one that is not above the committed one changes nothing.
        reason: why, for people.
    """

    def __init__(self, log_start: int, reason: str) -> None:
        self._log_start, self._reason = log_start, reason
        self._removed: tuple[StoredSegment, ...] = ()

    def decide(self, root: Root | None) -> Change | None:
        """What to commit on top of ``root``; a ``Decide``."""
        self._removed = ()
        if root is None or self._log_start <= root.log_start:
            return None
        kept = tuple(entry for entry in root.entries if entry.info.end_offset > self._log_start)
        self._removed = root.entries[: len(root.entries) - len(kept)]
        return Change(
            kind=ChangeKind.EXPIRE,
            reason=self._reason,
            entries=kept,
            log_start=self._log_start,
            high_watermark=max(root.high_watermark, self._log_start),
            first_dirty_offset=root.first_dirty_offset,
        )

    def report(self, head: Root | None) -> ExpireReport:
        """What became of it, with the head after the commit."""
        return ExpireReport(head.log_start if head else 0, self._removed)
