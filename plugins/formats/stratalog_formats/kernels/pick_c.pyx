# cython: boundscheck=False, wraparound=False, cdivision=True
"""Choosing the batches that a fetch returns by their headers alone, for a read from where an index said.

As in ``pack_c``, what is unusual is left to others, here to a scan, so this has no twin in pure Python.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint64_t

from stratalog_formats.kernels.wire cimport (
    ANOTHER_MAGIC,
    BATCH_HEADER_BYTES,
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


cdef struct Picked:
    int64_t start
    int64_t end
    int64_t last_offset


cdef int pick(
    Cursor data,
    int64_t size,
    int64_t base_offset,
    int64_t offset,
    int64_t max_bytes,
    int64_t bound,
    bint is_told,
    int64_t told,
    Picked* found,
) noexcept nogil:
    """-1 if the first batch that is wanted is not seen, or something is wrong before it."""
    cdef int64_t at = 0, length = 0, first, last, before = 0
    cdef bint begun = False
    cdef Stop stop
    cdef Cursor p
    found.start, found.end, found.last_offset = 0, 0, -1
    while at < size:
        p = data + at
        stop = framed(p, size - at, 2, &length)
        if stop == ANOTHER_MAGIC:
            return -1
        if stop != RAN_OUT or length < BATCH_HEADER_BYTES:
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
        elif last >= offset:
            if is_told:
                return -1
            begun = True
            found.start = found.end = at
            if last >= bound:
                return 0
        if begun:
            found.end, found.last_offset = at + length, last
        before = last
        at += length
    return 0 if begun else -1


def pick_batches(data, int64_t base_offset, int64_t offset, int64_t max_bytes, int64_t bound, told):
    """As ``RecordFormat.pick``."""
    cdef Picked found
    cdef int missing
    cdef int64_t known = 0
    cdef bint is_told = told is not None
    cdef Py_buffer view
    cdef int overflow = 0
    if is_told:
        known = PyLong_AsLongLongAndOverflow(told, &overflow)
        if overflow:
            return None  # no batch ends there
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    missing = pick(<Cursor>view.buf, view.len, base_offset, offset, max_bytes, bound, is_told, known, &found)
    PyBuffer_Release(&view)
    return None if missing else (found.start, found.end, found.last_offset)
