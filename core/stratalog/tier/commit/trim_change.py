"""Changes of a log in a tier that add no segment: removals at both ends, a new leader epoch, and an empty change.

A commit that raises the log start also removes the segments below it. The collector deletes the objects later, so
readers of an older root can finish.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratalog.errors import StorageError
from stratalog.tier.commit.committer import Decide
from stratalog.tier.manifest.root import Change, ChangeKind, Root


@dataclass(frozen=True, slots=True)
class ExpireReport:
    """The committed log start, and the number and ``.log`` bytes of the segments that one call removed."""

    log_start: int
    segments: int = 0
    size_bytes: int = 0


class Expiry:
    """Decides which segments one commit removes from the start of a log, and reports them. Used for one commit.

    Args:
        log_start: the new log start; a lower one than the committed log start is ignored.
        reason: text for people.
        kind: ``ChangeKind.EXPIRE`` removes the segments below the log start, and changes nothing if the log start does
            not rise. ``ChangeKind.CLEAR`` and ``ChangeKind.DELETE`` remove all segments.
    """

    def __init__(self, log_start: int, reason: str, kind: ChangeKind = ChangeKind.EXPIRE) -> None:
        self._log_start, self._reason, self._kind = log_start, reason, kind
        self._before: Root | None = None

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``; None if there is nothing to remove."""
        self._before = root
        if root is None or self._is_done(root):
            return None
        log_start = max(self._log_start, root.log_start)
        change = root.unchanged(self._kind, self._reason)
        return replace(change, log_start=log_start, high_watermark=max(root.high_watermark, log_start))

    def _is_done(self, root: Root) -> bool:
        if self._kind is ChangeKind.EXPIRE:
            return self._log_start <= root.log_start
        return root.change == self._kind

    def report(self, head: Root | None) -> ExpireReport:
        """Return a report of the segments that the commit removed; ``head`` is the latest root after the commit."""
        if head is None or self._before is None:
            return ExpireReport(head.log_start if head else 0)
        before = self._before
        return ExpireReport(head.log_start, before.segments - head.segments, before.size_bytes - head.size_bytes)


def epoch_change(root: Root | None, reason: str) -> Change | None:
    """Return a change without an effect on segments, to commit in a new leader epoch; None if there is no root.

    The commit begins the epoch. It fences the previous writer, which stops at its next commit.
    """
    return None if root is None else root.unchanged(ChangeKind.CLAIM, reason)


def truncate_change(offset: int, reason: str) -> Decide:
    """Return a function for ``Committer.commit`` that removes the segments from ``offset`` on, if there are any.

    The function raises StorageError if ``offset`` is below the log start. The commit fails if no segment ends there.
    """

    def decide(root: Root | None) -> Change | None:
        if root is None or root.end_offset <= offset:
            return None
        if offset < root.log_start:
            raise StorageError(
                f"{root.log} begins at offset {root.log_start} in its tier, so it cannot be truncated to {offset}"
            )
        return replace(
            root.unchanged(ChangeKind.TRUNCATE, reason),
            first_dirty_offset=min(root.first_dirty_offset, offset),
            kept_end=offset if offset > root.log_start else root.start_offset,
        )

    return decide


def empty_change(root: Root | None) -> Change | None:
    """Return a change that changes nothing; None if there is no root.

    Its commit uses the next version, so that an earlier, delayed request to create that version fails.
    """
    return None if root is None else root.unchanged(ChangeKind.APPEND, "a write was discarded")
