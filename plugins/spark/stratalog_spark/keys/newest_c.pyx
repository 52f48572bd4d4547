# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled part of ``newest``: the hash table with the latest offset of each key."""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define FETCH_SOON(at) __builtin_prefetch(at)
    #else
    #define FETCH_SOON(at) ((void)(at))
    #endif
    """
    void FETCH_SOON(const void* at) noexcept nogil

cdef enum:
    AHEAD = 16  # number of rows whose slots are prefetched from memory

cdef struct Slot:  # free if both halves of the hash are 0
    uint64_t a
    uint64_t b
    int64_t offset

cdef struct Row:
    uint64_t a
    uint64_t b


cdef int64_t put_all(Slot* slots, uint64_t mask, const Row* rows, const int64_t* offsets, int64_t count) noexcept nogil:
    """Add all rows, and return the number of new keys. The table must have free slots for all rows."""
    cdef int64_t i, added = 0
    cdef uint64_t at
    cdef Slot* slot
    for i in range(min(AHEAD, count)):
        FETCH_SOON(slots + (rows[i].a & mask))
    for i in range(count):
        if i + AHEAD < count:
            FETCH_SOON(slots + (rows[i + AHEAD].a & mask))
        if rows[i].a == 0 and rows[i].b == 0:
            continue
        at = rows[i].a & mask
        while True:
            slot = slots + at
            if slot.a == rows[i].a and slot.b == rows[i].b:
                if offsets[i] > slot.offset:
                    slot.offset = offsets[i]
                break
            if slot.a == 0 and slot.b == 0:
                slot.a, slot.b, slot.offset = rows[i].a, rows[i].b, offsets[i]
                added += 1
                break
            at = (at + 1) & mask
    return added


def put(slots, hashes, offsets, int64_t held):
    into = memoryview(slots).cast("B").cast("Q")
    keys, numbers = memoryview(hashes).cast("B").cast("Q"), memoryview(offsets).cast("B").cast("q")
    cdef int64_t size = len(into) // 3, count = len(numbers), added
    if into.readonly or len(into) % 3 or size < 1 or size & (size - 1):
        raise ValueError("a table has 2^n slots of 24 bytes, and can be written")
    if len(keys) != 2 * count:
        raise ValueError(f"{count} offsets need {2 * count} halves of hashes, not {len(keys)}")
    if not 0 <= held <= size - 1 - count:
        raise ValueError(f"{size} slots have no room for {held} and {count} keys")
    cdef Slot* table = <Slot*>PyMemoryView_GET_BUFFER(into).buf
    cdef const Row* rows = <const Row*>PyMemoryView_GET_BUFFER(keys).buf
    cdef const int64_t* given = <const int64_t*>PyMemoryView_GET_BUFFER(numbers).buf
    with nogil:
        added = put_all(table, <uint64_t>(size - 1), rows, given, count)
    return added
