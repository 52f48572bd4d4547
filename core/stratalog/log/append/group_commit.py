"""Group commit: concurrent durable appends are written together, with one write to the file.

Each thread adds its batches to the end of a queue. The first thread in the queue also writes the batches that arrive
during its write. Each other thread waits once, until its batches are durable, and waits for no other lock. If 64
threads acquired the log's lock in turn, the locks would cost more time than the work. A syncing thread first writes the
batches that are still in the queue, so the queue is empty at each sync.

The result is the same as with single appends: the same segments, and for each append its own offsets or its own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from stratalog.errors import StorageError
from stratalog.log.append.append import AppendResult, QueuedAppend, commit
from stratalog.log.state.log_state import LogState
from stratalog.model.offsets import MAX_OFFSET
from stratalog.model.prepared import PreparedBatches

_TOGETHER_BYTES: Final = 1 << 20  # limit of one write, because the batches are copied for it
_CREATE_TIME: Final = "CreateTime"


def commit_queued(state: LogState) -> None:
    """Write all queued batches. The error of an append is raised by the thread that waits for it, not by this function.

    The caller holds the log's lock.
    """
    while waiters := state.durability.turns.take_queued():
        try:
            _commit_all(state, cast(list[QueuedAppend], waiters))
        except BaseException as error:  # such as Ctrl-C: no thread would write the batches taken from the queue
            state.health.handle_error("an append", error)
            raise


def _commit_all(state: LogState, waiters: Sequence[QueuedAppend]) -> None:
    if len(waiters) > 1 and _commit_together(state, waiters):
        return
    for waiter in waiters:
        try:
            waiter.note_written(commit(state, waiter.batches))
        except Exception as error:  # noqa: BLE001 - the waiting thread raises it
            waiter.note_refused(error)


def _commit_together(state: LogState, waiters: Sequence[QueuedAppend]) -> bool:
    """Write the batches of several appends with one commit, or return False and write nothing."""
    pieces = [waiter.batches for waiter in waiters]
    size, base, settings = sum(piece.size_bytes for piece in pieces), state.log_end, state.settings
    end, largest_ms = base + sum(piece.span for piece in pieces), max(piece.largest_ms for piece in pieces)
    if not state.takes_appends or settings.remote is not None or end > MAX_OFFSET or size > _TOGETHER_BYTES:
        return False
    if settings.config.message_timestamp_type != _CREATE_TIME or {piece.magic for piece in pieces} != {2}:
        return False
    try:
        appender = state.writes.appender
        if not appender.segment.size_bytes or appender.should_roll(size, end - 1, largest_ms):
            return False
        result = commit(state, PreparedBatches.joined(pieces))
    except StorageError:  # nothing was written: a single write of each append gives that append its own result
        return False
    for waiter in waiters:
        waiter.note_written(AppendResult(base, base + waiter.batches.span - 1, result.append_time_ms))
        base += waiter.batches.span
    return True
