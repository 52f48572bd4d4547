"""Functions of ``scan_c`` for other kernels."""

from libc.stdint cimport int64_t, uint8_t, uint32_t


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
