"""Creation and clean shutdown of the state of a log that is open for writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from stratalog.env.lock_order import LockRank
from stratalog.errors import StorageError
from stratalog.log.append.group_commit import commit_queued
from stratalog.log.change.delete import delete_expired
from stratalog.log.durability.subscribers import Background
from stratalog.log.durability.sync import flush
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.load.producer_replay import write_snapshot
from stratalog.log.load.tier_at_opening import check_not_taken, report_losses, tier_at_opening
from stratalog.log.read.view import PublishedView
from stratalog.log.state.durability_state import DurabilityState
from stratalog.log.state.health import Health
from stratalog.log.state.log_settings import LogSettings
from stratalog.log.state.log_state import LogState
from stratalog.log.state.role import Role
from stratalog.log.state.roll import new_appender
from stratalog.log.state.tier_link import TierLink
from stratalog.log.state.write_state import WriteState
from stratalog.model.events import Event
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import Durability, Watermark
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import LogFiles


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Request to open a loaded log for writing.

    Attributes:
        name: topic and partition.
        topic_id: the topic's id.
        files: the log's folder.
        loaded: result of the loading.
        high_watermark: the high watermark from the checkpoint; None means the log end.
        refusal: error that every change raises, because the log is out of service; None if the log accepts changes.
    """

    name: TopicPartition
    topic_id: TopicId
    files: LogFiles
    loaded: LoadedLog
    high_watermark: int | None = None
    refusal: StorageError | None = None


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """Settings and functions that the logs of one directory share.

    Attributes:
        notify: sends an event to the listeners.
        durability: default durability of appends.
        watermark: the rule that moves a leader's high watermark.
        on_offline: called with a disk failure of one log, because the whole directory has failed; None to call nothing.
        store_bounds: writes the directory's checkpoints; None to write none.
        background: threads for callers that do not wait; None means that the log starts its own threads.
    """

    notify: Callable[[Event], None]
    durability: Durability = Durability.WRITTEN
    watermark: Watermark = Watermark.WRITTEN
    on_offline: Callable[[StorageError], None] | None = None
    store_bounds: Callable[[], None] | None = None
    background: Background | None = None


def open_state(request: OpenRequest, settings: LogSettings, environment: LogEnvironment) -> LogState:
    """Return the state of a loaded log, open for writing.

    If ``watermark`` is ``external``, a log with fewer records than the tier follows until ``lead`` is called.

    Raises:
        FencedEpochError: the tier has records that the directory lacks, or other records at the same offsets. Only
            another engine that took the log over can have written such records. The error is not raised if
            ``watermark`` is ``external``.
        LogDirError: an index file cannot be opened.
        The errors of ``tier_at_opening``.
    """
    name, files, loaded_log, refusal = request.name, request.files, request.loaded, request.refusal
    config, components, remote = settings.config, settings.components, settings.remote
    watermark = environment.watermark
    tier_view = None if remote is None else tier_at_opening(remote, files, loaded_log)
    own_part = None if tier_view is None else tier_view.within(loaded_log.epochs.entries)
    if tier_view is not None and remote is not None and not remote.is_assumed:
        report_losses(name, tier_view, files, loaded_log)
    if tier_view is not None and watermark is not Watermark.EXTERNAL:
        check_not_taken(name, tier_view, loaded_log.epochs.entries, loaded_log.log_end)
    appender = new_appender(
        loaded_log.segments[-1],
        components,
        config,
        is_idle=refusal is not None,
        is_rebuilt=loaded_log.recovered_segments > 0,
    )
    health, lock = Health(name, loaded_log.damage, refusal, environment.on_offline), LockRank.LOG.rlock()
    state = LogState(
        name=name,
        files=files,
        notify=environment.notify,
        store_bounds=environment.store_bounds,
        lock=lock,
        settings=settings,
        health=health,
        role=Role(
            name,
            watermark,
            loaded_log.log_end if request.high_watermark is None else request.high_watermark,
            max(loaded_log.epochs.latest, 0),
            is_leader=own_part is None or not own_part.segments or own_part.end_offset <= loaded_log.log_end,
        ),
        writes=WriteState(files, health, loaded_log, appender),
        durability=DurabilityState(loaded_log.recovery_point),
        tier=TierLink(files, health, lock),
        published=PublishedView(),
    )
    state.delete_later(loaded_log.deleted_files)
    state.durability.turns.set_writer(partial(commit_queued, state))
    state.publish()
    return state


def close_state(state: LogState) -> bool:
    """Stop the log and close its files; return True if the stop was clean.

    A clean stop writes the closing snapshot and index entries, and flushes. If the log is damaged or out of service,
    nothing is written, and the result is False. The files are closed even if an error is raised. The caller holds
    ``DurabilityState.syncing`` and the log's lock.

    Raises:
        StorageError: a write or a sync failed.
    """
    is_clean = state.health.is_good
    try:
        if is_clean:
            commit_queued(state)
            state.writes.appender.finish()
            state.writes.segments[-1].file.trim()  # before the sync: a clean start does not remove reserved space
            delete_expired(state, all_now=True)  # before the snapshot: it may free space on a full disk
            # An existing snapshot at the log end stays. As in Kafka, it may have producers that were forgotten since.
            if state.writes.snapshot_offset != state.log_end:
                write_snapshot(state.files, state.log_end, state.writes.producers)
            state.durability.note_names_changed()
            flush(state, with_queued=False)  # the appender is finished: later batches in the queue are refused
    finally:
        state.health.close()
        close_segments(state.writes.segments)
    state.health.close(cleanly=is_clean)
    return is_clean


def close_segments(segments: Iterable[Segment]) -> None:
    """Close all segments. If a segment cannot be closed, the error is raised after the others are closed."""
    with ExitStack() as closing:
        for segment in segments:
            closing.callback(segment.close)
