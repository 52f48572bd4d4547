# cython: boundscheck=False, wraparound=False, cdivision=True
"""Rebuilding of log bytes from rows and frames of layout ``parquet``, as compiled code; see ``rebuild``.

If frames or rows are wrong, the Python version of the function raises the error.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from stratalog_formats.kernels.rebuild import rebuild_pieces as python_rebuild

from stratalog_formats.kernels.scan_c cimport checksum_of
from stratalog_formats.kernels.wire cimport (
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER_BYTES,
    LOG_APPEND_TIME,
    OVERHEAD_BYTES,
    Cursor,
    at_start,
    big_32,
    big_64,
    field_size,
    flat,
    put_32,
    size_of,
    start_of,
    subtract,
    uninitialised,
    varint_size,
    write_field,
    write_varint,
)

cdef enum:
    BATCH_PIECE = 0
    BYTES_PIECE = 1
    BYTES_HEAD_BYTES = 9


cdef struct Values:  # a column of variable width; ``bits`` may be NULL
    Cursor bits
    const int32_t* ends
    Cursor data
    int64_t room
    int64_t count


cdef struct Rows:
    int64_t count
    const int64_t* offsets
    const int64_t* stamps
    const int64_t* producer_stamps
    const int32_t* header_ends
    Values keys
    Values values
    Values names
    Values contents


cdef inline uint32_t little_32(Cursor at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline int64_t size_at(const Values* column, int64_t i) noexcept nogil:
    """Return the size of a value, -1 if it is null, or -2 if it is not inside its column."""
    if column.bits != NULL and not column.bits[i >> 3] >> (i & 7) & 1:
        return -1
    if not 0 <= column.ends[i] <= column.ends[i + 1] or column.ends[i + 1] > column.room:
        return -2
    return column.ends[i + 1] - column.ends[i]


cdef inline uint8_t* write_value(uint8_t* into, const Values* column, int64_t i) noexcept nogil:
    return write_field(into, column.data + column.ends[i], size_at(column, i))


cdef int64_t body_size(const Rows* rows, int64_t i, int64_t delta_ms, int64_t delta) noexcept nogil:
    """Return the size of a record without its length field, or -1 if a value is not inside its column."""
    cdef int64_t first = rows.header_ends[i], last = rows.header_ends[i + 1], n, name, content
    cdef int64_t key = size_at(&rows.keys, i), value = size_at(&rows.values, i), size
    if key < -1 or value < -1 or not 0 <= first <= last or last > rows.names.count:
        return -1
    size = 1 + varint_size(delta_ms) + varint_size(delta) + field_size(key) + field_size(value)
    size += varint_size(last - first)
    for n in range(first, last):
        name, content = size_at(&rows.names, n), size_at(&rows.contents, n)
        if name < 0 or content < -1:
            return -1
        size += field_size(name) + field_size(content)
    return size


cdef bint write_batch(uint8_t** into, const uint8_t* end, const Rows* rows, Cursor header, int64_t* row) noexcept nogil:
    """Write one batch to ``into``, and move ``into`` and ``row`` to the end of the batch. Return False if it is wrong."""
    cdef uint8_t* start = into[0]
    cdef uint8_t* at = start + BATCH_HEADER_BYTES
    cdef int64_t base_offset = <int64_t>big_64(header), base_ms = <int64_t>big_64(header + 27)
    cdef int64_t count = <int32_t>big_32(header + 57), i, n, size, delta, delta_ms
    cdef const int64_t* stamps = rows.producer_stamps if header[22] & LOG_APPEND_TIME else rows.stamps
    if count < 1 or count > rows.count - row[0] or end - start < BATCH_HEADER_BYTES:
        return False
    memcpy(start, header, BATCH_HEADER_BYTES)
    for i in range(row[0], row[0] + count):
        delta_ms, delta = subtract(stamps[i], base_ms), subtract(rows.offsets[i], base_offset)
        size = body_size(rows, i, delta_ms, delta)
        if size < 0 or varint_size(size) + size > end - at:
            return False
        at = write_varint(at, size)
        at[0] = 0
        at = write_varint(write_varint(at + 1, delta_ms), delta)
        at = write_value(write_value(at, &rows.keys, i), &rows.values, i)
        at = write_varint(at, rows.header_ends[i + 1] - rows.header_ends[i])
        for n in range(rows.header_ends[i], rows.header_ends[i + 1]):
            at = write_value(write_value(at, &rows.names, n), &rows.contents, n)
    put_32(start + 8, <uint32_t>(at - start - OVERHEAD_BYTES))
    put_32(start + BATCH_CRC_POSITION, checksum_of(start + BATCH_CHECKED_FROM, at - start - BATCH_CHECKED_FROM))
    into[0], row[0] = at, row[0] + count
    return True


cdef bint write_pieces(
    uint8_t** into, const uint8_t* end, const Rows* rows, Cursor at, Cursor stop, int64_t row
) noexcept nogil:
    """Write all pieces, and move ``into`` to their end. Return False if a piece is wrong or does not fit."""
    cdef int64_t size
    while at < stop:
        if at[0] == BATCH_PIECE and stop - at > BATCH_HEADER_BYTES:
            if not write_batch(into, end, rows, at + 1, &row):
                return False
            at += 1 + BATCH_HEADER_BYTES
        elif at[0] == BYTES_PIECE and stop - at >= BYTES_HEAD_BYTES:
            size = little_32(at + 1)
            if size > stop - at - BYTES_HEAD_BYTES or little_32(at + 5) > rows.count - row or size > end - into[0]:
                return False
            row += little_32(at + 5)
            at += BYTES_HEAD_BYTES
            memcpy(into[0], at, size)
            into[0] += size
            at += size
        else:
            return False
    return True


cdef object sized(object data, int64_t size):
    view = flat(data)
    if size_of(view) < size:
        raise ValueError(f"a column has {size_of(view)} bytes, {size} are needed")
    return view


cdef list open_values(Values* into, int64_t count, bits, ends, data):
    """Set the pointers of ``into`` to a column.

    The pointers are valid as long as the caller keeps the returned list.
    """
    cdef list held = [None if bits is None else sized(bits, (count + 7) // 8), sized(ends, 4 * (count + 1)), flat(data)]
    into.bits = NULL if bits is None else start_of(held[0])
    into.ends, into.data, into.room = <const int32_t*>start_of(held[1]), start_of(held[2]), size_of(held[2])
    into.count = count
    return held


def rebuild_pieces(frames, rows, int64_t first_row, int64_t log_bytes):
    cdef Rows found
    cdef int64_t count = rows.row_count, headers
    cdef bint is_complete
    if not 0 <= first_row <= count or log_bytes < 0:
        return python_rebuild(frames, rows, first_row, log_bytes)
    cdef list held = [sized(of, 8 * count) for of in (rows.offsets, rows.stamps, rows.producer_stamps)]
    held.append(sized(rows.header_ends, 4 * (count + 1)))
    found.count = count
    found.offsets, found.stamps = <const int64_t*>start_of(held[0]), <const int64_t*>start_of(held[1])
    found.producer_stamps = <const int64_t*>start_of(held[2])
    found.header_ends = <const int32_t*>start_of(held[3])
    headers = found.header_ends[count]
    if headers < 0:
        raise ValueError("the headers have a negative number")
    held += open_values(&found.keys, count, rows.key_bits, rows.key_ends, rows.key_data)
    held += open_values(&found.values, count, rows.value_bits, rows.value_ends, rows.value_data)
    held += open_values(&found.names, headers, None, rows.name_ends, rows.name_data)
    held += open_values(&found.contents, headers, rows.content_bits, rows.content_ends, rows.content_data)
    view = flat(frames)
    cdef Cursor at = start_of(view)
    cdef Cursor stop = at + size_of(view)
    out = uninitialised(log_bytes)
    cdef uint8_t* into = at_start(out)
    with nogil:
        is_complete = write_pieces(&into, into + log_bytes, &found, at, stop, first_row)
    if not is_complete or into != at_start(out) + log_bytes:
        return python_rebuild(frames, rows, first_row, log_bytes)
    return out
