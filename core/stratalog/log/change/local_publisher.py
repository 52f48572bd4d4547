"""Publication of finished segments in an open log: in place of existing segments, or at the log end.

``swap_files`` documents the order of the renames and the effects of a crash. A read of a replaced segment is retried
with the new segment.

Source: apache/kafka LocalLog.replaceSegments, LogLoader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from stratalog.errors import ConfigError, OffsetsOutOfOrderError, OutOfResourcesError, StorageError
from stratalog.log.change.truncate import batches_end
from stratalog.log.durability.sync import flush
from stratalog.log.folder.folder import file_names, set_aside
from stratalog.log.folder.swap_files import swap_in
from stratalog.log.folder.write_rounds import Pending, begin_round, end_round
from stratalog.log.load.producer_replay import write_snapshot
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import next_segment, roll
from stratalog.model.events import SegmentRolled
from stratalog.model.names import LOG_SUFFIX, segment_file
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.segment.segment import Segment


class LocalPublisher:
    """Publisher of finished segments in one log that is open for writing. One thread at a time may use it.

    Attributes:
        generation: value of ``CleaningState.generation`` when this publisher was made. After a truncation or a new
            cleanup policy, that value has changed, and ``replace`` publishes nothing.
    """

    def __init__(self, state: LogState) -> None:
        self._state, self.generation = state, state.cleaning.generation

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a new segment in the log's folder; raise StorageError if the log is not writable."""
        state = self._state
        state.health.check_writable()
        return SegmentBuilder(state.files, base_offset, state.settings.components, state.settings.config)

    def replace(self, built: BuiltSegment, old: Sequence[Segment]) -> bool:
        """Replace consecutive closed segments with one finished segment.

        Args:
            built: the new segment, with the base offset of the first old segment. Its files are removed unless it is
                published.
            old: the segments to replace. Their records were read after this publisher was made.

        Returns:
            True if the segments were replaced. False if ``generation`` is outdated, if the log no longer has the old
            segments, if one of them is active, or if the first of them is completely in the tier.

        Raises:
            ClosedError: the log is closed.
            StorageError: the log was not writable, or the tier could not be read: nothing was done. Or a rename or a
                sync failed: the log is out of service. The next opening then completes or undoes the change.
        """
        state = self._state
        with state.lock:
            with _discard_after_error([built]):
                state.health.check_writable()
                is_current = state.cleaning.generation == self.generation and _are_replaceable(state, old)
            if not is_current:
                built.discard()
                return False
            try:
                _replace(state, built, old)
            except BaseException as error:  # some files may be renamed already: only the next opening can repair that
                state.health.fail_after("a replacement of segments", error)
                raise
            return True

    def add(self, built: Sequence[BuiltSegment], mark: tuple[str, int] | None = None) -> None:
        """Add finished segments at the log end, durably: all of them, or none, even after a crash.

        The segments must not contain records of an idempotent producer or of a transaction, because the producers'
        state is not updated.

        Args:
            built: new segments, ascending. The first begins at the log end, and each ends where the next begins. Their
                files are removed unless they are published.
            mark: the name of a writer and the number of its write, see ``write_rounds``; None if the write has no
                number. The number is stored if and only if the segments are added, even after a crash.

        Raises:
            ConfigError: ``built`` is empty.
            OffsetsOutOfOrderError: the log ends at another offset; nothing was added.
            NotLeaderOrFollowerError: the log does not lead; nothing was added.
            OutOfResourcesError: no space or no descriptors. Before the first rename, nothing was added, and the log
                stays in service. After the first rename, the log is out of service.
            StorageError: the log was not writable: nothing was added. Or the disk failed: the log is out of service.
                The next opening then completes the change or undoes it.
        """
        if not built:
            raise ConfigError("add() takes at least one segment")
        state, base = self._state, built[0].base_offset
        with state.durability.syncing:
            with _discard_after_error(built):
                with state.lock:
                    state.health.check_writable()
                    state.role.check_leads()
                    _check_end(state, base)
                    roll(state)
                flush(state)
            with state.lock:
                with _discard_after_error(built):
                    _check_end(state, base)  # another thread may have appended, even into the empty segment
                with state.health.guard("adding segments"):
                    _add(state, built, mark)


@contextlib.contextmanager
def _discard_after_error(new_segments: Sequence[BuiltSegment]) -> Iterator[None]:
    """Remove the files of the segments in ``new_segments`` if the guarded block raises an error."""
    try:
        yield
    except BaseException:
        for segment in new_segments:
            segment.discard()
        raise


# --- replacing -------------------------------------------------------------------------------------------------------


def _are_replaceable(state: LogState, old: Sequence[Segment]) -> bool:
    """Return True if the log still has the old segments, none of them is active, and none is completely in the tier."""
    bases = [segment.base_offset for segment in state.writes.segments]
    if old[0].base_offset not in bases:
        return False
    first = bases.index(old[0].base_offset)
    if state.writes.segments[first : first + len(old)] != tuple(old) or state.writes.segments[-1] in old:
        return False
    remote = None if state.settings.remote is None else state.settings.remote.view()
    # Earlier leaders may have had other segment bounds: the tier may then end inside the first old segment.
    return remote is None or not remote.segments or remote.segments[-1].end_offset < old[0].end_offset


def _replace(state: LogState, new_segment: BuiltSegment, old: Sequence[Segment]) -> None:
    first, names = state.writes.segments.index(old[0]), set(file_names(state.files))
    reader_stack = ExitStack()  # not closed after an error: readers keep the segment

    def take_over(swaps: Sequence[BuiltSegment]) -> Iterator[str]:
        # Between the renames, readers use an open descriptor and index entries in memory: they look up no file name.
        with ExitStack() as stack:
            interim = swaps[0].reader()
            stack.callback(interim.close)
            stack.enter_context(interim.file.slice(0, 0))
            new_end = batches_end(interim, state.settings.components)
            _show(state, first, len(old), interim)
            reader_stack.enter_context(stack.pop_all())
        for segment in old:
            segment.close()
            # The snapshot of the first old segment is also valid for the new segment.
            keeps_snapshot = segment.base_offset == new_segment.base_offset
            yield from set_aside(state.files, segment, keep_snapshot=keeps_snapshot, names=names)
            # After a crash, the opening that completes the replacement keeps old segments after the last new batch.
            # Sync after each removal. Without these syncs, a power loss could restore this segment but not the next
            # one, which may have tombstones for its records.
            if segment.base_offset >= new_end:
                state.files.sync()

    state.delete_later(swap_in(state.files, [new_segment], take_over))
    _show(state, first, 1, _open_published(state, new_segment))
    reader_stack.close()


def _show(state: LogState, first: int, count: int, segment: Segment) -> None:
    state.writes.replace_segments(first, count, [segment])
    state.publish()


# --- adding ----------------------------------------------------------------------------------------------------------


def _check_end(state: LogState, base_offset: int) -> None:
    if base_offset != state.log_end:
        raise OffsetsOutOfOrderError(f"{state.name} ends at {state.log_end}, not at {base_offset}")


def _add(state: LogState, new_segments: Sequence[BuiltSegment], mark: tuple[str, int] | None) -> None:
    files, base, end = state.files, new_segments[0].base_offset, new_segments[-1].end_offset
    with _discard_after_error(new_segments):  # without space for these files, the log stays in service
        if state.writes.has_stale_epochs or state.writes.epochs.latest != state.role.leader_epoch:
            state.writes.store_epochs(state.writes.epochs.assign(state.role.leader_epoch, base))
        if mark is not None:
            _begin_round(state, Pending(*mark, base_offset=base, end_offset=end))
    try:
        _replace_active(state, new_segments)
    except StorageError as error:  # some files may be renamed already: only the next opening can repair that
        state.health.fail(error)
        raise
    if mark is not None:
        end_round(files, end)
    state.notify(SegmentRolled(log=state.name, base_offset=end))


def _begin_round(state: LogState, pending: Pending) -> None:
    """Store durably, in the file of write rounds, that a numbered write begins.

    If the disk is full, or another resource is exhausted, remove the entry again. If the removal also fails, take the
    log out of service. Without the removal, the write would count as written when later appends reach its end offset.
    """
    try:
        begin_round(state.files, pending)
    except OutOfResourcesError as error:  # the file may have been replaced before the error
        try:
            end_round(state.files, pending.base_offset)
        except StorageError:
            state.health.fail_after("adding segments", error)
        raise


def _replace_active(state: LogState, new_segments: Sequence[BuiltSegment]) -> None:
    """Put the segments in the place of the empty active segment, and begin a new one after them."""
    active_segment, end = state.writes.segments[-1], new_segments[-1].end_offset

    def take_over(swaps: Sequence[BuiltSegment]) -> list[str]:
        del swaps
        active_segment.close()
        # The snapshot of the active segment is also valid for the first new segment.
        return set_aside(state.files, active_segment, keep_snapshot=True)

    state.delete_later(swap_in(state.files, new_segments, take_over))
    opened_segments = list[Segment]()
    try:
        for new_segment in new_segments:
            opened_segments.append(_open_published(state, new_segment))
    except StorageError:
        for segment in opened_segments:
            segment.close()
        raise
    state.writes.producers.end_offset = end
    write_snapshot(state.files, end, state.writes.producers)
    segment, appender = next_segment(state, end)
    state.writes.replace_segments(len(state.writes.segments) - 1, 1, [*opened_segments, segment])
    state.writes.replace_appender(appender)
    state.durability.note_names_changed()
    state.durability.raise_to(end)
    state.publish()


# --- both ------------------------------------------------------------------------------------------------------------


def _open_published(state: LogState, new_segment: BuiltSegment) -> Segment:
    """Open a published segment: its files have their final names."""
    log = state.files.open_segment(segment_file(new_segment.base_offset, LOG_SUFFIX))
    segment = Segment(state.files, new_segment.base_offset, new_segment.end_offset, state.settings.components, log)
    segment.largest = new_segment.largest
    return segment
