"""Writes of a leader, under the log's lock: assign offsets, write bytes and index, publish.

Source: apache/kafka UnifiedLog.append.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from stratalog.errors import InvalidRecordError, OffsetsExhaustedError, RecordBatchTooLargeError
from stratalog.log.load.producer_replay import admit, replay
from stratalog.log.prepare.prepare_records import Prepared
from stratalog.log.state.backpressure import wait_for_room
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import roll
from stratalog.model.batches import CONTROL_BIT, NO_EPOCH, NO_PRODUCER, BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.offsets import MAX_OFFSET, AppendOrigin
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.state import REMEMBERED_BATCHES, ProducerState
from stratalog.segment.components import Components
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.spi.formats import PlainBatch, RecordFormat

_of: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class

Placed: TypeAlias = tuple[memoryview, RecordBatch]
"""A batch and its bytes, with its offsets already assigned."""

Noted: TypeAlias = tuple[ProducerState, dict[int, AbortedTransaction]]
"""Draft of the producers' state after some batches, and their aborted transactions by the marker's offset."""


class AppendResult(NamedTuple):
    """Offsets of appended records: [base_offset, last_offset], both inclusive.

    ``duplicate`` is True for a retry that was recognised and not written again. ``append_time_ms`` is the time of the
    log's clock. For a duplicate, it is the timestamp of the earlier append.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool = False


def write_batch(state: LogState, found: RecordFormat, batch: PlainBatch) -> AppendResult:
    """Write one plain batch: the fast path of most appends. Errors as ``write_prepared``."""
    data, record_count, _, largest_ms, _ = batch
    size, epoch = len(data), state.role.leader_epoch
    if (
        size > state.settings.config.segment_bytes
        or not state.role.is_leader
        or state.health.failure
        or state.health.damage
        or state.health.closed
    ):
        check_takes(state, size)  # repeats these checks and raises; called only if one fails
    if state.settings.remote is not None or state.tier.is_pressed:
        wait_for_room(state, size)
    base = state.writes.segments[-1].end_offset
    end = base + record_count
    if end > MAX_OFFSET:
        raise OffsetsExhaustedError(f"log {state.log} ends at offset {base}")
    now = state.settings.components.env.clock.now_ms()
    found.place(data, base, epoch)
    try:
        if state.writes.appender.should_roll(size, end - 1, largest_ms):
            roll(state, base)
        if state.writes.epochs.latest != epoch:
            state.writes.store_epochs(state.writes.epochs.assign(epoch, base))
        state.writes.appender.append(PreparedBatches(found.scan(data, 0, size, check_crc=False), data))
        state.writes.producers.end_offset = end
    except BaseException as error:
        state.health.ended_early("an append", error)
        state.publish()
        raise
    state.publish_end()
    return _of(AppendResult, (base, end - 1, now, False))


def check_takes(state: LogState, size: int) -> None:
    """Raise an error unless the log accepts a leader's append of this size."""
    if (
        state.health.closed
        or state.health.failure is not None
        or state.health.damage is not None
        or not state.role.is_leader
    ):
        state.health.check_writable()
        state.role.check_leads()
    if size > state.settings.config.segment_bytes:
        raise RecordBatchTooLargeError(
            f"an append of {size} bytes, segment.bytes is {state.settings.config.segment_bytes}"
        )


def write_prepared(
    state: LogState, prepared: Sequence[Prepared], origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendResult:
    """Assign offsets to batches and write them into one segment, under the log's lock: all, or none.

    As in Kafka, an append never spans segments: if it does not fit into the active segment, that segment is closed
    first. If the process or the power fails during the write, the log may keep the first whole batches of the append,
    and never other batches of it. While the process runs, it and its readers see all batches or none.

    Raises:
        NotLeaderOrFollowerError: the log follows a leader.
        RecordBatchTooLargeError: the batches together have more bytes than ``segment.bytes``.
        OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError, TransactionCoordinatorFencedError: a
            producer, or a coordinator, broke a rule.
        OffsetsExhaustedError: offsets end at 2^63 - 2.
        LocalLimitError: local disk holds as much of the log as it may, and tier.outage.policy refuses more.
        DiskFullError: no space; the log is unchanged and can still be read.
        LogDirOfflineError: writing failed; the log is out of service.
        KeyboardInterrupt and other foreign exceptions: the log is out of service; the next opening recovers it.
    """
    size = sum(sum(piece.table.size_bytes) for piece in prepared)
    has_producers = any(max(piece.table.producer_id) > NO_PRODUCER for piece in prepared)
    check_takes(state, size)
    has_sequences = has_producers and origin is AppendOrigin.CLIENT
    result = _duplicate(state, prepared) if has_sequences else None
    is_control = (
        prepared[0].table.attributes[0] & CONTROL_BIT
    )  # markers do not wait: an open transaction blocks the offload to the tier
    if result is None and not is_control and wait_for_room(state, size) and has_sequences:
        result = _duplicate(state, prepared)  # another try may have been written during the wait
    return result or _written(state, prepared, origin if has_producers else None)


def _duplicate(state: LogState, prepared: Sequence[Prepared]) -> AppendResult | None:
    """Return the earlier append if all batches are a retry of it. A repeat of only some batches is not a retry."""
    ids = Counter(found for piece in prepared for found in piece.table.producer_id if found > NO_PRODUCER)
    if max(ids.values()) > REMEMBERED_BATCHES:
        raise InvalidRecordError(f"an append holds at most {REMEMBERED_BATCHES} batches of an idempotent producer")
    seen = [state.writes.producers.duplicate_of(batch) for piece in prepared for batch in piece.table]
    first, last = seen[0], seen[-1]
    if first is None or last is None or None in seen:
        return None
    return AppendResult(first.first_offset, last.last_offset, last.timestamp_ms, duplicate=True)


def _written(state: LogState, prepared: Sequence[Prepared], numbered_by: AppendOrigin | None) -> AppendResult:
    """Write batches that are not a retry.

    ``numbered_by`` is the origin that assigned the sequence numbers; None if no batch has a producer id.
    """
    base = state.log_end
    if base > MAX_OFFSET - sum(sum(piece.table.record_count) for piece in prepared):
        raise OffsetsExhaustedError(f"log {state.log} ends at offset {base}")
    now = state.settings.components.env.clock.now_ms()
    # Read the clock under the lock: then timestamps ascend with offsets, and the result has the stored time.
    stamp = now if state.settings.config.message_timestamp_type == "LogAppendTime" else None
    if len(prepared) == 1 and numbered_by is None and prepared[0].format.magic >= 2:
        write_table(state, prepared[0], base, stamp)
        return AppendResult(base, state.log_end - 1, now)
    batches = _assigned(state, prepared, base, stamp)
    note = partial(admit, in_sequence=numbered_by is AppendOrigin.CLIENT)
    write_groups(state, [batches], None if numbered_by is None else _noted(state, batches, note))
    return AppendResult(base, state.log_end - 1, now)


def write_table(state: LogState, piece: Prepared, base: int, append_time_ms: int | None) -> None:
    """Write batches without producer ids as ``write_groups`` does, but without a check of each batch."""
    table = piece.format.assign(piece.data, piece.table, base, state.role.leader_epoch, append_time_ms)
    last_offset = table.last_offset[-1]
    try:
        with state.health.guarded("an append"):
            if state.writes.appender.should_roll(len(piece.data), last_offset, max(table.max_timestamp_ms)):
                roll(state, base)
            if state.writes.epochs.latest != state.role.leader_epoch:
                state.writes.store_epochs(state.writes.epochs.assign(state.role.leader_epoch, base))
            state.writes.appender.append(PreparedBatches(table, piece.data))
            state.writes.producers.end_offset = last_offset + 1
    finally:
        state.publish()


def write_groups(state: LogState, groups: Iterable[Sequence[Placed]], noted: Noted | None = None) -> None:
    """Write batches with assigned offsets, each group with one write, under the log's lock; errors as ``write``.

    ``noted`` is the draft state of the single group that a leader has checked. Without it, batches are not checked.
    """
    try:
        with state.health.guarded("an append"):
            for group in groups:
                _write_group(state, group, noted)
    finally:
        state.publish()


def _assigned(state: LogState, prepared: Sequence[Prepared], base: int, append_time_ms: int | None) -> list[Placed]:
    """Return each batch and its bytes, after setting offsets, leader epoch and append time (None: keep the times)."""
    listed: list[Placed] = []
    for piece in prepared:
        table = piece.format.assign(piece.data, piece.table, base, state.role.leader_epoch, append_time_ms)
        base = table.last_offset[-1] + 1
        data = memoryview(piece.data)
        listed.extend((data[batch.position : batch.position + batch.size_bytes], batch) for batch in table)
    return listed


def by_segment(state: LogState, batches: Sequence[Placed]) -> list[list[Placed]]:
    """Split batches into groups by ``segment.bytes``; other reasons to roll are checked for each group."""
    limit = state.settings.config.segment_bytes
    groups: list[list[Placed]] = [[]]
    size = state.writes.segments[-1].size_bytes
    for data, batch in batches:
        if size and size + len(data) > limit:
            groups.append([])
            size = 0
        groups[-1].append((data, batch))
        size += len(data)
    return [group for group in groups if group]


def _noted(
    state: LogState,
    batches: Sequence[Placed],
    note: Callable[[ProducerState, Buffer, RecordBatch, Components], AbortedTransaction | None],
) -> Noted:
    draft, aborted = state.writes.producers.draft(), {}
    for data, batch in batches:
        own = replace(batch, position=0) if batch.is_control else batch  # only control batches are decoded
        ended = note(draft, data, own, state.settings.components)
        if ended is not None:
            aborted[batch.last_offset] = ended
    return draft, aborted


def _write_group(state: LogState, group: Sequence[Placed], noted: Noted | None) -> None:
    draft, aborted = noted or _noted(state, group, replay)
    size = sum(len(data) for data, _ in group)
    largest = max(batch.max_timestamp_ms for _, batch in group)
    if state.writes.appender.should_roll(size, group[-1][1].last_offset, largest):
        roll(state, _least_offset(group[0][1]))
    _assign_epochs(state, group)
    for batches in _runs(group):
        ended = {offset: entry for offset, entry in aborted.items() if offset in batches.table.last_offset}
        state.writes.appender.append(batches, ended)
    state.writes.producers.adopt(draft)


def _runs(group: Sequence[Placed]) -> Iterator[PreparedBatches]:
    """Yield the batches of a group, those of one magic together."""
    for magic, placed in groupby(group, key=lambda found: found[1].magic):
        run, rows, position = list(placed), list[tuple[int, ...]](), 0
        for data, batch in run:
            rows.append(astuple(replace(batch, position=position))[1:])
            position += len(data)
        table = BatchTable.from_rows(magic, rows, ScanStop.END, position)
        yield PreparedBatches(table, bytearray().join([data for data, _ in run]))


def _least_offset(first: RecordBatch) -> int:
    """Return an offset at or below all offsets in a batch.

    A compressed message of magic 0 or 1 stores only its last offset.
    """
    return first.base_offset if first.magic >= 2 else max(first.last_offset - MAX_RELATIVE_OFFSET, 0)


def _assign_epochs(state: LogState, group: Sequence[Placed]) -> None:
    epochs = state.writes.epochs
    for _, batch in group:
        if batch.magic >= 2 and batch.leader_epoch not in {epochs.latest, NO_EPOCH}:
            epochs = epochs.assign(batch.leader_epoch, batch.base_offset)
    if epochs is not state.writes.epochs:
        state.writes.store_epochs(epochs)
