"""Reads of closed segments in a folder that another process owns, for upload to a tier.

This module never locks, writes, renames or deletes a file, but the owner may do all of that during the read. Therefore
the data is checked twice, before the upload and again during the upload: the CRC of each batch must be right, and
offsets must ascend. After the upload the file must still have the same size and modification time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptBatchError, CorruptSnapshotError, SegmentGoneError
from stratalog.log.change.extra_indexes import pack_stored_extras
from stratalog.log.load.producer_replay import replay_table
from stratalog.model.batches import NO_EPOCH, BatchTable, Buffer
from stratalog.model.names import SNAPSHOT_SUFFIX, TopicId, TopicPartition, segment_file
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import decode_snapshot, encode_snapshot
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.recover import ValidPart, scan_valid_part
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.store.store import ChunkSource
from stratalog.tier.upload.segment_part import SegmentPart
from stratalog.tier.upload.segment_source import describe_segment, segment_source

_DISPOSABLE_ROLES: Final = (IndexRole.OFFSET, IndexRole.TIME)


def _checked_chunks(part: SegmentPart, components: Components, chunk_bytes: int) -> Iterator[Buffer]:
    """Yield all bytes of a part, in chunks of at most ``chunk_bytes``, after a check of the CRC of every batch.

    Raises:
        SegmentGoneError: the file was deleted or changed during the read; try again later.
    """
    try:
        for chunk in walk(part, 0, components, read_bytes=chunk_bytes, offset_limit=part.end_offset):
            size_bytes = chunk.end_position - chunk.position
            for start in range(0, size_bytes, chunk_bytes):
                yield chunk.data[start : min(start + chunk_bytes, size_bytes)]
    except CorruptBatchError as error:
        raise SegmentGoneError("the file changed while it was read", part.label) from error
    part.check_unchanged()


class CheckedSources:
    """Makes the sources for uploads of one log's closed segments, in order, with the producers' state after each one.

    Args:
        epochs: leader epochs in the folder's checkpoint.
    """

    def __init__(
        self, files: LogFiles, log: TopicPartition, topic_id: TopicId, epochs: EpochCache, components: Components
    ) -> None:
        self._files, self._log, self._topic_id = files, log, topic_id
        self._epochs, self._components = epochs, components
        self._producers: ProducerState | None = None  # at the end of the last segment, if it is known

    def source(self, segment: Segment, base_offset: int) -> SegmentSource:
        """Check a segment from ``base_offset`` on, and return it as the source of an upload.

        Raises:
            SegmentGoneError: the owner of the folder deleted or changed the segment; try again later.
            CorruptBatchError: a batch is damaged, or its leader epoch differs from the checkpoint.
            StorageError: ``base_offset`` is inside a batch.
        """
        part = SegmentPart(segment, base_offset)
        try:
            valid_part = self._check_batches(part)
        except CorruptBatchError:
            part.check_unchanged()
            raise
        info = describe_segment(
            part,
            self._log,
            self._topic_id,
            self._epochs.entries_between(part.base_offset, part.end_offset),
            self._components,
            max_timestamp_ms=valid_part.largest.timestamp_ms,
            modified_ms=part.modified_ms,
        )
        extras = pack_stored_extras(segment, info) if part.base_offset == segment.base_offset else b""
        return segment_source(
            info,
            ChunkSource(part.size_bytes, partial(_checked_chunks, part, self._components)),
            self._indexes(part, valid_part),
            self._components,
            snapshot=self._snapshot(part.end_offset),
            extras=extras,
        )

    def _check_batches(self, segment: SegmentPart) -> ValidPart:
        """Read a segment once and check its batches; raise CorruptBatchError if one is damaged."""
        if self._producers is None or self._producers.end_offset != segment.base_offset:
            self._producers = self._read_producers(segment.base_offset)
        state = self._producers or ProducerState()
        valid_part = scan_valid_part(
            segment, self._components, TopicConfig(), _CheckedReplay(state, self._epochs, segment, self._components)
        )
        if valid_part.damage is not None:
            raise valid_part.damage
        if valid_part.end_offset > segment.end_offset:
            reason = f"the segment has offsets up to {valid_part.end_offset}, but ends at {segment.end_offset}"
            raise CorruptBatchError(reason, segment.label)
        state.end_offset = segment.end_offset
        return valid_part

    def _read_producers(self, offset: int) -> ProducerState | None:
        """Return the producers' state at ``offset``; None if ``offset`` is above 0 and has no valid snapshot."""
        if offset == 0:
            return ProducerState()
        data = self._read_snapshot(offset)
        if data is None:
            return None
        return ProducerState.restore(decode_snapshot(data, ""), offset)

    def _read_snapshot(self, offset: int) -> bytes | None:
        """Return the bytes of the snapshot at ``offset``, None if there is no valid one."""
        name = segment_file(offset, SNAPSHOT_SUFFIX)
        data = self._files.read_small(name)
        if data is None:
            return None
        try:
            decode_snapshot(data, self._files.path(name))
        except CorruptSnapshotError:
            return None
        return data

    def _snapshot(self, offset: int) -> bytes | None:
        snapshot = self._read_snapshot(offset)
        if snapshot is None and self._producers is not None:
            return encode_snapshot(self._producers.entries())
        return snapshot

    def _indexes(self, segment: SegmentPart, valid_part: ValidPart) -> dict[IndexRole, Buffer]:
        indexes = {role: segment.index_entries(role) for role in _DISPOSABLE_ROLES}
        return {
            **indexes,
            IndexRole.TRANSACTION: segment.stored_transactions() or valid_part.entries[IndexRole.TRANSACTION],
        }


class _CheckedReplay:
    """Applies the batches of a segment to the producers' state, and checks their leader epochs."""

    def __init__(self, state: ProducerState, epochs: EpochCache, segment: SegmentPart, components: Components) -> None:
        self._state, self._epochs, self._segment, self._components = state, epochs, segment, components
        self._last = NO_EPOCH

    def __call__(self, chunk: Chunk, table: BatchTable) -> Mapping[int, AbortedTransaction]:
        for row, epoch in enumerate(table.leader_epoch):
            if epoch != self._last:
                self._check_epoch(chunk, table, row)
                self._last = epoch
        return replay_table(self._state, chunk.data, table, self._components)

    def _check_epoch(self, chunk: Chunk, table: BatchTable, row: int) -> None:
        """Raise CorruptBatchError if a batch's leader epoch differs from that in the checkpoint, if both have one."""
        offset, epoch = table.base_offset[row], table.leader_epoch[row]
        known_epoch = self._epochs.epoch_at(offset)
        if NO_EPOCH not in (epoch, known_epoch) and known_epoch != epoch:
            raise CorruptBatchError(
                f"the batch at offset {offset} has leader epoch {epoch}, the checkpoint has {known_epoch}",
                self._segment.label,
                chunk.position + table.position[row],
            )
