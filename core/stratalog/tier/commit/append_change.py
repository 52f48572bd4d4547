"""Commits of those who write many segments at once, with no log of their own behind them: jobs, and sinks of queries.

Whoever writes so takes everything from the root that is the head when it commits, so that several may work on one log
in the same leader epoch. A live engine may not be among them: it holds records that the tier does not know of.
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
    """The log ends elsewhere than the segments begin: somebody appended meanwhile. Give them other offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appending:
    """What to add behind a log's end, all of it by one commit.

    Attributes:
        entries: ascending, without gaps.
        log_start: where a log begins that has never had a record.
        mark: of the writer; if the head has its number already, there is nothing to do.
        topic: what shall be known of the topic.
        reason: for people.
    """

    entries: tuple[StoredSegment, ...]
    log_start: int = 0
    mark: WriteMark | None = None
    topic: TopicNote | None = None
    reason: str = ""

    def decide(self, root: Root | None) -> Change | None:
        """As ``Decide``; EndMovedError if the entries do not begin where the log ends."""
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
    """What to put in the place of closed segments, all of it by one commit.

    Attributes:
        entries: they cover just ``span``; or whole segments of it, where the others stay.
        span: offsets [start, end), borders of segments.
        keeps_others: segments of the span stay where no entry takes their place.
        digest: of the segments that were there when the job was planned, as ``digest_of``.
        first_dirty_offset: where compaction goes on; None leaves it.
        mark: of the writer.
        reason: for people.
    """

    entries: tuple[StoredSegment, ...]
    span: tuple[int, int]
    digest: str
    keeps_others: bool = False
    first_dirty_offset: int | None = None
    mark: WriteMark | None = None
    reason: str

    def change(self, root: Root | None, held: Sequence[StoredSegment]) -> Change:
        """The change of a head that has the segments ``held`` at the offsets of the span.

        Raises:
            StorageError: they are not those of the plan.
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
        """The entries and those that stay between them; and from where to where they reach."""
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
    """A root that says what the one before says: whoever tries to create its version comes too late."""
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
    """Look whether the objects of stored segments are there, whole; a listing from the first of them on.

    Raises:
        ObjectNotFoundError: one is missing, or shorter than what it must hold.
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
    """Whether the log never had a record, as far as its tier knows."""
    return not root.segments and root.high_watermark == 0


def digest_of(entries: Iterable[StoredSegment]) -> str:
    """What tells whether a range of a log is made of the same objects as before."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.info.base_offset} {entry.info.end_offset} {' '.join(sorted(entry.keys))}\n".encode())
    return digest.hexdigest()


def check_alone(root: Root | None, *, take_over: bool) -> int:
    """The leader epoch to write in; raises unless nobody else writes to the log, as far as its head can tell.

    Args:
        root: the head.
        take_over: whoever wrote before is no more, says the caller: the next epoch begins, which fences it.

    Raises:
        EngineAheadError: the log has records that the tier does not have.
        LogInUseError: an engine wrote to it last, and ``take_over`` is False.
        EpochsExhaustedError: the next epoch would begin, and there is none.
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
