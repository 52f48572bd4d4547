"""Atomic replacement of segments by a cleaned one: after a crash, it is either complete or undone.

Order: the new files are durable under ``.cleaned`` names. They are renamed to ``.swap``, durably; from this point the
new files count. Then the old files are renamed to ``.deleted``, the new logs to their final names, and last the new
indexes. Each part is durable before the next, because a power loss may keep any subset of the names that were not
synced. ``swap_recovery`` completes or undoes the replacement after a crash.

Source: apache/kafka LocalLog.replaceSegments; unlike there, no two steps share a sync of the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from stratalog.errors import StorageError
from stratalog.log.folder.folder import file_names, set_aside
from stratalog.log.folder.swap_files import rename_to_live, rename_to_swap
from stratalog.log.state.log_state import LogState
from stratalog.model.names import LOG_SUFFIX, segment_file
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.segment.segment import Segment


def replace_segments(state: LogState, made: CleanedSegment, old: Sequence[Segment], generation: int) -> bool:
    """Replace the consecutive closed segments ``old`` with the finished segment ``made``.

    Readers with the old segments in their view continue with the segments that they hold open. Otherwise they find the
    new segment.

    Args:
        state: state of the log.
        made: the new segment; its base offset is the base offset of the first old segment.
        old: the segments that it was made from.
        generation: value of ``state.cleaning.generation`` when the read of the old segments began.

    Returns:
        True if the segments were replaced. False if the log has changed since; nothing was done.

    Raises:
        ClosedError: the log is closed.
        StorageError: a rename or a sync failed; the log is out of service. The next opening completes or undoes the
        change.
    """
    with state.lock:
        state.health.check_writable()
        if state.cleaning.generation != generation or not _are_there(state, old):
            return False
        try:
            _replace(state, made, old)
        except StorageError as error:  # a part of the names may be changed: only the next opening repairs that
            state.health.fail(error)
            raise
        return True


def _are_there(state: LogState, old: Sequence[Segment]) -> bool:
    """Return True if the log still has the old segments, none of them is active, and the tier has none of them."""
    bases = [segment.base_offset for segment in state.writes.segments]
    if old[0].base_offset not in bases:
        return False
    first = bases.index(old[0].base_offset)
    if state.writes.segments[first : first + len(old)] != tuple(old) or state.writes.segments[-1] in old:
        return False
    remote = None if state.settings.remote is None else state.settings.remote.view()
    return remote is None or not remote.segments or remote.segments[-1].end_offset <= old[0].base_offset


def _replace(state: LogState, made: CleanedSegment, old: Sequence[Segment]) -> None:
    files, end = state.files, old[-1].end_offset
    first = state.writes.segments.index(old[0])
    swaps = rename_to_swap(files, [made])
    # Between the renames, readers use an open descriptor and index entries in memory: they look up no file name.
    with ExitStack() as closing:
        between = Segment(
            files,
            made.base_offset,
            end,
            state.settings.components,
            files.open_segment(swaps[LOG_SUFFIX]),
            names=swaps,
            index_entries={role: bytes(entries) for role, entries in made.entries.items()},
        )
        closing.callback(between.close)
        closing.enter_context(between.log.slice(0, 0))
        between.largest = made.largest
        _publish(state, first, len(old), between)
        reading = closing.pop_all()  # readers keep it, even if a later step fails
        names = set(file_names(files))
        due_ns = (
            state.settings.components.env.clock.monotonic_ns() + state.settings.config.file_delete_delay_ms * 1_000_000
        )
        for segment in old:
            segment.close()
            kept = segment.base_offset == made.base_offset  # its snapshot is also valid for the new segment
            state.writes.pending_deletes.add(set_aside(files, segment, keep_snapshot=kept, names=names), due_ns)
        files.sync()
        rename_to_live(files, [made])
        log = files.open_segment(segment_file(made.base_offset, LOG_SUFFIX))
        final = Segment(files, made.base_offset, end, state.settings.components, log)
        final.largest = made.largest
        _publish(state, first, 1, final)
        reading.close()


def _publish(state: LogState, first: int, count: int, segment: Segment) -> None:
    state.writes.replace_segments(first, count, [segment])
    state.publish()
