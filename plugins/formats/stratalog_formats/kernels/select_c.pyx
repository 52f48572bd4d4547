# cython: boundscheck=False, wraparound=False, cdivision=True
"""Selection of the batches that a fetch returns, by their headers, with or without a CRC check.

For unusual data, ``select_batches`` returns None, and the caller scans the bytes. Therefore this module has no version
in pure Python.
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
    MAX_INT32,
    RAN_OUT,
    Cursor,
    Stop,
    add,
    big_32,
    big_64,
    framed,
)

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef int64_t NO_LIMIT_MS = -(1 << 63)


cdef struct Selected:
    int64_t start
    int64_t end
    int64_t last_offset


cdef int select(
    Cursor data,
    int64_t size,
    int64_t beyond,
    int64_t base_offset,
    int64_t offset,
    int64_t max_bytes,
    int64_t bound,
    bint is_indexed,
    int64_t indexed,
    bint check_crc,
    int64_t since_ms,
    bint is_timed,
    int64_t indexed_ms,
    Selected* found,
) noexcept nogil:
    """Fill ``found`` and return 0. Return -1 if the first wanted batch is missing or incomplete.

    The result is also -1 if bytes before the first wanted batch are invalid, if a batch contradicts the index entry, or
    if a batch or message has another magic.
    """
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
        if is_indexed:
            if last > indexed:
                return -1
            is_indexed = last != indexed
            if not is_indexed and is_timed and <int64_t>big_64(p + 35) != indexed_ms:
                return -1
        if begun:
            if last >= bound or at + length - found.start > max_bytes:
                return 0
        elif last >= offset and is_indexed:
            return -1
        if check_crc and length > size - at:
            break
        if check_crc and checksum_of(p + BATCH_CHECKED_FROM, length - BATCH_CHECKED_FROM) != big_32(p + BATCH_CRC_POSITION):
            break
        if not begun and last >= offset and <int64_t>big_64(p + 35) >= since_ms:
            begun = True
            found.start = found.end = at
            if last >= bound:
                return 0
        if begun:
            found.end, found.last_offset = at + length, last
        before = last
        at += length
    return 0 if begun else -1


def select_batches(
    data,
    *,
    int64_t base_offset,
    int64_t offset,
    int64_t max_bytes,
    int64_t bound,
    indexed_offset,
    bint check_crc=False,
    int64_t beyond_bytes=0,
    since_ms=None,
    indexed_ms=None,
):
    """Implement ``RecordFormat.select``."""
    cdef Selected found
    cdef int missing
    if beyond_bytes < 0 or beyond_bytes >> 62:
        raise ValueError(f"{beyond_bytes} bytes behind the data")
    cdef int64_t known = 0, since = NO_LIMIT_MS if since_ms is None else since_ms
    cdef bint is_indexed = indexed_offset is not None, is_timed = indexed_ms is not None
    cdef int64_t known_ms = indexed_ms if is_timed else 0
    cdef Py_buffer view
    cdef int overflow = 0
    if is_indexed:
        known = PyLong_AsLongLongAndOverflow(indexed_offset, &overflow)
        if overflow:
            return None  # the offset is above all possible offsets
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if check_crc:  # the check reads all bytes, so it releases the GIL
        with nogil:
            missing = select(
                <Cursor>view.buf, view.len, beyond_bytes, base_offset, offset, max_bytes, bound, is_indexed, known, True, since, is_timed, known_ms, &found
            )
    else:
        missing = select(
            <Cursor>view.buf, view.len, beyond_bytes, base_offset, offset, max_bytes, bound, is_indexed, known, False, since, is_timed, known_ms, &found
        )
    PyBuffer_Release(&view)
    return None if missing else (found.start, found.end, found.last_offset)
