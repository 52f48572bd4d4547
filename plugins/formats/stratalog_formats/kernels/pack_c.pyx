# cython: boundscheck=False, wraparound=False, cdivision=True
"""Decoding of the records of batches of magic 2 into Arrow's buffers, in one pass.

For headers, and for unusual or invalid data, the functions return None. The caller then decodes the records to columns
and converts the columns. This way handles all data, and raises the errors. Therefore this module has no version in pure
Python.

Source: Arrow's columnar format, variable-size binary layout.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from stratalog.errors import CorruptBatchError
from stratalog.spi import ArrowBuffers, Fields

from stratalog_formats.kernels.sections cimport Section, sections_of
from stratalog_formats.kernels.wire cimport (
    BATCH_HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_INT32,
    MIN_RECORD_BYTES,
    SHORT_HEAD_BYTES,
    Cursor,
    Row,
    add,
    at_start,
    column,
    flat,
    read_record,
    read_short,
    size_of,
    start_of,
)

cdef enum:
    FIRST_BYTES = 16  # size of the first piece in which short fields are copied
    PIECE_BYTES = 32
    SHORT_BYTES = 2047  # largest size of a short field
    CODEC_BITS = 0x07
    LEAST_BYTES = 9  # a length field of two bytes, plus SHORT_HEAD_BYTES
    MOST_EXPANDED_ROWS = 1 << 24  # limits the memory that a wrong record count can allocate

cdef int TIMESTAMP = Fields.TIMESTAMP.value
cdef int KEY = Fields.KEY.value
cdef int VALUE = Fields.VALUE.value
cdef int HEADERS = Fields.HEADERS.value

cdef extern from *:
    """
    #define NO_TIMESTAMP (-1)
    #define LAST_MS (INT64_MAX / 1000)
    #define LAST_PLAIN_OFFSET (INT64_MAX - INT32_MAX)
    """
    const int64_t NO_TIMESTAMP
    const int64_t LAST_MS  # the value in microseconds must fit 64 bits too
    const int64_t LAST_PLAIN_OFFSET  # the largest base offset to which any delta can be added without overflow


cdef struct Column:  # a column of variable width, or the timestamps
    bint is_wanted  # columns that are not wanted have no buffers
    int32_t* offsets
    uint8_t* data
    uint8_t* validity
    int64_t used  # size of the data in bytes
    int64_t nulls

cdef struct Filling:  # state of one batch that is being decoded into the columns
    Cursor at
    Cursor stop
    Cursor safe  # a field that ends before this position can be copied in pieces that extend beyond the field
    int64_t row
    int64_t last  # exclusive end of the rows of the batch
    int64_t base_offset
    int64_t base_ms
    int64_t append_ms
    bint append_time
    bint with_headers  # True if headers are requested; this module does not decode headers


cdef inline void add_null(Column* into, int64_t i) noexcept nogil:
    into.validity[i >> 3] &= ~(<uint8_t>1 << (i & 7))
    into.nulls += 1


cdef inline void copy(uint8_t* into, Cursor data, int64_t size) noexcept nogil:
    """Copy a field in pieces of fixed sizes. The last piece may read and write up to 31 bytes after the field."""
    cdef int64_t n = FIRST_BYTES
    memcpy(into, data, FIRST_BYTES)
    while n < size:
        memcpy(into + n, data + n, PIECE_BYTES)
        n += PIECE_BYTES


cdef void put(Column* into, int64_t i, Cursor data, int64_t size) noexcept nogil:
    """Add field ``i`` to the column if the column is wanted; a size of -1 is null."""
    if not into.is_wanted:
        return
    if size < 0:
        add_null(into, i)
        size = 0
    memcpy(into.data + into.used, data, size)
    into.used += size
    into.offsets[i + 1] = <int32_t>into.used


cdef inline void fill_usual(
    Filling* of,
    int64_t* offsets,
    Column* stamps,
    Column* keys,
    Column* values,
    bint with_stamps,
    bint with_keys,
    bint with_values,
) noexcept nogil:
    """Decode records up to the first unusual record. Usual records have short numbers and fields, and no headers.

    The unusual record is not added. The loop uses only local variables and inline functions, so that the compiler can
    keep the variables in registers.
    """
    cdef Cursor p
    cdef Cursor end
    cdef Cursor key
    cdef Cursor at = of.at
    cdef Cursor near = min(of.stop, of.safe)
    cdef uint64_t size, since, delta, key_size, value_size, counts = 0 if of.append_time else <uint64_t>-1
    cdef int64_t i = of.row, last = of.last, base_offset = of.base_offset, ms
    cdef int64_t base_ms = of.append_ms if of.append_time else of.base_ms
    cdef int64_t* stamp = <int64_t*>stamps.data
    cdef int32_t* key_ends = keys.offsets + 1
    cdef int32_t* value_ends = values.offsets + 1
    cdef uint8_t* key_data = keys.data
    cdef uint8_t* value_data = values.data
    cdef int64_t key_used = keys.used, value_used = values.used
    if not 0 <= base_offset <= LAST_PLAIN_OFFSET:  # offsets may wrap around
        last = i
    while i < last:
        p = at
        if near - p < LEAST_BYTES or read_short(&p, &size) or size & 1 or size < 2 * SHORT_HEAD_BYTES:
            break
        end = p + (size >> 1)
        p += 1  # skip the attributes, which may have any value
        if end > near or read_short(&p, &since) or read_short(&p, &delta) or read_short(&p, &key_size):
            break
        key = p
        p += 0 if key_size & 1 else key_size >> 1
        if end - p < 2 or read_short(&p, &value_size) or (key_size | value_size) > 2 * SHORT_BYTES + 1:
            break
        ms = add(base_ms, <int64_t>(((since >> 1) ^ (0 - (since & 1))) & counts))
        if (with_stamps and <uint64_t>ms > <uint64_t>LAST_MS) or end[-1]:
            break
        if (key_size | value_size) & 1:
            if end - p != 1 + (0 if value_size & 1 else <int64_t>(value_size >> 1)):
                break
            if key_size & 1:
                if with_keys:
                    add_null(keys, i)
                key_size = 0
            if value_size & 1:
                if with_values:
                    add_null(values, i)
                value_size = 0
        elif end - p != 1 + <int64_t>(value_size >> 1):
            break
        offsets[i] = base_offset + <int64_t>((delta >> 1) ^ (0 - (delta & 1)))
        if with_stamps:
            stamp[i] = 1000 * ms
        if with_keys:
            copy(key_data + key_used, key, key_size >> 1)
            key_used += key_size >> 1
            key_ends[i] = <int32_t>key_used
        if with_values:
            copy(value_data + value_used, p, value_size >> 1)
            value_used += value_size >> 1
            value_ends[i] = <int32_t>value_used
        at = end
        i += 1
    of.at, of.row, keys.used, values.used = at, i, key_used, value_used


cdef void fill_plain(Filling* of, int64_t* offsets, Column* stamps, Column* keys, Column* values) noexcept nogil:
    """Call ``fill_usual``. If only keys or only values are wanted, constant arguments make the loop faster."""
    if values.is_wanted and not keys.is_wanted and not stamps.is_wanted:
        fill_usual(of, offsets, stamps, keys, values, False, False, True)
    elif keys.is_wanted and not values.is_wanted and not stamps.is_wanted:
        fill_usual(of, offsets, stamps, keys, values, False, True, False)
    else:
        fill_usual(of, offsets, stamps, keys, values, stamps.is_wanted, keys.is_wanted, values.is_wanted)


cdef bint fill_one(Filling* of, int64_t* offsets, Column* stamps, Column* keys, Column* values) noexcept nogil:
    """Decode one record, usual or unusual. Return False if the record is invalid, or has headers that are requested."""
    cdef Row row
    cdef int64_t ms, i = of.row
    if read_record(&of.at, of.stop, &row) or (row.header_count and of.with_headers):
        return False
    offsets[i] = add(of.base_offset, row.delta)
    if (offsets[i] < of.base_offset) != (row.delta < 0):
        return False
    if stamps.is_wanted:
        ms = of.append_ms if of.append_time else add(of.base_ms, row.delta_ms)
        if ms == NO_TIMESTAMP or not -LAST_MS <= ms <= LAST_MS:
            add_null(stamps, i)
            ms = 0
        (<int64_t*>stamps.data)[i] = 1000 * ms
    put(keys, i, row.key, row.key_size)
    put(values, i, row.value, row.value_size)
    of.row += 1
    return True


cdef bint fill(
    Cursor arena,
    int64_t size,
    const Section* section,
    int64_t i,
    int64_t* offsets,
    Column* stamps,
    Column* keys,
    Column* values,
    bint with_headers,
) noexcept nogil:
    """Decode one batch into the rows from ``i`` on. Return False if it is invalid, or has headers that are requested.

    Each column must have room for the bytes of all batches, plus ``PIECE_BYTES`` for ``copy``.
    """
    cdef Filling of
    of.at, of.stop, of.safe = arena + section.start, arena + section.end, arena + max(size - PIECE_BYTES, 0)
    of.row, of.last = i, i + section.count
    of.base_offset, of.base_ms = section.base_offset, section.base_timestamp_ms
    of.append_ms, of.append_time = section.max_timestamp_ms, section.append_time
    of.with_headers = with_headers
    while of.row < of.last:
        fill_plain(&of, offsets, stamps, keys, values)
        if of.row < of.last and not fill_one(&of, offsets, stamps, keys, values):
            return False
    return of.at == of.stop


cdef bint are_alike(const Section* section, int64_t number) noexcept nogil:
    """Return True if all batches have equal leader epochs and timestamp types."""
    cdef int64_t n
    for n in range(1, number):
        if section[n].leader_epoch != section[0].leader_epoch or section[n].append_time != section[0].append_time:
            return False
    return True


cdef void put_alternating(const Section* section, int64_t number, int32_t* types, int32_t* epochs) noexcept nogil:
    cdef int64_t n, i = 0
    for n in range(number):
        repeat(types + i, section[n].append_time, section[n].count)
        repeat(epochs + i, section[n].leader_epoch, section[n].count)
        i += section[n].count


cdef void repeat(int32_t* into, int32_t number, int64_t count) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        into[i] = number


# --- buffers -----------------------------------------------------------------------------------------------------


cdef inline uint8_t* address_of(object buffer) except? NULL:
    return <uint8_t*><uintptr_t>buffer.address


cdef list opened(Column* into, object allocate, int64_t rows, int64_t room, bint is_wanted):
    """Return new buffers of a column of variable width: validity, offsets, data; [] if the column is not wanted."""
    memset(into, 0, sizeof(Column))
    into.is_wanted = is_wanted
    if not is_wanted:
        return []
    cdef list buffers = [allocate((rows + 7) // 8), allocate(4 * (rows + 1)), allocate(room, resizable=True)]
    into.validity, into.offsets = address_of(buffers[0]), <int32_t*>address_of(buffers[1])
    into.data = address_of(buffers[2])
    into.offsets[0] = 0
    all_valid(into, rows)
    return buffers


cdef void all_valid(Column* column, int64_t rows) noexcept:
    memset(column.validity, 0xFF, (rows + 7) // 8)
    column.used = column.nulls = 0


cdef tuple closed(const Column* column, list buffers):
    """Return the number of nulls, and the buffers. Shrink the data buffer to its content."""
    if not column.is_wanted:
        return 0, buffers
    buffers[2].resize(column.used, shrink_to_fit=True)
    if not column.nulls:
        buffers[0] = None
    return column.nulls, buffers


def expand_batches(batches, int32_t partition, allocate):
    """Return partition, offset, timestamp type and leader epoch of records. Only the batch headers are read.

    Args:
        batches: headers of the batches, which may be compressed.
        partition: value of the column ``partition`` in each row.
        allocate: pyarrow's ``allocate_buffer``.

    Returns:
        The columns. None if a batch header does not determine the offsets, because the batch is invalid, or compaction
        has removed records. None if there are no records, or more than 2^24 (16 million).
    """
    cdef int64_t number = len(batches), n, k, i = 0, rows = 0, span
    counts, bases = column(batches.record_count, "q", number), column(batches.base_offset, "q", number)
    lasts, sizes = column(batches.last_offset, "q", number), column(batches.size_bytes, "q", number)
    flags, leaders = column(batches.attributes, "q", number), column(batches.leader_epoch, "q", number)
    cdef const int64_t* count = <const int64_t*>start_of(counts)
    cdef const int64_t* base = <const int64_t*>start_of(bases)
    cdef const int64_t* last = <const int64_t*>start_of(lasts)
    cdef const int64_t* size = <const int64_t*>start_of(sizes)
    cdef const int64_t* attributes = <const int64_t*>start_of(flags)
    cdef const int64_t* epoch = <const int64_t*>start_of(leaders)
    for n in range(number):
        span = last[n] - base[n] + 1
        if not 0 <= base[n] <= LAST_PLAIN_OFFSET or count[n] < 1 or count[n] != span:
            return None
        if not attributes[n] & CODEC_BITS and count[n] > (size[n] - BATCH_HEADER_BYTES) // MIN_RECORD_BYTES:
            return None
        rows += count[n]
        if rows > MOST_EXPANDED_ROWS:
            return None
    if not rows:
        return None
    offset_buffer, types, epochs = allocate(8 * rows), allocate(4 * rows), allocate(4 * rows)
    cdef int64_t* offsets = <int64_t*>address_of(offset_buffer)
    cdef int32_t* type_rows = <int32_t*>address_of(types)
    cdef int32_t* epoch_rows = <int32_t*>address_of(epochs)
    with nogil:
        for n in range(number):
            for k in range(count[n]):
                offsets[i + k] = base[n] + k
            repeat(type_rows + i, attributes[n] & LOG_APPEND_TIME != 0, count[n])
            repeat(epoch_rows + i, <int32_t>epoch[n], count[n])
            i += count[n]
    fixed = [ArrowBuffers.repeated(partition, rows), offset_buffer, None, types, epochs]
    return ArrowBuffers(rows, 0, fixed, (0, None), (0, []), (0, []), None, [], (0, []))


def pack_batches(data, batches, bounds, int32_t partition, allocate, fields):
    """Return the records of uncompressed batches as ``ArrowBuffers``.

    The result is None if headers are requested and a record has headers, if a batch is invalid, if there are no
    records, or if the records could need more than 2 GiB.

    Args:
        data: the arena; see ``decode_batches``.
        batches: headers of the batches; see ``decode_batches``.
        bounds: positions of the records; see ``decode_batches``.
        partition: value of the column ``partition`` in each row.
        allocate: pyarrow's ``allocate_buffer``.
        fields: the fields to decode; offsets are always decoded. Other fields get no buffers.

    Raises:
        IndexError: bounds are not inside ``data``, or the arena is too large for positions of 32 bits.
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
    cdef bint usual = True, with_headers = fields.value & HEADERS != 0
    for n in range(number):
        rows += section[n].count
        room += section[n].end - section[n].start
    if not rows or room > MAX_INT32:
        return None
    cdef bint alike = are_alike(section, number)
    offset_buffer = allocate(8 * rows)
    cdef int64_t* offsets = <int64_t*>address_of(offset_buffer)
    memset(&stamps, 0, sizeof(Column))
    stamps.is_wanted = fields.value & TIMESTAMP != 0
    stamp_buffer = stamp_bits = None
    if stamps.is_wanted:
        stamp_buffer, stamp_bits = allocate(8 * rows), allocate((rows + 7) // 8)
        stamps.data, stamps.validity = address_of(stamp_buffer), address_of(stamp_bits)
        all_valid(&stamps, rows)
    cdef list key_buffers = opened(&keys, allocate, rows, room, fields.value & KEY != 0)
    cdef list value_buffers = opened(&values, allocate, rows, room, fields.value & VALUE != 0)
    with nogil:
        for n in range(number):
            if section[n].count and not fill(
                arena, size, section + n, i, offsets, &stamps, &keys, &values, with_headers
            ):
                usual = False
                break
            i += section[n].count
    if not usual:
        return None
    if alike:
        types, epochs = ArrowBuffers.repeated(section.append_time, rows), ArrowBuffers.repeated(section.leader_epoch, rows)
    else:
        types, epochs = allocate(4 * rows), allocate(4 * rows)
        put_alternating(section, number, <int32_t*>address_of(types), <int32_t*>address_of(epochs))
    return ArrowBuffers(
        rows,
        0,
        [ArrowBuffers.repeated(partition, rows), offset_buffer, stamp_buffer, types, epochs],
        (stamps.nulls, stamp_bits if stamps.nulls else None),
        closed(&keys, key_buffers),
        closed(&values, value_buffers),
        ArrowBuffers.repeated(0, rows + 1),
        [],
        (0, []),
    )
