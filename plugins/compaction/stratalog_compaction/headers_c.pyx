# cython: boundscheck=False, wraparound=False, cdivision=True
"""Numbers in headers of records, compiled; ``header_numbers`` documents the function."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from stratalog_compaction.columns cimport Cursor, column, start_of

cdef enum:
    INT64_BYTES = 8
    LONGEST_TEXT = 20
    GOOD = 0
    OUTSIDE = 1
    STRAY = 2

cdef struct Flat:  # the headers of all records
    Cursor arena
    int64_t arena_bytes
    int64_t count
    const int32_t* key_position
    const int32_t* key_size
    const int32_t* value_position
    const int32_t* value_size

cdef struct Wanted:
    Cursor name
    int64_t name_bytes
    bint is_int64
    int64_t missing


cdef inline int64_t number_of(Cursor at, int64_t size, bint is_int64, int64_t missing) noexcept nogil:
    cdef uint64_t found = 0, most
    cdef int64_t i = 0
    cdef bint is_negative = False
    if is_int64:
        if size != INT64_BYTES:
            return missing
        for i in range(INT64_BYTES):
            found = found << 8 | at[i]
        return <int64_t>found
    if size > LONGEST_TEXT or size < 1:
        return missing
    if at[0] == 45:  # a minus
        i, is_negative = 1, True
    most = <uint64_t>INT64_MAX + is_negative
    if i == size:
        return missing
    while i < size:
        if not 48 <= at[i] <= 57 or found > most // 10 or found * 10 > most - (at[i] - 48):
            return missing
        found = found * 10 + (at[i] - 48)
        i += 1
    return <int64_t>(0 - found) if is_negative else <int64_t>found


cdef int fill(
    const Flat* headers,
    const int32_t* first,
    const int32_t* count,
    int64_t rows,
    const Wanted* wanted,
    int64_t* into,
) noexcept nogil:
    """Return GOOD, OUTSIDE if a field is not inside the arena, or STRAY if a record refers to missing headers."""
    cdef int64_t row, at, end
    for row in range(rows):
        into[row] = wanted.missing
        if count[row] <= 0:
            continue
        if first[row] < 0 or <int64_t>first[row] + count[row] > headers.count:
            return STRAY
        at = <int64_t>first[row] + count[row]
        while at > first[row]:
            at -= 1
            if headers.key_size[at] != wanted.name_bytes:
                continue
            if not 0 <= headers.key_position[at] <= headers.arena_bytes - wanted.name_bytes:
                return OUTSIDE
            if memcmp(headers.arena + headers.key_position[at], wanted.name, wanted.name_bytes):
                continue
            if headers.value_size[at] >= 0:
                if not 0 <= headers.value_position[at] <= headers.arena_bytes - headers.value_size[at]:
                    return OUTSIDE
                into[row] = number_of(
                    headers.arena + headers.value_position[at], headers.value_size[at], wanted.is_int64, wanted.missing
                )
            break
    return GOOD


def header_numbers(records, bytes name, bint is_int64, int64_t missing):
    cdef int64_t rows = records.count
    cdef Flat headers
    cdef Wanted wanted
    cdef int outcome
    headers.count = len(records.header_key_size)
    cdef list held = [
        memoryview(records.arena).cast("B"),
        column(records.header_first, "i", rows),
        column(records.header_count, "i", rows),
        column(records.header_key_position, "i", headers.count),
        column(records.header_key_size, "i", headers.count),
        column(records.header_value_position, "i", headers.count),
        column(records.header_value_size, "i", headers.count),
    ]
    headers.arena, headers.arena_bytes = <Cursor>start_of(held[0]), len(held[0])
    cdef const int32_t* first = <const int32_t*>start_of(held[1])
    cdef const int32_t* count = <const int32_t*>start_of(held[2])
    headers.key_position, headers.key_size = <const int32_t*>start_of(held[3]), <const int32_t*>start_of(held[4])
    headers.value_position, headers.value_size = <const int32_t*>start_of(held[5]), <const int32_t*>start_of(held[6])
    wanted.name, wanted.name_bytes = <Cursor>PyBytes_AS_STRING(name), len(name)
    wanted.is_int64, wanted.missing = is_int64, missing
    made = memoryview(bytearray(8 * rows)).cast("q")
    cdef int64_t* into = <int64_t*>start_of(made)
    with nogil:
        outcome = fill(&headers, first, count, rows, &wanted, into)
    if outcome == OUTSIDE:
        raise IndexError("a header is not inside the arena")
    if outcome == STRAY:
        raise IndexError("a header is not inside the flat columns")
    return made
