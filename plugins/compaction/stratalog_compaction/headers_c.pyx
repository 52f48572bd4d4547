# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled version of ``header_numbers``, which documents the function."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from stratalog_compaction.columns cimport Cursor, column, start_of

cdef enum:
    INT64_BYTES = 8
    LONGEST_TEXT = 20

cdef struct Flat:  # the headers of all records
    Cursor arena
    int64_t arena_bytes
    int64_t count
    const int32_t* key_position
    const int32_t* key_size
    const int32_t* value_position
    const int32_t* value_size

cdef struct HeaderQuery:
    Cursor name
    int64_t name_bytes
    bint is_int64
    int64_t missing


cdef inline int64_t number_of(Cursor text, int64_t size, bint is_int64, int64_t missing) noexcept nogil:
    cdef uint64_t value = 0, most
    cdef int64_t i = 0
    cdef bint is_negative = False
    if is_int64:
        if size != INT64_BYTES:
            return missing
        for i in range(INT64_BYTES):
            value = value << 8 | text[i]
        return <int64_t>value
    if size > LONGEST_TEXT or size < 1:
        return missing
    if text[0] == 45:  # a minus
        i, is_negative = 1, True
    most = <uint64_t>INT64_MAX + is_negative
    if i == size:
        return missing
    while i < size:
        if not 48 <= text[i] <= 57 or value > most // 10 or value * 10 > most - (text[i] - 48):
            return missing
        value = value * 10 + (text[i] - 48)
        i += 1
    return <int64_t>(0 - value) if is_negative else <int64_t>value


cdef bint fill(
    const Flat* headers,
    const int32_t* first,
    const int32_t* count,
    int64_t rows,
    const HeaderQuery* query,
    int64_t* numbers,
) noexcept nogil:
    """Fill ``numbers``. Return False if a field is not inside the arena, or if a record refers to missing headers."""
    cdef int64_t row, index, end
    for row in range(rows):
        numbers[row] = query.missing
        if count[row] <= 0:
            continue
        if first[row] < 0 or <int64_t>first[row] + count[row] > headers.count:
            return False
        index = <int64_t>first[row] + count[row]
        while index > first[row]:
            index -= 1
            if headers.key_size[index] != query.name_bytes:
                continue
            if not 0 <= headers.key_position[index] <= headers.arena_bytes - query.name_bytes:
                return False
            if memcmp(headers.arena + headers.key_position[index], query.name, query.name_bytes):
                continue
            if headers.value_size[index] >= 0:
                if not 0 <= headers.value_position[index] <= headers.arena_bytes - headers.value_size[index]:
                    return False
                numbers[row] = number_of(
                    headers.arena + headers.value_position[index],
                    headers.value_size[index],
                    query.is_int64,
                    query.missing,
                )
            break
    return True


def header_numbers(records, bytes name, bint is_int64, int64_t missing):
    cdef int64_t rows = records.count
    cdef Flat headers
    cdef HeaderQuery query
    cdef bint is_inside
    headers.count = len(records.header_key_size)
    cdef list buffers = [
        memoryview(records.arena).cast("B"),
        column(records.header_first, "i", rows),
        column(records.header_count, "i", rows),
        column(records.header_key_position, "i", headers.count),
        column(records.header_key_size, "i", headers.count),
        column(records.header_value_position, "i", headers.count),
        column(records.header_value_size, "i", headers.count),
    ]
    headers.arena, headers.arena_bytes = <Cursor>start_of(buffers[0]), len(buffers[0])
    cdef const int32_t* first = <const int32_t*>start_of(buffers[1])
    cdef const int32_t* count = <const int32_t*>start_of(buffers[2])
    headers.key_position, headers.key_size = <const int32_t*>start_of(buffers[3]), <const int32_t*>start_of(buffers[4])
    headers.value_position = <const int32_t*>start_of(buffers[5])
    headers.value_size = <const int32_t*>start_of(buffers[6])
    query.name, query.name_bytes = <Cursor>PyBytes_AS_STRING(name), len(name)
    query.is_int64, query.missing = is_int64, missing
    numbers = memoryview(bytearray(8 * rows)).cast("q")
    cdef int64_t* number_column = <int64_t*>start_of(numbers)
    with nogil:
        is_inside = fill(&headers, first, count, rows, &query, number_column)
    if not is_inside:
        records.headers()  # raises the error
        raise IndexError("the headers changed while they were read")
    return numbers
