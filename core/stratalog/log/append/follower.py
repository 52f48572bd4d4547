"""Appends of a follower: keep the leader's offsets and epochs, and adopt its bounds.

Source: apache/kafka UnifiedLog.appendAsFollower, Partition.appendRecordsToFollowerOrFutureReplica,
ReplicaFetcherThread.processPartitionData.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import (
    OffsetsExhaustedError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
)
from stratalog.log.append.append import commit_fetched
from stratalog.log.change.delete import raise_log_start
from stratalog.log.change.truncate import truncate_fully
from stratalog.log.durability.sync import sync_records
from stratalog.log.prepare.prepare_batches import whole_batches
from stratalog.log.state.log_state import LogState
from stratalog.model.batches import Buffer, RecordBatch
from stratalog.model.offsets import MAX_OFFSET, Durability, LogOffsets
from stratalog.model.prepared import PreparedBatches
from stratalog.segment.framing import MAX_RELATIVE_OFFSET


def append_as_follower(
    state: LogState, data: Buffer, leader_high_watermark: int, leader_log_start: int, durability: Durability
) -> LogOffsets:
    """Append batches unchanged from the leader's log, then adopt the leader's high watermark and log start.

    The high watermark is limited to the log end, and the log start to the high watermark.

    Batches may leave gaps, for example after compaction. If a batch has a later leader epoch than the epoch that the
    log follows, that batch and all batches after it are ignored: the leader of the later epoch sends them again.
    Sequence numbers are not checked, because the leader checked them. Unlike in Kafka, ``data`` and even one batch may
    be larger than ``segment.bytes``, because a repeated fetch would return the same batch.

    If the log is empty and its end is inside the first batch, the log restarts at the first offset of that batch. This
    case occurs if the leader's log start is inside a batch.

    Returns:
        All bounds after the append. ``log_end`` is the next offset to fetch.

    Raises:
        NotLeaderOrFollowerError: the log leads.
        CorruptBatchError: framing or a CRC is wrong; the error's ``file`` is "append". Nothing was written.
        OffsetsOutOfOrderError: offsets do not ascend. Nothing was written.
        UnexpectedAppendOffsetError: the first batch begins below the log end. Nothing was written.
        OffsetsExhaustedError: the last offset is not below 2^63 - 1. Nothing was written.
        DiskFullError, LogDirOfflineError: no space, or writing failed. Batches in segments that were filled before the
            error stay written.
        StorageError: the log is closed, damaged or out of service.
    """
    batches = _check_batches(state, data)
    view = memoryview(data)
    with state.lock:
        state.role.check_follows()
        log_start = state.view.offsets.log_start
        straddles = _straddles(state, batches)
    if straddles:
        truncate_fully(state, batches[0].base_offset)
    with state.lock:
        state.health.check_writable()
        state.role.check_follows()
        batches = _limit_to_epoch(state, batches)
        if batches:
            _check_begin(state, batches)
            if any(batch.magic < 2 for batch in batches):
                # Batches of magic 0 and 1 have no epoch: without epochs, no comparison of epochs is wrong.
                state.writes.set_epochs(EpochCache())
            for group in _groups(state, batches):
                group_data = bytearray(view[group[0].position : group[-1].position + group[-1].size_bytes])
                record_format = state.settings.components.formats.of(group[0].magic, "append", group[0].position)
                commit_fetched(
                    state,
                    PreparedBatches(record_format.scan(group_data, 0, len(group_data), check_crc=False), group_data),
                )
        state.role.set_watermark(min(leader_high_watermark, state.log_end))
        state.publish()
        raise_log_start(state, max(min(max(leader_log_start, log_start), state.view.offsets.high_watermark), 0))
        offsets = state.view.offsets
    if durability is Durability.DURABLE:
        sync_records(state, offsets.log_end)
    return offsets


def _check_batches(state: LogState, data: Buffer) -> list[RecordBatch]:
    """Check ``data`` and return its complete batches; ignore a partial batch at the end, which a fetch may have."""
    batches = [batch for table in whole_batches(data, state.settings.components) for batch in table]
    previous_offset = -1
    for batch in batches:
        if not previous_offset < batch.base_offset <= batch.last_offset:
            raise OffsetsOutOfOrderError(
                f"offsets {batch.base_offset} to {batch.last_offset} do not follow {previous_offset} "
                f"(log={state.name} position={batch.position})"
            )
        previous_offset = batch.last_offset
    if previous_offset >= MAX_OFFSET:
        raise OffsetsExhaustedError(
            f"the last possible offset of log {state.name} is {MAX_OFFSET - 1}, not {previous_offset}"
        )
    return batches


def _limit_to_epoch(state: LogState, batches: list[RecordBatch]) -> list[RecordBatch]:
    later = (index for index, batch in enumerate(batches) if batch.leader_epoch > state.role.leader_epoch)
    return batches[: next(later, len(batches))]


def _straddles(state: LogState, batches: Sequence[RecordBatch]) -> bool:
    if not batches or state.log_end != state.view.offsets.log_start:
        return False
    first = batches[0]
    return first.base_offset < state.log_end <= first.last_offset


def _check_begin(state: LogState, batches: Sequence[RecordBatch]) -> None:
    first = batches[0]
    if first.base_offset < state.log_end:
        raise UnexpectedAppendOffsetError(str(state.name), first.base_offset, batches[-1].last_offset, state.log_end)


def _groups(state: LogState, batches: Sequence[RecordBatch]) -> Iterator[Sequence[RecordBatch]]:
    """Yield groups of batches to write together. Each group has one magic.

    A group fits into one segment, unless it is a single batch.
    """
    limit_bytes, size = state.settings.config.segment_bytes, 0
    group: list[RecordBatch] = []
    for batch in batches:
        if group and not _may_follow(batch, group):
            yield group
            group = []
        if not group:
            size = state.writes.segments[-1].size_bytes
        if size and size + batch.size_bytes > limit_bytes:
            if group:
                yield group
            group, size = [], 0
        group.append(batch)
        size += batch.size_bytes
    if group:
        yield group


def _may_follow(batch: RecordBatch, group: Sequence[RecordBatch]) -> bool:
    """Return True if a batch may join the group of the batches before it. The size of the group is not checked here."""
    # A control batch is alone: its transaction is known only after the batches before it are written.
    if batch.is_control or group[-1].is_control or batch.magic != group[0].magic:
        return False
    return batch.last_offset - group[0].base_offset <= MAX_RELATIVE_OFFSET
