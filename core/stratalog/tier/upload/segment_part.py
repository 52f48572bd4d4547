"""A closed segment on disk, or a part of it, to be uploaded to a tier."""

from __future__ import annotations

from stratalog.errors import CorruptIndexError, SegmentGoneError, StorageError
from stratalog.model.batches import Buffer
from stratalog.model.names import LOG_SUFFIX
from stratalog.segment.index_entries import rebuild_entries
from stratalog.segment.search import find_batch
from stratalog.segment.segment import Segment
from stratalog.segment.time_search import largest_timestamp
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import LogFiles


class SegmentPart:
    """A closed segment on disk, or the part of it from a given batch on; a ReadableSegment.

    A part is used if compaction joined segments: then only the records that the tier does not have are copied.

    Args:
        segment: the segment as it is on disk; not closed here.
        base_offset: the first offset to copy: the base offset of the segment, or of a batch in it.

    Raises:
        StorageError: ``base_offset`` is inside a batch.
    """

    def __init__(self, segment: Segment, base_offset: int) -> None:
        self._segment, self._components, self.base_offset = segment, segment.components, base_offset
        self._name = segment.file_name(LOG_SUFFIX)
        self._file_state = (segment.file.size_bytes, segment.file.modified_ms)
        self._start = 0 if base_offset == segment.base_offset else _position_of(segment, base_offset)

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the segment."""
        return self._segment.end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the part to copy, in bytes."""
        return self._segment.size_bytes - self._start

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp of the part to copy, -1 if no record has one."""
        if not self._start:
            return self._segment.max_timestamp_ms
        return largest_timestamp(self, self._components).timestamp_ms

    @property
    def files(self) -> LogFiles:
        """The folder of the segment."""
        return self._segment.files

    @property
    def modified_ms(self) -> int:
        """The modification time of the file when this object was created."""
        return self._file_state[1]

    @property
    def age_from_ms(self) -> int:
        """Time from which retention counts the age: the largest timestamp; the file's time if no record has one."""
        stamp = self.max_timestamp_ms
        return stamp if stamp >= 0 else self.modified_ms

    @property
    def label(self) -> str:
        """The path of the ``.log`` file."""
        return self._segment.label

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position`` of the part; raise SegmentGoneError if the file is gone."""
        return self._segment.read(self._start + position, size_bytes)

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index of the part to copy, from the index file, or rebuilt from the log."""
        if not self._start:
            return self._segment.index_entries(role)
        if role is IndexRole.TRANSACTION:
            return self._select_transactions(bytes(self._segment.index_entries(role)))
        return rebuild_entries(self, role, self._components)

    def stored_transactions(self) -> bytes | None:
        """Return the entries of the transaction index file for the part to copy; None if the file is damaged."""
        try:
            entries = self._segment.stored_entries(IndexRole.TRANSACTION)
            index = self._components.indexes[IndexRole.TRANSACTION]
            index.reader(entries, self._segment.base_offset).check(self.end_offset, self._segment.size_bytes)
        except CorruptIndexError:
            return None
        return self._select_transactions(entries)

    def _select_transactions(self, entries: bytes) -> bytes:
        """Return the aborted transactions that end in the part to copy, from the entries of the whole segment."""
        index = self._components.indexes[IndexRole.TRANSACTION]
        transactions = index.reader(entries, self._segment.base_offset)
        first = next(
            (number for number in range(len(transactions)) if transactions[number].last_offset >= self.base_offset),
            len(transactions),
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
            file = self._segment.files.open_segment(self._name)
        except SegmentGoneError:
            return
        try:
            if (file.size_bytes, file.modified_ms) != self._file_state:
                raise SegmentGoneError("the file changed while it was read", self.label)
        finally:
            file.close()


def _position_of(segment: Segment, offset: int) -> int:
    """Return the position (bytes) of the batch that begins at ``offset``, or of the next batch.

    Raises:
        StorageError: ``offset`` is inside a batch.
    """
    position_and_batch = find_batch(segment, offset, segment.components)
    if position_and_batch is None:
        return segment.size_bytes
    position, batch = position_and_batch
    if batch.base_offset < offset:
        raise StorageError(f"the tier ends at offset {offset}, which is inside a batch of {segment.label}")
    return position
