"""Functions of ``scan_c`` for other kernels."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from stratalog.model.prepared_c cimport BatchRow
from stratalog_formats.kernels.wire cimport BATCH_CRC_POSITION, Cursor, add, big_32, big_64

cdef uint32_t checksum_of(const uint8_t* at, size_t size) noexcept nogil

cdef struct Header:  # header fields of a batch, from ``BatchHeader`` and its records
    int64_t base_offset
    int64_t base_timestamp_ms
    int64_t max_timestamp_ms
    int64_t producer_id
    int leader_epoch
    int attributes
    int last_offset_delta
    int producer_epoch
    int base_sequence
    int record_count

cdef void seal(uint8_t* at, int64_t size, const Header* header) noexcept nogil


cdef inline void read_header(Cursor at, int64_t position, int64_t size, BatchRow* row) noexcept nogil:
    """Fill ``row`` from the header of a batch of magic 2 at ``at``. The last offset wraps around on overflow."""
    row.position, row.size_bytes, row.base_offset = position, size, <int64_t>big_64(at)
    row.last_offset = add(row.base_offset, <int32_t>big_32(at + 23))
    row.leader_epoch, row.crc, row.attributes = <int32_t>big_32(at + 12), big_32(at + BATCH_CRC_POSITION), at[22]
    row.base_timestamp_ms, row.max_timestamp_ms = <int64_t>big_64(at + 27), <int64_t>big_64(at + 35)
    row.producer_id, row.producer_epoch = <int64_t>big_64(at + 43), <int16_t>(<uint32_t>at[51] << 8 | at[52])
    row.base_sequence, row.record_count = <int32_t>big_32(at + 53), <int32_t>big_32(at + 57)
