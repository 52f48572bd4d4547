# cython: boundscheck=False, wraparound=False, cdivision=True
"""Conversion of columns to Arrow's buffers, as compiled code. ``arrow`` wraps the buffers.

There are two passes, both without the GIL. The first pass computes sizes. The second pass copies bytes into buffers of
exactly these sizes, and repeats the checks, because another thread may write to columns or arena between the passes.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from stratalog.model.extent cimport OUTSIDE, OUTSIDE_HEADERS, TOO_LARGE, Extent, Fault, measure
from stratalog.model.utf8 cimport clean
from stratalog.model.views cimport (
    Cursor,
    Source,
    inside,
    open_source,
    start_of,
)

from stratalog.model.column_views import null_name, outside, outside_headers, views_of

cdef int64_t NO_TIMESTAMP = -1
cdef int64_t LAST_MS = ((1 << 63) - 1) // 1000  # microseconds have 64 bits too


cdef int check(Fault fault, const Source* source, int64_t i, int64_t n) except -1:
    """Raise the error ``fault`` of record ``i``, or of its header ``n``; return 0 if ``fault`` is FINE."""
    if fault == OUTSIDE_HEADERS:
        outside_headers(source.header_first[i], source.header_count[i], source.headers)
    if fault == TOO_LARGE:
        raise OverflowError(f"record {i} does not fit Arrow's 32-bit offsets")
    if fault == OUTSIDE:
        if source.key_size[i] >= 0 and not inside(source.key_position[i], source.key_size[i], source.arena_bytes):
            outside(source.key_position[i], source.key_size[i])
        if source.value_size[i] >= 0 and not inside(source.value_position[i], source.value_size[i], source.arena_bytes):
            outside(source.value_position[i], source.value_size[i])
        if source.name_size[n] < 0:
            null_name()
        if not inside(source.name_position[n], source.name_size[n], source.arena_bytes):
            outside(source.name_position[n], source.name_size[n])
        outside(source.content_position[n], source.content_size[n])
    return 0


# --- bytes -------------------------------------------------------------------------------------------------------


cdef enum:
    SHORT_BYTES = 256


cdef struct Binary:  # an Arrow column of variable width that is being filled
    int32_t* offsets
    uint8_t* data
    uint8_t* validity  # NULL: no nulls
    int64_t room
    int64_t used


cdef inline void clear_bit(uint8_t* bitmap, int64_t i) noexcept nogil:
    bitmap[i >> 3] &= ~(<uint8_t>1 << (i & 7))


cdef inline int put(Binary* into, int64_t i, const Source* source, int32_t position, int32_t size) noexcept nogil:
    """Write field ``i`` of an Arrow column, and return 0; return -1 if the records changed after the first pass."""
    if size > 0:
        if not inside(position, size, source.arena_bytes) or size > into.room - into.used:
            return -1
        memcpy(into.data + into.used, source.arena + position, size)
        into.used += size
    elif size < 0:
        if into.validity == NULL:
            return -1
        clear_bit(into.validity, i)
    into.offsets[i + 1] = <int32_t>into.used
    return 0


cdef int put_column(
    Binary* into, const Source* source, const int32_t* position, const int32_t* size, int64_t rows, int64_t nulls
) noexcept nogil:
    cdef int64_t i, taken, used = into.used, room = into.room
    cdef int32_t* offsets = into.offsets
    cdef uint8_t* data = into.data
    if nulls == rows and rows:  # a fast path, because often all keys are null
        memset(into.offsets, 0, 4 * (rows + 1))
        memset(into.validity, 0, (rows + 7) // 8)
        return 0
    for i in range(rows):
        taken = size[i]
        if taken > 0:
            if not inside(position[i], size[i], source.arena_bytes) or taken > room - used:
                return -1
            copy(data + used, room - used, source.arena + position[i], source.arena_bytes - position[i], taken)
            used += taken
        elif taken < 0:
            if into.validity == NULL:
                return -1
            clear_bit(into.validity, i)
        offsets[i + 1] = <int32_t>used
    into.used = used
    return 0


cdef inline void copy(uint8_t* into, int64_t room, Cursor data, int64_t left, int64_t size) noexcept nogil:
    """Copy a field of ``size`` bytes. ``into`` has ``room`` bytes, and ``data`` has ``left`` bytes.

    A short field is copied in pieces of 16 bytes. The last piece may write bytes after the field, which the next field
    overwrites.
    """
    cdef int64_t n = 0
    if size > SHORT_BYTES or size + 15 > room or size + 15 > left:
        memcpy(into, data, size)
        return
    while n < size:
        memcpy(into + n, data + n, 16)
        n += 16


cdef int put_headers(
    int32_t* offsets, Binary* names, Binary* contents, const Source* source, int64_t start, const Extent* extent
) noexcept nogil:
    cdef int64_t i, n, first, count, size, done = 0
    offsets[0] = 0
    for i in range(extent.rows):
        first, count = source.header_first[start + i], source.header_count[start + i]
        if count:
            if first < 0 or count < 0 or first + count > source.headers or count > extent.headers - done:
                return -1
            for n in range(first, first + count):
                size = source.name_size[n]
                if size < 0 or not inside(source.name_position[n], <int32_t>size, source.arena_bytes):
                    return -1
                size = clean(
                    source.arena + source.name_position[n], size, names.data + names.used, names.room - names.used
                )
                if size < 0:
                    return -1
                names.used += size
                names.offsets[done + 1] = <int32_t>names.used
                if put(contents, done, source, source.content_position[n], source.content_size[n]):
                    return -1
                done += 1
        offsets[i + 1] = <int32_t>done
    return 0


cdef int64_t put_timestamps(int64_t* into, const int64_t* ms, int64_t rows) noexcept nogil:
    """Write timestamps in microseconds, with 0 for null; return the number of nulls."""
    cdef int64_t i, nulls = 0
    cdef bint fits
    for i in range(rows):
        fits = ms[i] != NO_TIMESTAMP and -LAST_MS <= ms[i] <= LAST_MS
        into[i] = ms[i] * 1000 if fits else 0
        nulls += not fits
    return nulls


cdef void put_stamped(uint8_t* bitmap, const int64_t* ms, int64_t rows) noexcept nogil:
    cdef int64_t i
    for i in range(rows):
        if ms[i] == NO_TIMESTAMP or not -LAST_MS <= ms[i] <= LAST_MS:
            clear_bit(bitmap, i)


# --- buffers -----------------------------------------------------------------------------------------------------


cdef uint8_t* allocated(object allocate, int64_t size, list into) except? NULL:
    """Return the memory of a new buffer of ``size`` bytes. Append the buffer and a view that keeps it to ``into``."""
    buffer = allocate(size)
    view = memoryview(buffer)
    into.append(buffer)
    into.append(view)
    return <uint8_t*>start_of(view)


cdef uint8_t* bitmap_of(object allocate, int64_t rows, int64_t nulls, list into) except? NULL:
    """Return a new bitmap in which all rows are valid, or NULL if there are no nulls.

    Append the bitmap and a view of it to ``into``. If there are no nulls, append None twice.
    """
    cdef uint8_t* bitmap
    if not nulls:
        into.append(None)
        into.append(None)
        return NULL
    bitmap = allocated(allocate, (rows + 7) // 8, into)
    memset(bitmap, 0xFF, (rows + 7) // 8)
    return bitmap


cdef list open_binary(Binary* into, object allocate, int64_t rows, int64_t size, int64_t nulls):
    """Allocate the buffers of a column. Return validity, offsets and data, each followed by its view."""
    cdef list buffers = []
    into.validity = bitmap_of(allocate, rows, nulls, buffers)
    into.offsets = <int32_t*>allocated(allocate, 4 * (rows + 1), buffers)
    into.data = allocated(allocate, size, buffers)
    into.room, into.used = size, 0
    into.offsets[0] = 0
    return buffers


def pack(columns, int64_t start, int32_t partition, int64_t limit_bytes, allocate):
    """Return Arrow's buffers with as many records from ``start`` on as fit ``limit_bytes``.

    Args:
        columns: RecordColumns with every field.
        start: the first row, below ``columns.count``.
        partition: value of the column ``partition`` in each row.
        limit_bytes: limit for the bytes of the keys, values, header names and header values, each, and for the number
            of headers; at most 2^31 - 1.
        allocate: function of a size in bytes that returns a writable buffer.

    Returns:
        The fields of ``stratalog.model.arrow.ArrowBuffers``.

    Raises:
        IndexError: a field is not inside the arena, a header is not inside the flat columns, or a header has no name.
        OverflowError: one record is above the limit.
        RuntimeError: columns or arena changed during the call.
        ConfigError, TypeError, ValueError: the columns break a rule of ``views_of``.
    """
    cdef Source source
    cdef Extent extent
    cdef Binary keys, values, names, contents
    cdef Fault fault
    cdef int64_t n = 0, i, stamp_nulls
    cdef int changed
    cdef list views = open_source(&source, columns, views_of(columns))
    if not 0 <= start < source.count or limit_bytes > INT32_MAX:
        raise ValueError(f"start {start} or limit {limit_bytes}")
    memset(&extent, 0, sizeof(extent))
    with nogil:
        fault = measure(&source, start, limit_bytes, &extent, &n)
    check(fault, &source, start + extent.rows, n)

    cdef int64_t rows = extent.rows
    cdef list fixed = [], stamp_bits = [], list_offsets = []
    cdef int32_t* partitions = <int32_t*>allocated(allocate, 4 * rows, fixed)
    cdef uint8_t* offsets = allocated(allocate, 8 * rows, fixed)
    cdef int64_t* stamps = <int64_t*>allocated(allocate, 8 * rows, fixed)
    cdef uint8_t* types = allocated(allocate, 4 * rows, fixed)
    cdef uint8_t* epochs = allocated(allocate, 4 * rows, fixed)
    cdef int32_t* headers = <int32_t*>allocated(allocate, 4 * (rows + 1), list_offsets)
    cdef list key_buffers = open_binary(&keys, allocate, rows, extent.key_bytes, extent.key_nulls)
    cdef list value_buffers = open_binary(&values, allocate, rows, extent.value_bytes, extent.value_nulls)
    cdef list name_buffers = open_binary(&names, allocate, extent.headers, extent.name_bytes, 0)
    cdef list content_buffers = open_binary(
        &contents, allocate, extent.headers, extent.content_bytes, extent.content_nulls
    )
    with nogil:
        for i in range(rows):
            partitions[i] = partition
        memcpy(offsets, source.offset + start, 8 * rows)
        memcpy(types, source.timestamp_type + start, 4 * rows)
        memcpy(epochs, source.leader_epoch + start, 4 * rows)
        stamp_nulls = put_timestamps(stamps, source.timestamp_ms + start, rows)
        changed = put_column(
            &keys, &source, source.key_position + start, source.key_size + start, rows, extent.key_nulls
        ) or put_column(
            &values, &source, source.value_position + start, source.value_size + start, rows, extent.value_nulls
        )
        if not changed:
            changed = put_headers(headers, &names, &contents, &source, start, &extent)
    cdef uint8_t* stamped = bitmap_of(allocate, rows, stamp_nulls, stamp_bits)
    if stamped != NULL:
        put_stamped(stamped, source.timestamp_ms + start, rows)
    if (
        changed
        or keys.used != keys.room
        or values.used != values.room
        or names.used != names.room
        or contents.used != contents.room
        or headers[rows] != extent.headers
    ):
        raise RuntimeError("the columns or their arena were written while they were packed")
    return (
        rows,
        extent.headers,
        fixed[::2],
        (stamp_nulls, stamp_bits[0]),
        (extent.key_nulls, key_buffers[::2]),
        (extent.value_nulls, value_buffers[::2]),
        list_offsets[0],
        name_buffers[::2],
        (extent.content_nulls, content_buffers[::2]),
    )
