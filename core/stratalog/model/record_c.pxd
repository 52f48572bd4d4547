"""The layout of a compiled ``Record``, for kernels that read or make records without Python calls."""

from libc.stdint cimport int32_t, int64_t


cdef class Record:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly object timestamp_type  # a TimestampType
    cdef readonly bytes key  # or None
    cdef readonly bytes value  # or None
    cdef readonly tuple headers  # of tuples (str, bytes or None)
    cdef readonly int32_t leader_epoch
    cdef readonly int32_t partition
