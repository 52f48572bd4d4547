# cython: boundscheck=False, wraparound=False, cdivision=True
"""Builders of index entries, as compiled code. ``entries`` documents each class."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from stratalog.errors import CorruptBatchError
from stratalog.spi import IndexBuilder

from stratalog.model.prepared_c cimport BatchRow, PreparedBatches
from stratalog_formats.kernels.entries import not_ascending
from stratalog_formats.kernels.wire cimport MAX_INT32, add, put_32, put_64, subtract

cdef enum:
    OFFSET_ENTRY_BYTES = 8
    TIME_ENTRY_BYTES = 12

cdef bytes NOTHING = b""


cdef class Entries:
    cdef int64_t base_offset, interval_bytes, max_entries, count, last_offset, bytes_since

    def __cinit__(
        self, int64_t base_offset, int64_t interval_bytes, int64_t max_entries, int64_t count, int64_t last_offset, *_
    ):
        self.base_offset, self.interval_bytes, self.max_entries = base_offset, interval_bytes, max_entries
        self.count, self.last_offset = count, last_offset
        self.bytes_since = 0

    @property
    def full(self):
        return self.is_full()

    cdef bint is_full(self) noexcept:
        return True

    cdef int64_t taken(
        self, uint8_t* at, int64_t position, int64_t size_bytes, int64_t last_offset, int64_t max_timestamp_ms
    ) except -1:
        """Add a batch, and write its entry to ``at``. Return the size (bytes) of the entry; 0 if there is none."""
        raise NotImplementedError

    cdef bint due(self, int64_t position, int64_t size_bytes, int64_t last_offset) except -1:
        if last_offset < self.base_offset or <uint64_t>subtract(last_offset, self.base_offset) > MAX_INT32:
            raise CorruptBatchError(
                f"offset {last_offset} cannot be in a segment that begins at {self.base_offset}", "", position
            )
        if self.bytes_since > self.interval_bytes:
            self.bytes_since = size_bytes
            return True
        self.bytes_since += size_bytes
        return False

    def add(self, PreparedBatches batches, int64_t position, aborted):
        cdef uint8_t[TIME_ENTRY_BYTES] entry
        cdef const BatchRow* row = batches.rows()
        cdef int64_t count = batches.batch_count, made
        if count == 1:
            made = self.fill(entry, row, 1, position)
            return PyBytes_FromStringAndSize(<const char*>entry, made) if made else NOTHING
        entries = PyBytes_FromStringAndSize(NULL, count * TIME_ENTRY_BYTES)
        made = self.fill(<uint8_t*>PyBytes_AS_STRING(entries), row, count, position)
        return entries[:made]

    cdef int64_t fill(self, uint8_t* at, const BatchRow* row, int64_t count, int64_t position) except -1:
        """Add ``count`` batches, and write their entries to ``at``. Return the size (bytes) of the entries."""
        cdef int64_t made = 0, i
        cdef bint good = self.base_offset <= row.last_offset
        good &= row[count - 1].last_offset <= add(self.base_offset, MAX_INT32) and row.last_offset >= self.last_offset
        for i in range(count):
            if not good and self.is_full():
                break  # a full index needs no error for the remaining batches
            made += self.taken(
                at + made, position + row[i].position, row[i].size_bytes, row[i].last_offset, row[i].max_timestamp_ms
            )
        return made


cdef class OffsetEntries(Entries):
    cdef bint is_full(self) noexcept:
        return self.count >= self.max_entries

    cdef int64_t taken(
        self, uint8_t* at, int64_t position, int64_t size_bytes, int64_t last_offset, int64_t max_timestamp_ms
    ) except -1:
        if not self.due(position, size_bytes, last_offset) or self.count >= self.max_entries:
            return 0
        if last_offset <= self.last_offset:
            raise not_ascending("offset", last_offset, self.last_offset, position)
        if not 0 <= position <= MAX_INT32:
            raise OverflowError(f"position {position} is no int32")
        self.last_offset = last_offset
        self.count += 1
        put_32(at, <uint32_t>(last_offset - self.base_offset))
        put_32(at + 4, <uint32_t>position)
        return OFFSET_ENTRY_BYTES

    def finish(self):
        return NOTHING


cdef class TimeEntries(Entries):
    cdef int64_t last_ms, largest_ms, largest_offset

    def __cinit__(self, base_offset, interval_bytes, max_entries, count, int64_t last_offset, int64_t last_ms):
        self.last_ms = self.largest_ms = last_ms
        self.largest_offset = last_offset

    cdef bint is_full(self) noexcept:
        return self.count >= self.max_entries - 1

    cdef int64_t taken(
        self, uint8_t* at, int64_t position, int64_t size_bytes, int64_t last_offset, int64_t max_timestamp_ms
    ) except -1:
        cdef bint due = self.due(position, size_bytes, last_offset)
        if max_timestamp_ms > self.largest_ms:
            if last_offset < self.last_offset:
                raise not_ascending("offset", last_offset, self.last_offset, position)
            self.largest_ms, self.largest_offset = max_timestamp_ms, last_offset
        return self.pair(at) if due and self.count < self.max_entries - 1 else 0

    cdef int64_t pair(self, uint8_t* at) noexcept:
        """Write an entry if the largest timestamp has grown since the last entry. Return the entry's size, or 0."""
        if self.largest_ms <= self.last_ms:
            return 0
        self.last_ms, self.last_offset = self.largest_ms, self.largest_offset
        self.count += 1
        put_64(at, <uint64_t>self.last_ms)
        put_32(at + 8, <uint32_t>(self.last_offset - self.base_offset))
        return TIME_ENTRY_BYTES

    def finish(self):
        cdef uint8_t[TIME_ENTRY_BYTES] entry
        cdef int64_t made = self.pair(entry) if self.count < self.max_entries else 0
        return PyBytes_FromStringAndSize(<const char*>entry, made) if made else NOTHING


IndexBuilder.register(OffsetEntries)
IndexBuilder.register(TimeEntries)
