# cython: boundscheck=False, wraparound=False, cdivision=True
"""One look over the records of uncompressed batches, for whoever has to know that all keep the rules and nothing else.

As in ``pack_c``, what is unusual is left to ``decode``, so this has no twin in pure Python.
"""

from libc.stdint cimport int64_t

from stratalog.spi import BatchSurvey, CorruptBatchError

from stratalog_formats.kernels.sections cimport Section, sections_of
from stratalog_formats.kernels.wire cimport Cursor, Row, add, at_start, column, flat, read_record, size_of, start_of

cdef enum:
    CODEC_MASK = 0x07

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
    """Walk one batch; -1 unless its records fill it, and their offsets are 0, 1, 2, ..."""
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
    """As ``RecordFormat.survey``."""
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
