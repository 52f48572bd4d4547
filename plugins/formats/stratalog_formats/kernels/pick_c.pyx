# cython: boundscheck=False, wraparound=False, cdivision=True
"""Selection of the batches that a fetch returns, and of the record that a search by timestamp returns.

The batches are selected by their headers, with or without a CRC check. As in ``pack_c``, unusual data is left to other
code, here to a scan or to ``decode``. This module therefore has no pure Python twin.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint64_t

from stratalog_formats.kernels.scan_c cimport checksum_of
from stratalog_formats.kernels.wire cimport (
    ANOTHER_MAGIC,
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER_BYTES,
    FRAME_BYTES,
    LOG_APPEND_TIME,
    MAX_INT32,
    RAN_OUT,
    Cursor,
    Row,
    Stop,
    add,
    big_32,
    big_64,
    framed,
    read_record,
)

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef struct Picked:
    int64_t start
    int64_t end
    int64_t last_offset


cdef int pick(
    Cursor data,
    int64_t size,
    int64_t beyond,
    int64_t base_offset,
    int64_t offset,
    int64_t max_bytes,
    int64_t bound,
    bint is_told,
    int64_t told,
    bint check_crc,
    Picked* found,
) noexcept nogil:
    """Return 0, or -1 if the first wanted batch is not in the data, or if it or the data before it is invalid."""
    cdef int64_t at = 0, length = 0, first, last, before = 0
    cdef bint begun = False
    cdef Stop stop
    cdef Cursor p
    found.start, found.end, found.last_offset = 0, 0, -1
    while at < size:
        p = data + at
        if size - at < FRAME_BYTES:
            break
        stop = framed(p, size - at + beyond, 2, &length)
        if stop == ANOTHER_MAGIC:
            return -1
        if stop != RAN_OUT or length < BATCH_HEADER_BYTES or size - at < BATCH_HEADER_BYTES:
            break
        first, last = <int64_t>big_64(p), add(<int64_t>big_64(p), <int32_t>big_32(p + 23))
        if last < first or first < base_offset or <uint64_t>last - <uint64_t>base_offset > MAX_INT32:
            break
        if at and first <= before:
            break
        if is_told:
            if last > told:
                return -1
            is_told = last != told
        if begun:
            if last >= bound or at + length - found.start > max_bytes:
                return 0
        elif last >= offset and is_told:
            return -1
        if check_crc and length > size - at:
            break
        if check_crc and checksum_of(p + BATCH_CHECKED_FROM, length - BATCH_CHECKED_FROM) != big_32(p + BATCH_CRC_POSITION):
            break
        if not begun and last >= offset:
            begun = True
            found.start = found.end = at
            if last >= bound:
                return 0
        if begun:
            found.end, found.last_offset = at + length, last
        before = last
        at += length
    return 0 if begun else -1


def pick_batches(data, int64_t base_offset, int64_t offset, int64_t max_bytes, int64_t bound, told, bint check_crc, int64_t beyond):
    """Select batches as ``RecordFormat.pick`` documents."""
    cdef Picked found
    cdef int missing
    if beyond < 0 or beyond >> 62:
        raise ValueError(f"{beyond} bytes behind the data")
    cdef int64_t known = 0
    cdef bint is_told = told is not None
    cdef Py_buffer view
    cdef int overflow = 0
    if is_told:
        known = PyLong_AsLongLongAndOverflow(told, &overflow)
        if overflow:
            return None  # no batch can end there
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if check_crc:  # the check takes as long as reading the bytes
        with nogil:
            missing = pick(<Cursor>view.buf, view.len, beyond, base_offset, offset, max_bytes, bound, is_told, known, True, &found)
    else:
        missing = pick(<Cursor>view.buf, view.len, beyond, base_offset, offset, max_bytes, bound, is_told, known, False, &found)
    PyBuffer_Release(&view)
    return None if missing else (found.start, found.end, found.last_offset)


cdef int look(Cursor at, Cursor end, int64_t timestamp_ms, int64_t min_offset, int64_t* stamp, int64_t* offset) noexcept nogil:
    """Return 1 if the batch has such a record, 0 if it has none, -1 if it is invalid before that record."""
    cdef int64_t base_offset = <int64_t>big_64(at), base_ms = <int64_t>big_64(at + 27)
    cdef int64_t append_ms = <int64_t>big_64(at + 35), count = <int32_t>big_32(at + 57), i
    cdef bint is_appended = at[22] & LOG_APPEND_TIME
    cdef Row row
    at += BATCH_HEADER_BYTES
    for i in range(count):
        if read_record(&at, end, &row):
            return -1
        stamp[0] = append_ms if is_appended else add(base_ms, row.delta_ms)
        offset[0] = add(base_offset, row.delta)
        if (offset[0] < base_offset) != (row.delta < 0):
            return -1
        if stamp[0] >= timestamp_ms and offset[0] >= min_offset:
            return 1
    return 0 if count >= 0 and at == end else -1


def late_record(data, int64_t start, int64_t end, int64_t timestamp_ms, int64_t min_offset):
    """Search an uncompressed batch as ``RecordFormat.first_late`` documents.

    Return timestamp and offset, () if there is no such record, or None if the batch is unusual.
    """
    cdef int64_t stamp = 0, offset = 0
    cdef int found = -1
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if 0 <= start <= end - BATCH_HEADER_BYTES and end <= view.len:
        found = look(<Cursor>view.buf + start, <Cursor>view.buf + end, timestamp_ms, min_offset, &stamp, &offset)
    PyBuffer_Release(&view)
    if found < 0:
        return None
    return (stamp, offset) if found else ()
