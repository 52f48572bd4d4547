"""Creation and clean shutdown of the state of a log that is open for writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.log.append.append_queue import write_row
from stratalog.log.change.delete import remove_left
from stratalog.log.durability.sync import flush
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.load.producer_replay import write_snapshot
from stratalog.log.read.tier_view import RemoteLog
from stratalog.log.state.log_state import LogState, make_view
from stratalog.log.state.roll import new_appender
from stratalog.log.state.tier_link import check_not_taken, tell_losses, tier_of
from stratalog.model.events import Event
from stratalog.model.names import TopicId, TopicPartition
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import LogFiles


def begin(
    name: TopicPartition,
    topic_id: TopicId,
    files: LogFiles,
    parts: Components,
    config: TopicConfig,
    loaded: LoadedLog,
    remote: RemoteLog | None,
    notify: Callable[[Event], None],
    *,
    may_lag: bool = False,
    refusal: StorageError | None = None,
) -> LogState:
    """Return the state of a loaded log, open for writing. If there is a ``refusal``, writes raise it.

    ``may_lag`` is True if the log has other replicas. A replica with fewer records than the tier follows until ``lead``
    is called.

    Raises:
        FencedEpochError: the tier holds more records than the directory, or different ones. Only another engine that
        took
            the log over can have written them.
    """
    tiered = None if remote is None else tier_of(remote, files, loaded)
    ours = None if tiered is None else tiered.within(loaded.epochs.entries)
    if tiered is not None and remote is not None and not remote.is_assumed:
        tell_losses(name, tiered, files, loaded)
    if tiered is not None and not may_lag:
        check_not_taken(name, tiered, loaded.epochs.entries, loaded.log_end)
    view = make_view(
        name,
        loaded.segments,
        loaded.producers,
        loaded.epochs,
        log_start=loaded.log_start,
        recovery_point=loaded.recovery_point,
        high_watermark=loaded.log_end,
        remote=ours,
        damage=loaded.damage,
    )
    due_ns = parts.env.clock.monotonic_ns() + config.file_delete_delay_ms * 1_000_000
    state = LogState(
        log=name,
        topic_id=topic_id,
        files=files,
        parts=parts,
        config=config,
        segments=tuple(loaded.segments),
        appender=new_appender(loaded.segments[-1], parts, config, is_idle=refusal is not None),
        producers=loaded.producers,
        epochs=loaded.epochs,
        log_start=loaded.log_start,
        recovery_point=loaded.recovery_point,
        leader_epoch=max(loaded.epochs.latest, 0),
        published=(view, None, 0, []),
        notify=notify,
        remote=remote,
        damage=loaded.damage,
        failure=refusal,
        leaving=[(due_ns, name) for name in loaded.left],
        may_lag=may_lag,
        producer_expiration_ms=loaded.producer_expiration_ms,
        snapshot_offset=loaded.snapshot_offset,
        is_leader=ours is None or not ours.segments or ours.end_offset <= loaded.log_end,
    )
    state.turns.write_row = partial(write_row, state)
    return state


def end(state: LogState) -> bool:
    """Stop the log cleanly, under its locks. Return True if the stop was clean. Files are closed in any case."""
    clean = state.healthy
    try:
        if clean:
            write_row(state)
            state.appender.finish()
            remove_left(state, all_now=True)  # before the snapshot: it may free space on a full disk
            if (
                state.snapshot_offset != state.log_end
            ):  # otherwise a snapshot exists there; as in Kafka, it may contain producers that were forgotten since
                write_snapshot(state.files, state.log_end, state.producers)
            state.folder_dirty = True
            flush(state, row_too=False)  # the appender is finished: later batches in the queue are refused
    finally:
        state.closed = True
        close_segments(state.segments)
    return clean


def close_segments(segments: Iterable[Segment]) -> None:
    """Close all segments, even if closing one of them raises."""
    with ExitStack() as closing:
        for segment in segments:
            closing.callback(segment.close)
