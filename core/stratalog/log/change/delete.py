"""Removal of the oldest segments from local disk, and increase of the log start.

Source: apache/kafka UnifiedLog.deleteSegments, maybeIncrementLogStartOffset; lifecycle of ``.deleted`` files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from stratalog.config.topic import TopicConfig
from stratalog.errors import InvalidTopicError, OffsetOutOfRangeError, OutOfResourcesError, PolicyViolationError
from stratalog.log.durability.sync import sync_records
from stratalog.log.folder.folder import file_names, set_aside
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import roll
from stratalog.model.names import INTERNAL_TOPICS
from stratalog.segment.segment import Segment


def check_may_delete(topic: str, config: TopicConfig) -> None:
    """Raise an error unless records of a topic may be deleted by offset.

    Raises:
        InvalidTopicError: the topic is one of Kafka's internal topics.
        PolicyViolationError: ``cleanup.policy`` is compact without delete.
    """
    if topic in INTERNAL_TOPICS:
        raise InvalidTopicError(f"records of the internal topic {topic} cannot be deleted by offset")
    if "compact" in config.cleanup_policy and "delete" not in config.cleanup_policy:
        policies = ",".join(config.cleanup_policy)
        raise PolicyViolationError(f"records of {topic} cannot be deleted by offset with cleanup.policy={policies}")


def delete_records(state: LogState, before: int) -> int:
    """Increase the log start to ``before`` for a user of the log, and return the new log start.

    -1 means the high watermark. The new log start is durable on return, unless the disk is full. Raises the same errors
    as ``Log.delete_records``.
    """
    state.role.check_leads()
    check_may_delete(state.name.topic, state.settings.config)
    offsets = state.view.offsets
    requested_start = offsets.high_watermark if before == -1 else before
    if offsets.log_start < requested_start <= offsets.high_watermark:
        # Sync first: if a power loss shortened the log below its durable log start, the log would restart there without
        # its producers.
        sync_records(state, requested_start)
    start = raise_log_start(state, requested_start)
    if start > offsets.log_start and state.store_bounds is not None:
        with contextlib.suppress(OutOfResourcesError):
            state.store_bounds()
    return start


def raise_log_start(state: LogState, offset: int) -> int:
    """Increase the log start to ``offset``, and return the new log start. A lower ``offset`` changes nothing.

    Raises:
        OffsetOutOfRangeError: ``offset`` is above the high watermark or negative.
        StorageError: the log is not writable, or the disk failed.
    """
    with state.lock:
        state.health.check_writable()
        offsets = state.view.offsets
        if offset > offsets.high_watermark or offset < 0:
            raise OffsetOutOfRangeError(str(state.name), offset, offsets.log_start, offsets.high_watermark)
        if offset > offsets.log_start:
            state.writes.forget_epochs(state.writes.epochs.truncate_from_start(offset))
            state.writes.set_log_start(offset)
            state.publish()
        return state.view.offsets.log_start


def drop_segments(state: LogState, end: int) -> list[Segment]:
    """Remove the local segments whose end offset (exclusive) is at most ``end``.

    If the active segment is one of them, the log rolls first. The files are renamed to ``.deleted``, and deleted after
    ``file.delete.delay.ms``. A segment stays if its end offset is above the log start and above the end offset of the
    tier, for example because the log has left the tier. While the tier is unavailable, nothing is removed. If there is
    no space to roll, the active segment stays.

    Returns:
        The removed segments, closed; empty if no segment was removed.

    Raises:
        StorageError: the log is not writable, or the disk failed. A failure during the removal takes the log out of
            service.
    """
    state.tier.save_note(state.settings.remote)
    with state.lock:
        state.health.check_writable()
        if state.settings.remote is not None and state.settings.remote.is_assumed:
            return []
        end = min(end, removable_end(state))
        if state.log_end <= end and state.writes.segments[-1].size_bytes:
            with contextlib.suppress(OutOfResourcesError):  # the next call removes the active segment
                roll(state)
        removed_segments = [segment for segment in state.writes.segments[:-1] if segment.end_offset <= end]
        if not removed_segments:
            return []
        names = file_names(state.files)  # listed before any change: if no descriptor is free, nothing is removed
        has_tombstones = state.settings.config.cleanup_policy != ("delete",)
        try:
            state.writes.replace_segments(0, len(removed_segments), ())
            state.publish()
            for segment in removed_segments:
                retire_segment(state, segment, names)
                # Sync after each removal. Without these syncs, a power loss could restore this segment but not the next
                # one: reads would not read the gap from the tier, and the next segment may have tombstones for records
                # of this segment.
                if state.settings.remote is not None or has_tombstones or segment is removed_segments[-1]:
                    state.files.sync()
        except (
            BaseException
        ) as error:  # after a partial removal, another removal would leave a gap, which hides records
            state.health.fail_after("a removal of segments", error)
            raise
        state.tier.room.notify_all()
    delete_expired(state)
    return removed_segments


def removable_end(state: LogState) -> int:
    """Return the offset below which each record is also in the tier, or is below the log start.

    The caller holds the log's lock.
    """
    remote, log_start = state.settings.remote, state.view.offsets.log_start
    tier_view = None if remote is None else state.tier.select_own_part(remote, state.writes.epochs)
    return log_start if tier_view is None else max(log_start, tier_view.end_offset)


def retire_segment(state: LogState, segment: Segment, names: Collection[str] | None = None) -> None:
    """Close a segment that is no longer part of the log, and rename its files to ``.deleted``.

    ``delete_expired`` deletes the files after ``file.delete.delay.ms``. ``names`` are the names of all existing files.
    If ``names`` is None, the folder is listed.
    """
    segment.close()
    state.delete_later(set_aside(state.files, segment, names=names))


def delete_expired(state: LogState, *, all_now: bool = False) -> int:
    """Delete the ``.deleted`` files that are due, or all if ``all_now`` is True; return the number of deleted files.

    A file is due ``file.delete.delay.ms`` after it was renamed to ``.deleted``.
    """
    with state.lock:
        pending = state.writes.pending_deletes
        due = pending.due(state.settings.components.env.clock.monotonic_ns(), all_now=all_now)
        for name in due:
            state.files.remove(name)
        pending.remove(due)
        return len(due)
