# cython: boundscheck=False, wraparound=False, cdivision=True
"""Decoding the records of batches of magic 2 into Arrow's buffers, in one pass and for records without headers.

What is unusual is left to ``decode`` and to whoever packs columns: they know every error and every detail. So this has
no twin in pure Python, and nothing to say about bytes that are wrong.

Source: Arrow's columnar format, variable-size binary layout.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy, memset

from stratalog.spi import ArrowBuffers, CorruptBatchError

from stratalog_formats.kernels.sections cimport Section, sections_of
from stratalog_formats.kernels.wire cimport (
    MAX_INT32,
    Cursor,
    Row,
    add,
    at_start,
    flat,
    read_record,
    size_of,
    start_of,
)

cdef enum:
    FIRST_BYTES = 16  # what fields are copied in, if they are short
    PIECE_BYTES = 32
    SHORT_BYTES = 512

cdef extern from *:
    """
    #define NO_TIMESTAMP (-1)
    #define LAST_MS (INT64_MAX / 1000)
    """
    const int64_t NO_TIMESTAMP
    const int64_t LAST_MS  # microseconds have 64 bits too


cdef struct Column:  # one of variable width, or the timestamps
    int32_t* offsets
    uint8_t* data
    uint8_t* validity
    int64_t used  # bytes of data
    int64_t nulls


cdef inline void add_null(Column* into, int64_t i) noexcept nogil:
    into.validity[i >> 3] &= ~(<uint8_t>1 << (i & 7))
    into.nulls += 1


cdef inline void put(Column* into, int64_t i, Cursor data, int64_t size, Cursor safe) noexcept nogil:
    """Copy field ``i``. Short ones that end before ``safe`` go in pieces; the last may take along what follows."""
    cdef uint8_t* target = into.data + into.used
    cdef int64_t n = FIRST_BYTES
    if size < 0:
        add_null(into, i)
        size = 0
    elif size <= SHORT_BYTES and data + size <= safe:
        memcpy(target, data, FIRST_BYTES)
        while n < size:
            memcpy(target + n, data + n, PIECE_BYTES)
            n += PIECE_BYTES
    else:
        memcpy(target, data, size)
    into.used += size
    into.offsets[i + 1] = <int32_t>into.used


cdef int fill(
    Cursor arena,
    int64_t size,
    const Section* section,
    int64_t i,
    int64_t* offsets,
    Column* stamps,
    Column* all_keys,
    Column* all_values,
) noexcept nogil:
    """Decode one batch into rows from ``i`` on; -1 if anything is unusual.

    Each column has room for as many bytes as the batches have, more than fields that do not overlap can need, and for
    a piece more.
    """
    cdef Cursor at = arena + section.start
    cdef Cursor stop = arena + section.end
    cdef Cursor safe = arena + max(size - PIECE_BYTES, 0)
    cdef Column keys = all_keys[0], values = all_values[0]
    cdef int64_t last = i + section.count, base_offset = section.base_offset, base_ms = section.base_timestamp_ms, ms
    cdef int64_t* stamp = <int64_t*>stamps.data
    cdef Row row
    while i < last:
        if read_record(&at, stop, &row) or row.header_count:
            return -1
        offsets[i] = add(base_offset, row.delta)
        if (offsets[i] < base_offset) != (row.delta < 0):
            return -1
        ms = section.max_timestamp_ms if section.append_time else add(base_ms, row.delta_ms)
        if ms == NO_TIMESTAMP or not -LAST_MS <= ms <= LAST_MS:
            add_null(stamps, i)
            ms = 0
        stamp[i] = 1000 * ms
        put(&keys, i, row.key, row.key_size, safe)
        put(&values, i, row.value, row.value_size, safe)
        i += 1
    all_keys[0], all_values[0] = keys, values
    return 0 if at == stop else -1


cdef void repeat(int32_t* into, int32_t number, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        into[i] = number


# --- buffers -----------------------------------------------------------------------------------------------------


cdef inline uint8_t* address_of(object buffer) except? NULL:
    return <uint8_t*><uintptr_t>buffer.address


cdef list opened(Column* column, object allocate, int64_t rows, int64_t room):
    """Validity, offsets and data of a column of variable width that is to be filled."""
    cdef list buffers = [allocate((rows + 7) // 8), allocate(4 * (rows + 1)), allocate(room, resizable=True)]
    column.validity, column.offsets = address_of(buffers[0]), <int32_t*>address_of(buffers[1])
    column.data = address_of(buffers[2])
    column.offsets[0] = 0
    all_valid(column, rows)
    return buffers


cdef void all_valid(Column* column, int64_t rows) noexcept:
    memset(column.validity, 0xFF, (rows + 7) // 8)
    column.used = column.nulls = 0


cdef tuple closed(const Column* column, list buffers):
    """The number of nulls and the buffers, none larger than need be."""
    buffers[2].resize(column.used, shrink_to_fit=True)
    if not column.nulls:
        buffers[0] = None
    return column.nulls, buffers


def pack_batches(data, batches, bounds, int32_t partition, allocate):
    """The records of uncompressed batches as Arrow's buffers; None if something is unusual, or wrong.

    Args:
        data: as for ``decode_batches``.
        batches: the same.
        bounds: the same.
        partition: what the first column says in each row.
        allocate: pyarrow's ``allocate_buffer``.

    Raises:
        IndexError: bounds that are not inside ``data``, or an arena too large for positions of 32 bits.
    """
    view = flat(data)
    cdef Cursor arena = start_of(view)
    cdef int64_t size = size_of(view), number = len(batches), n, i = 0, rows = 0, room = PIECE_BYTES
    try:
        made = sections_of(batches, bounds, size)
    except CorruptBatchError:
        return None
    cdef const Section* section = <const Section*>at_start(made)
    cdef Column stamps, keys, values
    cdef int unusual = 0
    for n in range(number):
        rows += section[n].count
        room += section[n].end - section[n].start
    if not rows or room > MAX_INT32:
        return None
    cdef list fixed = [allocate(width * rows) for width in (4, 8, 8, 4, 4)]
    cdef int32_t* partitions = <int32_t*>address_of(fixed[0])
    cdef int64_t* offsets = <int64_t*>address_of(fixed[1])
    cdef int32_t* types = <int32_t*>address_of(fixed[3])
    cdef int32_t* epochs = <int32_t*>address_of(fixed[4])
    stamp_bits, no_headers = allocate((rows + 7) // 8), allocate(4 * (rows + 1))
    cdef uint8_t* first_headers = address_of(no_headers)
    stamps.data, stamps.validity = address_of(fixed[2]), address_of(stamp_bits)
    all_valid(&stamps, rows)
    cdef list key_buffers = opened(&keys, allocate, rows, room)
    cdef list value_buffers = opened(&values, allocate, rows, room)
    with nogil:
        for n in range(number):
            if section[n].count and fill(arena, size, section + n, i, offsets, &stamps, &keys, &values):
                unusual = 1
                break
            repeat(types + i, section[n].append_time, section[n].count)
            repeat(epochs + i, section[n].leader_epoch, section[n].count)
            i += section[n].count
        if not unusual:
            repeat(partitions, partition, rows)
            memset(first_headers, 0, 4 * (rows + 1))
    if unusual:
        return None
    return ArrowBuffers(
        rows,
        0,
        fixed,
        (stamps.nulls, stamp_bits if stamps.nulls else None),
        closed(&keys, key_buffers),
        closed(&values, value_buffers),
        no_headers,
        [],
        (0, []),
    )
