"""Cutting a log back, and beginning it again elsewhere.

The disk goes through prefixes of the log alone, whatever is lost of it: snapshots above the cut first, then whole
segments from the last one on, each durably before the one before it, then the end of the segment that stays, then epochs.
A log that is longer than asked for after a crash is cut again; one with a hole would be believed.

Source: apache/kafka UnifiedLog.truncateTo, truncateFullyAndStartAt; LogSegment.truncateTo.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ClosedError, ConfigError, OffsetInTierError, StorageError
from stratalog.log.change.delete import forget_epochs, leave
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
    """Drop the records from ``offset`` on; whether the log went further.

    A batch that holds ``offset`` goes as a whole, the log ends at ``offset`` all the same, and does so when it is opened
    again: unlike in Kafka, a new segment begins there. Epochs that begin there go even
    if no record does. Durable on return, bounds in the directory's checkpoints included.

    A follower cuts whatever its leader says. One whose own disk begins above ``offset`` ends where a segment of the tier
    does, at or below ``offset``: the tier has what is before that, and it is fetched from there on.

    Raises:
        ConfigError: ``offset`` is negative, or above 2^63 - 1.
        OffsetInTierError: the log leads, and the tier has committed more than would be left.
        StoreError: what the tier has at ``offset`` cannot be asked for; nothing was cut.
        StorageError: the disk failed; the log is out of service, and is cut again after it is opened again.
    """
    with _no_offload(state), state.syncing:
        with state.lock:
            _check(state, offset)
            kept = _tier_end(state)
            if state.is_leader and offset < min(kept, state.log_end):
                reason = f"the tier has committed log {state.log} up to offset {kept}, {offset} would be its end here"
                raise OffsetInTierError(reason)
            if offset >= state.log_end:
                forget_epochs(state, state.epochs.truncate_from_end(state.log_end))
                state.publish()
                return False
            end = _end_in_tier(state, offset)
            start = min(end, state.view.offsets.log_start)
            known = _known_at(state, end, start) if offset < state.segments[0].base_offset else _Known()
            with _in_service(state):
                if offset < state.segments[0].base_offset:
                    _begin_again(state, end, start, known)
                else:
                    _cut_back(state, offset)
                    _keep_end(state)
        _store_bounds(state)
    return True


def truncate_fully(state: LogState, offset: int, log_start: int | None = None) -> None:
    """Drop all records here and go on at ``offset``, which may be anywhere; producers and epochs are forgotten.

    A follower that its leader has left too far behind begins again so. ``log_start`` says that a tier has the records
    from there on; None is ``offset``. Then the tier is asked for the epochs and the producers' state below ``offset``, as
    far as it has the log up to there. Durable as ``truncate_to``.

    Raises:
        ConfigError: ``offset`` is negative or above 2^63 - 1, or ``log_start`` above it.
        OffsetInTierError: the log leads, and the tier has committed more: it would be written a second time.
        StoreError, CorruptBatchError: the tier cannot tell the producers' state; nothing was cut.
        StorageError: as ``truncate_to``.
    """
    start = offset if log_start is None else log_start
    with _no_offload(state), state.syncing:
        with state.lock:
            _check(state, offset)
            if not 0 <= start <= offset:
                raise ConfigError(f"log start {start} does not lie in [0, {offset}]")
            if state.is_leader and offset < _tier_end(state):
                raise OffsetInTierError(f"the tier has committed log {state.log} up to offset {_tier_end(state)}")
            known = _known_at(state, offset, start)
            with _in_service(state):
                _begin_again(state, offset, start, known)
        _store_bounds(state)


def _check(state: LogState, offset: int) -> None:
    state.check_writable()
    if offset < 0:
        raise ConfigError(f"offset {offset} is negative")
    if offset > MAX_OFFSET:
        raise ConfigError(f"offset {offset} is above {MAX_OFFSET}, where offsets end")


def _end_in_tier(state: LogState, offset: int) -> int:
    """Where a log whose disk begins above ``offset`` shall end: what is below is in the tier, in whole segments."""
    remote = state.view.remote
    if remote is None or offset >= state.segments[0].base_offset:
        return offset
    segment = remote.floor(offset)
    return min(offset, remote.end_offset) if segment is None else segment.base_offset


def _tier_end(state: LogState) -> int:
    remote = state.view.remote
    return remote.end_offset if remote is not None and remote.segments else 0


@contextmanager
def _no_offload(state: LogState) -> Iterator[None]:
    """Wait for an offload that is under way: what it sends would be committed after it was cut off here."""
    if state.remote is None:
        yield
        return
    with state.cleaning.busy:
        yield


@contextmanager
def _in_service(state: LogState) -> Iterator[None]:
    """Take the log out of service if it is left half cut: what is on disk is right, what is in memory may not be."""
    try:
        yield
    except StorageError as error:
        state.fail(error)
        raise
    except BaseException as error:
        reason = (
            f"log {state.log} is out of service, as a truncation ended early ({type(error).__name__}): open it again"
        )
        state.failure = ClosedError(reason)
        raise


def _store_bounds(state: LogState) -> None:
    """Before anything that is appended from now on can be durable: its sync waits for this.

    A log start above the log's end, say, would make the next opening drop everything.
    """
    if state.store_bounds is not None:
        with _in_service(state):
            state.store_bounds()


# --- cutting back ----------------------------------------------------------------------------------------------------


def _cut_back(state: LogState, offset: int) -> None:
    """Make the log end at ``offset``, which is not below its first segment."""
    state.snapshot_offset = -1
    there = set(file_names(state.files))
    for found in snapshot_offsets(there):
        if found > offset:
            state.files.remove(segment_file(found, SNAPSHOT_SUFFIX))
            there.discard(segment_file(found, SNAPSHOT_SUFFIX))
    gone = [segment for segment in state.segments if segment.base_offset > offset]
    left = state.segments[: len(state.segments) - len(gone)]
    cut = _Cut(left[-1], offset)
    state.segments = (*left[:-1], cut.shown)
    _lower_bounds(state, offset)
    state.publish()  # readers turn to what is left before the rest goes away under them
    for segment in reversed(gone):
        leave(state, segment, there)
        state.files.sync()
    segment = cut.made(state.config.segment_index_bytes)
    state.segments = (*left[:-1], segment)
    state.appender = new_appender(segment, state.parts, state.config)
    state.appender.prepare()
    state.files.sync()
    state.producers = _producers_at(state, offset)
    forget_epochs(state, state.epochs.truncate_from_end(offset))
    state.publish()


def _keep_end(state: LogState) -> None:
    """Let the files tell where a log ends that was cut inside a batch, or inside a gap: a segment begins there.

    Nothing else would, once the log is opened again. Kafka's log then ends where its last batch does.
    """
    if batches_end(state.segments[-1], state.parts) < state.log_end:
        roll(state)


def batches_end(segment: Segment, parts: Components) -> int:
    """The first offset behind the last batch of a segment; its base offset if it holds none."""
    end = segment.base_offset
    for chunk in walk(segment, last_indexed_position(segment, parts), parts, check_crc=False):
        end = chunk.tables[-1].last_offset[-1] + 1
    return end


class _Cut:
    """A segment whose end goes: what readers are shown meanwhile, then the segment as it is on disk.

    It gets a file handle and a place in the index cache of its own: readers of the old one are told that it is gone.
    """

    def __init__(self, old: Segment, offset: int) -> None:
        self._old, self._offset, parts = old, offset, old.parts
        found = find_batch(old, offset, parts) if offset < old.end_offset else None
        self._size = old.size_bytes if found is None else found[0]
        self._entries = {
            role: bytes(entries[: made.kept_bytes(entries, old.base_offset, offset)])
            for role, made in parts.indexes.items()
            for entries in [old.index_entries(role)]
        }
        self._log = old.files.open_segment(old.file_name(".log"))
        self.shown = self._segment(self._size)

    def made(self, max_index_bytes: int) -> Segment:
        """Cut the file, durably; the segment that is left."""
        old = self._old
        old.close()  # before its file is cut: it gives back what it had reserved
        for suffix in DESCRIBING_SUFFIXES:
            old.files.remove(old.file_name(suffix))
        self._log.truncate(self._size)
        self._log.sync()
        left = self._segment(None)
        for role, entries in self._entries.items():
            write_index(left, role, entries, max_index_bytes)
        self.shown.forget_indexes()
        return left

    def _segment(self, size_bytes: int | None) -> Segment:
        old = self._old
        return Segment(
            old.files,
            old.base_offset,
            self._offset,
            old.parts,
            self._log,
            size_bytes=size_bytes,
            index_entries=self._entries,
        )


def _lower_bounds(state: LogState, end: int) -> None:
    state.cleaning.void(end)
    state.recovery_point = min(state.recovery_point, end)
    state.given_watermark = min(state.given_watermark, end)
    state.log_start = min(state.log_start, end)


def _producers_at(state: LogState, end: int) -> ProducerState:
    """The producers' state below ``end``, from the newest snapshot that is left and the batches after it.

    Whoever is silent for ``producer.id.expiration.ms`` is not taken from the snapshot, as when a log is loaded.
    """
    found = newest_snapshot(state.files, snapshot_offsets(file_names(state.files)), end) or ProducerState()
    found.forget_silent(state.parts.env.clock.now_ms() - state.producer_expiration_ms)
    replay_range(found, state.segments, max(found.end_offset, state.segments[0].base_offset), end, state.parts)
    return found


# --- beginning again -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the records before the ones that a log begins with."""

    producers: ProducerState = field(default_factory=ProducerState)
    epochs: EpochCache = field(default_factory=EpochCache)


def _known_at(state: LogState, offset: int, log_start: int) -> _Known:
    """What the tier knows of a log that begins again at ``offset``, if it has what is before.

    Source: KIP-405, building a follower's auxiliary state.
    """
    remote = state.view.remote
    if remote is None or not remote.start_offset <= log_start < offset <= remote.end_offset:
        return _Known()
    epochs = EpochCache(remote.leader_epochs).truncate_from_end(offset)
    return _Known(producers_at(remote, offset, state.parts), epochs)


def _begin_again(state: LogState, offset: int, log_start: int, known: _Known) -> None:
    """Leave one segment, empty, at ``offset``.

    Nothing is left of the records when it comes, so that it never ends a log with a hole.
    """
    state.snapshot_offset = -1
    first = state.segments[0]
    is_bare = not first.size_bytes and first.end_offset == first.base_offset  # it may begin with a gap
    if not is_bare or len(state.segments) > 1:
        _cut_back(state, first.base_offset)
    old = state.segments
    if old[0].base_offset == offset:
        old = ()
    else:
        segment, state.appender = next_segment(state, offset)
        state.segments = (*old, segment)
    for found in snapshot_offsets(file_names(state.files)):
        state.files.remove(segment_file(found, SNAPSHOT_SUFFIX))
    if known.producers.entries():
        write_snapshot(state.files, offset, known.producers)
    state.segments, state.producers = state.segments[-1:], known.producers
    state.producers.end_offset = state.recovery_point = state.given_watermark = offset
    state.log_start = log_start
    state.publish()
    for segment in old:
        leave(state, segment)
    state.files.sync()
    forget_epochs(state, known.epochs)
    state.publish()
