# cython: boundscheck=False, wraparound=False, cdivision=True
"""Buffer functions for the codecs, as compiled code. ``buffers`` documents each function."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from stratalog_formats.kernels.wire cimport Cursor, flat, size_of, start_of, uninitialised


def room(int64_t size):
    if size < 0:
        raise ValueError("negative count")
    return uninitialised(size)


def holds(data, bytes wanted not None):
    view = flat(data)
    cdef Cursor at = start_of(view)
    cdef Cursor end = at + size_of(view)
    cdef const char* needle = PyBytes_AS_STRING(wanted)
    cdef int64_t size = PyBytes_GET_SIZE(wanted)
    cdef bint found = False
    if size == 0:
        return True
    with nogil:
        while end - at >= size:
            # search up to the last position at which ``wanted`` fits
            at = <Cursor>memchr(at, <uint8_t>needle[0], end - at - size + 1)
            if at == NULL:
                break
            if memcmp(at, needle, size) == 0:
                found = True
                break
            at += 1
    return found
