# cython: boundscheck=False, wraparound=False, cdivision=True
"""Search in index entries of a fixed size, as compiled code. ``search`` documents each function."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t

from stratalog.spi import OffsetPosition

from stratalog_formats.kernels.wire cimport Cursor, big_32, big_64

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1

cdef enum:
    OFFSET_ENTRY_BYTES = 8

cdef object _made = tuple.__new__  # creates a named tuple without the constructor of its class


cdef int64_t up_to(
    Cursor entries, int64_t count, int64_t entry_bytes, int64_t key_position, int key_bytes, object target
) except -1:
    cdef int64_t low = 0, high = count, middle, key
    cdef int overflow
    cdef int64_t wanted = PyLong_AsLongLongAndOverflow(target, &overflow)
    cdef Cursor at
    if overflow:
        return count if overflow > 0 else 0
    while low < high:  # the same steps as ``bisect``: equal results even if entries do not ascend
        middle = (low + high) // 2
        at = entries + middle * entry_bytes + key_position
        key = <int64_t>big_64(at) if key_bytes == 8 else <int32_t>big_32(at)
        if wanted < key:
            high = middle
        else:
            low = middle + 1
    return low


def entries_up_to(entries, int64_t entry_bytes, int64_t key_position, int key_bytes, target):
    cdef Py_buffer view
    if key_bytes != 4 and key_bytes != 8 or not 0 <= key_position <= entry_bytes - key_bytes:
        raise ValueError(f"no key of {key_bytes} bytes is at {key_position} of an entry of {entry_bytes}")
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        return up_to(<Cursor>view.buf, view.len // entry_bytes, entry_bytes, key_position, key_bytes, target)
    finally:
        PyBuffer_Release(&view)


cdef object offset_entry(Cursor entries, int64_t count, int64_t index, object base_offset):
    if not 0 <= index < count:
        return None
    cdef Cursor at = entries + index * OFFSET_ENTRY_BYTES
    return _made(OffsetPosition, (base_offset + <int32_t>big_32(at), <int32_t>big_32(at + 4)))


def offsets_around(entries, base_offset, target):
    cdef Py_buffer view
    cdef int64_t count, index
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        count = view.len // OFFSET_ENTRY_BYTES
        index = up_to(<Cursor>view.buf, count, OFFSET_ENTRY_BYTES, 0, 4, target - base_offset)
        return (
            offset_entry(<Cursor>view.buf, count, index - 1, base_offset),
            offset_entry(<Cursor>view.buf, count, index, base_offset),
            offset_entry(<Cursor>view.buf, count, index + 1, base_offset),
        )
    finally:
        PyBuffer_Release(&view)
