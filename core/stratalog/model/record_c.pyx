"""Records as objects, compiled."""

cimport cython


@cython.final
@cython.freelist(256)
@cython.no_gc
cdef class Record:
    """One record."""

    def __init__(self, offset=-1, timestamp_ms=-1, timestamp_type=None, key=None, value=None, headers=(), leader_epoch=-1, partition=-1):
        self.offset, self.timestamp_ms, self.timestamp_type = offset, timestamp_ms, timestamp_type
        self.key, self.value, self.headers = key, value, headers
        self.leader_epoch, self.partition = leader_epoch, partition
