# cython: boundscheck=False, wraparound=False, cdivision=True
"""Bloom filters of keys, as compiled code. ``bloom`` documents each function."""

from cpython.bytearray cimport PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from stratalog_formats.kernels.wire cimport Cursor, at_start, column, flat, size_of, start_of, uninitialised

from stratalog_formats.kernels.bloom import hash_keys as python_hash_keys

cdef extern from "crc.h" nogil:
    void crc_setup()
    uint32_t crc32_of(const uint8_t* at, size_t size)
    uint32_t crc32c_of(const uint8_t* at, size_t size)


crc_setup()

cdef uint64_t FIRST = 0xFF51AFD7ED558CCD
cdef uint64_t SECOND = 0xC4CEB9FE1A85EC53


cdef inline uint64_t hashed_of(Cursor at, int64_t size) noexcept nogil:
    cdef uint64_t found = crc32c_of(at, size) | <uint64_t>crc32_of(at, size) << 32
    found = (found ^ found >> 33) * FIRST
    found = (found ^ found >> 33) * SECOND
    return found ^ found >> 33


cdef int compare(const void* a, const void* b) noexcept nogil:
    cdef uint64_t one = (<const uint64_t*>a)[0], other = (<const uint64_t*>b)[0]
    return (one > other) - (one < other)


def hash_of(key):
    view = flat(key)
    return hashed_of(start_of(view), size_of(view))


def hash_keys(records):
    cdef int64_t count = records.count, i, made = 0
    arena, positions = flat(records.arena), column(records.key_position, "i", count)
    sizes = column(records.key_size, "i", count)
    cdef Cursor start = start_of(arena)
    cdef int64_t room = size_of(arena)
    cdef const int32_t* position = <const int32_t*>start_of(positions)
    cdef const int32_t* size = <const int32_t*>start_of(sizes)
    cdef bint is_inside = True
    out = uninitialised(8 * count)
    cdef uint64_t* into = <uint64_t*>at_start(out)
    with nogil:
        for i in range(count):
            if size[i] < 0:
                continue
            if not 0 <= position[i] <= room - size[i]:
                is_inside = False
                break
            into[made] = hashed_of(start + position[i], size[i])
            made += 1
    if not is_inside:
        return python_hash_keys(records)  # it raises the error
    PyByteArray_Resize(out, 8 * made)
    return bytes(out)


def distinct(hashes):
    out = bytearray(hashes)
    cdef uint64_t* at = <uint64_t*>at_start(out)
    cdef int64_t count = len(out) // 8, i, kept = 0
    with nogil:
        qsort(at, count, 8, compare)
        for i in range(count):
            if not kept or at[i] != at[kept - 1]:
                at[kept] = at[i]
                kept += 1
    PyByteArray_Resize(out, 8 * kept)
    return bytes(out)


def fill_filter(hashes, int64_t count, int64_t size_bytes):
    if size_bytes < 1:
        raise ValueError("a filter has at least one byte")
    view = flat(hashes)
    cdef const uint64_t* at = <const uint64_t*>start_of(view)
    cdef int64_t number = size_of(view) // 8, i, n
    cdef uint64_t position, step, bit, bits = 8 * size_bytes
    out = uninitialised(size_bytes)
    cdef uint8_t* into = at_start(out)
    with nogil:
        memset(into, 0, size_bytes)
        for i in range(number):
            position, step = <uint32_t>at[i], at[i] >> 32 | 1
            for n in range(count):
                bit = position % bits
                into[bit >> 3] |= <uint8_t>1 << (bit & 7)
                position += step
    return out


def may_hold(found, bytes key, int64_t count):
    view, named = flat(found), flat(key)
    cdef Cursor at = start_of(view)
    cdef uint64_t hashed = hashed_of(start_of(named), size_of(named)), bits = 8 * <uint64_t>size_of(view)
    cdef uint64_t position = <uint32_t>hashed, step = hashed >> 32 | 1, bit
    cdef int64_t n
    if not bits:
        raise ValueError("a filter has at least one byte")
    for n in range(count):
        bit = position % bits
        if not at[bit >> 3] >> (bit & 7) & 1:
            return False
        position += step
    return True
