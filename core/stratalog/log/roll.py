"""Closing the active segment and beginning the next.

Source: apache/kafka UnifiedLog.roll.
"""

from __future__ import annotations

from stratalog.log.state import LogState
from stratalog.model.events import SegmentRolled
from stratalog.model.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, segment_file
from stratalog.producers.snapshot import encode_snapshot
from stratalog.segment.appender import Appender
from stratalog.segment.segment import Segment


def roll(state: LogState) -> int:
    """Begin a new active segment at the log end; the base offset of it. An empty active segment stays as it is."""
    active = state.segments[-1]
    base = state.log_end
    if base == active.base_offset and not active.size_bytes:
        return base
    state.appender.finish()
    remove_leftovers(state, base)
    preallocate = state.config.segment_bytes if state.config.preallocate else 0
    log = state.files.open_segment(segment_file(base, LOG_SUFFIX), create=True, preallocate_bytes=preallocate)
    segment = Segment(state.files, base, base, state.parts, log)
    state.segments.append(segment)
    state.folder_dirty = True
    state.appender = new_appender(state, segment)
    write_snapshot(state, base)
    state.publish()
    state.notify(SegmentRolled(log=state.log, base_offset=base))
    return base


def new_appender(state: LogState, segment: Segment) -> Appender:
    """An appender for a segment, its share of ``segment.jitter.ms`` drawn."""
    return Appender(segment, state.parts, state.config, draw_jitter_ms(state))


def draw_jitter_ms(state: LogState) -> int:
    """A number in [0, min(segment.jitter.ms, segment.ms))."""
    limit = min(state.config.segment_jitter_ms, state.config.segment_ms)
    return state.parts.env.chance.randrange(limit) if limit > 0 else 0


def remove_leftovers(state: LogState, base_offset: int) -> None:
    """Delete stray files that already carry the names of the segment to come."""
    for suffix in (LOG_SUFFIX, *(found.suffix for found in state.parts.indexes.values())):
        state.files.remove(segment_file(base_offset, suffix))


def write_snapshot(state: LogState, offset: int) -> None:
    """Store the producers' state below ``offset``, as each roll and each clean close does."""
    name = segment_file(offset, SNAPSHOT_SUFFIX)
    state.files.replace_small(name, encode_snapshot(state.producers.entries()))
