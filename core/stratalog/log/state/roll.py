"""Roll of a log: close the active segment and begin the next one.

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
from stratalog.spi.indexes import IndexRole


def roll(state: LogState, first_offset: int = 0) -> int:
    """Begin a new active segment; return its base offset. The caller holds the log's lock.

    The base offset is the log end, or ``first_offset`` if that is higher. ``first_offset`` is the offset of the next
    batch, which may be far above the log end: in a segment that begins at the log end, the batch's relative offset
    might not fit into 32 bits. If the active segment has no records and already begins at the base offset, the active
    segment is kept.

    The old segment's records and indexes are made durable before the new file exists. Without this, a power loss could
    remove these records and keep later records. Kafka syncs the old segment after the roll, in the background.

    Raises:
        OutOfResourcesError: no space or no descriptors for the new files. The log does not change. If the new files
            cannot be deleted, the log is out of service.
        StorageError: a file cannot be written or synced; the log is out of service.
    """
    active = state.writes.segments[-1]
    base = max(state.log_end, first_offset)
    if base == active.base_offset and not active.size_bytes:
        if state.writes.appender.has_full_index:
            # Rebuild the indexes with the current settings, because an index has no room for an entry. Kafka deletes such
            # a segment and creates it again.
            active.seal()
            state.writes.replace_appender(new_appender(active, state.settings.components, state.settings.config))
        return base
    with state.health.guard("a roll"):
        try:
            segment, appender = _begin_segment(state, active, base)
        except OutOfResourcesError:
            state.durability.note_names_changed()  # if the folder cannot be synced below, the next sync does it
            try:
                remove_leftovers(state, base)
            except OutOfResourcesError as error:  # the next opening would end the active segment here
                state.health.fail_after("a roll", error)
                raise
            state.files.sync()
            raise
        state.writes.begin_segment(segment, appender)
        state.durability.note_names_changed()
    state.publish()
    state.notify(SegmentRolled(log=state.name, base_offset=base))
    return base


def _begin_segment(state: LogState, active: Segment, base: int) -> tuple[Segment, Appender]:
    """Create the next segment, and as the last step close the active one for appends."""
    durability = state.durability
    if active.file.trim() or durability.recovery_point < active.end_offset or durability.has_removed_bytes:
        active.file.sync()
        durability.note_segment_synced()
    # The recovery point can pass the segment when the next one exists. Then recovery does not rebuild its indexes.
    state.writes.appender.complete_indexes()
    if IndexRole.TRANSACTION in active.indexes():
        state.files.sync()  # a power loss could remove this file
    segment, appender = next_segment(state, base)
    try:
        write_snapshot(state.files, base, state.writes.producers)
        state.writes.appender.seal()
    except BaseException:
        segment.close()
        raise
    return segment, appender


def next_segment(state: LogState, base: int) -> tuple[Segment, Appender]:
    """Create the empty files of the next segment; return the segment and its appender.

    The caller adds the segment to the log. If that fails, the caller closes the segment.
    """
    remove_leftovers(state, base)
    preallocate = state.settings.config.segment_bytes if state.settings.config.preallocate else 0
    log = state.files.open_segment(segment_file(base, LOG_SUFFIX), create=True, preallocate_bytes=preallocate)
    segment = Segment(state.files, base, base, state.settings.components, log)
    try:
        return segment, new_appender(segment, state.settings.components, state.settings.config)
    except BaseException:
        segment.close()
        raise


def new_appender(
    segment: Segment,
    components: Components,
    config: TopicConfig,
    *,
    is_idle: bool = False,
    is_rebuilt: bool = False,
) -> Appender:
    """Return an appender for an active segment, with a random jitter in [0, ``segment.jitter.ms``).

    The jitter is also below the age at which segments are rolled. Kafka only limits the jitter to ``segment.ms``, and
    rolls at each append if ``max.compaction.lag.ms`` is less than the jitter. ``is_idle`` and ``is_rebuilt`` are
    passed to the appender.
    """
    limit = min(config.segment_jitter_ms, roll_after_ms(config))
    jitter_ms = components.env.chance.randrange(limit) if limit > 0 else 0
    return Appender(segment, components, config, jitter_ms, is_idle=is_idle, is_rebuilt=is_rebuilt)


def remove_leftovers(state: LogState, base_offset: int) -> None:
    """Delete files that an earlier failed roll left under the names of the next segment's files."""
    for suffix in (LOG_SUFFIX, *(index.suffix for index in state.settings.components.indexes.values())):
        state.files.remove(segment_file(base_offset, suffix))
