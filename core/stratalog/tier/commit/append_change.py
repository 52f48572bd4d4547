"""Commits of bulk writers: jobs and sinks of queries that write many segments at once and have no local log.

A bulk writer uses only the state of the head at its commit. Therefore several of them may write to one log in the same
leader epoch. A running engine must not write to that log: it holds records that the tier does not have yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratalog.errors import EngineAheadError, LogInUseError, ObjectNotFoundError, StorageError
from stratalog.model.offsets import next_epoch
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.root import BULK, Change, ChangeKind, Root, TopicNote, WriteMark
from stratalog.tier.store.store import TierStore


class EndMovedError(StorageError):
    """The log's end is not where the segments begin, because another writer appended. Assign new offsets to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appending:
    """Segments to append at a log's end in one commit.

    Attributes:
        entries: ascending, without gaps.
        log_start: start offset of a log that never had a record.
        mark: the writer's mark; if the head already has its number, nothing is committed.
        topic: facts about the topic to commit.
        reason: text for people.
    """

    entries: tuple[StoredSegment, ...]
    log_start: int = 0
    mark: WriteMark | None = None
    topic: TopicNote | None = None
    reason: str = ""

    def decide(self, root: Root | None) -> Change | None:
        """Return the change, as ``Decide``; raise EndMovedError if the entries do not begin at the log's end."""
        if self.mark is not None and root is not None and root.number_of(self.mark.writer) >= self.mark.number:
            return None
        is_fresh = root is None or is_unused(root)
        end = self.log_start if root is None or is_fresh else root.end_offset
        if self.entries and self.entries[0].info.base_offset != end:
            raise EndMovedError(
                f"{self.entries[0].info.log} ends at {end}, not at {self.entries[0].info.base_offset} any more"
            )
        after = self.entries[-1].info.end_offset if self.entries else end
        return Change(
            kind=ChangeKind.APPEND,
            reason=self.reason or f"{len(self.entries)} segments [{end}, {after})",
            log_start=self.log_start if root is None or is_fresh else root.log_start,
            high_watermark=max(after, root.high_watermark if root is not None else 0),
            first_dirty_offset=root.first_dirty_offset if root is not None else 0,
            added=self.entries,
            topic=self.topic,
            mark=self.mark,
        )


def settled(root: Root | None) -> Change | None:
    """Return a change that repeats the root before, and so uses up its version; a later attempt to create it fails."""
    if root is None:
        return None
    return Change(
        kind=ChangeKind.APPEND,
        reason="a write was given up",
        log_start=root.log_start,
        high_watermark=root.high_watermark,
        first_dirty_offset=root.first_dirty_offset,
    )


def check_stored(store: TierStore, prefix: str, entries: Iterable[StoredSegment]) -> None:
    """Raise unless the objects of stored segments exist completely; lists from the first of their keys.

    Raises:
        ObjectNotFoundError: an object is missing, or shorter than its slices need.
        StoreError: the store failed or refused.
    """
    needed: dict[str, int] = {}
    for entry in entries:
        for place in entry.slices.values():
            needed[place.key] = max(needed.get(place.key, 0), place.position + place.size_bytes)
        for key in entry.keys:
            needed.setdefault(key, 0)
    if not needed:
        return
    last = max(needed)
    for info in store.list_all(prefix, after=min(needed)[:-1]):
        if info.key > last:
            break
        if info.size_bytes >= needed.get(info.key, 0):
            needed.pop(info.key, None)
    if needed:
        raise ObjectNotFoundError("what was staged is not there any more, or not whole", min(needed))


def is_unused(root: Root) -> bool:
    """Return True if the log never had a record, according to its tier."""
    return not root.segments and root.high_watermark == 0


def check_alone(root: Root | None, *, take_over: bool) -> int:
    """Return the leader epoch to write in; raise if the head shows that an engine may write to the log.

    Args:
        root: the head.
        take_over: True if the caller says that the previous writer has stopped; the next epoch begins, which fences it.

    Raises:
        EngineAheadError: the log has records that the tier does not have.
        LogInUseError: an engine made the latest commit, and ``take_over`` is False.
        EpochsExhaustedError: there is no next epoch to begin.
    """
    if root is None:
        return 0
    if root.high_watermark > root.end_offset:
        raise EngineAheadError(
            f"an engine holds the records [{root.end_offset}, {root.high_watermark}) of {root.log}, which the tier does not have"
        )
    if root.change in BULK:
        return root.leader_epoch
    if not take_over:
        raise LogInUseError(
            f"an engine wrote to {root.log} last, in leader epoch {root.leader_epoch}, and may be running"
        )
    return next_epoch(root.leader_epoch, root.log)
