"""Appends of a leader: commit prepared batches, alone or together with others, then wait until they are durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from stratalog.errors import ClosedError, ConfigError
from stratalog.log.append.commit import AppendResult, commit
from stratalog.log.append.group_commit import QueuedAppend, commit_queued
from stratalog.log.durability.sync import sync_records, wait_until_durable
from stratalog.log.state.log_state import LogState
from stratalog.model.messages.control import EndMarker
from stratalog.model.offsets import AppendOrigin, Durability
from stratalog.model.prepared import PreparedBatches
from stratalog.segment.control_batches import CONTROL_MAGIC, control_batch

_CLIENT: Final = AppendOrigin.CLIENT  # looked up at each append
_DURABLE: Final = Durability.DURABLE  # also looked up at each append
# Number of bits of Kafka's fields, without the sign bit.
_MARKER_BITS: Final = {"producer_id": 63, "producer_epoch": 15, "coordinator_epoch": 31}

Sync: TypeAlias = Callable[[LogState, int], None]
"""Callback that makes the records of a log below an offset durable, or schedules their sync."""


def append(
    state: LogState,
    batches: PreparedBatches,
    durability: Durability,
    origin: AppendOrigin = _CLIENT,
    sync: Sync | None = None,
) -> AppendResult:
    """Commit prepared batches, then wait until they are durable if ``durability`` or ``flush.messages`` requires it.

    If the wait is required and ``sync`` is not None, ``sync`` is called instead, with the log and the exclusive end
    offset of the batches. ``origin`` is CLIENT for batches of a producer, COORDINATOR for batches of a coordinator.
    Raises the same errors as ``commit`` and ``flush``.
    """
    if durability is _DURABLE and sync is None and _may_queue(state, batches):
        return _append_queued(state, batches)
    with state.lock:
        result = commit(state, batches, origin)
        due = (
            state.writes.segments[-1].end_offset - state.durability.recovery_point
            >= state.settings.config.flush_messages
        )
    if due or durability is _DURABLE:  # a retry also waits, because the first attempt may not have waited
        (sync or sync_records)(state, result[1] + 1)
    return result


def append_marker(
    state: LogState, producer_id: int, producer_epoch: int, marker: EndMarker, durability: Durability
) -> AppendResult:
    """Append the end marker of a transaction.

    The marker has magic 2 in every topic, because older magics have no markers. Raises the same errors as ``append``.

    Source: apache/kafka MemoryRecords.withEndTransactionMarker, UnifiedLog.appendAsLeader with the origin COORDINATOR.

    Raises:
        ConfigError: the producer id or an epoch is negative, or too large for its field.
    """
    for (name, bits), value in zip(
        _MARKER_BITS.items(), (producer_id, producer_epoch, marker.coordinator_epoch), strict=True
    ):
        if not 0 <= value < 1 << bits:
            raise ConfigError(f"{name}={value} of an end marker is not in [0, {(1 << bits) - 1}]")
    form = state.settings.components.formats.of(CONTROL_MAGIC, "append", 0)
    data = control_batch(
        form,
        marker,
        timestamp_ms=state.settings.components.env.clock.now_ms(),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    table = form.scan(data, 0, len(data), check_crc=False)
    return append(state, PreparedBatches(table, data), durability, AppendOrigin.COORDINATOR)


def _may_queue(state: LogState, batches: PreparedBatches) -> bool:
    """Return True if one write may contain these batches together with batches of other threads."""
    if batches.has_producer or batches.is_control:  # a batch with a producer id may be a retry
        return False
    # Below a local limit, an append may wait for room, which would delay all appends of the same write.
    return state.settings.remote is None or state.settings.config.local_hard_limit_bytes < 0


def _append_queued(state: LogState, batches: PreparedBatches) -> AppendResult:
    """Commit batches, possibly together with batches of other threads, and return when they are durable."""
    waiter = QueuedAppend(batches)
    turns = state.durability.turns
    try:
        if turns.enqueue(waiter):
            with state.lock:
                commit_queued(state)
        wait_until_durable(state, waiter)
    except BaseException:
        # Without this call, the batches might still be written after this error was raised.
        turns.leave(waiter, state.durability.recovery_point)
        raise
    if waiter.result is None:
        raise waiter.error or ClosedError(
            f"nothing was appended to {state.name}: the thread that wrote the group was interrupted"
        )
    return waiter.result
