"""Operations of the engine on one of its logs: syncs, retention, compaction, the tier, and closing the log.

This module delegates to other modules. It contains no algorithm.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import FencedEpochError, StorageError
from stratalog.log.change.delete import delete_expired, drop_segments, raise_log_start
from stratalog.log.change.extra_indexes import ExtrasResult, make_extras
from stratalog.log.change.local_publisher import LocalPublisher
from stratalog.log.durability.sync import flush, is_sync_due
from stratalog.log.folder.folder import write_next_epoch
from stratalog.log.folder.write_rounds import Marks, end_round
from stratalog.log.open_log import close_segments
from stratalog.log.read.tier_view import RemoteLog
from stratalog.log.state.cleaning_state import CleaningState
from stratalog.log.state.leadership import rejoin_tier
from stratalog.log.state.log_settings import LogSettings
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import roll
from stratalog.model.events import EpochFenced, Event, LogUncleanable, SegmentEvicted
from stratalog.model.names import LOG_SUFFIX
from stratalog.segment.build import SegmentBuilder
from stratalog.segment.components import Components

_LOGGER: Final = logging.getLogger("stratalog.cleaning")  # documented name, for messages about compaction


class LogMaintenance:
    """Operations of the engine on one of its logs. Thread-safe. Users of a log do not need them."""

    def __init__(self, state: LogState) -> None:
        self._state, self._is_abandoned = state, False

    @property
    def has_producers(self) -> bool:
        """True if the log's state has at least one idempotent or transactional producer."""
        return bool(self._state.writes.producers.producers)

    def notify(self, event: Event) -> None:
        """Notify the listeners of an event of this log."""
        self._state.notify(event)

    def sync_if_due(self, interval_ms: int) -> bool:
        """Flush if the log has unsynced records, and the last sync is too long ago. Return True if the log was flushed.

        The limit is the shorter of ``interval_ms`` and ``flush.ms``. Raises the same errors as ``flush``.
        """
        due = is_sync_due(self._state, interval_ms)
        if due:
            flush(self._state)
        return due

    @property
    def is_abandoned(self) -> bool:
        """True after ``abandon``: nobody needs the records of the log any longer, because its topic was deleted."""
        return self._is_abandoned

    def forget_producers(self, silent_ms: int) -> int:
        """Forget producers whose last batch is ``silent_ms`` old or older; return the number of forgotten producers.

        The age counts from the batch's own timestamp. Producers with an open transaction are kept. A forgotten producer
        may continue at any sequence number. Raises StorageError if the log is not writable.
        """
        state = self._state
        with state.lock:
            state.health.check_writable()
            return state.writes.producers.forget_silent(state.settings.components.env.clock.now_ms() - silent_ms)

    def roll_if_due(self) -> bool:
        """Roll if the active segment has records and is too old by the clock. Return True if the log rolled.

        ``Appender.is_overdue`` defines the age. Raises StorageError if the log is not writable, or if the roll fails.
        """
        state = self._state
        with state.lock:
            state.health.check_writable()
            if not state.writes.appender.is_overdue():
                return False
            roll(state)
            return True

    def configure(self, config: TopicConfig, components: Components, remote: RemoteLog | None = None) -> None:
        """Apply new topic settings without reopening the log. The settings also apply to the active segment.

        If the record format changes, a new segment begins, and all batches of the earlier format are made durable.
        Without this, recovery after a crash could treat these batches as damaged when the plugin of their format has
        been removed.

        Raises:
            StorageError: the new segment cannot be created, and the settings are unchanged. Or the last sync failed
                after the settings were changed.
        """
        state = self._state
        with state.lock:
            begins_segment = (
                config.record_version != state.settings.config.record_version
                and state.health.is_good
                and not state.health.closed
            )
            if begins_segment:
                state.durability.turns.write_queued()  # batches of the earlier format
                roll(state)
            state.configure(LogSettings(config, components, remote))
        if begins_segment:
            flush(state)

    def abandon(self) -> None:
        """Close the files and make nothing durable, because the log is about to be deleted. May be called twice."""
        state = self._state
        with state.durability.syncing, state.lock:
            self._is_abandoned = True
            if not state.health.closed:
                state.health.close()
                close_segments(state.writes.segments)

    def take_offline(self, error: StorageError) -> None:
        """Refuse all changes of the log from now on with ``error``, because its directory failed. Reads continue."""
        self._state.health.refuse(error)

    def fail(self, error: StorageError) -> None:
        """Take the log out of service, and its directory too if ``error`` is a LogDirOfflineError. Reads continue."""
        self._state.health.fail(error)

    @contextlib.contextmanager
    def stop_if_fenced(self, leader_epoch: int | None = None) -> Iterator[None]:
        """Take the log out of service if the guarded block raises FencedEpochError. Reads continue.

        The error means that another writer owns the log, so no append may be acknowledged any more. ``leader_epoch`` is
        the epoch in which the block commits; None means the log's epoch when the block begins. If the log is in a later
        epoch when the error is raised, the log stays in service. The error is raised in any case.
        """
        epoch = self._state.role.leader_epoch if leader_epoch is None else leader_epoch
        try:
            yield
        except FencedEpochError as error:
            if self._state.health.failure is None and self._state.role.leader_epoch == epoch:
                self._state.health.fail(error)
                self._state.notify(
                    EpochFenced(log=self._state.name, leader_epoch=self._state.role.leader_epoch, reason=str(error))
                )
            raise

    def raise_log_start(self, before: int) -> int:
        """Increase the log start to ``before``, and return the new log start.

        The log may be a follower, and may have any ``cleanup.policy``. If ``before`` is below the log start, nothing
        changes.

        Raises:
            OffsetOutOfRangeError: ``before`` is above the high watermark or negative.
            StorageError: the log is not writable, or the disk failed.
        """
        return raise_log_start(self._state, before)

    def evict(self, end: int, *, above: int = 0) -> int:
        """Remove the segments up to the end offset ``end`` from local disk, and return the number of evictions.

        The end offset of these segments (exclusive) is at most ``end``. Listeners are notified of each eviction.
        ``above`` is the log start: the removal of a segment whose end offset is at most ``above`` is not an eviction,
        because the records of the segment are deleted. If the active segment is removed, the log rolls first. Nothing
        is removed while the tier is unavailable. A segment stays if it has records at or above the log start that the
        tier does not have. If ``end`` is 0, do nothing. Raises StorageError if the log is not writable, or if the disk
        failed.
        """
        removed_segments = drop_segments(self._state, end) if end else []
        evicted_segments = [segment for segment in removed_segments if segment.end_offset > above]
        for segment in evicted_segments:
            self.notify(
                SegmentEvicted(log=self._state.name, base_offset=segment.base_offset, size_bytes=segment.size_bytes)
            )
        return len(evicted_segments)

    @property
    def cleaning(self) -> CleaningState:
        """State of the log's compaction. The cleaner changes it."""
        return self._state.cleaning

    def resume_cleaning(self, dirty_start: int | None) -> None:
        """Set the first dirty offset from a checkpoint. A checkpoint above the log end is stale and is ignored."""
        with self._state.lock:
            self.cleaning.resume(dirty_start, self._state.log_end)

    def note_cleaned(self, end: int, generation: int) -> None:
        """Record that all offsets below ``end`` are compacted, if ``cleaning.generation`` is still ``generation``."""
        with self._state.lock:
            self.cleaning.note_cleaned(end, generation)

    def recompact(self) -> None:
        """Record that no offset is compacted, because a cleanup policy was added.

        A compaction in progress ends early.
        """
        with self._state.lock:
            self.cleaning.void(0)

    def mark_uncleanable(self, error: StorageError, part: str = "local") -> None:
        """Mark the local or the tier part of the log as uncleanable; log the reason and notify listeners.

        The part stays uncleanable until the log is opened again. ``part`` is "local" or "tier". If the part is already
        uncleanable for the same reason, do nothing.
        """
        reason, name = str(error), self._state.name
        if self.cleaning.part(part).mark_uncleanable(reason):
            _LOGGER.warning("%s is not cleaned until it is opened again: %s", name, reason)
            self.notify(LogUncleanable(log=name, reason=reason))

    def publisher(self) -> LocalPublisher:
        """Return a publisher of finished segments. After a later truncation or ``recompact``, it replaces nothing."""
        return LocalPublisher(self._state)

    def new_spooled(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a segment for an upload to the tier; raise StorageError if the log is not writable."""
        state = self._state
        state.health.check_writable()
        return SegmentBuilder.for_upload(state.files, base_offset, state.settings.components, state.settings.config)

    def marks(self) -> Marks:
        """Return the progress of writers that number their writes (see ``write_rounds``).

        If a write was begun and its result is not stored yet, the call first stores the result.

        Raises:
            CorruptCheckpointError: the progress file cannot be read.
            StorageError: the log is not writable, or the file cannot be stored.
        """
        with self._state.lock:
            self._state.health.check_writable()  # if it raises, the next opening stores the result
            return end_round(self._state.files, self._state.log_end)

    def make_extra_indexes(self) -> ExtrasResult:
        """Build the extra indexes (``index.extra``) that closed local segments lack.

        Raises the same errors as ``make_extras``.
        """
        return make_extras(self._state)

    def delete_expired(self) -> int:
        """Delete the ``.deleted`` files whose ``file.delete.delay.ms`` is over; return the number of deleted files."""
        return delete_expired(self._state)

    def pending_deletes(self) -> list[tuple[str, int]]:
        """Return the path of each remaining ``.log.deleted`` file, with the time of its deletion (ms since 1970)."""
        state = self._state
        with state.lock:
            clock = state.settings.components.env.clock
            now_ns, now_ms = clock.monotonic_ns(), clock.now_ms()
            return [
                (state.files.path(name), now_ms + max(due_ns - now_ns, 0) // 1_000_000)
                for name, due_ns in state.writes.pending_deletes.items()
                if LOG_SUFFIX in name
            ]

    def settle_remote(self) -> bool:
        """Return True if the tier's contents are known, or if the log has no tier; False while the tier is unavailable.

        If the reply to a commit was lost, the tier is first read again. The result is False if the commit may still
        take effect. Raises the same errors as ``RemoteLog.refresh``.
        """
        remote = self._state.settings.remote
        if remote is None or remote.is_settled:
            return True
        if remote.is_assumed:
            return False
        remote.refresh()
        self.refresh_remote()
        return remote.is_settled

    def refresh_remote(self) -> None:
        """Publish the state of the tier that was read last, and store it in the tier note, a small local file.

        Raises the same errors as ``TierLink.save_note``.
        """
        with self._state.lock:
            self._state.publish()
        self._state.tier.save_note(self._state.settings.remote)

    def rejoin_remote(self, leader_epoch: int) -> None:
        """Use the tier again after an outage of its store. The caller has read the tier's newest manifest root.

        Raises the same errors as ``rejoin_tier``. After FencedEpochError, the log refuses appends.
        """
        with self.stop_if_fenced():
            rejoin_tier(self._state, leader_epoch)

    def leave_remote(self) -> int:
        """Increase the log start to the local log start, and stop using the tier, which is about to be emptied.

        From now on, nothing is evicted, and no duty changes the tier. ``configure`` ends this state.

        Returns:
            The new log start offset.

        Raises:
            StorageError: the log is not writable, or a file in its folder cannot be written or deleted.
        """
        state = self._state
        with state.lock:  # an eviction in between would remove the only copy of records that stay
            start = raise_log_start(state, state.view.offsets.local_log_start)
            local_config = replace(state.settings.config, remote_storage_enable=False)
            state.configure(LogSettings(local_config, state.settings.components))
            if state.role.is_leader:  # without a tier, loading drops an epoch without records, but the tier has it
                write_next_epoch(state.files, state.role.leader_epoch, state.log_end)
        state.tier.forget_note()
        return start
