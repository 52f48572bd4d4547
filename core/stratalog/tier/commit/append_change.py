"""Commits of bulk writers: jobs and sinks of queries that write many segments at once and have no local log.

A bulk writer uses only the state of the head at its commit. Therefore several of them may write to one log in the same
leader epoch. A running engine must not write to that log: it holds records that the tier does not have yet.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacing:
    """Replacement of closed segments by others in one commit.

    Attributes:
        entries: cover exactly ``span``; with ``keeps_others``, they cover some whole segments of it.
        span: offsets [start, end), which are borders of segments.
        keeps_others: True if segments of the span that no entry replaces are kept.
        digest: of the segments that the span had when the job was planned, as ``digest_of``.
        first_dirty_offset: where compaction continues; None keeps the committed value.
        mark: the writer's mark.
        reason: text for people.
    """

    entries: tuple[StoredSegment, ...]
    span: tuple[int, int]
    digest: str
    keeps_others: bool = False
    first_dirty_offset: int | None = None
    mark: WriteMark | None = None
    reason: str

    def change(self, root: Root | None, held: Sequence[StoredSegment]) -> Change:
        """Return the change on top of a head that has the segments ``held`` in the span.

        Raises:
            StorageError: ``held`` differs from the segments of the plan.
        """
        if root is None or digest_of(held) != self.digest:
            raise StorageError(
                f"the tier has other segments in [{self.span[0]}, {self.span[1]}) than when this was planned: begin again"
            )
        added, span = self._filled(held) if self.keeps_others else (self.entries, self.span)
        dirty = root.first_dirty_offset if self.first_dirty_offset is None else self.first_dirty_offset
        return Change(
            kind=ChangeKind.REPLACE,
            reason=self.reason,
            log_start=root.log_start,
            high_watermark=root.high_watermark,
            first_dirty_offset=dirty,
            added=added,
            replaced=span,
            mark=self.mark,
        )

    def _filled(self, held: Sequence[StoredSegment]) -> tuple[tuple[StoredSegment, ...], tuple[int, int]]:
        """Return the entries with the kept segments between them, and the offsets [start, end) that they cover."""
        start, end = self.entries[0].info.base_offset, self.entries[-1].info.end_offset
        bases = [entry.info.base_offset for entry in self.entries]
        kept = [
            entry
            for entry in held
            if start <= entry.info.base_offset < end
            and self.entries[bisect_right(bases, entry.info.base_offset) - 1].info.end_offset <= entry.info.base_offset
        ]
        return tuple(sorted((*self.entries, *kept), key=lambda entry: entry.info.base_offset)), (start, end)


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


def digest_of(entries: Iterable[StoredSegment]) -> str:
    """Return a hash that changes if a range of a log consists of other objects."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.info.base_offset} {entry.info.end_offset} {' '.join(sorted(entry.keys))}\n".encode())
    return digest.hexdigest()


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
