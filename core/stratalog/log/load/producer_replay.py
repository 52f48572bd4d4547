"""Replay of the log's batches into the producers' state, and the snapshots of that state."""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable
from typing import Final

from stratalog.errors import (
    CorruptCheckpointError,
    CorruptSnapshotError,
    InvalidRecordError,
    NotAFileError,
    OutOfResourcesError,
)
from stratalog.log.folder.folder import store_snapshot
from stratalog.model.batches import CONTROL_BIT, NO_PRODUCER, TRANSACTIONAL_BIT, BatchTable, Buffer, RecordBatch
from stratalog.model.messages.control import EndMarker
from stratalog.model.names import SNAPSHOT_SUFFIX, parse_segment_file, segment_file
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import decode_snapshot
from stratalog.producers.state import REMEMBERED_BATCHES, ProducerState
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import chunks_from
from stratalog.spi.segment_store import LogFiles

_LOGGER: Final = logging.getLogger(__name__)
_NO_PRODUCER_BYTES: Final = NO_PRODUCER.to_bytes(8, "little", signed=True)


def read_marker(data: Buffer, batch: RecordBatch, components: Components) -> EndMarker | None:
    """Return the end marker in a control batch of ``data``; None if the batch has no end marker or is empty."""
    control = read_control(data, batch, components)
    return control if isinstance(control, EndMarker) else None


def replay(state: ProducerState, data: Buffer, batch: RecordBatch, components: Components) -> AbortedTransaction | None:
    """Update ``state`` with one batch; return the index entry of the transaction that the batch aborts, or None."""
    if batch.producer_id <= NO_PRODUCER:
        state.end_offset = batch.next_offset
        return None
    return _update(state, batch, read_marker(data, batch, components))


def admit(
    state: ProducerState, data: Buffer, batch: RecordBatch, components: Components, *, in_sequence: bool = True
) -> AbortedTransaction | None:
    """Check one batch that a leader is about to write, and update the draft ``state`` with the batch.

    Return the same result as ``replay``. Sequence numbers are checked only if ``in_sequence`` is True.

    Raises:
        InvalidRecordError: a producer's control batch has records but no end marker. An empty control batch is valid.
        The errors of ``ProducerState.check``.
    """
    marker = read_marker(data, batch, components)
    if marker is None and batch.is_control and batch.record_count > 0 and batch.producer_id > NO_PRODUCER:
        raise InvalidRecordError(f"a control batch has a malformed end marker producer_id={batch.producer_id}")
    state.check(batch, marker, in_sequence=in_sequence)
    return _update(state, batch, marker)


def _update(state: ProducerState, batch: RecordBatch, marker: EndMarker | None) -> AbortedTransaction | None:
    completed = state.update(batch, marker)
    if completed is None or not completed.aborted:
        return None
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, state.last_stable_at(completed)
    )


def replay_range(
    state: ProducerState, segments: Iterable[ReadableSegment], start: int, end: int, components: Components
) -> None:
    """Update ``state`` with every batch of ``segments`` whose last offset is in [start, end).

    The end offset of ``state`` is then at least ``end``. CRCs are not checked.

    Raises:
        CorruptBatchError: the framing of a batch is damaged.
        StorageError: a segment cannot be read.
    """
    for segment in segments:
        if segment.end_offset <= start or segment.base_offset >= end:
            continue
        for chunk in chunks_from(segment, start, components, check_crc=False):
            for table in chunk.tables:
                first, last = bisect_left(table.last_offset, start), bisect_left(table.last_offset, end)
                if first < last:
                    replay_table(state, chunk.data, table.take(first, last), components)
    state.end_offset = max(state.end_offset, end)


def replay_table(
    state: ProducerState, data: Buffer, table: BatchTable, components: Components
) -> dict[int, AbortedTransaction]:
    """Update ``state`` with all batches of a table, which must not be empty; return the aborted transactions by row.

    The result is the same as ``replay`` of every row. A batch is skipped if later batches overwrite its effect.
    """
    aborted = {}
    for row in _select_rows(table):
        transaction = replay(state, data, table[row], components)
        if transaction is not None:
            aborted[row] = transaction
    state.end_offset = table.last_offset[-1] + 1
    return aborted


def _select_rows(table: BatchTable) -> list[int]:
    """Return the rows that replay needs, ascending: all control batches, and some of the data batches."""
    ids = table.producer_id
    if ids.tobytes() == _NO_PRODUCER_BYTES * len(ids):
        return []
    rows, first = list[int](), 0
    for row, attributes in enumerate(table.attributes):
        if attributes & CONTROL_BIT:
            rows.extend(_select_data_rows(table, first, row))
            rows.append(row)
            first = row + 1
    rows.extend(_select_data_rows(table, first, len(ids)))
    return rows


def _select_data_rows(table: BatchTable, start: int, end: int) -> list[int]:
    ids, attributes = table.producer_id[start:end].tolist(), table.attributes[start:end].tolist()
    producer_ids, transactional_ids, needed_rows = set[int](), set[int](), set[int]()
    for row, (producer_id, flags) in enumerate(zip(ids, attributes, strict=True), start):
        if producer_id not in producer_ids:
            producer_ids.add(producer_id)
            needed_rows.add(row)
        if flags & TRANSACTIONAL_BIT and producer_id not in transactional_ids:
            transactional_ids.add(producer_id)
            needed_rows.add(row)
    remaining = dict.fromkeys(producer_ids - {NO_PRODUCER}, REMEMBERED_BATCHES)
    for row in range(end - 1, start - 1, -1):
        producer_id = ids[row - start]
        if remaining.get(producer_id):
            needed_rows.add(row)
            remaining[producer_id] -= 1
            if not remaining[producer_id]:
                del remaining[producer_id]
                if not remaining:
                    break
    return sorted(row for row in needed_rows if ids[row - start] != NO_PRODUCER)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among the file names, ascending."""
    parsed_names = (parse_segment_file(name) for name in names if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(name.base_offset for name in parsed_names if name and not name.state)


def newest_snapshot(files: LogFiles, offsets: Iterable[int], at_most: int) -> ProducerState | None:
    """Return the state of the newest good snapshot at or below offset ``at_most``; None if there is none."""
    for offset in sorted((offset for offset in offsets if offset <= at_most), reverse=True):
        name = segment_file(offset, SNAPSHOT_SUFFIX)
        # Skip a snapshot that is damaged, above limits.checkpoint.bytes, or not a file.
        with contextlib.suppress(CorruptSnapshotError, CorruptCheckpointError, NotAFileError):
            data = files.read_small(name)
            if data is not None:
                return ProducerState.restore(decode_snapshot(data, files.path(name)), offset)
    return None


def write_snapshot(files: LogFiles, offset: int, state: ProducerState) -> None:
    """Store the producers' state below ``offset``, durably, as the snapshot ``offset``.

    No file is written at offset 0, as in Kafka: there are no batches below it.
    """
    if offset > 0:
        store_snapshot(files, offset, state.entries())


def write_snapshot_if_room(files: LogFiles, offset: int, state: ProducerState) -> bool:
    """Store the producers' state below ``offset``; if the disk is full, log a warning. Return True if it was stored.

    The loader calls this function, because reads, offload and eviction must work even on a full disk. If the disk is
    full, an older snapshot at ``offset`` is removed.
    """
    try:
        write_snapshot(files, offset, state)
    except OutOfResourcesError as error:
        files.remove(segment_file(offset, SNAPSHOT_SUFFIX))  # a snapshot from before a crash may differ
        _LOGGER.warning("no space for a producer snapshot; the log opens without it: %s", error)
        return False
    return True


def remove_stray_snapshots(files: LogFiles, offsets: Collection[int], bases: Collection[int], log_end: int) -> None:
    """Delete the snapshots above the log end, and those that are not at the base offset of a segment.

    The newest snapshot that is not at a base offset is kept if it is above all base offsets: a clean close wrote it.
    ``offsets`` are the offsets of all snapshots, and ``bases`` are the base offsets of the segments.

    Source: apache/kafka ProducerStateManager.removeStraySnapshots, truncateAndReload.
    """
    stray_offsets = {offset for offset in offsets if offset not in bases and offset <= log_end}
    newest_stray = max(stray_offsets, default=-1)
    for offset in offsets:
        if offset > log_end or (offset in stray_offsets and (offset != newest_stray or offset < max(bases, default=0))):
            files.remove(segment_file(offset, SNAPSHOT_SUFFIX))
