# cython: boundscheck=False, wraparound=False, cdivision=True
"""Survey of the records of uncompressed batches, for callers that only need to know that all records are valid.

As in ``pack_c``, unusual data is left to ``decode``. This module therefore has no pure Python twin.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from stratalog.errors import CorruptBatchError
from stratalog.spi import BatchSurvey, PlainBatch

from stratalog_formats.kernels.scan_c cimport checksum_of
from stratalog_formats.kernels.sections cimport Section, sections_of
from stratalog_formats.kernels.wire cimport (
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER_BYTES,
    MAX_INT32,
    OVERHEAD_BYTES,
    Cursor,
    Row,
    add,
    at_start,
    big_32,
    big_64,
    column,
    flat,
    read_record,
    size_of,
    start_of,
    uninitialised,
)

cdef enum:
    CODEC_MASK = 0x07
    LONG_BYTES = 1 << 17  # a smaller survey ends before another thread could take the interpreter's lock

# creates a named tuple from all its fields; a call of its class would cost one more call
cdef object OF = tuple.__new__

cdef extern from *:
    """
    #define NO_TIMESTAMP (-1)
    """
    const int64_t NO_TIMESTAMP
    const int64_t INT64_MAX
    const int64_t INT64_MIN


cdef struct Found:
    int64_t least_ms
    int64_t largest_ms
    bint has_null_key
    bint is_stamped


cdef int look(Cursor data, const Section* section, int64_t span, Found* found) noexcept nogil:
    """Check one batch. Return -1 unless its records fill it and their offset deltas are 0, 1, 2, ..."""
    cdef Cursor at = data + section.start
    cdef Cursor stop = data + section.end
    cdef int64_t i, stamp, largest = INT64_MIN
    cdef Row row
    if section.count < 1 or span != section.count:
        return -1
    for i in range(section.count):
        if read_record(&at, stop, &row) or row.delta != i:
            return -1
        stamp = add(section.base_timestamp_ms, row.delta_ms)
        if stamp > largest:
            largest = stamp
        if stamp < found.least_ms:
            found.least_ms = stamp
        found.has_null_key |= row.key_size < 0
    if at != stop:
        return -1
    if largest > found.largest_ms:
        found.largest_ms = largest
    found.is_stamped &= section.max_timestamp_ms == (largest if largest > NO_TIMESTAMP else NO_TIMESTAMP)
    return 0


def survey_batches(data, batches):
    """Survey batches as ``RecordFormat.survey`` documents."""
    view = flat(data)
    cdef int64_t rows = len(batches), i
    cdef int64_t attributes = 0
    cdef Cursor start = start_of(view)
    cdef Found found
    flags = column(batches.attributes, "q", rows)
    firsts, lasts = column(batches.base_offset, "q", rows), column(batches.last_offset, "q", rows)
    for i in range(rows):
        attributes |= (<const int64_t*>start_of(flags))[i]
    if rows == 0 or attributes & CODEC_MASK:
        return None
    try:
        made = sections_of(batches, None, size_of(view))
    except CorruptBatchError:
        return None
    cdef const Section* sections = <const Section*>at_start(made)
    cdef const int64_t* first = <const int64_t*>start_of(firsts)
    cdef const int64_t* last = <const int64_t*>start_of(lasts)
    cdef int failed = 0
    found.least_ms, found.largest_ms, found.has_null_key, found.is_stamped = INT64_MAX, INT64_MIN, False, True
    with nogil:
        for i in range(rows):
            failed = look(start, sections + i, last[i] - first[i] + 1, &found)
            if failed:
                break
    if failed:
        return None
    return BatchSurvey(attributes, found.least_ms, found.largest_ms, found.has_null_key, found.is_stamped)


# --- one batch ---------------------------------------------------------------------------------------------------


cdef inline bint is_plain(Cursor at, int64_t size) noexcept nogil:
    """Return True if the header at ``at`` is that of one batch of ``size`` bytes without codec, flags and producer."""
    cdef int64_t base = <int64_t>big_64(at)
    cdef int32_t delta = <int32_t>big_32(at + 23)
    if <int32_t>big_32(at + 8) != size - OVERHEAD_BYTES or at[16] != 2 or at[22] or delta < 0 or add(base, delta) < base:
        return False
    return <int64_t>big_64(at + 43) < 0


cdef bint taken(uint8_t* at, Cursor source, int64_t size, Section* section, Found* found) noexcept nogil:
    """Copy a batch, and check the copy.

    Return True if it is plain, its records fit its header, and the CRC is right.
    """
    memcpy(at, source, size)
    if not is_plain(at, size):
        return False
    section.start, section.end, section.count = BATCH_HEADER_BYTES, size, <int32_t>big_32(at + 57)
    section.base_timestamp_ms, section.max_timestamp_ms = <int64_t>big_64(at + 27), <int64_t>big_64(at + 35)
    if look(at, section, <int64_t><int32_t>big_32(at + 23) + 1, found):
        return False
    return checksum_of(at + BATCH_CHECKED_FROM, size - BATCH_CHECKED_FROM) == big_32(at + BATCH_CRC_POSITION)


cdef object copied(Cursor source, int64_t size):
    """Return the batch as ``RecordFormat.plain_batch`` documents.

    The bytes are copied before they are checked, so no other thread can change them in between.
    """
    cdef Section section
    cdef Found found
    cdef bint good
    if not BATCH_HEADER_BYTES < size <= MAX_INT32 or not is_plain(source, size):
        return None  # many batches, for example: these are not copied in vain
    own = uninitialised(size)
    cdef uint8_t* at = at_start(own)
    found.least_ms, found.largest_ms, found.has_null_key, found.is_stamped = INT64_MAX, INT64_MIN, False, True
    if size > LONG_BYTES:
        with nogil:
            good = taken(at, source, size, &section, &found)
    else:
        good = taken(at, source, size, &section, &found)
    if not good or not found.is_stamped:
        return None
    return OF(PlainBatch, (own, section.count, found.least_ms, section.max_timestamp_ms, found.has_null_key))


def plain_batch(data):
    cdef Py_buffer view
    try:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    except BufferError:
        return None  # the bytes are not contiguous
    try:
        return copied(<Cursor>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
