"""How the state of a log that is open for writing begins and ends."""

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
    """The state of a log that was loaded, open for writing unless there is a ``refusal``, which writes raise.

    ``may_lag``: others have replicas of it. One that has less than the tier follows, until it is told to lead.

    Raises:
        FencedEpochError: the tier holds more of the log than the directory does, or other records, and nobody but
            another engine that took it over can have written them.
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
    """Leave the log as a clean stop does, under its locks; whether that was possible. Files are closed in any case."""
    clean = state.healthy
    try:
        if clean:
            write_row(state)
            state.appender.finish()
            remove_left(state, all_now=True)  # first: it may be what makes room on a full disk
            if (
                state.snapshot_offset != state.log_end
            ):  # else one stands there, with whoever was forgotten since, as in Kafka
                write_snapshot(state.files, state.log_end, state.producers)
            state.folder_dirty = True
            flush(state, row_too=False)  # nothing goes behind what was finished: who lined up since then is refused
    finally:
        state.closed = True
        close_segments(state.segments)
    return clean


def close_segments(segments: Iterable[Segment]) -> None:
    """Close all, whatever one of them says."""
    with ExitStack() as closing:
        for segment in segments:
            closing.callback(segment.close)
