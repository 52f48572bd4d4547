"""The layout of a compiled ``PreparedBatches``, for kernels that make, change or index batches without Python calls."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int64_t

cdef enum:
    COLUMNS = 13


cdef struct BatchRow:  # in the order of BATCH_COLUMNS
    int64_t position
    int64_t size_bytes
    int64_t base_offset
    int64_t last_offset
    int64_t base_timestamp_ms
    int64_t max_timestamp_ms
    int64_t leader_epoch
    int64_t producer_id
    int64_t producer_epoch
    int64_t base_sequence
    int64_t record_count
    int64_t attributes
    int64_t crc


cdef inline list columns_of_rows(const BatchRow* rows, int64_t count):
    """Return the rows as the columns of a ``BatchTable``."""
    cdef int64_t i, j
    cdef object data = PyByteArray_FromStringAndSize(NULL, 8 * COLUMNS * count)
    cdef int64_t* to = <int64_t*>PyByteArray_AS_STRING(data)
    for j in range(COLUMNS):
        for i in range(count):
            to[j * count + i] = (<const int64_t*>(rows + i))[j]
    block = memoryview(data).cast("q")
    return [block[j * count : (j + 1) * count] for j in range(COLUMNS)]


cdef class Rules:
    cdef readonly int64_t max_batch_bytes
    cdef readonly int64_t before_ms
    cdef readonly int64_t after_ms
    cdef readonly bint needs_keys
    cdef readonly bint keeps_times
    cdef readonly int64_t limit_bytes
    cdef readonly int64_t overhead_bytes

    cdef bint allow(
        self, int64_t batch_bytes, int64_t least_ms, int64_t largest_ms, bint has_null_key, int64_t now_ms
    ) noexcept


cdef class PreparedBatches:
    cdef readonly int magic
    cdef readonly bytearray data
    cdef readonly int64_t size_bytes
    cdef readonly int64_t batch_count
    cdef readonly int64_t span
    cdef readonly int64_t last_offset
    cdef readonly int64_t largest_ms
    cdef readonly int64_t largest_offset
    cdef readonly bint has_producer
    cdef readonly bint is_control
    cdef BatchRow only  # the row of a single batch
    cdef bytearray several  # the rows of several batches; None for one
    cdef object known  # the table; None if it was not made yet

    cdef int use(self, table) except -1
    cdef BatchRow* rows(self) noexcept
    cdef void sum_up(self) noexcept
