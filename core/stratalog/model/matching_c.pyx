# cython: boundscheck=False, wraparound=False, cdivision=True
"""Search for records by key or timestamp, as compiled code. ``matching`` documents the functions."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from stratalog.model.views cimport Cursor, inside, size_of, start_of

from stratalog.model.column_views import outside, typed_view

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef int64_t compare_all(
    Cursor arena,
    int64_t arena_bytes,
    const int32_t* position,
    const int32_t* size,
    int64_t count,
    Cursor key,
    int64_t key_bytes,
    uint8_t* into,
) noexcept nogil:
    """Write one byte for each row to ``into``: 1 if the row has the key, otherwise 0. Return -1.

    If a key is not inside the arena, stop and return its row.
    """
    cdef int64_t row
    for row in range(count):
        if size[row] >= 0 and not inside(position[row], size[row], arena_bytes):
            return row
        into[row] = size[row] == key_bytes and memcmp(arena + position[row], key, key_bytes) == 0
    return -1


def rows_of_key(records, bytes key):
    cdef int64_t count = records.count, wrong
    arena = memoryview(records.arena).cast("B")
    positions = typed_view(records.key_position, "i", "key_position")
    sizes = typed_view(records.key_size, "i", "key_size")
    if len(positions) != count or len(sizes) != count:
        raise ValueError(f"{len(positions)} positions and {len(sizes)} sizes of the keys of {count} records")
    made = PyBytes_FromStringAndSize(NULL, count)
    cdef Cursor source = start_of(arena)
    cdef const int32_t* position = <const int32_t*>start_of(positions)
    cdef const int32_t* size = <const int32_t*>start_of(sizes)
    cdef int64_t arena_bytes = size_of(arena), key_bytes = len(key)
    cdef Cursor wanted = <Cursor>PyBytes_AS_STRING(key)
    cdef uint8_t* into = <uint8_t*>PyBytes_AS_STRING(made)
    with nogil:
        wrong = compare_all(source, arena_bytes, position, size, count, wanted, key_bytes, into)
    if wrong >= 0:
        outside(positions[wrong], sizes[wrong])
    return made


def first_late_row(records, timestamp_ms, min_offset):
    stamp_view = typed_view(records.timestamp_ms, "q", "timestamp_ms")
    offset_view = typed_view(records.offset, "q", "offset")
    cdef const int64_t* stamps = <const int64_t*>start_of(stamp_view)
    cdef const int64_t* offsets = <const int64_t*>start_of(offset_view)
    cdef int above = 0, beyond = 0
    cdef int64_t least_ms = PyLong_AsLongLongAndOverflow(timestamp_ms, &above)
    cdef int64_t least = PyLong_AsLongLongAndOverflow(min_offset, &beyond)
    cdef int64_t row, count = len(stamp_view)
    if len(offset_view) != count:
        raise ValueError(f"{count} timestamps and {len(offset_view)} offsets")
    if above > 0 or beyond > 0:
        return None
    for row in range(count):
        if (above or stamps[row] >= least_ms) and (beyond or offsets[row] >= least):
            return row
    return None
