"""Appends to a tiered log: the changes that commits of an engine's offload and of bulk writers make on top of the head.

Bulk writers are jobs and sinks of queries that write many segments at once and have no local log. A bulk writer uses only the
state of the head at its commit. Therefore several of them may write to one log in the same
leader epoch. A running engine must not write to that log: it holds records that the tier does not have yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.epochs.lineage import first_divergence
from stratalog.errors import EngineAheadError, LogInUseError, StorageError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEntry, next_epoch
from stratalog.model.segment_info import SegmentInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.commit.committer import Decide
from stratalog.tier.manifest.root import BULK, Change, ChangeKind, Root, TopicNote, WriteMark


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
                f"{self.entries[0].info.log} ends at {end}, no longer at {self.entries[0].info.base_offset}"
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


def is_unused(root: Root) -> bool:
    """Return True if the log never had a record, according to its tier."""
    return not root.segments and root.high_watermark == 0


def check_single_writer(root: Root | None, *, take_over: bool) -> int:
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
            f"an engine has the records [{root.end_offset}, {root.high_watermark}) of {root.log}, which the tier does "
            "not have"
        )
    if root.change in BULK:
        return root.leader_epoch
    if not take_over:
        raise LogInUseError(
            f"an engine wrote to {root.log} last, in leader epoch {root.leader_epoch}, and may be running"
        )
    return next_epoch(root.leader_epoch, root.log)


# --- offload ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogBounds:
    """State of the log when segments are offloaded; committed offsets never fall below earlier ones."""

    leader_epoch: int
    log_start: int
    high_watermark: int
    topic: TopicNote | None = None


def offloading(stored: StoredSegment, at: LogBounds) -> Decide:
    """Return a decision to append an entry, unless the tier has it already."""

    def decide(root: Root | None) -> Change | None:
        if is_covered(root, stored.info, at):
            return None
        check_joins(root, stored.info, at)
        log_start = max(at.log_start, root.log_start if root else 0)
        return Change(
            kind=ChangeKind.OFFLOAD,
            reason=f"segment [{stored.info.base_offset}, {stored.info.end_offset})",
            added=(stored,),
            log_start=log_start,
            high_watermark=max(at.high_watermark, root.high_watermark if root else 0),
            first_dirty_offset=root.first_dirty_offset if root else 0,
            topic=at.topic,
        )

    return decide


def is_covered(root: Root | None, info: SegmentInfo, at: LogBounds) -> bool:
    """Return True if the tier has the whole segment; offsets below the log start are not needed."""
    if root is not None and root.segments and info.base_offset < root.end_offset:
        _check_lineage(root, info)
    return info.end_offset <= max(at.log_start, root.end_offset if root else 0)


def _check_lineage(root: Root, info: SegmentInfo) -> None:
    """Raise if leader epochs show that the tier has other records at the segment's offsets.

    Two leaders can have written different records at the same offsets. A segment must not be skipped if the tier has
    the records of the other leader.
    """
    start, end = max(info.base_offset, root.start_offset), min(info.end_offset, root.end_offset)
    offset = first_divergence(info.leader_epochs, root.leader_epochs, start, end)
    if offset is not None:
        raise parted_error(info.log, offset, info.leader_epochs, root.leader_epochs)


def parted_error(
    log: TopicPartition, offset: int, ours: Sequence[EpochEntry], theirs: Sequence[EpochEntry]
) -> StorageError:
    """Return the error for the leader of a log whose tier has other records from ``offset`` on."""
    return StorageError(
        f"{log} and its tier have different records from offset {offset}: leader epoch {EpochCache(ours).at(offset)} "
        f"here, {EpochCache(theirs).at(offset)} in the tier; attach the tier to an empty directory to keep its "
        "records, or set unclean.leader.election.enable=true to delete them from the tier"
    )


def check_joins(root: Root | None, info: SegmentInfo, at: LogBounds) -> None:
    """Raise unless the segment begins where the tier ends."""
    span = f"segment [{info.base_offset}, {info.end_offset}) of {info.log}"
    if info.end_offset > at.high_watermark:
        raise StorageError(f"{span} is not offloaded, because it ends above the high watermark {at.high_watermark}")
    log_start = max(at.log_start, root.log_start if root else 0)
    end = root.end_offset if root else log_start
    if end > log_start and info.base_offset != end:
        advice = (
            "roll the log at this offset, or attach the tier to an empty directory"
            if info.base_offset < end
            else f"restore the newest manifest of the tier, or delete the records between with delete_records({info.base_offset})"
        )
        raise StorageError(f"{span} does not start at the end of the tier, {end}: {advice}")
    if end <= log_start < info.base_offset:
        raise StorageError(f"{span} leaves a gap after the log start {log_start}")


# --- logs without segments -------------------------------------------------------------------------------------------


def created(at: LogBounds) -> Decide:
    """Return a decision to make a log known to its tier before its first segment; a known log does not change.

    A log that left the tier (``clear``) is unknown until this commit.
    """

    def decide(root: Root | None) -> Change | None:
        if not is_unknown(root):
            return None
        log_start = max(at.log_start, root.log_start if root else 0)
        return Change(
            kind=ChangeKind.CREATE,
            reason="the log now has a tier",
            log_start=log_start,
            high_watermark=max(at.high_watermark, log_start, root.high_watermark if root else 0),
            first_dirty_offset=root.first_dirty_offset if root else 0,
            topic=at.topic,
        )

    return decide


def is_unknown(root: Root | None) -> bool:
    """Return True if a tier with this head does not list the log."""
    return root is None or root.change == ChangeKind.CLEAR
