# cython: boundscheck=False, wraparound=False, cdivision=True
"""Decoding of the records of batches of magic 2 to columns, as compiled code. ``decode`` documents the function.

The compiler's checks are off, because this code checks every read against the end of its record. Invalid bytes, and
bytes that another thread changes during the read, raise an error. No access leaves its buffer.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from stratalog import RecordColumns
from stratalog.errors import CorruptBatchError
from stratalog.spi import Fields

from stratalog_formats.kernels.sections cimport Section, sections_of
from stratalog_formats.kernels.wire cimport (
    MAX_INT32,
    Cursor,
    Row,
    add,
    at_start,
    flat,
    read_record,
    read_size,
    size_of,
    start_of,
    uninitialised,
)

cdef enum:
    WIDE = 2  # int64 columns
    NARROW = 8  # int32 columns
    ROW_BYTES = 8 * WIDE + 4 * NARROW
    ZEROED_ROWS = 4096

cdef int OFFSET = Fields.OFFSET.value
cdef int TIMESTAMP = Fields.TIMESTAMP.value
cdef int KEY = Fields.KEY.value
cdef int VALUE = Fields.VALUE.value
cdef int HEADERS = Fields.HEADERS.value
cdef object EMPTY_WIDE = memoryview(bytes()).cast("q")
cdef object EMPTY_NARROW = memoryview(bytes()).cast("i")

cdef struct Columns:
    int64_t* offset
    int64_t* timestamp_ms
    int32_t* timestamp_type
    int32_t* leader_epoch
    int32_t* key_position
    int32_t* key_size
    int32_t* value_position
    int32_t* value_size
    int32_t* header_first
    int32_t* header_count
    int64_t headers  # total number of headers


cdef int fill(Cursor arena, const Section* section, int64_t i, Columns* into) noexcept nogil:
    """Decode one batch into the columns from row ``i`` on. Return -1 if the records do not fit their batch.

    For a record with headers, ``header_first`` gets the position of the headers in the arena, for ``fill_headers``.
    """
    cdef Cursor at = arena + section.start
    cdef Cursor stop = arena + section.end
    cdef Row row
    cdef int64_t first = i, last = i + section.count, zeroed = i, found = 0
    cdef int64_t base_offset = section.base_offset, base_ms = section.base_timestamp_ms
    cdef int64_t* offset = into.offset
    cdef int64_t* timestamp_ms = into.timestamp_ms
    cdef int32_t* key_position = into.key_position
    cdef int32_t* key_size = into.key_size
    cdef int32_t* value_position = into.value_position
    cdef int32_t* value_size = into.value_size
    while i < last:
        if i == zeroed:  # zero memory in steps, so that a wrong count uses no memory for records that do not exist
            zeroed = min(zeroed + ZEROED_ROWS, last)
            memset(into.header_first + i, 0, 4 * (zeroed - i))
            memset(into.header_count + i, 0, 4 * (zeroed - i))
        if read_record(&at, stop, &row):
            return -1
        timestamp_ms[i] = add(base_ms, row.delta_ms)
        offset[i] = add(base_offset, row.delta)
        if (offset[i] < base_offset) != (row.delta < 0):
            return -1
        key_position[i], key_size[i] = <int32_t>(row.key - arena), <int32_t>row.key_size
        value_position[i], value_size[i] = <int32_t>(row.value - arena), <int32_t>row.value_size
        if row.header_count:
            into.header_first[i], into.header_count[i] = <int32_t>(row.headers - arena), <int32_t>row.header_count
            found += row.header_count
        i += 1
    into.headers += found
    for i in range(first, last):
        into.timestamp_type[i] = section.append_time
        into.leader_epoch[i] = section.leader_epoch
    if section.append_time:
        for i in range(first, last):
            into.timestamp_ms[i] = section.max_timestamp_ms
    return 0 if at == stop else -1


cdef int fill_headers(Cursor arena, int64_t size, int64_t count, Columns* into, int32_t* flat) noexcept nogil:
    """Fill ``header_first``, and ``flat`` with the four columns of positions and sizes of headers, concatenated.

    Return -1 if the bytes have changed since ``fill`` read them.
    """
    cdef Cursor p
    cdef Cursor end = arena + size
    cdef int64_t i, n, done = 0, total = into.headers
    for i in range(count):
        if not into.header_count[i]:
            continue
        p = arena + into.header_first[i]
        into.header_first[i] = <int32_t>done
        for n in range(into.header_count[i]):
            if read_size(&p, end, &size) or size < 0 or size > end - p:
                return -1
            flat[done] = <int32_t>(p - arena)
            flat[total + done] = <int32_t>size
            p += size
            if read_size(&p, end, &size) or size > end - p:
                return -1
            flat[2 * total + done] = <int32_t>(p - arena)
            flat[3 * total + done] = <int32_t>size
            if size > 0:
                p += size
            done += 1
    return 0


def decode_batches(data, batches, bounds, fields):
    view = flat(data)
    cdef Cursor arena = start_of(view)
    cdef int64_t size = size_of(view), rows = len(batches), row, i = 0, count = 0
    made = sections_of(batches, bounds, size)
    cdef const Section* section = <const Section*>at_start(made)
    cdef Columns into
    cdef int64_t bad = -1
    for row in range(rows):
        count += section[row].count
    if count > MAX_INT32:
        raise IndexError(f"{count} records are too many for one arena")
    store = uninitialised(ROW_BYTES * count)
    point(&into, at_start(store), count)
    with nogil:
        for row in range(rows):
            if section[row].count and fill(arena, section + row, i, &into):
                bad = row
                break
            i += section[row].count
    if bad >= 0:
        raise CorruptBatchError("the records do not fit their batch", "", batches.position[bad])
    cdef int32_t* pairs
    cdef int changed
    headers = EMPTY_NARROW
    if into.headers:
        pairs_store = uninitialised(16 * into.headers)
        pairs = <int32_t*>at_start(pairs_store)
        with nogil:
            changed = fill_headers(arena, size, count, &into, pairs)
        if changed:
            raise CorruptBatchError("the bytes changed while they were read", "", 0)
        headers = memoryview(pairs_store).cast("i")
    return columns_of(data, count, store, headers, into.headers, fields.value)


cdef void point(Columns* into, uint8_t* store, int64_t count) noexcept:
    cdef int32_t* narrow = <int32_t*>(store + 8 * WIDE * count)
    into.offset, into.timestamp_ms = <int64_t*>store, <int64_t*>store + count
    into.timestamp_type, into.leader_epoch = narrow, narrow + count
    into.key_position, into.key_size = narrow + 2 * count, narrow + 3 * count
    into.value_position, into.value_size = narrow + 4 * count, narrow + 5 * count
    into.header_first, into.header_count = narrow + 6 * count, narrow + 7 * count
    into.headers = 0


cdef object columns_of(data, int64_t count, store, flat_headers, int64_t header_total, int fields):
    """Return RecordColumns with the columns that ``fields`` requests; the other columns are empty."""
    whole = memoryview(store)
    wide, narrow = whole[: 8 * WIDE * count].cast("q"), whole[8 * WIDE * count :].cast("i")
    return RecordColumns(
        data,
        count,
        wide[:count] if fields & OFFSET else EMPTY_WIDE,
        wide[count:] if fields & TIMESTAMP else EMPTY_WIDE,
        narrow[:count] if fields & TIMESTAMP else EMPTY_NARROW,
        narrow[count : 2 * count] if fields & OFFSET else EMPTY_NARROW,
        narrow[2 * count : 3 * count] if fields & KEY else EMPTY_NARROW,
        narrow[3 * count : 4 * count] if fields & KEY else EMPTY_NARROW,
        narrow[4 * count : 5 * count] if fields & VALUE else EMPTY_NARROW,
        narrow[5 * count : 6 * count] if fields & VALUE else EMPTY_NARROW,
        narrow[6 * count : 7 * count] if fields & HEADERS else EMPTY_NARROW,
        narrow[7 * count :] if fields & HEADERS else EMPTY_NARROW,
        flat_headers[:header_total] if fields & HEADERS else EMPTY_NARROW,
        flat_headers[header_total : 2 * header_total] if fields & HEADERS else EMPTY_NARROW,
        flat_headers[2 * header_total : 3 * header_total] if fields & HEADERS else EMPTY_NARROW,
        flat_headers[3 * header_total :] if fields & HEADERS else EMPTY_NARROW,
    )
