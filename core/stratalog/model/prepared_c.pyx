# cython: boundscheck=False, wraparound=False, cdivision=True
"""Batches that are ready to be written, as compiled code. ``prepared_py`` documents the class.

Header fields are rows in C. Most batches are prepared, written and indexed without a ``BatchTable``.
"""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from stratalog.model.batches import BATCH_COLUMNS, BatchTable, ScanStop

cdef enum:
    CONTROL_BIT = 0x20

assert len(BATCH_COLUMNS) == COLUMNS and sizeof(BatchRow) == 8 * COLUMNS


cdef inline int64_t span_of(int magic, const BatchRow* row) noexcept:
    return row.record_count if magic < 2 else row.last_offset - row.base_offset + 1


cdef class Rules:
    """Rules of a topic as C values, which compiled code checks without a Python call."""

    def __init__(
        self,
        *,
        int64_t max_batch_bytes,
        int64_t before_ms,
        int64_t after_ms,
        bint needs_keys,
        bint keeps_times,
        int64_t limit_bytes,
        int64_t overhead_bytes,
    ):
        self.max_batch_bytes, self.before_ms, self.after_ms = max_batch_bytes, before_ms, after_ms
        self.needs_keys, self.keeps_times = needs_keys, keeps_times
        self.limit_bytes, self.overhead_bytes = limit_bytes, overhead_bytes

    cdef bint allow(
        self, int64_t batch_bytes, int64_t least_ms, int64_t largest_ms, bint has_null_key, int64_t now_ms
    ) noexcept:
        """Return True if batches with these properties keep the rules. ``now_ms`` must not be negative.

        The largest batch has ``batch_bytes`` bytes. All timestamps are from ``least_ms`` to ``largest_ms``.
        """
        if batch_bytes > self.max_batch_bytes or (has_null_key and self.needs_keys):
            return False
        if not self.keeps_times:
            return True
        return now_ms - self.before_ms <= least_ms and (largest_ms <= now_ms or largest_ms - now_ms <= self.after_ms)


cdef class PreparedBatches:
    """One or more batches of one magic, which a log writes and indexes. Not thread-safe."""

    def __init__(self, table, bytearray data=None):
        self.data = bytearray() if data is None else data
        self.batch_count = len(table)
        if not self.batch_count:
            raise ValueError("there are no batches")
        if self.batch_count > 1:
            self.several = PyByteArray_FromStringAndSize(NULL, self.batch_count * sizeof(BatchRow))
        self.use(table)

    def replace_table(self, table):
        cdef int64_t i, count = len(table)
        if count != self.batch_count:
            raise ValueError(f"{count} batches cannot replace {self.batch_count} batches")
        cdef BatchRow* row = self.rows()
        counts = [row[i].record_count for i in range(count)]
        self.use(table)
        for i in range(count):
            if row[i].record_count < 0:
                row[i].record_count = counts[i]
                self.known = None
        if self.known is None:
            self.known = BatchTable(self.magic, self.table.columns, table.stop, table.stop_position, table.reason)
        self.sum_up()

    cdef int use(self, table) except -1:
        """Copy the header fields from ``table``, which must have ``batch_count`` rows, and set all attributes."""
        cdef int64_t i, j, count = self.batch_count
        cdef int64_t* at = <int64_t*>self.rows()
        cdef Py_buffer view  # a typed memoryview would add its 20,000 lines of C to this module
        for j in range(COLUMNS):
            PyObject_GetBuffer(table.columns[j], &view, PyBUF_ND | PyBUF_FORMAT)
            try:
                if view.ndim != 1 or view.itemsize != 8 or view.format[0] not in b"ql":
                    raise TypeError(f"a column is a buffer of format {view.format.decode()}, not q")
                if view.shape[0] != count:
                    raise ValueError(f"a column has {view.shape[0]} rows, {count} are needed")
                for i in range(count):
                    at[i * COLUMNS + j] = (<const int64_t*>view.buf)[i]
            finally:
                PyBuffer_Release(&view)
        self.known, self.size_bytes, self.magic = table, len(self.data), table.magic
        self.sum_up()
        return 0

    cdef BatchRow* rows(self) noexcept:
        return &self.only if self.several is None else <BatchRow*>PyByteArray_AS_STRING(self.several)

    cdef void sum_up(self) noexcept:
        """Set the attributes that are computed from the rows."""
        cdef BatchRow* row = self.rows()
        cdef int64_t i
        self.span, self.has_producer = 0, False
        self.is_control = self.magic >= 2 and row.attributes & CONTROL_BIT
        self.largest_ms, self.largest_offset = row.max_timestamp_ms, row.last_offset
        for i in range(self.batch_count):
            self.span += span_of(self.magic, row)
            self.has_producer |= row.producer_id > -1
            if row.max_timestamp_ms > self.largest_ms:
                self.largest_ms, self.largest_offset = row.max_timestamp_ms, row.last_offset
            self.last_offset = row.last_offset
            row += 1

    @property
    def table(self):
        if self.known is None:
            columns = columns_of_rows(self.rows(), self.batch_count)
            self.known = BatchTable(self.magic, columns, ScanStop.END, self.size_bytes)
        return self.known

    @staticmethod
    def joined(pieces):
        cdef PreparedBatches made, piece
        cdef int64_t size = 0, count = 0, i, offset = 0, span, distance
        cdef BatchRow* row
        cdef const BatchRow* source
        cdef uint8_t* at
        cdef list listed = list(pieces)
        if len({(<PreparedBatches?>found).magic for found in listed}) != 1:
            raise ValueError("batches of one magic are needed")
        if len(listed) == 1:
            return listed[0]
        for piece in listed:
            size += piece.size_bytes
            count += piece.batch_count
        made = PreparedBatches.__new__(PreparedBatches)
        made.magic, made.size_bytes, made.batch_count = (<PreparedBatches>listed[0]).magic, size, count
        made.data = PyByteArray_FromStringAndSize(NULL, size)
        made.several = PyByteArray_FromStringAndSize(NULL, count * sizeof(BatchRow))
        at, row, size = <uint8_t*>PyByteArray_AS_STRING(made.data), made.rows(), 0
        for piece in listed:
            if len(piece.data) != piece.size_bytes:
                raise ValueError("the bytes of a piece changed their size")
            memcpy(at + size, PyByteArray_AS_STRING(piece.data), piece.size_bytes)
            source = piece.rows()
            for i in range(piece.batch_count):
                row[0] = source[i]
                span, distance = span_of(made.magic, source + i), row.last_offset - row.base_offset
                offset += span
                row.position += size
                row.base_offset, row.last_offset = offset - 1 - distance, offset - 1
                row += 1
            size += piece.size_bytes
        made.sum_up()
        return made
