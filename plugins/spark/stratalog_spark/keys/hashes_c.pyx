# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled version of ``hashes``. See ``hashes`` for the documentation."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from stratalog.spi.siphash cimport Hash, hash_of


def hash_items(ends, data, int64_t first, int64_t count, bytes secret):
    ends_view, data_view = memoryview(ends).cast("B").cast("i"), memoryview(data).cast("B")
    if len(secret) != 16:
        raise ValueError(f"a secret has 16 bytes, not {len(secret)}")
    if first < 0 or count < 0 or first + count + 1 > len(ends_view):
        raise IndexError("fewer items than required")
    cdef const int32_t* at = <const int32_t*>PyMemoryView_GET_BUFFER(ends_view).buf + first
    cdef const uint8_t* content = <const uint8_t*>PyMemoryView_GET_BUFFER(data_view).buf
    cdef int64_t size = len(data_view), i
    cdef uint64_t[2] key
    cdef bint fits = True
    memcpy(key, PyBytes_AS_STRING(secret), 16)
    made = PyBytes_FromStringAndSize(NULL, 16 * count)
    cdef Hash* into = <Hash*>PyBytes_AS_STRING(made)
    with nogil:
        for i in range(count):
            if at[i] < 0 or at[i + 1] < at[i] or at[i + 1] > size:
                fits = False
                break
            into[i] = hash_of(content + at[i], at[i + 1] - at[i], key)
    if not fits:
        raise IndexError("an item is not inside the data")
    return made
