"""Closing the active segment and beginning the next.

Source: apache/kafka UnifiedLog.roll.
"""

from __future__ import annotations

from stratalog.config.topic import TopicConfig
from stratalog.errors import OutOfResourcesError
from stratalog.log.load.producer_replay import write_snapshot
from stratalog.log.state.log_state import LogState
from stratalog.model.events import SegmentRolled
from stratalog.model.names import LOG_SUFFIX, segment_file
from stratalog.segment.appender import Appender, roll_after_ms
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment


def roll(state: LogState, first_offset: int = 0) -> int:
    """Begin a new active segment at the log end; the base offset of it. An empty active segment there stays as it is.

    A batch to come that begins above the log end, as ``first_offset`` says, names the new segment: what is between is in
    no segment, and an offset relative to the log end may not fit its 32 bits.

    Everything new is made before the old segment is closed: if the disk is full, the log stays as it was. The old one's
    records are durable before the new one has a name: else a power loss could take them and leave those that follow, and
    what is lost would be no suffix. Kafka syncs after the roll, in the background.
    """
    active = state.segments[-1]
    base = max(state.log_end, first_offset)
    if base == active.base_offset and not active.size_bytes:
        if state.appender.is_full:
            _make_indexes_again(state, active)
        return base
    with state.guarded("a roll"):
        try:
            segment, appender = _begun(state, active, base)
        except OutOfResourcesError:
            state.folder_dirty = True  # if the names below cannot be synced now, the next sync does it
            remove_leftovers(state, base)  # else the active one would end here for whoever opens the log
            state.files.sync()
            raise
        active.end_offset = base
        state.segments = (*state.segments, segment)
        state.appender = appender
        state.folder_dirty = True
    state.publish()
    state.notify(SegmentRolled(log=state.log, base_offset=base))
    return base


def _make_indexes_again(state: LogState, active: Segment) -> None:
    """Begin an empty segment's indexes under the settings of now: those of before left no room for one entry.

    Kafka deletes such a segment and creates it again.
    """
    active.seal()
    state.appender = new_appender(active, state.parts, state.config)


def _begun(state: LogState, active: Segment, base: int) -> tuple[Segment, Appender]:
    """The segment to come; the active one is closed for appends once nothing else is left to do."""
    if active.log.trim() or state.recovery_point < active.end_offset:
        active.log.sync()
    segment, appender = next_segment(state, base)
    try:
        write_snapshot(state.files, base, state.producers)
        state.appender.finish()
    except BaseException:
        segment.close()
        raise
    return segment, appender


def next_segment(state: LogState, base: int) -> tuple[Segment, Appender]:
    """Make the files of a segment to come, empty; the caller puts it among the others and closes it if that fails."""
    remove_leftovers(state, base)
    preallocate = state.config.segment_bytes if state.config.preallocate else 0
    log = state.files.open_segment(segment_file(base, LOG_SUFFIX), create=True, preallocate_bytes=preallocate)
    segment = Segment(state.files, base, base, state.parts, log)
    try:
        return segment, new_appender(segment, state.parts, state.config)
    except BaseException:
        segment.close()
        raise


def new_appender(segment: Segment, parts: Components, config: TopicConfig, *, is_idle: bool = False) -> Appender:
    """An appender for an active segment, its share of ``segment.jitter.ms`` drawn: a number in [0, that).

    It is below the time after which segments are rolled. Kafka draws below ``segment.ms``, and rolls a log at each
    append where ``max.compaction.lag.ms`` is less than what was drawn. ``is_idle``: as for the appender.
    """
    limit = min(config.segment_jitter_ms, roll_after_ms(config))
    jitter_ms = parts.env.chance.randrange(limit) if limit > 0 else 0
    return Appender(segment, parts, config, jitter_ms, is_idle=is_idle)


def remove_leftovers(state: LogState, base_offset: int) -> None:
    """Delete stray files that already carry the names of the segment to come."""
    for suffix in (LOG_SUFFIX, *(found.suffix for found in state.parts.indexes.values())):
        state.files.remove(segment_file(base_offset, suffix))
