"""Durability: which bytes have reached the disk for good, and making more of them do.

A sync holds ``LogState.syncing``, and the log's own lock only before and after it: while one thread syncs, others
append, and wait for the next sync together. Logs sync beside each other; the file system joins what they ask for.

Source: apache/kafka UnifiedLog.flush.
"""

from __future__ import annotations

from stratalog.errors import ClosedError, SegmentGoneError, StorageError
from stratalog.log.state import LogState
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole


def flush(state: LogState) -> int:
    """Make everything written durable, indexes included; the new recovery point.

    Order: the segments' logs and indexes, then the folder that names them, then the recovery point. A sync that fails
    takes the log out of service and is not tried again.

    Raises:
        ClosedError: the log is closed.
        StorageError: what took the log out of service.
    """
    with state.syncing:
        return _sync(state, indexes=True)


def sync_records(state: LogState, end: int) -> None:
    """Return when the records below offset ``end`` are durable: by this call, or by one that others waited for.

    Indexes are left to ``flush``: they are compared with the log whenever they are read. Errors as ``flush``.
    """
    caller = object()
    try:  # from before the turn may be taken: Ctrl-C between taking it and the sync leaves nobody waiting for ever
        if not _waited_for(state, end, caller):
            with state.syncing:
                _sync(state, indexes=False)
    finally:
        with state.synced:
            if state.sync_runs is caller:
                state.sync_runs = None
                state.synced.notify_all()


def _waited_for(state: LogState, end: int, caller: object) -> bool:
    """True when a sync of somebody else has made it so; False if the caller has the turn to sync for all."""
    with state.synced:
        while state.recovery_point < end or state.folder_dirty:
            _check_in_service(state)
            if state.sync_runs is None:
                state.sync_runs = caller
                return False
            state.synced.wait()
    return True


def is_sync_due(state: LogState, interval_ms: int) -> bool:
    """Whether something has waited to be synced for ``interval_ms`` or ``flush.ms``, the shorter one."""
    with state.lock:
        if state.closed or state.failure is not None or state.recovery_point >= state.log_end:
            return False
        waited_ns = state.parts.env.clock.monotonic_ns() - state.synced_ns
        return waited_ns >= min(interval_ms, state.config.flush_ms) * 1_000_000


def _sync(state: LogState, *, indexes: bool) -> int:
    with state.lock:
        _check_in_service(state)
        end, done, folder = state.log_end, state.recovery_point, state.folder_dirty
        if done >= end and not folder:
            return done
        state.folder_dirty = False  # names that come into the folder from now on are for the next sync
        segments = [found for found in state.segments if found.end_offset > done or found is state.segments[-1]]
    try:
        for segment in segments:
            _sync_segment(state, segment, indexes=indexes)
        if folder:
            state.files.sync()
    except StorageError as error:
        state.fail(error)
        raise
    with state.lock:
        state.recovery_point = max(state.recovery_point, end)
        state.synced_ns = state.parts.env.clock.monotonic_ns()
        state.publish()
        return state.recovery_point


def _sync_segment(state: LogState, segment: Segment, *, indexes: bool) -> None:
    try:
        segment.log.sync()
        for role, index in list(segment.indexes().items()):
            if indexes or role is IndexRole.TRANSACTION:
                index.sync()
    except SegmentGoneError:
        with state.lock:
            closed_since = segment is not state.segments[-1]  # rolled, or taken away by retention; sealing syncs
        if not closed_since:
            raise
        if segment in state.segments:
            segment.log.sync()


def _check_in_service(state: LogState) -> None:
    if state.closed:
        raise ClosedError(f"log {state.log} is closed")
    if state.failure is not None:
        raise state.failure.with_traceback(None)
