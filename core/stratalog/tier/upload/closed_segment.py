"""Reads of closed segments in a folder that another process owns, for upload to a tier.

This module never locks, writes, renames or deletes a file, but the owner may do all of that during the read. Therefore
the data is checked twice, before the upload and again during the upload: the CRC of each batch must be right, and
offsets must ascend. After the upload the file must still have the same size and modification time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import CorruptBatchError, CorruptIndexError, CorruptSnapshotError, SegmentGoneError, StorageError
from stratalog.log.change.extra_indexes import found_extras
from stratalog.log.load.producer_replay import replay_table
from stratalog.model.batches import NO_EPOCH, BatchTable, Buffer
from stratalog.model.names import LOG_SUFFIX, SNAPSHOT_SUFFIX, TopicId, TopicPartition, segment_file
from stratalog.model.segment_info import AbortedTransaction, SegmentInfo
from stratalog.producers.snapshot import decode_snapshot, encode_snapshot
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, walk
from stratalog.segment.index_entries import rebuilt_entries
from stratalog.segment.record_facts import with_record_facts
from stratalog.segment.recover import ValidPart, scan_valid_part
from stratalog.segment.segment import Segment
from stratalog.segment.time_search import largest_timestamp
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.upload.segment_source import segment_source

_DISPOSABLE: Final = (IndexRole.OFFSET, IndexRole.TIME)


class ClosedSegment:
    """A closed segment on disk, or the part of it from a given batch on; a ReadableSegment.

    A part is used if compaction joined segments: then only the records that the tier does not have are copied.

    Args:
        whole: the segment as it is on disk; not closed here.
        base_offset: the first offset to copy: the base offset of the segment, or of a batch in it.

    Raises:
        StorageError: ``base_offset`` is inside a batch.
    """

    def __init__(self, whole: Segment, base_offset: int) -> None:
        self._whole, self._components, self.base_offset = whole, whole.components, base_offset
        self._name = whole.file_name(LOG_SUFFIX)
        self._seen = (whole.file.size_bytes, whole.file.modified_ms)
        self._start = 0 if base_offset == whole.base_offset else _position_of(whole, base_offset)

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the segment."""
        return self._whole.end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the part to copy, in bytes."""
        return self._whole.size_bytes - self._start

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp of the part to copy, -1 if no record has one."""
        if not self._start:
            return self._whole.max_timestamp_ms
        return largest_timestamp(self, self._components).timestamp_ms

    @property
    def files(self) -> LogFiles:
        """The folder of the segment."""
        return self._whole.files

    @property
    def modified_ms(self) -> int:
        """The modification time of the file when this object was created."""
        return self._seen[1]

    @property
    def age_from_ms(self) -> int:
        """Start of the age for time-based retention: the largest timestamp; the file's time if no record has one."""
        stamp = self.max_timestamp_ms
        return stamp if stamp >= 0 else self.modified_ms

    @property
    def label(self) -> str:
        """The path of the ``.log`` file."""
        return self._whole.label

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position`` of the part; raise SegmentGoneError if the file is gone."""
        return self._whole.read(self._start + position, size_bytes)

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index of the part to copy, from the index file, or rebuilt from the log."""
        if not self._start:
            return self._whole.index_entries(role)
        if role is IndexRole.TRANSACTION:
            return self._own_transactions(bytes(self._whole.index_entries(role)))
        return rebuilt_entries(self, role, self._components)

    def stored_transactions(self) -> bytes | None:
        """Return the entries of the transaction index file for the part to copy; None if the file is damaged."""
        try:
            entries = self._whole.stored_entries(IndexRole.TRANSACTION)
            index = self._components.indexes[IndexRole.TRANSACTION]
            index.reader(entries, self._whole.base_offset).check(self.end_offset, self._whole.size_bytes)
        except CorruptIndexError:
            return None
        return self._own_transactions(entries)

    def _own_transactions(self, entries: bytes) -> bytes:
        """Return the aborted transactions that end in the part to copy, from the entries of the whole segment."""
        index = self._components.indexes[IndexRole.TRANSACTION]
        found = index.reader(entries, self._whole.base_offset)
        first = next(
            (number for number in range(len(found)) if found[number].last_offset >= self.base_offset), len(found)
        )
        return entries[first * index.entry_bytes :]

    def forget(self) -> bool:
        """Return False: nothing is cached."""
        return False

    def check_unchanged(self) -> None:
        """Raise SegmentGoneError if the segment's file was changed or replaced since this object was created.

        A deleted file raises no error. Call this method after all bytes were read.
        """
        try:
            now = self._whole.files.open_segment(self._name)
        except SegmentGoneError:
            return
        try:
            if (now.size_bytes, now.modified_ms) != self._seen:
                raise SegmentGoneError("the file changed while it was read", self.label)
        finally:
            now.close()


@dataclass(frozen=True, slots=True)
class CheckedBytes:
    """The bytes of a ClosedSegment as a ``ByteSource``. Each read checks the CRC of every batch."""

    segment: ClosedSegment
    components: Components

    @property
    def size_bytes(self) -> int:
        """The number of bytes to copy."""
        return self.segment.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield all bytes to copy, in chunks of at most ``chunk_bytes``.

        Raises:
            SegmentGoneError: the file was deleted or changed during the read; try again later.
        """
        try:
            for chunk in walk(self.segment, 0, self.components, read_bytes=chunk_bytes, below=self.segment.end_offset):
                size_bytes = chunk.end_position - chunk.position
                for start in range(0, size_bytes, chunk_bytes):
                    yield chunk.data[start : min(start + chunk_bytes, size_bytes)]
        except CorruptBatchError as error:
            raise SegmentGoneError("the file changed while it was read", self.segment.label) from error
        self.segment.check_unchanged()


class SegmentReader:
    """Reads closed segments of one log in order, for upload, and computes the producers' state at the end of each one.

    Args:
        files: the log's folder.
        log: name of the log.
        topic_id: id of its topic.
        epochs: leader epochs in the folder's checkpoint.
        components: formats, codecs and indexes to read the log with.
    """

    def __init__(
        self, files: LogFiles, log: TopicPartition, topic_id: TopicId, epochs: EpochCache, components: Components
    ) -> None:
        self._files, self._log, self._topic_id, self._epochs, self._components = (
            files,
            log,
            topic_id,
            epochs,
            components,
        )
        self._producers: ProducerState | None = None  # at the end of the last segment, if it is known

    def source(self, whole: Segment, base_offset: int) -> SegmentSource:
        """Check a segment from ``base_offset`` on, and return it as the source of an upload.

        Raises:
            SegmentGoneError: the owner of the folder deleted or changed the segment; try again later.
            CorruptBatchError: a batch is damaged, or its leader epoch differs from the checkpoint.
            StorageError: ``base_offset`` is inside a batch.
        """
        segment = ClosedSegment(whole, base_offset)
        try:
            found = self._checked(segment)
        except CorruptBatchError:
            segment.check_unchanged()
            raise
        epochs = self._epochs.between(segment.base_offset, segment.end_offset)
        info = SegmentInfo(
            log=self._log,
            topic_id=self._topic_id,
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            max_timestamp_ms=found.largest.timestamp_ms,
            modified_ms=segment.modified_ms,
            leader_epochs=epochs,
        )
        info = with_record_facts(info, segment, self._components)
        extras = found_extras(whole, info) if segment.base_offset == whole.base_offset else b""
        return segment_source(
            info,
            CheckedBytes(segment, self._components),
            self._indexes(segment, found),
            self._components,
            snapshot=self._snapshot(segment.end_offset),
            extras=extras,
        )

    def _checked(self, segment: ClosedSegment) -> ValidPart:
        """Read a segment once and check its batches; raise CorruptBatchError if one is damaged."""
        if self._producers is None or self._producers.end_offset != segment.base_offset:
            self._producers = self._stored_producers(segment.base_offset)
        state = self._producers or ProducerState()
        found = scan_valid_part(
            segment, self._components, TopicConfig(), _CheckedReplay(state, self._epochs, segment, self._components)
        )
        if found.damage is not None:
            raise found.damage
        if found.end_offset > segment.end_offset:
            reason = f"the segment has offsets up to {found.end_offset}, but ends at {segment.end_offset}"
            raise CorruptBatchError(reason, segment.label)
        state.end_offset = segment.end_offset
        return found

    def _stored_producers(self, offset: int) -> ProducerState | None:
        """Return the producers' state at ``offset``; None if ``offset`` is above 0 and has no valid snapshot."""
        if offset == 0:
            return ProducerState()
        data = self._stored_snapshot(offset)
        if data is None:
            return None
        return ProducerState.restored(decode_snapshot(data, ""), offset)

    def _stored_snapshot(self, offset: int) -> bytes | None:
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
        stored = self._stored_snapshot(offset)
        if stored is None and self._producers is not None:
            return encode_snapshot(self._producers.entries())
        return stored

    def _indexes(self, segment: ClosedSegment, found: ValidPart) -> dict[IndexRole, Buffer]:
        made = {role: segment.index_entries(role) for role in _DISPOSABLE}
        return {**made, IndexRole.TRANSACTION: segment.stored_transactions() or found.entries[IndexRole.TRANSACTION]}


class _CheckedReplay:
    """Applies the batches of a segment to the producers' state, and checks their leader epochs."""

    def __init__(
        self, state: ProducerState, epochs: EpochCache, segment: ClosedSegment, components: Components
    ) -> None:
        self._state, self._epochs, self._segment, self._components = state, epochs, segment, components
        self._last = NO_EPOCH

    def __call__(self, chunk: Chunk, table: BatchTable) -> Mapping[int, AbortedTransaction]:
        for row, epoch in enumerate(table.leader_epoch):
            if epoch != self._last:
                self._check_epoch(chunk, table, row)
                self._last = epoch
        return replay_table(self._state, chunk.data, table, self._components)

    def _check_epoch(self, chunk: Chunk, table: BatchTable, row: int) -> None:
        """Raise CorruptBatchError if a batch has another leader epoch than the checkpoint has at its offset, if any."""
        offset, epoch = table.base_offset[row], table.leader_epoch[row]
        known_epoch = self._epochs.at(offset)
        if NO_EPOCH not in (epoch, known_epoch) and known_epoch != epoch:
            raise CorruptBatchError(
                f"the batch at offset {offset} has leader epoch {epoch}, the checkpoint has {known_epoch}",
                self._segment.label,
                chunk.position + table.position[row],
            )


def _position_of(segment: Segment, offset: int) -> int:
    """Return the byte position of the first batch at or above ``offset``; raise StorageError inside a batch."""
    for chunk in walk(segment, 0, segment.components, check_crc=False):
        for batch in chunk.batches():
            if batch.base_offset >= offset:
                return chunk.position + batch.position
            if batch.last_offset >= offset:
                raise StorageError(f"the tier ends at offset {offset}, which is inside a batch of {segment.label}")
    return segment.size_bytes
