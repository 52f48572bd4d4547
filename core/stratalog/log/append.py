"""Appending as leader: offsets, bytes, index, publish.

Source: apache/kafka UnifiedLog.append.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from stratalog.errors import ClosedError, DiskFullError, InvalidRecordError, RecordBatchTooLargeError, StorageError
from stratalog.log.encoded import prepare_batches
from stratalog.log.folder import write_epochs
from stratalog.log.replay import read_marker, replay
from stratalog.log.roll import roll
from stratalog.log.state import LogState
from stratalog.log.sync import sync_records
from stratalog.log.validate import Prepared, prepare_records
from stratalog.model.batches import NO_EPOCH, NO_PRODUCER, Buffer, RecordBatch
from stratalog.model.offsets import Durability
from stratalog.model.records import Record
from stratalog.model.segments import AbortedTransaction
from stratalog.segment.framing import MAX_RELATIVE_OFFSET

Placed: TypeAlias = tuple[memoryview, RecordBatch]
"""A batch with its bytes, which say at which offsets it goes."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where records went: offsets [base_offset, last_offset], both inclusive.

    ``append_time_ms`` is the log's clock, or of the earlier append if ``duplicate``: a retry that was answered from
    memory and not written again.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool = False


def append_records(state: LogState, records: Sequence[Record], durability: Durability) -> AppendResult:
    """Encode and append records. Errors as ``prepare_records`` and ``write``."""
    return write(state, prepare_records(records, state.config, state.parts), durability)


def append_batches(state: LogState, data: Buffer, durability: Durability) -> AppendResult:
    """Append batches that a client encoded. Errors as ``prepare_batches`` and ``write``."""
    prepared = prepare_batches(data, state.config, state.parts)
    if not prepared:
        raise InvalidRecordError("no whole batch was given")
    return write(state, prepared, durability)


def write(state: LogState, prepared: Sequence[Prepared], durability: Durability) -> AppendResult:
    """Give batches their offsets and write them, under the log's lock.

    What goes to one segment is written at once, all or nothing.

    Raises:
        NotLeaderOrFollowerError: the log follows a leader.
        RecordBatchTooLargeError: a batch has more bytes than ``segment.bytes``.
        OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError: an idempotent producer broke a rule.
        DiskFullError: no space; the log stays as it was before the segment's write, and goes on reading.
        LogDirOfflineError: writing failed; the log is out of service.
        KeyboardInterrupt and others that are not ours: the log is out of service, and recovered when it is opened again.
    """
    size = max(max(piece.table.size_bytes) for piece in prepared)
    with state.lock:
        state.check_writable()
        state.check_leads()
        if size > state.config.segment_bytes:
            raise RecordBatchTooLargeError(f"a batch of {size} bytes, segment.bytes is {state.config.segment_bytes}")
        result = _duplicate(state, prepared) or _written(state, prepared)
        due = state.log_end - state.recovery_point >= state.config.flush_messages
    if due or durability is Durability.DURABLE:  # a retry, too, waits for what its first try may not have waited for
        sync_records(state, result.last_offset + 1)
    return result


def _written(state: LogState, prepared: Sequence[Prepared]) -> AppendResult:
    base = state.log_end
    now = state.parts.env.clock.now_ms()
    # Here and not before the lock: so the times of a log follow its offsets, and the result tells the time that is stored.
    stamp = now if state.config.message_timestamp_type == "LogAppendTime" else None
    write_groups(state, by_segment(state, _assigned(state, prepared, base, stamp)))
    return AppendResult(base, state.log_end - 1, now)


def write_groups(state: LogState, groups: Iterable[Sequence[Placed]]) -> None:
    """Write batches that have their offsets, each group at once, under the log's lock; errors as ``write``."""
    try:
        for group in groups:
            _write_group(state, group)
    except DiskFullError:
        raise
    except StorageError as error:
        state.fail(error)
        raise
    except BaseException as error:  # Ctrl-C, say: the file may hold what the offsets do not count, which recovery finds
        reason = f"log {state.log} is out of service, as an append ended early ({type(error).__name__}): open it again"
        state.failure = ClosedError(reason)
        raise
    finally:
        state.publish()


def _duplicate(state: LogState, prepared: Sequence[Prepared]) -> AppendResult | None:
    batches = [batch for piece in prepared for batch in piece.table]
    if all(batch.producer_id == NO_PRODUCER for batch in batches):
        return None
    if len(batches) > 1:
        raise InvalidRecordError("an append of an idempotent producer holds exactly one batch")
    seen = state.producers.duplicate_of(batches[0])
    if seen is not None:
        return AppendResult(seen.first_offset, seen.last_offset, seen.timestamp_ms, duplicate=True)
    state.producers.check(batches[0])
    return None


def _assigned(state: LogState, prepared: Sequence[Prepared], base: int, append_time_ms: int | None) -> list[Placed]:
    """Each batch with its bytes, offsets, leader epoch and the time of the append (None: as it came) patched in."""
    listed: list[Placed] = []
    for piece in prepared:
        table = piece.format.assign(piece.data, piece.table, base, state.leader_epoch, append_time_ms)
        base = table.last_offset[-1] + 1
        data = memoryview(piece.data)
        listed.extend((data[batch.position : batch.position + batch.size_bytes], batch) for batch in table)
    return listed


def by_segment(state: LogState, batches: Sequence[Placed]) -> list[list[Placed]]:
    """Split at the places where the segment's size says so; other reasons to roll are looked at per group."""
    limit = state.config.segment_bytes
    groups: list[list[Placed]] = [[]]
    size = state.segments[-1].size_bytes
    for data, batch in batches:
        if size and size + len(data) > limit:
            groups.append([])
            size = 0
        groups[-1].append((data, batch))
        size += len(data)
    return [group for group in groups if group]


def _write_group(state: LogState, group: Sequence[Placed]) -> None:
    size = sum(len(data) for data, _ in group)
    largest = max(batch.max_timestamp_ms for _, batch in group)
    if state.appender.should_roll(size, group[-1][1].last_offset, largest):
        roll(state, _least_offset(group[0][1]))
    _assign_epochs(state, group)
    headers, position = [], 0
    for data, batch in group:
        headers.append(replace(batch, position=position))
        position += len(data)
    state.appender.append([data for data, _ in group], headers, _aborted(state, group))
    for data, batch in group:
        replay(state.producers, data, replace(batch, position=0), state.parts)


def _least_offset(first: RecordBatch) -> int:
    """An offset at or below all in a batch: a compressed message of magic 0 or 1 tells its last one alone."""
    return first.base_offset if first.magic >= 2 else max(first.last_offset - MAX_RELATIVE_OFFSET, 0)


def _aborted(state: LogState, group: Sequence[Placed]) -> dict[int, AbortedTransaction]:
    """The index entries of the transactions that abort markers are about to end, by the marker's offset."""
    entries = {}
    for data, batch in group:
        marker = read_marker(data, replace(batch, position=0), state.parts) if batch.is_control else None
        ended = None if marker is None else state.producers.ended_by(batch, marker)
        if ended is not None and ended.aborted:
            last_stable = state.producers.last_stable_at(ended)
            entries[batch.last_offset] = AbortedTransaction(
                ended.producer_id, ended.first_offset, ended.last_offset, last_stable
            )
    return entries


def _assign_epochs(state: LogState, group: Sequence[Placed]) -> None:
    epochs = state.epochs
    for _, batch in group:
        if batch.magic >= 2 and batch.leader_epoch not in {epochs.latest, NO_EPOCH}:
            epochs = epochs.assign(batch.leader_epoch, batch.base_offset)
    if epochs is not state.epochs:
        write_epochs(state.files, epochs)
        state.epochs = epochs
