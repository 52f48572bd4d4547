"""Appends of a leader: encode or check, write under the log's lock, then wait for the requested durability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from stratalog.errors import ClosedError, InvalidRecordError
from stratalog.log.append.append_queue import QueuedAppend, write_row
from stratalog.log.append.commit import AppendResult, write_batch, write_prepared
from stratalog.log.durability.sync import sync_records, wait_until_durable
from stratalog.log.prepare.prepare_batches import prepare_batches
from stratalog.log.prepare.prepare_records import Prepared, prepare_records
from stratalog.log.state.log_state import LogState
from stratalog.model.batches import Buffer
from stratalog.model.offsets import AppendOrigin, Durability
from stratalog.model.records import Record
from stratalog.spi.formats import PlainBatch, RecordFormat

_DURABLE: Final = Durability.DURABLE  # looked up at each append

Sync: TypeAlias = Callable[[LogState, int], None]
"""Callback that makes the records of a log below an offset durable, or schedules it."""


def append_records(
    state: LogState, records: Sequence[Record], durability: Durability, sync: Sync | None = None
) -> AppendResult:
    """Encode and append records. Errors as ``prepare_records`` and ``write``."""
    config, parts, rules = state.settings.config, state.settings.components, state.settings.rules
    plain = rules.encoded(records)
    if plain is not None:
        return write_plain(state, rules.format, plain, durability, sync)
    return write(state, prepare_records(records, config, parts), durability, sync)


def append_batches(
    state: LogState, data: Buffer, durability: Durability, origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendResult:
    """Append batches that the caller encoded. Errors as ``prepare_batches`` and ``write``."""
    rules = state.settings.rules
    plain = rules.taken(data)
    if plain is not None:
        return write_plain(state, rules.format, plain, durability)
    prepared = prepare_batches(data, state.settings.config, state.settings.components, origin=origin)
    if not prepared:
        raise InvalidRecordError("no whole batch was given")
    return write(state, prepared, durability, origin=origin)


def write_plain(
    state: LogState, found: RecordFormat, batch: PlainBatch, durability: Durability, sync: Sync | None = None
) -> AppendResult:
    """Write one plain batch, as ``write`` does."""
    if durability is _DURABLE and sync is None and _may_line_up(state):
        return _write_in_row(state, found, batch)
    with state.lock:
        result = write_batch(state, found, batch)
        due = result[1] + 1 - state.durability.recovery_point >= state.settings.config.flush_messages
    if due or durability is _DURABLE:
        (sync or sync_records)(state, result[1] + 1)
    return result


def _may_line_up(state: LogState) -> bool:
    """Return True if appends may share a write. False if an append may wait for room, because all would then wait."""
    return state.settings.remote is None or state.settings.config.local_hard_limit_bytes < 0


def _write_in_row(state: LogState, found: RecordFormat, batch: PlainBatch) -> AppendResult:
    """Write a batch, possibly together with batches of other threads, and return when it is durable."""
    waiter = QueuedAppend(found, batch)
    try:
        if state.durability.turns.line_up(waiter):
            with state.lock:
                write_row(state)
        wait_until_durable(state, waiter)
    except BaseException:
        state.durability.turns.leave(
            waiter, state.durability.recovery_point
        )  # otherwise the batch might still be written after this error was raised
        raise
    if waiter.result is None:
        raise waiter.error or ClosedError(f"nothing was appended to {state.log}: who was to write it was interrupted")
    return waiter.result


def write(
    state: LogState,
    prepared: Sequence[Prepared],
    durability: Durability,
    sync: Sync | None = None,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> AppendResult:
    """Write as ``write_prepared`` does, and acquire the log's lock for it. Durable on return, if requested."""
    with state.lock:
        result = write_prepared(state, prepared, origin)
        due = state.log_end - state.durability.recovery_point >= state.settings.config.flush_messages
    if due or durability is _DURABLE:  # a retry also waits: its first try may not have waited
        (sync or sync_records)(state, result.last_offset + 1)
    return result
