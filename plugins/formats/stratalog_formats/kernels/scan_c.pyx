# cython: boundscheck=False, wraparound=False, cdivision=True
"""Scan of batches and messages, as compiled code. ``scan`` documents each function.

The compiler's checks are off, because this code checks every read against the end of the range.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from stratalog.spi import BatchTable, ScanStop

from stratalog.model.prepared_c cimport COLUMNS, BatchRow, PreparedBatches, columns_of_rows
from stratalog_formats.kernels.wire cimport (
    ANOTHER_MAGIC,
    BAD_CRC,
    BATCH_CHECKED_FROM,
    BATCH_CRC_POSITION,
    BATCH_HEADER_BYTES,
    FRAME_BYTES,
    LOG_APPEND_TIME,
    MAX_INT32,
    NO_MEMORY,
    OFFSET_OVERFLOW,
    OVERHEAD_BYTES,
    RAN_OUT,
    SHORTER_THAN_HEADER,
    TOO_SMALL,
    Cursor,
    Stop,
    add,
    at_start,
    big_32,
    big_64,
    column,
    flat,
    framed,
    put_32,
    put_64,
    size_of,
    start_of,
)


cdef extern from "crc.h" nogil:
    void crc_setup()
    void crc_choose(int may_fold, int may_use_instruction)
    uint32_t crc32c_of(const uint8_t* at, size_t size)
    uint32_t crc32_of(const uint8_t* at, size_t size)


crc_setup()

cdef enum:
    MESSAGE_CHECKED_FROM = 16
    MESSAGE_HEADER_BYTES = 18
    CODEC_MASK = 0x07
    LONG_BYTES = 1 << 17  # a smaller scan keeps the GIL, because it is short

cdef tuple STOPS = (ScanStop.END, ScanStop.PARTIAL, ScanStop.OTHER_MAGIC)

cdef struct Rows:
    BatchRow* rows
    int64_t count
    int64_t room


assert len(BatchTable.column_names) == COLUMNS and sizeof(BatchRow) == 8 * COLUMNS


cdef inline BatchRow* next_row(Rows* table) noexcept nogil:
    """Return room for one more row, or NULL if there is no memory."""
    cdef BatchRow* grown
    if table.count == table.room:
        table.room = 2 * table.room if table.room else 64
        grown = <BatchRow*>realloc(table.rows, table.room * sizeof(BatchRow))
        if grown == NULL:
            return NULL
        table.rows = grown
    return table.rows + table.count


cdef Stop find_batches(Cursor data, int64_t* position, int64_t end, bint check_crc, Rows* table) noexcept nogil:
    cdef int64_t at = position[0], size = 0
    cdef Stop stop = RAN_OUT
    cdef Cursor p
    cdef BatchRow* row
    while at < end:
        p = data + at
        stop = framed(p, end - at, 2, &size)
        if stop != RAN_OUT:
            break
        if size < BATCH_HEADER_BYTES:
            stop = SHORTER_THAN_HEADER
            break
        if check_crc and crc32c_of(p + BATCH_CHECKED_FROM, size - BATCH_CHECKED_FROM) != big_32(p + BATCH_CRC_POSITION):
            stop = BAD_CRC
            break
        row = next_row(table)
        if row == NULL:
            stop = NO_MEMORY
            break
        read_header(p, at, size, row)
        if (row.last_offset < row.base_offset) != (<int32_t>big_32(p + 23) < 0):
            stop = OFFSET_OVERFLOW
            break
        table.count += 1
        at += size
    position[0] = at
    return stop


cdef Stop find_messages(
    Cursor data, int64_t* position, int64_t end, int magic, bint check_crc, Rows* table
) noexcept nogil:
    cdef int64_t at = position[0], size = 0, stamp
    cdef Stop stop = RAN_OUT
    cdef Cursor p
    cdef BatchRow* row
    while at < end:
        p = data + at
        stop = framed(p, end - at, magic, &size)
        if stop != RAN_OUT:
            break
        if check_crc and crc32_of(p + MESSAGE_CHECKED_FROM, size - MESSAGE_CHECKED_FROM) != big_32(p + 12):
            stop = BAD_CRC
            break
        row = next_row(table)
        if row == NULL:
            stop = NO_MEMORY
            break
        stamp = <int64_t>big_64(p + MESSAGE_HEADER_BYTES) if magic else -1
        row.position, row.size_bytes, row.attributes, row.crc = at, size, p[FRAME_BYTES], big_32(p + 12)
        row.base_offset = row.last_offset = <int64_t>big_64(p)
        row.base_timestamp_ms = row.max_timestamp_ms = stamp
        row.leader_epoch = row.producer_id = row.producer_epoch = row.base_sequence = -1
        row.record_count = -1 if p[FRAME_BYTES] & CODEC_MASK else 1
        table.count += 1
        at += size
    position[0] = at
    return stop


cdef bint in_order(const Rows* found) noexcept:
    """Return the value of ``BatchTable.ascends``."""
    cdef int64_t i
    for i in range(found.count):
        if found.rows[i].last_offset < found.rows[i].base_offset:
            return False
        if i and found.rows[i].base_offset <= found.rows[i - 1].last_offset:
            return False
    return True


cdef object table_of(int magic, Rows* found, Stop stop, object view, int64_t position):
    """Return a BatchTable of the rows, and free the rows. Raise MemoryError if ``stop`` is NO_MEMORY."""
    cdef bint ascends = in_order(found)
    try:
        columns = columns_of_rows(found.rows, found.count)
    finally:
        free(found.rows)
    if stop == NO_MEMORY:
        raise MemoryError
    if stop <= ANOTHER_MAGIC:
        return BatchTable(magic, columns, STOPS[stop], position, ascends=ascends)
    reason = reason_of(stop, start_of(view) + position)
    return BatchTable(magic, columns, ScanStop.CORRUPT, position, reason, ascends=ascends)


cdef str reason_of(Stop stop, Cursor at):
    cdef int32_t size = <int32_t>big_32(at + 8)
    if stop == TOO_SMALL:
        return f"an entry of size {size} is too small"
    if stop == SHORTER_THAN_HEADER:
        return f"a batch of {<int64_t>size + OVERHEAD_BYTES} bytes is shorter than its header"
    if stop == BAD_CRC:
        return "the CRC does not match"
    return f"offset {<int64_t>big_64(at)} + {<int32_t>big_32(at + 23)} overflows"


cdef int64_t check_range(object view, int64_t start, int64_t end) except -1:
    if not 0 <= start or not end <= size_of(view):
        raise IndexError(f"[{start}, {end}) is not inside a buffer of {size_of(view)} bytes")
    return start


def scan_batches(data, int64_t start, int64_t end, bint check_crc):
    view = flat(data)
    cdef int64_t position = check_range(view, start, end)
    cdef Cursor source = start_of(view)
    cdef Rows found
    cdef Stop stop
    found.rows, found.count, found.room = NULL, 0, 0
    if end - start > LONG_BYTES:
        with nogil:
            stop = find_batches(source, &position, end, check_crc, &found)
    else:
        stop = find_batches(source, &position, end, check_crc, &found)
    return table_of(2, &found, stop, view, position)


def scan_messages(int magic, data, int64_t start, int64_t end, bint check_crc):
    view = flat(data)
    cdef int64_t position = check_range(view, start, end)
    cdef Cursor source = start_of(view)
    cdef Rows found
    cdef Stop stop
    found.rows, found.count, found.room = NULL, 0, 0
    with nogil:
        stop = find_messages(source, &position, end, magic, check_crc, &found)
    return table_of(magic, &found, stop, view, position)


def assign_batches(PreparedBatches batches, int64_t base_offset, int leader_epoch, append_time_ms):
    cdef int64_t i, room = len(batches.data), append_ms = -1 if append_time_ms is None else append_time_ms
    cdef bint stamped = append_time_ms is not None
    cdef uint8_t* source = at_start(batches.data)
    cdef uint8_t* at
    cdef BatchRow* row = batches.rows()
    for i in range(batches.batch_count):
        if not 0 <= row[i].position <= room - BATCH_HEADER_BYTES or (
            not BATCH_HEADER_BYTES <= row[i].size_bytes <= room - row[i].position
        ):
            raise IndexError(
                f"a batch of {row[i].size_bytes} bytes at {row[i].position} is not inside a buffer of {room} bytes"
            )
    for i in range(batches.batch_count):
        at = source + row.position
        put_64(at, base_offset)
        put_32(at + 12, leader_epoch)
        row.base_offset, row.last_offset = base_offset, add(base_offset, row.last_offset - row.base_offset)
        row.leader_epoch = leader_epoch
        if stamped:
            row.attributes, row.max_timestamp_ms = row.attributes | LOG_APPEND_TIME, append_ms
        if at[22] != <uint8_t>row.attributes or <int64_t>big_64(at + 35) != row.max_timestamp_ms:
            at[21], at[22] = 0, <uint8_t>row.attributes
            put_64(at + 35, row.max_timestamp_ms)
            row.crc = crc32c_of(at + BATCH_CHECKED_FROM, row.size_bytes - BATCH_CHECKED_FROM)
            put_32(at + BATCH_CRC_POSITION, <uint32_t>row.crc)
        base_offset = row.last_offset + 1
        row += 1
    batches.known = None
    batches.sum_up()


def seal_batch(
    bytearray buffer,
    int64_t base_offset,
    int leader_epoch,
    int attributes,
    int last_offset_delta,
    int64_t base_timestamp_ms,
    int64_t max_timestamp_ms,
    int64_t producer_id,
    int producer_epoch,
    int base_sequence,
    int record_count,
):
    cdef int64_t size = len(buffer)
    cdef uint8_t* at = at_start(buffer)
    if not BATCH_HEADER_BYTES <= size <= MAX_INT32:
        raise ValueError(f"a batch of {size} bytes")
    if not -0x8000 <= producer_epoch <= 0x7FFF or not 0 <= attributes <= 0x7FFF:
        raise OverflowError("producer epoch and attributes have 16 bits")
    cdef Header header
    header.base_offset, header.leader_epoch, header.attributes = base_offset, leader_epoch, attributes
    header.last_offset_delta, header.record_count = last_offset_delta, record_count
    header.base_timestamp_ms, header.max_timestamp_ms = base_timestamp_ms, max_timestamp_ms
    header.producer_id, header.producer_epoch, header.base_sequence = producer_id, producer_epoch, base_sequence
    seal(at, size, &header)


cdef void seal(uint8_t* at, int64_t size, const Header* header) noexcept nogil:
    """Write the header of the batch at ``at``, whose records are already written."""
    put_64(at, header.base_offset)
    put_32(at + 8, <uint32_t>(size - OVERHEAD_BYTES))
    put_32(at + 12, header.leader_epoch)
    at[16] = 2
    at[21], at[22] = <uint8_t>(header.attributes >> 8), <uint8_t>header.attributes
    put_32(at + 23, header.last_offset_delta)
    put_64(at + 27, header.base_timestamp_ms)
    put_64(at + 35, header.max_timestamp_ms)
    put_64(at + 43, header.producer_id)
    at[51], at[52] = <uint8_t>(header.producer_epoch >> 8), <uint8_t>header.producer_epoch
    put_32(at + 53, header.base_sequence)
    put_32(at + 57, header.record_count)
    put_32(at + BATCH_CRC_POSITION, checksum_of(at + BATCH_CHECKED_FROM, size - BATCH_CHECKED_FROM))


cdef uint32_t checksum_of(const uint8_t* at, size_t size) noexcept nogil:
    """Return the CRC-32C of ``size`` bytes."""
    return crc32c_of(at, size)


def choose_checksums(bint may_fold, bint may_use_instruction):
    """Choose the code that computes checksums, for tests.

    ``may_fold=False`` excludes carry-less multiplication. ``may_use_instruction=False`` excludes the CRC-32C
    instruction.
    """
    crc_choose(may_fold, may_use_instruction)


def checksum_32c(data):
    """Return the CRC-32C of ``data``."""
    view = flat(data)
    return crc32c_of(start_of(view), size_of(view))


def checksum_32(data):
    """Return the CRC-32 of ``data``, like ``zlib.crc32``."""
    view = flat(data)
    return crc32_of(start_of(view), size_of(view))
