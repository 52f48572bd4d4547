# cython: boundscheck=False, wraparound=False, cdivision=True
"""Removal of records from uncompressed batches, as compiled code. ``retain`` is the same code in pure Python.

If a batch loses records, all its records are checked like in a decoder. Kept records are copied. If the base timestamp
of the batch changes, the kept records get new timestamp deltas.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_Resize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcpy

from stratalog.spi import Verdict

from stratalog_formats.kernels.scan_c cimport checksum_of
from stratalog_formats.kernels.wire cimport (
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER_BYTES,
    LOG_APPEND_TIME,
    OVERHEAD_BYTES,
    Cursor,
    Row,
    add,
    at_start,
    column,
    flat,
    put_32,
    put_64,
    read_after_ms,
    read_int64,
    read_size,
    size_of,
    start_of,
    subtract,
    uninitialised,
    varint_size,
    write_varint,
)

from stratalog_formats.kernels.retain import retain_plain as python_retain

cdef enum:
    DELETE_HORIZON = 0x40
    FLAGS = 0x38  # timestamp type, transactional, control
    SLACK_BYTES = 16  # largest growth of a record: a longer delta, a longer length

cdef int64_t NO_TIMESTAMP = -1
cdef uint8_t DROP = Verdict.DROP.value
cdef uint8_t DROP_AT_HORIZON = Verdict.DROP_AT_HORIZON.value

cdef struct Batch:
    Cursor at
    int64_t size
    int64_t base_ms
    int64_t max_ms
    int64_t count
    int64_t attributes

cdef struct Kept:
    uint8_t* end  # NULL if the records do not fit their batch
    int64_t count
    int64_t base_ms
    int64_t max_ms


cdef Kept keep_records(
    uint8_t* into, const Batch* batch, const uint8_t* words, int64_t base_ms, bint moves
) noexcept nogil:
    """Write the kept records to ``into``. ``end`` of the result is NULL if the records do not fit their batch.

    Timestamps are written relative to ``base_ms``, or to the timestamp of the first kept record if ``moves`` is True.
    """
    cdef Kept made
    cdef Cursor at = batch.at + BATCH_HEADER_BYTES
    cdef Cursor stop = batch.at + batch.size
    cdef Cursor start
    cdef Cursor end
    cdef Cursor rest
    cdef Row row
    cdef int64_t i, size, delta, stamp
    cdef bint append_time = batch.attributes & LOG_APPEND_TIME != 0
    made.end, made.count, made.base_ms, made.max_ms = NULL, 0, base_ms, 0
    for i in range(batch.count):
        start = at
        if read_size(&at, stop, &size) or size < 1 or size > stop - at:
            return made
        end = at + size
        rest = at + 1
        if read_int64(&rest, end, &delta) or read_after_ms(rest, end, &row):
            return made
        at = end
        if words[i] == DROP:
            continue
        stamp = batch.max_ms if append_time else add(batch.base_ms, delta)
        if not made.count:
            made.max_ms = stamp
            if moves:
                base_ms = made.base_ms = stamp
        elif stamp > made.max_ms:
            made.max_ms = stamp
        made.count += 1
        if base_ms == batch.base_ms and not append_time:
            memcpy(into, start, end - start)
            into += end - start
            continue
        delta = subtract(stamp, base_ms)
        into = write_varint(into, 1 + varint_size(delta) + (end - rest))
        into[0] = 0
        into = write_varint(into + 1, delta)
        memcpy(into, rest, end - rest)
        into += end - rest
    if at == stop:
        made.end = into
    return made


cdef uint8_t* seal(
    uint8_t* into,
    uint8_t* end,
    const Batch* batch,
    int64_t attributes,
    int64_t base_ms,
    int64_t max_ms,
    int64_t count,
) noexcept nogil:
    """Write the header of a batch at ``into``, whose records end at ``end``. Return ``end``."""
    memcpy(into, batch.at, BATCH_HEADER_BYTES)
    put_32(into + 8, <uint32_t>(end - into - OVERHEAD_BYTES))
    into[21], into[22] = <uint8_t>(attributes >> 8), <uint8_t>attributes
    put_64(into + 27, base_ms)
    put_64(into + 35, max_ms)
    put_32(into + 57, <uint32_t>count)
    put_32(into + BATCH_CRC_POSITION, checksum_of(into + BATCH_CHECKED_FROM, end - into - BATCH_CHECKED_FROM))
    return end


cdef int64_t dropped_of(const uint8_t* words, int64_t count) noexcept nogil:
    cdef int64_t i, found = 0
    for i in range(count):
        found += words[i] == DROP
    return found


cdef uint8_t* retain_one(
    uint8_t* into, const Batch* batch, const uint8_t* words, bint sets_horizon, int64_t horizon_ms, bint stays_empty
) noexcept nogil:
    """Write the kept part of a batch. Return the end of the written bytes; NULL if the records do not fit the batch."""
    cdef int64_t dropped = dropped_of(words, batch.count), attributes = batch.attributes & FLAGS, base_ms = 0
    cdef bint has_horizon = batch.attributes & DELETE_HORIZON != 0
    cdef bint is_due = sets_horizon and not has_horizon and memchr(words, DROP_AT_HORIZON, batch.count) != NULL
    cdef Kept made
    if dropped == batch.count:
        if not stays_empty:
            return into
        return seal(into, into + BATCH_HEADER_BYTES, batch, attributes, NO_TIMESTAMP, batch.max_ms, 0)
    if not dropped and not is_due:
        memcpy(into, batch.at, batch.size)
        return into + batch.size
    if has_horizon or is_due:
        base_ms = horizon_ms if is_due else batch.base_ms
        attributes |= DELETE_HORIZON
    made = keep_records(into + BATCH_HEADER_BYTES, batch, words, base_ms, not (has_horizon or is_due))
    if made.end == NULL:
        return NULL
    if batch.attributes & LOG_APPEND_TIME:
        made.max_ms = batch.max_ms
    return seal(into, made.end, batch, attributes, made.base_ms, made.max_ms, made.count)


def retain_plain(data, batches, verdicts, horizon_ms, retain_empty):
    """Return the kept parts of batches, concatenated; see ``retain.retain_plain``, which raises the errors."""
    cdef int64_t rows = len(batches), row, records = 0, total = 0
    view = flat(data)
    cdef Cursor start = start_of(view)
    cdef int64_t room = size_of(view)
    cdef list columns = [
        column(found, "q", rows)
        for found in (
            batches.position,
            batches.size_bytes,
            batches.record_count,
            batches.base_timestamp_ms,
            batches.max_timestamp_ms,
            batches.attributes,
        )
    ]
    cdef const int64_t* position = <const int64_t*>start_of(columns[0])
    cdef const int64_t* size = <const int64_t*>start_of(columns[1])
    cdef const int64_t* count = <const int64_t*>start_of(columns[2])
    cdef const int64_t* base_ms = <const int64_t*>start_of(columns[3])
    cdef const int64_t* max_ms = <const int64_t*>start_of(columns[4])
    cdef const int64_t* attributes = <const int64_t*>start_of(columns[5])
    cdef Batch batch
    cdef bint sets_horizon = horizon_ms is not None, stays_empty
    cdef int64_t horizon = horizon_ms if sets_horizon else 0
    cdef uint8_t* into
    cdef uint8_t* end
    cdef Py_buffer words
    for row in range(rows):
        if not 0 <= position[row] <= room - size[row] or size[row] < BATCH_HEADER_BYTES:
            return python_retain(data, batches, verdicts, horizon_ms, retain_empty)
        if len(verdicts[row]) != count[row]:
            return python_retain(data, batches, verdicts, horizon_ms, retain_empty)
        records += count[row]
        total += size[row]
    out = uninitialised(total + SLACK_BYTES * (records + 1))
    into = at_start(out)
    for row in range(rows):
        batch.at, batch.size, batch.count = start + position[row], size[row], count[row]
        batch.base_ms, batch.max_ms, batch.attributes = base_ms[row], max_ms[row], attributes[row]
        stays_empty = retain_empty is not None and retain_empty[row]
        PyObject_GetBuffer(verdicts[row], &words, PyBUF_SIMPLE)
        end = retain_one(into, &batch, <Cursor>words.buf, sets_horizon, horizon, stays_empty)
        PyBuffer_Release(&words)
        if end == NULL:
            return python_retain(data, batches, verdicts, horizon_ms, retain_empty)
        into = end
    PyByteArray_Resize(out, into - at_start(out))
    return out
