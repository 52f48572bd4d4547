"""Changes of a log in a tier that add no segment: removals at both ends, a new leader epoch, and changes of offsets.

A commit only removes segments from the manifest. The collector deletes their objects later, so readers of an older root
can finish.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stratalog.errors import StorageError, UnknownTopicError
from stratalog.tier.manifest.root import EMPTYING, Change, ChangeKind, Root


def check_not_deleted(root: Root | None) -> None:
    """Raise UnknownTopicError if the topic was deleted: a later root of another kind would restore the topic."""
    if root is not None and root.change == ChangeKind.DELETE:
        raise UnknownTopicError(
            f"topic {root.log.topic} was deleted: nothing is committed to {root.log} in the tier; delete the topic again "
            "if it still exists"
        )


@dataclass(frozen=True, slots=True)
class ExpireReport:
    """The committed log start, and the number and ``.log`` bytes of the segments that one commit removed."""

    log_start: int
    segments: int = 0
    size_bytes: int = 0


def expire_change(root: Root | None, kind: ChangeKind, log_start: int, reason: str) -> Change | None:
    """Return the change that removes segments from the start of a log, or all segments; None if there is no root.

    The result is also None if EXPIRE would not increase the log start, or if CLEAR or DELETE already made ``root``. An
    EXPIRE after a CLEAR or DELETE would list the log in the tier again.

    Args:
        root: the latest root.
        kind: EXPIRE removes the segments whose end offset (exclusive) is at most the log start. CLEAR and DELETE remove
            all segments.
        log_start: the new log start; ignored if it is below the committed log start.
        reason: text for people.
    """
    if root is None:
        return None
    if kind is ChangeKind.EXPIRE:
        is_done = log_start <= root.log_start or root.change in EMPTYING
    else:
        is_done = root.change in {kind, ChangeKind.DELETE}
    if is_done:
        return None
    log_start = max(log_start, root.log_start)
    change = root.unchanged(kind, reason)
    return replace(change, log_start=log_start, high_watermark=max(root.high_watermark, log_start))


def epoch_change(root: Root | None, reason: str) -> Change | None:
    """Return a change that keeps all segments, and whose commit begins a new leader epoch; None if there is no root.

    A commit in a new leader epoch fences the previous writer, which stops at its next commit. The result is also None
    if CLEAR made ``root``: the change would list the log in the tier again. The function raises UnknownTopicError if
    the topic was deleted.
    """
    check_not_deleted(root)
    return None if root is None or root.change == ChangeKind.CLEAR else root.unchanged(ChangeKind.CLAIM, reason)


def recompact_change(root: Root | None, reason: str) -> Change | None:
    """Return a change after which no offset of the log counts as compacted.

    Return None if no offset counts as compacted now, if there is no root, or if CLEAR or DELETE made ``root``.
    """
    if root is None or root.change in EMPTYING or not root.first_dirty_offset:
        return None
    return replace(root.unchanged(ChangeKind.COMPACT, reason), first_dirty_offset=0)


def truncate_change(root: Root | None, offset: int, reason: str) -> Change | None:
    """Return the change that removes the segments from ``offset`` on; None if there are none, or if there is no root.

    The function raises StorageError if ``offset`` is below the log start. The commit raises StorageError if ``offset``
    is inside a segment.
    """
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


def empty_change(root: Root | None) -> Change | None:
    """Return a change that keeps everything; None if there is no root.

    Its commit creates the next version. A delayed request of this process to create that version then fails. After
    CLEAR or DELETE, the change has the same kind, because another kind would list the log in the tier again.
    """
    if root is None:
        return None
    kind = ChangeKind(root.change) if root.change in EMPTYING else ChangeKind.APPEND
    return root.unchanged(kind, "a write was discarded")
