"""Truncation of a log, and restart of a log at another offset.

At every step of a truncation, the files on disk are a prefix of the log, because nothing would detect a hole in it. A
truncation first removes the snapshots above the new log end. Then it removes whole segments from the last one
backwards; each removal is durable before the next begins. Then it truncates the last remaining segment, and finally the
epochs. After a crash, the log may be longer than requested, and the caller can truncate it again.

Source: apache/kafka UnifiedLog.truncateTo, truncateFullyAndStartAt; LogSegment.truncateTo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ConfigError, OffsetInTierError
from stratalog.log.change.delete import retire_segment
from stratalog.log.folder.folder import file_names, write_index
from stratalog.log.load.producer_replay import newest_snapshot, replay_range, snapshot_offsets, write_snapshot
from stratalog.log.load.tier_producers import producers_at
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import new_appender, next_segment, roll
from stratalog.model.names import DESCRIBING_SUFFIXES, SNAPSHOT_SUFFIX, segment_file
from stratalog.model.offsets import MAX_OFFSET
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.segment.search import find_batch, last_indexed_position
from stratalog.segment.segment import Segment


def truncate_to(state: LogState, offset: int) -> bool:
    """Implement ``Log.truncate_to``, which documents the argument, the result and errors.

    The log keeps its new end when it is opened again: if ``offset`` is inside a batch or a gap, a new segment begins
    there. In Kafka, the reopened log would end after its last batch. Epochs that begin at the new log end or later are
    dropped, even if they have no records. The bounds in the directory's checkpoints are durable on return, too.

    If ``offset`` is below the first local segment, all local records are dropped, and the log continues at ``offset``.
    If the tier has ``offset``, the log continues at the base offset of the tier's segment that contains ``offset``.
    """
    with _no_offload(state), state.durability.syncing:
        with state.lock:
            _check(state, offset)
            tier_end = _tier_end(state)
            if state.role.is_leader and offset < min(tier_end, state.log_end):
                reason = (
                    f"the tier has committed log {state.name} up to offset {tier_end}, so it cannot be truncated to "
                    f"{offset}"
                )
                raise OffsetInTierError(reason)
            if offset >= state.log_end:
                state.writes.forget_epochs(state.writes.epochs.truncate_from_end(state.log_end))
                state.publish()
                return False
            end = _end_in_tier(state, offset)
            start = min(end, state.view.offsets.log_start)
            prior_state = (
                _read_prior_state(state, end, start) if offset < state.writes.segments[0].base_offset else _PriorState()
            )
            with _stop_after_error(state):
                if offset < state.writes.segments[0].base_offset:
                    _restart_at(state, end, start, prior_state)
                else:
                    _cut_back(state, offset)
                    # Inside a batch or a gap, begin a segment: the name of the new file stores the log end.
                    if batches_end(state.writes.segments[-1], state.settings.components) < state.log_end:
                        roll(state)
        _store_bounds(state)
    return True


def truncate_fully(state: LogState, offset: int, log_start: int | None = None) -> None:
    """Implement ``Log.truncate_fully_and_start_at``, which documents the arguments and errors.

    The log end and the high watermark are then ``offset``. If the tier has the records from ``log_start`` to
    ``offset``, the epochs and the producers' state at ``offset`` are read from the tier. In all other cases, the log
    has no epochs and no producers afterwards.
    """
    start = offset if log_start is None else log_start
    with _no_offload(state), state.durability.syncing:
        with state.lock:
            _check(state, offset)
            if not 0 <= start <= offset:
                raise ConfigError(f"log start {start} is not in [0, {offset}]")
            if state.role.is_leader and offset < _tier_end(state):
                raise OffsetInTierError(f"the tier has committed log {state.name} up to offset {_tier_end(state)}")
            prior_state = _read_prior_state(state, offset, start)
            with _stop_after_error(state):
                _restart_at(state, offset, start, prior_state)
        _store_bounds(state)


def _check(state: LogState, offset: int) -> None:
    state.health.check_writable()
    if offset < 0:
        raise ConfigError(f"offset {offset} is negative")
    if offset > MAX_OFFSET:
        raise ConfigError(f"offset {offset} is above the last possible offset {MAX_OFFSET}")


def _end_in_tier(state: LogState, offset: int) -> int:
    """Return the log end after a truncation to ``offset``: a segment boundary if only the tier has ``offset``."""
    remote = state.view.remote
    if remote is None or offset >= state.writes.segments[0].base_offset:
        return offset
    segment = remote.floor(offset)
    return min(offset, remote.end_offset) if segment is None else segment.base_offset


def _tier_end(state: LogState) -> int:
    remote = state.view.remote
    return remote.end_offset if remote is not None and remote.segments else 0


@contextmanager
def _no_offload(state: LogState) -> Iterator[None]:
    """Block offloads while the guarded block runs: an offload could commit records that are truncated."""
    if state.settings.remote is None:
        yield
        return
    with state.cleaning.local.busy:
        yield


@contextmanager
def _stop_after_error(state: LogState) -> Iterator[None]:
    """Take the log out of service if the guarded block raises an error: its state in memory may then be wrong."""
    try:
        yield
    except BaseException as error:
        state.health.fail_after("a truncation", error)
        raise


def _store_bounds(state: LogState) -> None:
    """Store the log's bounds in the directory's checkpoints, before any later append can become durable.

    The caller holds ``DurabilityState.syncing``. A stale log start above the log end would make the next opening drop
    all records.
    """
    if state.store_bounds is not None:
        with _stop_after_error(state):
            state.store_bounds()


# --- cutting back ----------------------------------------------------------------------------------------------------


def _cut_back(state: LogState, offset: int) -> None:
    """Truncate the log to ``offset``, which is at or above the base offset of the first local segment."""
    state.writes.note_snapshots_changed()
    names = set(file_names(state.files))
    for snapshot_offset in snapshot_offsets(names):
        if snapshot_offset > offset:
            state.files.remove(segment_file(snapshot_offset, SNAPSHOT_SUFFIX))
            names.discard(segment_file(snapshot_offset, SNAPSHOT_SUFFIX))
    dropped_segments = [segment for segment in state.writes.segments if segment.base_offset > offset]
    last = len(state.writes.segments) - len(dropped_segments) - 1
    truncation = _SegmentTruncation(state.writes.segments[last], offset)
    state.writes.replace_segments(last, 1 + len(dropped_segments), [truncation.interim])
    _lower_bounds(state, offset)
    state.publish()  # readers see the remaining segments before the others are removed
    for segment in reversed(dropped_segments):
        retire_segment(state, segment, names)
        state.files.sync()
    segment = truncation.finish(state.settings.config.segment_index_bytes)
    appender = new_appender(segment, state.settings.components, state.settings.config)
    state.writes.replace_segments(last, 1, [segment])
    state.writes.replace_appender(appender)
    appender.prepare()
    state.files.sync()
    state.writes.replace_producers(_producers_at(state, offset))
    state.writes.forget_epochs(state.writes.epochs.truncate_from_end(offset))
    state.publish()


def batches_end(segment: Segment, components: Components) -> int:
    """Return the first offset after the last batch of a segment; the segment's base offset if the segment has no batch.

    Raises CorruptBatchError if a batch after the last indexed one is damaged.
    """
    end = segment.base_offset
    for chunk in walk(segment, last_indexed_position(segment, components), components, check_crc=False):
        end = chunk.tables[-1].last_offset[-1] + 1
    return end


class _SegmentTruncation:
    """Truncation of one segment. Readers see ``interim`` during the truncation, and the result of ``finish`` after it.

    Readers of the old segment get a SegmentGoneError.
    """

    def __init__(self, old: Segment, offset: int) -> None:
        self._old, self._offset, components = old, offset, old.components
        position_and_batch = find_batch(old, offset, components) if offset < old.end_offset else None
        self._size = old.size_bytes if position_and_batch is None else position_and_batch[0]
        self._entries = {
            role: bytes(entries[: index.kept_bytes(entries, old.base_offset, offset)])
            for role, index in components.indexes.items()
            for entries in [old.index_entries(role)]
        }
        self._log = old.files.open_segment(old.file_name(".log"))
        self.interim = self._new_segment(self._size)

    def finish(self, max_index_bytes: int) -> Segment:
        """Truncate the file durably, and return the remaining segment."""
        old = self._old
        old.close()  # before the truncation: closing frees the preallocated space
        for suffix in DESCRIBING_SUFFIXES:
            old.files.remove(old.file_name(suffix))
        self._log.truncate(self._size)
        self._log.sync()
        remaining = self._new_segment(None)
        for role, entries in self._entries.items():
            write_index(remaining, role, entries, max_index_bytes)
        self.interim.forget_indexes()
        return remaining

    def _new_segment(self, size_bytes: int | None) -> Segment:
        old = self._old
        return Segment(
            old.files,
            old.base_offset,
            self._offset,
            old.components,
            self._log,
            size_bytes=size_bytes,
            index_entries=self._entries,
        )


def _lower_bounds(state: LogState, end: int) -> None:
    state.cleaning.void(end)
    state.durability.lower_to(end)
    state.role.set_watermark(min(state.role.given_watermark, end))
    state.writes.set_log_start(min(state.writes.log_start, end))


def _producers_at(state: LogState, end: int) -> ProducerState:
    """Return the producers' state below ``end``, from the newest remaining snapshot and the batches after it."""
    producers = newest_snapshot(state.files, snapshot_offsets(file_names(state.files)), end) or ProducerState()
    producers.forget_silent(state.settings.components.env.clock.now_ms() - state.writes.producer_expiration_ms)
    replay_range(
        producers,
        state.writes.segments,
        max(producers.end_offset, state.writes.segments[0].base_offset),
        end,
        state.settings.components,
    )
    return producers


# --- restarting at an offset -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PriorState:
    """Producers' state and leader epochs of the records below the offset at which the local log begins again."""

    producers: ProducerState = field(default_factory=ProducerState)
    epochs: EpochCache = field(default_factory=EpochCache)


def _read_prior_state(state: LogState, offset: int, log_start: int) -> _PriorState:
    """Return the producers' state and epochs at ``offset``, empty if the tier lacks a record in [log_start, offset).

    Source: KIP-405, building a follower's auxiliary state.
    """
    remote = state.view.remote
    if remote is None or not remote.start_offset <= log_start < offset <= remote.end_offset:
        return _PriorState()
    epochs = EpochCache(remote.leader_epochs).truncate_from_end(offset)
    return _PriorState(producers_at(remote, offset, state.settings.components), epochs)


def _restart_at(state: LogState, offset: int, log_start: int, prior_state: _PriorState) -> None:
    """Reduce the log to one empty segment at ``offset``. ``prior_state`` has the producers and epochs below ``offset``.

    All records are removed before the new segment is created. Therefore the log never has a hole before the new
    segment.
    """
    state.writes.note_snapshots_changed()
    first = state.writes.segments[0]
    is_bare = not first.size_bytes and first.end_offset == first.base_offset  # an empty segment may contain a gap
    if not is_bare or len(state.writes.segments) > 1:
        _cut_back(state, first.base_offset)
    old = state.writes.segments
    if old[0].base_offset == offset:
        old = ()
    else:
        segment, appender = next_segment(state, offset)
        state.writes.replace_segments(len(old), 0, [segment])
        state.writes.replace_appender(appender)
    for snapshot_offset in snapshot_offsets(file_names(state.files)):
        state.files.remove(segment_file(snapshot_offset, SNAPSHOT_SUFFIX))
    if prior_state.producers.entries():
        write_snapshot(state.files, offset, prior_state.producers)
    state.writes.replace_segments(0, len(old), ())
    prior_state.producers.end_offset = offset
    state.writes.replace_producers(prior_state.producers)
    state.durability.restart_at(offset)
    state.role.set_watermark(offset)
    state.writes.set_log_start(log_start)
    state.publish()
    for segment in old:
        retire_segment(state, segment)
    state.files.sync()
    state.writes.set_epochs(prior_state.epochs)
    state.publish()
