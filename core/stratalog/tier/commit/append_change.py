"""Appends of segments to a log in a tier, by an engine's offload or by bulk writers.

Each append is a change of the head, which is the latest manifest root of the log. A bulk writer, such as a Spark job or
a streaming query, writes many segments at once and has no local log. Several bulk writers may write to one log in the
same leader epoch. No engine may have that log open at the same time, because an engine has records that the tier does
not have yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stratalog.epochs.epoch_cache import EpochCache, first_divergence
from stratalog.errors import EngineAheadError, LogInUseError, StorageError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEntry, next_epoch
from stratalog.model.segment_info import SegmentInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.commit.trim_change import check_not_deleted
from stratalog.tier.manifest.root import BULK, Change, ChangeKind, Root, TopicNote, WriteMark


class EndMovedError(StorageError):
    """The segments do not begin at the log's end: another writer appended. Assign new offsets to the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appending:
    """Segments to append at a log's end in one commit.

    Attributes:
        entries: the segments, ascending, without gaps.
        log_start: start offset of the log, used only if the log never had a record.
        mark: progress of a writer that numbers its writes. Nothing is committed if the log's latest root has a mark of
            this writer with this number or a higher one. None for other writers.
        topic: number of partitions and settings of the topic, stored only in the first root of the log. If another
            writer has created the topic first, the settings of that writer stay.
        reason: text for people, stored in the root. If it is empty, the root gets a text with the number and offsets of
            the segments.
    """

    entries: tuple[StoredSegment, ...]
    log_start: int = 0
    mark: WriteMark | None = None
    topic: TopicNote | None = None
    reason: str = ""

    def decide(self, root: Root | None) -> Change | None:
        """Return the change to commit on top of ``root``, the log's latest root (None: the log has no root).

        Return None if ``root`` has a mark of the same writer with the number of ``mark`` or a higher one.

        Raises:
            EndMovedError: the entries do not begin at the log's end offset in the tier.
            UnknownTopicError: the topic was deleted.
        """
        check_not_deleted(root)
        if self.mark is not None and root is not None and root.number_of(self.mark.writer) >= self.mark.number:
            return None
        is_fresh = root is None or is_unused(root)
        end = self.log_start if root is None or is_fresh else root.end_offset
        if self.entries and self.entries[0].info.base_offset != end:
            raise EndMovedError(
                f"{self.entries[0].info.log} ends at {end}, no longer at {self.entries[0].info.base_offset}"
            )
        new_end = self.entries[-1].info.end_offset if self.entries else end
        return Change(
            kind=ChangeKind.APPEND,
            reason=self.reason or f"{len(self.entries)} segments [{end}, {new_end})",
            log_start=self.log_start if root is None or is_fresh else root.log_start,
            high_watermark=max(new_end, root.high_watermark if root is not None else 0),
            first_dirty_offset=root.first_dirty_offset if root is not None else 0,
            added=self.entries,
            topic=self.topic if root is None else None,
            mark=self.mark,
        )


def is_unused(root: Root) -> bool:
    """Return True if the log never had a record, according to its latest ``root`` in the tier."""
    return not root.segments and root.high_watermark == 0


def check_single_writer(root: Root | None, *, take_over: bool) -> int:
    """Return the leader epoch in which a bulk writer may write; raise if an engine may be writing to the log.

    If a bulk writer made the latest commit, the result is the leader epoch of that commit. If another writer made it
    and ``take_over`` is True, the result is the next leader epoch; a commit in that epoch fences the other writer. If
    there is no root, the result is 0.

    Args:
        root: the latest manifest root of the log; None if there is none.
        take_over: True if the caller knows that the previous writer has stopped.

    Raises:
        EngineAheadError: the high watermark is above the end offset of the tier, so an engine has more records, or the
            rebuild of the manifest is not complete.
        LogInUseError: no bulk writer made the latest commit, and ``take_over`` is False.
        EpochsExhaustedError: ``take_over`` needs a next leader epoch, and there is none.
    """
    if root is None:
        return 0
    if root.is_half_rebuilt:
        raise EngineAheadError(
            f"the manifest of {root.log} is not rebuilt completely, and lacks the records [{root.end_offset}, "
            f"{root.high_watermark})"
        ).advised("run `stratalog rebuild` first")
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
    """State of a log when its segments are offloaded. A commit never lowers log start or high watermark in the tier."""

    leader_epoch: int
    log_start: int
    high_watermark: int
    topic: TopicNote | None = None


def offload_change(root: Root | None, entry: StoredSegment, bounds: LogBounds) -> Change | None:
    """Return the change that appends ``entry`` to ``root``, the latest root; None if the tier has the entry's offsets."""
    if is_covered(root, entry.info, bounds):
        return None
    check_joins(root, entry.info, bounds)
    reason = f"segment [{entry.info.base_offset}, {entry.info.end_offset})"
    return replace(_bounds_change(root, bounds, ChangeKind.OFFLOAD, reason), added=(entry,))


def _bounds_change(root: Root | None, bounds: LogBounds, kind: ChangeKind, reason: str) -> Change:
    """Return a change of ``root`` that adds no segment, and increases log start and high watermark to ``bounds``."""
    log_start = max(bounds.log_start, root.log_start if root else 0)
    return Change(
        kind=kind,
        reason=reason,
        log_start=log_start,
        high_watermark=max(bounds.high_watermark, log_start, root.high_watermark if root else 0),
        first_dirty_offset=root.first_dirty_offset if root else 0,
        topic=bounds.topic,
    )


def is_covered(root: Root | None, info: SegmentInfo, bounds: LogBounds) -> bool:
    """Return True if the tier has all offsets of the segment that are at or above the log start.

    Raises:
        StorageError: the tier has records of another leader at offsets of the segment.
    """
    if root is not None and root.segments and info.base_offset < root.end_offset:
        _check_lineage(root, info)
    return info.end_offset <= max(bounds.log_start, root.end_offset if root else 0)


def _check_lineage(root: Root, info: SegmentInfo) -> None:
    """Raise StorageError if leader epochs show that the tier has records of another leader at the segment's offsets."""
    start, end = max(info.base_offset, root.start_offset), min(info.end_offset, root.end_offset)
    offset = first_divergence(info.leader_epochs, root.leader_epochs, start, end)
    if offset is not None:
        raise divergence_error(info.log, offset, info.leader_epochs, root.leader_epochs)


def divergence_error(
    log: TopicPartition, offset: int, local_epochs: Sequence[EpochEntry], tier_epochs: Sequence[EpochEntry]
) -> StorageError:
    """Return the error for a log whose tier has records of another leader from ``offset`` on.

    ``local_epochs`` are the leader epochs of the local log, ``tier_epochs`` are those in the tier.
    """
    return StorageError(
        f"{log} and its tier have different records from offset {offset}: leader epoch "
        f"{EpochCache(local_epochs).epoch_at(offset)} here, {EpochCache(tier_epochs).epoch_at(offset)} in the tier; attach the tier "
        "to an empty directory to keep its records, or set unclean.leader.election.enable=true to delete them from "
        "the tier"
    )


def check_joins(root: Root | None, info: SegmentInfo, bounds: LogBounds) -> None:
    """Raise StorageError unless the segment may be appended to the tier.

    The end offset of the segment (exclusive) must be at or below the high watermark of ``bounds``, and its base offset
    must be the end offset of the tier. If the tier has no records from the log start on, the segment may also begin at
    or below the log start. Raise UnknownTopicError if the topic was deleted.
    """
    check_not_deleted(root)
    span = f"segment [{info.base_offset}, {info.end_offset}) of {info.log}"
    if root is not None and root.change == ChangeKind.CLEAR:
        raise StorageError(f"{span} is not offloaded, because the topic left the tier")
    if info.end_offset > bounds.high_watermark:
        raise StorageError(f"{span} is not offloaded, because it ends above the high watermark {bounds.high_watermark}")
    log_start = max(bounds.log_start, root.log_start if root else 0)
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


def create_change(root: Root | None, bounds: LogBounds) -> Change | None:
    """Return the change that creates a root without segments; None if the tier already lists the log."""
    return _bounds_change(root, bounds, ChangeKind.CREATE, "the log now has a tier") if is_unknown(root) else None


def is_unknown(root: Root | None) -> bool:
    """Return True if the tier does not list a log: its latest root is None, or ``TierLog.clear`` made that root."""
    return root is None or root.change == ChangeKind.CLEAR
