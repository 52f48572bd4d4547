# cython: boundscheck=False, wraparound=False, cdivision=True
"""Encoding of records of magic 2, as compiled code. ``encode`` documents each function.

``Record`` objects are written in one pass into a growing buffer. Columns are encoded in two passes: the first pass
computes the size, and the second pass writes into a buffer of this size. Each buffer starts with room for the header.
"""

from cpython.bytearray cimport PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset

from stratalog.errors import InvalidRecordError

from stratalog.model.prepared_c cimport PreparedBatches, Rules
from stratalog.model.record_c cimport Record
from stratalog.model.views cimport Source, inside, point_arena, point_headers, point_rows
from stratalog_formats.kernels.scan_c cimport Header, read_header, seal
from stratalog_formats.kernels.wire cimport (
    BATCH_HEADER_BYTES,
    MAX_INT32,
    at_start,
    column,
    field_size,
    subtract,
    uninitialised,
    varint_size,
    write_field,
    write_varint,
)

from stratalog_formats.kernels.encode import Body, bad_header_name, bad_timestamp, no_records, too_large
from stratalog_formats.kernels.encode import encode_columns as python_encode

RECORD = Record
"""The class that ``encode_records`` accepts."""

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef enum:
    FIRST_BYTES = 1 << 20  # first growth of a buffer, unless the remaining records probably need less
    HEADER_OVERHEAD_BYTES = 4  # counted by ``survey`` in addition to name and value
    LONGEST_SIZE = 5  # largest size of the varint before a record


cdef inline int64_t bytes_size(bytes data) noexcept:
    return -1 if data is None else PyBytes_GET_SIZE(data)


cdef inline uint8_t* write_bytes(uint8_t* at, bytes data) noexcept:
    if data is None:
        return write_varint(at, -1)
    return write_field(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline int64_t record_size(int64_t ms, int64_t offset, int64_t key, int64_t value, int64_t headers) noexcept nogil:
    """Return the size of a record after its length field, without the headers' bytes."""
    return 1 + varint_size(ms) + varint_size(offset) + field_size(key) + field_size(value) + varint_size(headers)


cdef inline uint8_t* write_head(uint8_t* at, int64_t size, int64_t ms, int64_t offset) noexcept nogil:
    at = write_varint(at, size)
    at[0] = 0
    return write_varint(write_varint(at + 1, ms), offset)


# --- objects -----------------------------------------------------------------------------------------------------


cdef int64_t headers_size(tuple headers, int64_t index, int64_t* content) except -1:
    """Return the encoded size of a record's headers. Add the size that ``records.survey`` counts to ``content``."""
    cdef int64_t size = 0
    cdef Py_ssize_t name_size
    cdef tuple header
    for header in headers:
        try:
            PyUnicode_AsUTF8AndSize(header[0], &name_size)
        except UnicodeEncodeError as error:
            raise bad_header_name(header[0], index) from error
        size += field_size(name_size) + field_size(bytes_size(header[1]))
        content[0] += len(<str>header[0]) + max(bytes_size(header[1]), 0) + HEADER_OVERHEAD_BYTES
    return size


cdef uint8_t* write_headers(uint8_t* at, tuple headers) except NULL:
    cdef Py_ssize_t name_size
    cdef const char* name
    cdef tuple header
    for header in headers:
        name = PyUnicode_AsUTF8AndSize(header[0], &name_size)
        at = write_bytes(write_field(at, name, name_size), header[1])
    return at


cdef struct WrittenFacts:  # properties of the written records
    int64_t base_ms
    int64_t least_ms
    int64_t largest_ms
    int64_t content_bytes
    bint has_null_key


cdef bytearray write_records(list rows, int64_t now_ms, int64_t limit_bytes, int64_t overhead_bytes, WrittenFacts* facts):
    """Return a buffer with room for the header, followed by all records, with the offset deltas 0, 1, 2, ...

    A record without a timestamp gets ``now_ms``. Return None if the size of the records, as ``records.survey`` computes
    it, exceeds ``limit_bytes``: the records then need several batches.
    """
    cdef int64_t count = len(rows), i, ms, size, key, value, used = BATCH_HEADER_BYTES, room = 0
    cdef int64_t least = 0, largest = 0
    cdef Py_ssize_t headers
    cdef uint8_t* at
    cdef bytearray buffer = uninitialised(BATCH_HEADER_BYTES)
    cdef uint8_t* start = at_start(buffer)
    cdef Record record
    if not count:
        raise no_records()
    memset(start, 0, BATCH_HEADER_BYTES)
    facts.has_null_key, facts.content_bytes = False, 0
    for i in range(count):
        record = <Record?>rows[i]
        ms = record.timestamp_ms
        if ms < 0:
            if ms < -1:
                raise bad_timestamp(ms, i)
            ms = now_ms
        if i == 0:
            facts.base_ms = least = largest = ms
        elif ms < least:
            least = ms
        elif ms > largest:
            largest = ms
        facts.has_null_key |= record.key is None
        headers, key, value = len(record.headers), bytes_size(record.key), bytes_size(record.value)
        size = record_size(subtract(ms, facts.base_ms), i, key, value, headers)
        facts.content_bytes += overhead_bytes + max(key, 0) + max(value, 0)
        if headers:
            size += headers_size(record.headers, i, &facts.content_bytes)
        if i and facts.content_bytes > limit_bytes:
            return None
        if size > room - used - LONGEST_SIZE:
            if size > MAX_INT32 - used - LONGEST_SIZE:
                raise too_large(i)
            room = used + size + LONGEST_SIZE + min(max(used, FIRST_BYTES), (count - i - 1) * (size + LONGEST_SIZE))
            PyByteArray_Resize(buffer, room)
            start = at_start(buffer)
        at = write_head(start + used, size, subtract(ms, facts.base_ms), i)
        at = write_varint(write_bytes(write_bytes(at, record.key), record.value), headers)
        if headers:
            at = write_headers(at, record.headers)
        used = at - start
    PyByteArray_Resize(buffer, used)
    facts.least_ms, facts.largest_ms = least, largest
    return buffer


cdef inline list listed(records):
    return <list>records if type(records) is list else list(records)


def encode_records(records):
    cdef list rows = listed(records)
    cdef WrittenFacts facts
    buffer = write_records(rows, -1, INT64_MAX, 0, &facts)
    return Body(buffer, len(rows), len(rows) - 1, facts.base_ms, facts.largest_ms)


def prepare_records(records, Rules rules, int64_t now_ms):
    """Implement ``RecordFormat.prepare_records``."""
    cdef list rows = listed(records)
    cdef int64_t count = len(rows)
    cdef WrittenFacts facts
    cdef Header header
    cdef PreparedBatches made
    try:
        buffer = write_records(rows, now_ms, rules.limit_bytes, rules.overhead_bytes, &facts)
    except (InvalidRecordError, TypeError):  # the caller then uses ``encode``, which reports all errors together
        return None
    if buffer is None or not rules.allow(len(buffer), facts.least_ms, facts.largest_ms, facts.has_null_key, now_ms):
        return None
    header.base_offset, header.leader_epoch, header.attributes = 0, -1, 0
    header.last_offset_delta, header.record_count = count - 1, count
    header.base_timestamp_ms, header.max_timestamp_ms = facts.base_ms, facts.largest_ms
    header.producer_id = header.producer_epoch = header.base_sequence = -1
    seal(at_start(buffer), len(buffer), &header)
    made = PreparedBatches.__new__(PreparedBatches)
    made.magic, made.data, made.size_bytes, made.batch_count = 2, buffer, len(buffer), 1
    read_header(at_start(buffer), 0, made.size_bytes, made.rows())
    made.sum_up()
    return made


# --- columns -----------------------------------------------------------------------------------------------------

cdef object NOTHING = memoryview(b"")

cdef enum:
    LONGEST_VARINT = 10
    SLACK_BYTES = 32  # room for the fields of a record before its key

cdef enum Fault:
    FINE
    WRONG  # the Python version of the function raises the error
    TOO_LARGE


cdef inline bint fits(int32_t position, int32_t size, int64_t arena_bytes) noexcept nogil:
    """Return True if a field is null or inside the arena."""
    return size < 0 or inside(position, size, arena_bytes)


cdef int64_t row_size(const Source* source, int64_t i, int64_t delta, Fault* fault) noexcept nogil:
    """Return the size of record ``i`` after its length field. If the record is invalid, set ``fault`` and return 0."""
    cdef int64_t key = source.key_size[i], value = source.value_size[i], n, first, count = source.header_count[i], size
    if not fits(source.key_position[i], source.key_size[i], source.arena_bytes):
        fault[0] = WRONG
        return 0
    if not fits(source.value_position[i], source.value_size[i], source.arena_bytes):
        fault[0] = WRONG
        return 0
    if source.timestamp_ms[i] < -1:
        fault[0] = WRONG
        return 0
    size = record_size(
        subtract(source.timestamp_ms[i], source.timestamp_ms[0]),
        delta,
        key if key >= 0 else -1,
        value if value >= 0 else -1,
        count,
    )
    if count:
        first = source.header_first[i]
        if first < 0 or count < 0 or first + count > source.headers:
            fault[0] = WRONG
            return 0
        for n in range(first, first + count):
            if source.name_size[n] < 0 or not fits(source.name_position[n], source.name_size[n], source.arena_bytes):
                fault[0] = WRONG
                return 0
            if not fits(source.content_position[n], source.content_size[n], source.arena_bytes):
                fault[0] = WRONG
                return 0
            size += field_size(source.name_size[n])
            size += field_size(source.content_size[n] if source.content_size[n] >= 0 else -1)
    return size


cdef inline uint8_t* write_item(
    uint8_t* at, const uint8_t* end, const Source* source, int32_t position, int32_t size
) noexcept nogil:
    """Write one field. Return NULL if there is no room: the columns have changed after the first pass."""
    if size > end - at - LONGEST_VARINT or not fits(position, size, source.arena_bytes):
        return NULL
    return write_field(at, source.arena + position, size if size >= 0 else -1)


cdef uint8_t* write_row(
    uint8_t* p, const uint8_t* end, const Source* source, int64_t i, int64_t delta, int64_t size
) noexcept nogil:
    """Write one record. Return NULL if the columns have changed after the first pass."""
    cdef int64_t n, first = source.header_first[i], count = source.header_count[i]
    if end - p < SLACK_BYTES:
        return NULL
    p = write_head(p, size, subtract(source.timestamp_ms[i], source.timestamp_ms[0]), delta)
    p = write_item(p, end, source, source.key_position[i], source.key_size[i])
    if p == NULL:
        return NULL
    p = write_item(p, end, source, source.value_position[i], source.value_size[i])
    if p == NULL or end - p < LONGEST_VARINT:
        return NULL
    p = write_varint(p, count)
    if count and (first < 0 or first + count > source.headers):
        return NULL
    for n in range(first, first + count):
        p = write_item(p, end, source, source.name_position[n], source.name_size[n])
        if p == NULL:
            return NULL
        p = write_item(p, end, source, source.content_position[n], source.content_size[n])
        if p == NULL:
            return NULL
    return p


cdef uint8_t* write_rows(
    uint8_t* p, const uint8_t* end, const Source* source, int64_t count, const int64_t* sizes
) noexcept nogil:
    """Write all records. Return NULL if the columns have changed after the first pass."""
    cdef int64_t i, delta
    for i in range(count):
        delta = i if source.offset == NULL else subtract(source.offset[i], source.offset[0])
        p = write_row(p, end, source, i, delta, sizes[i])
        if p == NULL:
            return NULL
    return p


cdef list open_source(Source* source, columns, int64_t count, bint keep_offsets):
    """Set the pointers of ``source`` to the encoded columns, and return the views that keep the memory alive."""
    cdef int64_t headers = len(columns.header_key_position)
    cdef list views = [
        column(columns.offset, "q", count) if keep_offsets else NOTHING,
        column(columns.timestamp_ms, "q", count),
        NOTHING,  # instead of the timestamp types
        NOTHING,  # instead of the leader epochs
        column(columns.key_position, "i", count),
        column(columns.key_size, "i", count),
        column(columns.value_position, "i", count),
        column(columns.value_size, "i", count),
        column(columns.header_first, "i", count),
        column(columns.header_count, "i", count),
        column(columns.header_key_position, "i", headers),
        column(columns.header_key_size, "i", headers),
        column(columns.header_value_position, "i", headers),
        column(columns.header_value_size, "i", headers),
    ]
    point_rows(source, views, count)
    point_headers(source, views[8:], headers)
    if not keep_offsets:
        source.offset = NULL
    views.append(point_arena(source, columns.arena))
    return views


def encode_columns(columns, bint keep_offsets):
    cdef int64_t count = columns.count, i = 0, size, total = BATCH_HEADER_BYTES, delta = -1, before, max_ms
    cdef Source source
    cdef Fault fault = FINE
    cdef uint8_t* p
    if not count:
        raise no_records()
    held = open_source(&source, columns, count, keep_offsets)
    cdef bytes scratch = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t* sizes = <int64_t*>PyBytes_AS_STRING(scratch)
    with nogil:
        max_ms = source.timestamp_ms[0]
        for i in range(count):
            before = delta
            delta = i if source.offset == NULL else subtract(source.offset[i], source.offset[0])
            if not before < delta <= MAX_INT32:
                fault = WRONG
                break
            size = row_size(&source, i, delta, &fault)
            if fault != FINE:
                break
            sizes[i] = size
            total += varint_size(size) + size
            if total > MAX_INT32:
                fault = TOO_LARGE
                break
            if source.timestamp_ms[i] > max_ms:
                max_ms = source.timestamp_ms[i]
    if fault == TOO_LARGE:
        raise too_large(i)
    if fault != FINE:
        return python_encode(columns, keep_offsets)
    buffer = uninitialised(total + SLACK_BYTES)
    p = at_start(buffer)
    memset(p, 0, BATCH_HEADER_BYTES)
    with nogil:
        p = write_rows(p + BATCH_HEADER_BYTES, p + total + SLACK_BYTES, &source, count, sizes)
    if p != at_start(buffer) + total:
        raise RuntimeError("the columns changed while they were encoded")
    PyByteArray_Resize(buffer, total)
    return Body(buffer, count, delta, source.timestamp_ms[0], max_ms)
