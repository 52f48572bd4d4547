"""Position and header fields of each batch, for the kernels that decode records."""

from libc.stdint cimport int32_t, int64_t

from stratalog.errors import CorruptBatchError

from stratalog_formats.kernels.wire cimport (
    BATCH_HEADER_BYTES,
    LOG_APPEND_TIME,
    MAX_INT32,
    MIN_RECORD_BYTES,
    at_start,
    column,
    start_of,
    uninitialised,
)


cdef struct Section:  # the records of one batch
    int64_t start
    int64_t end
    int64_t count
    int64_t base_offset
    int64_t base_timestamp_ms
    int64_t max_timestamp_ms
    int32_t leader_epoch
    bint append_time


cdef inline object sections_of(batches, bounds, int64_t size):
    """Return a bytearray with one ``Section`` for each batch.

    Raises:
        IndexError: the records of a batch are not inside the arena, or the arena is larger than 2 GiB.
        CorruptBatchError: a batch is too small for its record count.
    """
    cdef int64_t rows = len(batches), i, start, end
    positions, sizes = column(batches.position, "q", rows), column(batches.size_bytes, "q", rows)
    counts, bases = column(batches.record_count, "q", rows), column(batches.base_offset, "q", rows)
    firsts, largest = column(batches.base_timestamp_ms, "q", rows), column(batches.max_timestamp_ms, "q", rows)
    epochs, flags = column(batches.leader_epoch, "q", rows), column(batches.attributes, "q", rows)
    given = None if bounds is None else column(bounds, "q", 2 * rows)
    cdef const int64_t* bound = NULL if bounds is None else <const int64_t*>start_of(given)
    cdef object made = uninitialised(rows * <int64_t>sizeof(Section))
    cdef Section* section = <Section*>at_start(made)
    for i in range(rows):
        if bound == NULL:
            start = (<const int64_t*>start_of(positions))[i] + BATCH_HEADER_BYTES
            end = start - BATCH_HEADER_BYTES + (<const int64_t*>start_of(sizes))[i]
        else:
            start, end = bound[2 * i], bound[2 * i + 1]
        if not 0 <= start <= end <= size or size > MAX_INT32:
            raise IndexError(f"records in [{start}, {end}) are not inside an arena of {size} bytes")
        section[i].start, section[i].end = start, end
        section[i].count = (<const int64_t*>start_of(counts))[i]
        section[i].base_offset = (<const int64_t*>start_of(bases))[i]
        section[i].base_timestamp_ms = (<const int64_t*>start_of(firsts))[i]
        section[i].max_timestamp_ms = (<const int64_t*>start_of(largest))[i]
        section[i].leader_epoch = <int32_t>(<const int64_t*>start_of(epochs))[i]
        section[i].append_time = (<const int64_t*>start_of(flags))[i] & LOG_APPEND_TIME != 0
        if not 0 <= section[i].count <= (end - start) // MIN_RECORD_BYTES:
            raise misfit(section[i].count, end - start, (<const int64_t*>start_of(positions))[i])
    return made


cdef inline object misfit(int64_t count, int64_t size, int64_t position):
    return CorruptBatchError(f"{count} records do not fit {size} bytes", "", position)
