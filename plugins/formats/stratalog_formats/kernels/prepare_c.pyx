# cython: boundscheck=False, wraparound=False, cdivision=True
"""Preparation of encoded batches in one pass. The leader that appends them changes only offsets and leader epoch.

For unusual data, ``prepare_batches`` returns None, and the caller uses ``decode``. Therefore this module has no version
in pure Python.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from stratalog.model.prepared_c cimport BatchRow, PreparedBatches, Rules
from stratalog_formats.kernels.scan_c cimport checksum_of, read_header
from stratalog_formats.kernels.wire cimport (
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER_BYTES,
    MAX_INT32,
    OVERHEAD_BYTES,
    Cursor,
    Row,
    add,
    at_start,
    big_32,
    read_record,
    subtract,
    uninitialised,
)

cdef enum:
    UNUSUAL = 0x6F  # attributes that this module does not prepare: codec, LogAppendTime, control, delete horizon
    LONG_BYTES = 1 << 17  # a smaller pass keeps the GIL, because it is short
    NO_TIMESTAMP = -1


cdef struct Found:  # properties of all records together
    int64_t least_ms
    int64_t largest_ms
    int64_t largest_bytes
    bint has_null_key
    bint is_stamped


cdef inline int64_t framed_bytes(Cursor at, int64_t left) noexcept nogil:
    """Return the size of the batch at ``at``; 0 if the batch is incomplete, invalid, or has unusual attributes."""
    cdef int64_t size
    if left < BATCH_HEADER_BYTES:
        return 0
    size = <int64_t><int32_t>big_32(at + 8) + OVERHEAD_BYTES
    return size if BATCH_HEADER_BYTES < size <= left and at[16] == 2 and not at[22] & UNUSUAL else 0


cdef int64_t count_batches(Cursor data, int64_t size) noexcept nogil:
    """Return the number of batches; 0 if ``framed_bytes`` refuses one of them."""
    cdef int64_t at = 0, count = 0, length
    while at < size:
        length = framed_bytes(data + at, size - at)
        if not length:
            return 0
        at += length
        count += 1
    return count


cdef bint look(Cursor at, int64_t position, int64_t size, BatchRow* row, Found* found) noexcept nogil:
    """Fill the row of one batch, and add the properties of its records to ``found``. Return True if the batch is usual.

    A usual batch has a correct CRC, the number of records in its header, and the offset deltas 0, 1, 2, ... If it has a
    producer id, it has a sequence number.
    """
    cdef int64_t i, stamp, largest = INT64_MIN
    cdef Cursor p = at + BATCH_HEADER_BYTES
    cdef Cursor end = at + size
    cdef Row record
    read_header(at, position, size, row)
    if row.record_count < 1 or row.last_offset < row.base_offset:
        return False
    if subtract(row.last_offset, row.base_offset) != row.record_count - 1:
        return False
    if row.producer_id > -1 and row.base_sequence < 0:
        return False
    for i in range(row.record_count):
        if read_record(&p, end, &record) or record.delta != i:
            return False
        stamp = add(row.base_timestamp_ms, record.delta_ms)
        if stamp > largest:
            largest = stamp
        if stamp < found.least_ms:
            found.least_ms = stamp
        found.has_null_key |= record.key_size < 0
    if p != end:
        return False
    if largest > found.largest_ms:
        found.largest_ms = largest
    if size > found.largest_bytes:
        found.largest_bytes = size
    found.is_stamped &= row.max_timestamp_ms == (largest if largest > NO_TIMESTAMP else NO_TIMESTAMP)
    return checksum_of(at + BATCH_CHECKED_FROM, size - BATCH_CHECKED_FROM) == row.crc


cdef bint look_at_all(Cursor data, int64_t size, BatchRow* row, int64_t count, Found* found) noexcept nogil:
    cdef int64_t at = 0, length, i
    for i in range(count):
        length = framed_bytes(data + at, size - at)
        if not length or not look(data + at, at, length, row + i, found):
            return False
        at += length
    return at == size


cdef object prepared(Cursor source, int64_t size, Rules rules, int64_t now_ms):
    """Implement ``RecordFormat.prepare_batches``.

    The bytes are copied before the check, so that no other thread can change them after the check.
    """
    cdef PreparedBatches made
    cdef Found found
    cdef bint good
    cdef BatchRow* row
    cdef uint8_t* own
    cdef int64_t count = count_batches(source, size) if size <= MAX_INT32 else 0
    if not count:
        return None  # no copy is needed
    made = PreparedBatches.__new__(PreparedBatches)
    made.magic, made.data, made.size_bytes, made.batch_count = 2, uninitialised(size), size, count
    if count > 1:
        made.several = PyByteArray_FromStringAndSize(NULL, count * sizeof(BatchRow))
    row, own = made.rows(), at_start(made.data)
    found.least_ms, found.largest_ms, found.largest_bytes = INT64_MAX, INT64_MIN, 0
    found.has_null_key, found.is_stamped = False, True
    if size > LONG_BYTES:
        with nogil:
            memcpy(own, source, size)
            good = look_at_all(own, size, row, count, &found)
    else:
        memcpy(own, source, size)
        good = look_at_all(own, size, row, count, &found)
    if not good or not found.is_stamped and rules.keeps_times:
        return None
    if not rules.allow(found.largest_bytes, found.least_ms, found.largest_ms, found.has_null_key, now_ms):
        return None
    made.sum_up()
    return made


def prepare_batches(data, Rules rules, int64_t now_ms):
    cdef Py_buffer view
    try:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    except BufferError:
        return None  # the bytes are not contiguous
    try:
        return prepared(<Cursor>view.buf, view.len, rules, now_ms)
    finally:
        PyBuffer_Release(&view)
