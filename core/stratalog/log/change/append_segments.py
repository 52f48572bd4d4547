"""Atomic append of many finished segments to a log: after a crash, all of them are in the log or none.

The protocol is Kafka's for replaced segments. First, all files are durable under ``.cleaned`` names. Then the files of
every segment except the first are renamed to ``.swap``, durably, and after that the files of the first segment. If a
``.cleaned`` file exists, the next opening removes all new segments at or above its base offset. After the last rename,
the new segments are part of the log. ``swap_recovery`` makes this decision.

The new segments replace an empty active segment at the log end, which a roll has created.

Source: apache/kafka LocalLog.replaceSegments, LogLoader.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.errors import ConfigError, OffsetsOutOfOrderError, StorageError
from stratalog.log.change.delete import leave
from stratalog.log.durability.sync import flush
from stratalog.log.folder.folder import file_names
from stratalog.log.folder.write_rounds import Pending, begin_round, end_round
from stratalog.log.load.producer_replay import write_snapshot
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import next_segment, roll
from stratalog.model.events import SegmentRolled
from stratalog.model.names import LOG_SUFFIX, SWAP_SUFFIX, segment_file
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.segment.segment import Segment


def append_segments(state: LogState, made: Sequence[CleanedSegment], end: int, mark: tuple[str, int] | None) -> None:
    """Add finished segments at the log end, durably: all of them, or none.

    The segments must not contain records of an idempotent producer or of a transaction: the producers' state is not
    updated.

    Args:
        state: state of a log that leads.
        made: new segments, ascending. The first begins at the log end, and each ends where the next begins.
        end: the log end afterwards.
        mark: the writer and the number of its round. The round is stored if the segments are added, even after a crash.

    Raises:
        OffsetsOutOfOrderError: the log ends at another offset; nothing was done.
        StorageError: the disk failed; the log is out of service. The next opening completes the change or undoes it.
    """
    if not made:
        raise ConfigError("append_segments() takes at least one segment")
    with state.durability.syncing:
        with state.lock:
            state.health.check_writable()
            state.role.check_leads()
            _check_end(state, made[0].base_offset)
            roll(state)
        flush(state)
        with state.lock:
            _check_end(state, made[0].base_offset)  # another thread may have appended, even into the empty segment
            with state.health.guarded("adding segments"):
                _append(state, made, end, mark)


def _check_end(state: LogState, base_offset: int) -> None:
    if base_offset != state.log_end:
        raise OffsetsOutOfOrderError(f"{state.log} ends at {state.log_end}, not at {base_offset}")


def _append(state: LogState, made: Sequence[CleanedSegment], end: int, mark: tuple[str, int] | None) -> None:
    files, base = state.files, made[0].base_offset
    if state.writes.epochs.latest != state.role.leader_epoch:
        state.writes.store_epochs(state.writes.epochs.assign(state.role.leader_epoch, base))
    if mark is not None:
        begin_round(files, Pending(*mark, base_offset=base, end_offset=end))
    try:
        _take_in(state, made, end)
    except StorageError as error:  # a part of the names may be changed: only the next opening repairs that
        state.health.fail(error)
        raise
    if mark is not None:
        end_round(files, end)
    state.notify(SegmentRolled(log=state.log, base_offset=end))


def _take_in(state: LogState, made: Sequence[CleanedSegment], end: int) -> None:
    files = state.files
    _rename_in(state, made)
    active = state.writes.segments[-1]
    leave(state, active)
    files.sync()
    added = _named(state, made, end)
    state.writes.producers.end_offset = end
    write_snapshot(files, end, state.writes.producers)
    segment, appender = next_segment(state, end)
    state.writes.replace_segments(len(state.writes.segments) - 1, 1, [*added, segment])
    state.writes.replace_appender(appender)
    state.durability.names_changed()
    state.durability.raise_to(end)
    state.publish()


def _rename_in(state: LogState, made: Sequence[CleanedSegment]) -> None:
    """Commit the new segments: before the last rename none of them counts, after it all do."""
    files = state.files
    there = set(file_names(files))
    for segment in (*reversed(made[1:]), made[0]):
        if segment is made[0]:
            files.sync()  # otherwise a power loss could keep its names and lose others, and a part would count as all
        for suffix in reversed(segment.suffixes):
            if segment.name(suffix) in there:
                files.rename(segment.name(suffix), _swap(segment, suffix))
    files.sync()


def _named(state: LogState, made: Sequence[CleanedSegment], end: int) -> list[Segment]:
    """Give the files their final names, logs before indexes, and open them as closed segments."""
    files = state.files
    for segment in made:  # in order: the next opening treats live segments between two ``.swap`` files as replaced
        files.rename(_swap(segment, LOG_SUFFIX), segment_file(segment.base_offset, LOG_SUFFIX))
        files.sync()
    for segment in made:
        for suffix in segment.suffixes[1:]:
            files.rename(_swap(segment, suffix), segment_file(segment.base_offset, suffix))
    files.sync()
    opened, ends = list[Segment](), [*(segment.base_offset for segment in made[1:]), end]
    try:
        for segment, segment_end in zip(made, ends, strict=True):
            log = files.open_segment(segment_file(segment.base_offset, LOG_SUFFIX))
            opened.append(Segment(files, segment.base_offset, segment_end, state.settings.components, log))
            opened[-1].largest = segment.largest
    except StorageError:
        for found in opened:
            found.close()
        raise
    return opened


def _swap(segment: CleanedSegment, suffix: str) -> str:
    return segment_file(segment.base_offset, suffix) + SWAP_SUFFIX
