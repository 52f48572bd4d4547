"""Appends of a leader: assign the offsets of prepared batches, write and index them, and publish the new log end.

An append that must be durable may be written together with others (``group_commit``). Appends of a follower are
prepared in ``follower`` and written here. A follower keeps the offsets of its leader.

Source: apache/kafka UnifiedLog.append.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from stratalog.errors import (
    ClosedError,
    ConfigError,
    InvalidRecordError,
    OffsetsExhaustedError,
    RecordBatchTooLargeError,
)
from stratalog.log.durability.sync import sync_records, wait_until_durable
from stratalog.log.load.producer_replay import admit, replay_table
from stratalog.log.state.backpressure import wait_for_room
from stratalog.log.state.log_settings import LogSettings
from stratalog.log.state.log_state import LogState
from stratalog.log.state.roll import roll
from stratalog.log.state.sync_turns import NOT_WRITTEN, REFUSED, Waiter
from stratalog.model.batches import NO_EPOCH, NO_PRODUCER
from stratalog.model.messages.control import EndMarker
from stratalog.model.offsets import MAX_OFFSET, AppendOrigin, Durability, Watermark
from stratalog.model.prepared import PreparedBatches
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.state import REMEMBERED_BATCHES, ProducerState
from stratalog.segment.control_batches import CONTROL_MAGIC, control_batch
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.segment.index_entries import NONE_ABORTED
from stratalog.spi.formats import RecordFormat

_new_tuple: Final = tuple.__new__  # creates a named tuple from all its fields, with one call fewer than its class
_CLIENT: Final = AppendOrigin.CLIENT  # looked up at each append, as are the next three
_DURABLE: Final = Durability.DURABLE
_CREATE_TIME: Final = "CreateTime"
_WRITTEN: Final = Watermark.WRITTEN
# Number of bits of Kafka's fields, without the sign bit.
_MARKER_BITS: Final = {"producer_id": 63, "producer_epoch": 15, "coordinator_epoch": 31}

Sync: TypeAlias = Callable[[LogState, int], None]
"""Callback that makes the records of a log below an offset durable, or schedules their sync."""


class AppendResult(NamedTuple):
    """Offsets of appended records: [base_offset, last_offset], both inclusive.

    ``append_time_ms`` is the time of the append by the log's clock (ms since 1970). ``duplicate`` is True if the
    records are a retry of an idempotent producer, and were not written again. The result then has the offsets of the
    earlier append, and ``append_time_ms`` is the largest timestamp in its last batch.
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool = False


class QueuedAppend(Waiter):
    """Batches in the queue of group commit, and the thread that waits until they are durable.

    ``end`` is ``NOT_WRITTEN`` before the write, then the exclusive end offset of the batches, or ``REFUSED`` after an
    error.
    """

    __slots__ = ("batches", "error", "result")

    def __init__(self, batches: PreparedBatches) -> None:
        super().__init__(NOT_WRITTEN)
        self.batches = batches
        self.result: AppendResult | None = None
        self.error: Exception | None = None

    def note_written(self, result: AppendResult) -> None:
        """Record that the batches were written to the log, with ``result``. They may not be durable yet."""
        self.result, self.end = result, result.last_offset + 1

    def note_refused(self, error: Exception) -> None:
        """Record that ``error`` prevented the write of the batches. The waiting thread raises ``error``."""
        self.error, self.end = error, REFUSED


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
                turns.write_queued()
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


def commit(state: LogState, batches: PreparedBatches, origin: AppendOrigin = _CLIENT) -> AppendResult:
    """Append prepared batches as leader, with one write into one segment: either all batches, or none.

    As in Kafka, an append never spans segments: if it does not fit into the active segment, the log rolls first. If the
    process or the power fails during the write, the log may keep the first batches of the append. The log never keeps a
    batch of the append without the batches before it. While the process runs, readers see all batches of the append, or
    none.

    If ``record.version`` has changed since the batches were prepared, they are encoded again. If they were not, the new
    segment would have batches of the earlier format, whose plugin may be removed.

    After an error, the caller may pass the same ``batches`` again. Sequence numbers are checked only if ``origin`` is
    CLIENT.

    Raises:
        ClosedError: the log is closed, or a failed write could not be undone.
        StorageError: the log is damaged or out of service.
        NotLeaderOrFollowerError: the log follows a leader.
        RecordBatchTooLargeError: the batches together have more bytes than ``segment.bytes``.
        InvalidRecordError: more than five batches are from one idempotent producer, or a control batch is malformed.
        OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError, TransactionCoordinatorFencedError: a
            sequence number, producer epoch, transaction state or coordinator epoch is not valid.
        OffsetsExhaustedError: the append needs offsets above 2^63 - 2, the last possible offset.
        LocalLimitError: the append exceeds ``local.hard.limit.bytes``, and ``tier.outage.policy`` refuses it.
        DiskFullError, SystemLimitError: no space or no file descriptor. No record was written, and the log stays in
            service.
        LogDirOfflineError: writing failed; the log is out of service.
        KeyboardInterrupt: if it interrupts the write, the log is out of service, and the next opening recovers the log.
        The errors of ``Preparer.batches``, if the batches are encoded again.
    """
    health, role, settings = state.health, state.role, state.settings
    if health.closed or health.failure or health.damage or not role.is_leader:
        health.check_writable()  # this call or the next one raises an error; nearly all appends skip both
        role.check_leads()
    config, preparer = settings.config, settings.preparer
    record_format = preparer.format
    if record_format.magic != batches.magic:
        record_format, batches = _match_magic(settings, batches, origin)
    if batches.size_bytes > config.segment_bytes:
        text = f"the append has {batches.size_bytes} bytes, above segment.bytes={config.segment_bytes}"
        raise RecordBatchTooLargeError(text).advised("append fewer records in one call, or increase segment.bytes")
    is_numbered = batches.has_producer and origin is _CLIENT
    result = _duplicate(state, batches) if is_numbered else None
    if result is not None:
        return result
    # Markers do not wait for room: an open transaction blocks the offload, and only its marker ends the transaction.
    if (settings.remote is not None or state.tier.is_pressed) and not batches.is_control:
        has_waited = wait_for_room(state, batches.size_bytes)
        if has_waited and state.settings is not settings:  # the wait released the lock
            return commit(state, batches, origin)
        result = _duplicate(state, batches) if has_waited and is_numbered else None
        if result is not None:
            return result  # another attempt of the same append was written during the wait
    base, epoch = state.writes.segments[-1].end_offset, role.leader_epoch
    if base > MAX_OFFSET - batches.span:
        raise OffsetsExhaustedError(f"log {state.name} ends at offset {base}, too close to the last possible offset")
    # The clock is read under the lock: then timestamps ascend with offsets, and the result has the stored time.
    now_ms = preparer.now_ms()
    record_format.assign(batches, base, epoch, None if config.message_timestamp_type == _CREATE_TIME else now_ms)
    if batches.has_producer:
        _write(state, batches, base, epoch, *_admit_batches(state, batches, in_sequence=is_numbered))
    else:
        _write(state, batches, base, epoch)
    return _new_tuple(AppendResult, (base, batches.last_offset, now_ms, False))


def _match_magic(
    settings: LogSettings, batches: PreparedBatches, origin: AppendOrigin
) -> tuple[RecordFormat, PreparedBatches]:
    """Return the format and batches to write. Data batches are encoded again in the topic's format, markers are not."""
    if batches.is_control:  # markers in a topic of magic 0 or 1
        return settings.components.formats.of(batches.magic, "append", 0), batches
    return settings.preparer.format, settings.preparer.batches(batches.data, origin)


def _admit_batches(
    state: LogState, batches: PreparedBatches, *, in_sequence: bool
) -> tuple[ProducerState, dict[int, AbortedTransaction]]:
    """Check batches; return a draft of the producers' state after them, and aborted transactions by marker offset."""
    draft = state.writes.producers.draft()
    aborted: dict[int, AbortedTransaction] = {}
    for batch in batches.table:
        transaction = admit(draft, batches.data, batch, state.settings.components, in_sequence=in_sequence)
        if transaction is not None:
            aborted[batch.last_offset] = transaction
    return draft, aborted


def commit_fetched(state: LogState, batches: PreparedBatches) -> None:
    """Append batches that a follower fetched, with one write into one segment. They keep their offsets and epochs.

    Raises DiskFullError, SystemLimitError, ClosedError and LogDirOfflineError for the same reasons as ``commit``.
    """
    first, draft = batches.table[0], None
    aborted: dict[int, AbortedTransaction] = {}
    if batches.has_producer:
        draft = state.writes.producers.draft()
        aborted_by_row = replay_table(draft, batches.data, batches.table, state.settings.components)
        aborted = {batches.table.last_offset[row]: transaction for row, transaction in aborted_by_row.items()}
    # A compressed message of magic 0 or 1 stores only its last offset.
    base = first.base_offset if first.magic >= 2 else max(first.last_offset - MAX_RELATIVE_OFFSET, 0)
    _write(state, batches, base, None, draft, aborted)


def _write(
    state: LogState,
    batches: PreparedBatches,
    base: int,
    epoch: int | None,
    draft: ProducerState | None = None,
    aborted: Mapping[int, AbortedTransaction] = NONE_ABORTED,
) -> None:
    """Write, index and publish batches that have their offsets. If a new segment begins, its base offset is ``base``.

    If ``epoch`` is None, the batches keep their own epochs. ``draft`` is the producers' state after the batches; None
    if no batch has a producer id.
    """
    writes, appender, published = state.writes, state.writes.appender, state.published
    size_bytes, last_offset, largest_ms = batches.size_bytes, batches.last_offset, batches.largest_ms
    try:
        if (
            size_bytes > appender.room_bytes
            or largest_ms > appender.unchecked_to_ms
            or last_offset > appender.unchecked_to_offset
        ) and appender.should_roll(size_bytes, last_offset, largest_ms):
            roll(state, base)
        if writes.has_stale_epochs:
            writes.store_epochs(writes.epochs)
        if epoch is None:
            _store_epochs_of(state, batches)
        elif writes.epochs.latest != epoch and batches.magic >= 2:  # messages of magic 0 and 1 have no epoch
            writes.store_epochs(writes.epochs.assign(epoch, base))
        writes.appender.append(batches, aborted)
        if draft is None:
            writes.producers.end_offset = last_offset + 1
        else:
            writes.producers.adopt(draft)
    except BaseException as error:
        state.health.handle_error("an append", error)
        state.durability.note_bytes_removed()
        state.publish()
        raise
    base_view = published.base
    if (
        epoch is None
        or base_view.segments is not writes.segments
        or base_view.epochs is not writes.epochs
        or writes.producers.open_transactions
        or state.role.watermark is not _WRITTEN
        or state.settings.remote is not None
    ):
        state.publish()
    else:  # only the log end and the high watermark have moved, as after nearly all appends
        published.grow(last_offset + 1, state.durability.recovery_point)


def _duplicate(state: LogState, batches: PreparedBatches) -> AppendResult | None:
    """Return the result of the earlier append if all batches are a retry of that append; None if they are not."""
    # The log remembers five batches of a producer: a retry of more batches would not be recognised.
    ids = Counter(producer_id for producer_id in batches.table.producer_id if producer_id > NO_PRODUCER)
    if max(ids.values()) > REMEMBERED_BATCHES:
        raise InvalidRecordError(f"an append holds at most {REMEMBERED_BATCHES} batches of an idempotent producer")
    earlier = [state.writes.producers.find_duplicate(batch) for batch in batches.table]
    first, last = earlier[0], earlier[-1]
    if first is None or last is None or None in earlier:
        return None
    return AppendResult(first.first_offset, last.last_offset, last.timestamp_ms, duplicate=True)


def _store_epochs_of(state: LogState, batches: PreparedBatches) -> None:
    """Store the leader epochs that begin with these batches. Messages of magic 0 and 1 have no epoch."""
    epochs, table = state.writes.epochs, batches.table
    for epoch, base_offset in zip(table.leader_epoch, table.base_offset, strict=True):
        if epoch not in {epochs.latest, NO_EPOCH}:
            epochs = epochs.assign(epoch, base_offset)
    if epochs is not state.writes.epochs:
        state.writes.store_epochs(epochs)
