"""Durability of a log: flushes, syncs, and waits for a sync.

Appends that arrive during a sync share the next sync. Before the next sync begins, its thread waits a short time,
because the threads whose appends are now durable may append again.

A sync holds ``DurabilityState.syncing`` throughout, and the log's own lock only before and after the disk work. While
one thread syncs, other threads append and wait together for the next sync. Different logs sync in parallel, and the
file system combines their requests.

Source: apache/kafka UnifiedLog.flush.
"""

from __future__ import annotations

from typing import Final

from stratalog.errors import SegmentGoneError, StorageError, SystemLimitError
from stratalog.log.state.log_state import LogState
from stratalog.log.state.sync_turns import REFUSED, Waiter
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole

_GATHERING: Final = 6  # wait up to a sixth of the last sync's duration: more appends then share the sync
_LONGEST_GATHERING_NS: Final = 5_000_000


def flush(state: LogState, *, with_queued: bool = True) -> int:
    """Implement ``Log.flush``, which documents the result and errors.

    If ``with_queued`` is True, write the queued batches first. Then sync the ``.log`` files and indexes, and after them
    the folder that names the files. If all records and file names are durable already, nothing is synced, not even
    indexes that ``sync_records`` did not sync. A sync that fails is not retried.
    """
    with state.durability.syncing:
        return _sync(state, indexes=True, with_queued=with_queued)


def sync_records(state: LogState, end: int) -> None:
    """Wait until the records below offset ``end`` are durable, by a sync of this thread or of another one.

    Of the indexes, only transaction indexes are synced, because the others can be rebuilt from the log after a crash.
    ``flush`` syncs all indexes. Raises the same errors as ``flush``.
    """
    wait_until_durable(state, Waiter(end))


def wait_until_durable(state: LogState, waiter: Waiter) -> None:
    """Wait until the records below ``waiter.end`` are durable, by a sync of this thread or of another one.

    If the waiter has queued batches, the batches are durable on return, unless ``waiter.end`` is ``REFUSED``. Raises
    the same errors as ``flush``.
    """
    try:  # before take(): after Ctrl-C between take() and the sync, leave() must wake the other waiters
        while waiter.end != REFUSED and (state.durability.recovery_point < waiter.end or state.durability.folder_dirty):
            state.health.check_in_service()
            if state.durability.turns.take(waiter):
                state.durability.turns.gather(
                    waiter, min(state.durability.sync_took_ns // _GATHERING, _LONGEST_GATHERING_NS) / 1e9
                )
                with state.durability.syncing:
                    _sync(state, indexes=False)
                return
            waiter.gate.acquire()
    finally:
        state.durability.turns.leave(waiter, state.durability.recovery_point)


def is_sync_due(state: LogState, interval_ms: int) -> bool:
    """Return True if the log has unsynced records, and the last sync is too long ago.

    The limit is the shorter of ``interval_ms`` and ``flush.ms``. Before the first sync, any unsynced record is due. The
    result is False if the log is closed or out of service.
    """
    with state.lock:
        if state.health.closed or state.health.failure is not None or state.durability.recovery_point >= state.log_end:
            return False
        waited_ns = state.settings.components.env.clock.monotonic_ns() - state.durability.synced_ns
        return waited_ns >= min(interval_ms, state.settings.config.flush_ms) * 1_000_000


def _sync(state: LogState, *, indexes: bool, with_queued: bool = True) -> int:
    durability, clock = state.durability, state.settings.components.env.clock
    with state.lock:
        state.health.check_in_service()
        if with_queued:
            durability.turns.write_queued()
        end, synced_end = state.log_end, durability.recovery_point
        is_folder_dirty, names_version = durability.folder_dirty, durability.names_version
        if synced_end >= end and not is_folder_dirty:
            return synced_end
        segments = [
            segment
            for segment in state.writes.segments
            if segment.end_offset > synced_end or segment is state.writes.segments[-1]
        ]
    began_ns = clock.monotonic_ns()
    try:
        for segment in segments:
            _sync_segment(state, segment, indexes=indexes)
        if is_folder_dirty:
            state.files.sync()
    except StorageError as error:
        if not isinstance(error, SystemLimitError):  # on SystemLimitError, no sync was tried
            state.health.fail(error)
        raise
    with state.lock:
        durability.note_synced(end, names_version, began_ns, clock.monotonic_ns())
        state.publish()
        return durability.recovery_point


def _sync_segment(state: LogState, segment: Segment, *, indexes: bool) -> None:
    try:
        segment.file.sync()
        for role, index in segment.indexes().items():
            if indexes or role is IndexRole.TRANSACTION:
                index.sync()
    except SegmentGoneError:
        with state.lock:
            # rolled, or removed by retention; a roll has synced the indexes
            closed_since = segment is not state.writes.segments[-1]
        if not closed_since:
            raise
        if segment in state.writes.segments:
            segment.file.sync()
