# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled codecs of Produce and Fetch messages.

Each function returns None for unusual messages: for malformed requests, and for responses with texts, aborted
transactions or diverging epochs. The caller then uses the Python version of the function. Only the Python version
raises errors of requests.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef object _of = tuple.__new__
cdef Py_ssize_t UUID_BYTES = 16
cdef Py_ssize_t MOST_FIELDS_BYTES = 64  # upper limit for the size of the fields before or after a name or batches


# --- reading ---------------------------------------------------------------------------------------------------------


cdef struct Cursor:
    const uint8_t* position
    const uint8_t* end
    bint flexible
    bint failed  # True if a value reaches past the end, or is malformed


cdef inline int64_t number(Cursor* read, int size) noexcept:
    """Return the next signed number of ``size`` bytes."""
    cdef uint64_t value = 0
    cdef int i
    if read.end - read.position < size:
        read.failed = True
        return 0
    for i in range(size):
        value = value << 8 | read.position[i]
    read.position += size
    return <int64_t>(value << (64 - 8 * size)) >> (64 - 8 * size)


cdef inline int64_t uvarint(Cursor* read) noexcept:
    cdef int64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while read.position < read.end and shift < 35:
        byte = read.position[0]
        read.position += 1
        value |= <int64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    read.failed = True
    return 0


cdef inline int64_t count(Cursor* read) noexcept:
    """Return the number of elements of an array; 0 for a null array."""
    cdef int64_t elements = uvarint(read) - 1 if read.flexible else number(read, 4)
    if elements > read.end - read.position:
        read.failed = True
    return 0 if elements < 0 or read.failed else elements


cdef inline const uint8_t* raw(Cursor* read, int64_t size) noexcept:
    """Return the start of the next ``size`` bytes; NULL if fewer bytes remain."""
    cdef const uint8_t* start = read.position
    if size < 0 or size > read.end - start:
        read.failed = True
        return NULL
    read.position += size
    return start


cdef inline void skip_tags(Cursor* read) noexcept:
    cdef int64_t remaining
    if not read.flexible:
        return
    remaining = uvarint(read)
    while remaining > 0 and not read.failed:
        uvarint(read)
        raw(read, uvarint(read))
        remaining -= 1


cdef object string(Cursor* read):
    """Return the next string; None if it is null. Raises UnicodeDecodeError."""
    cdef int64_t size = uvarint(read) - 1 if read.flexible else number(read, 2)
    cdef const uint8_t* start
    if size < 0 or read.failed:
        return None
    start = raw(read, size)
    return None if start == NULL else PyUnicode_DecodeUTF8(<const char*>start, size, NULL)


cdef object topic(Cursor* read, bint has_ids):
    """Return the next name or id of a topic. Raises UnicodeDecodeError."""
    cdef const uint8_t* start
    if not has_ids:
        return string(read) or ""
    start = raw(read, UUID_BYTES)
    return b"" if start == NULL else PyBytes_FromStringAndSize(<const char*>start, UUID_BYTES)


def decode_fetch(int version, data, Py_ssize_t start, kind):
    """Return the fields of ``FetchRequest``; None if the request is malformed or has partitions that leave a session.

    ``kind`` is the class ``WantedPartition``.
    """
    cdef Py_buffer view
    cdef Cursor read
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start > view.len:
            return None
        read.position, read.end = <const uint8_t*>view.buf + start, <const uint8_t*>view.buf + view.len
        read.flexible, read.failed = version >= 12, False
        return _fetch_request(version, &read, kind)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


cdef object _fetch_request(int version, Cursor* read, kind):
    cdef int64_t max_wait_ms, min_bytes, max_bytes, isolation, session_id = 0, session_epoch = -1
    cdef int64_t topic_count, partition_count, partition, leader_epoch, offset, last_epoch
    cdef bint has_ids = version >= 13
    skip_tags(read)
    if version < 15:
        number(read, 4)
    max_wait_ms, min_bytes, max_bytes, isolation = number(read, 4), number(read, 4), number(read, 4), number(read, 1)
    if version >= 7:
        session_id, session_epoch = number(read, 4), number(read, 4)
    partitions = []
    topic_count = count(read)
    while topic_count > 0 and not read.failed:
        topic_count -= 1
        name = topic(read, has_ids)
        partition_count = count(read)
        while partition_count > 0 and not read.failed:
            partition_count -= 1
            partition = number(read, 4)
            leader_epoch = number(read, 4) if version >= 9 else -1
            offset = number(read, 8)
            last_epoch = number(read, 4) if version >= 12 else -1
            if version >= 5:
                number(read, 8)
            partitions.append(_of(kind, (name, partition, leader_epoch, offset, last_epoch, number(read, 4))))
            skip_tags(read)
        skip_tags(read)
    if version >= 7 and count(read):
        return None
    if read.failed:
        return None
    return max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, partitions, [], has_ids


def decode_produce(int version, data, Py_ssize_t start, kind):
    """Return the fields of ``ProduceRequest``; None if the request is malformed.

    ``data`` is a memoryview, and ``kind`` is the class ``ProducedRecords``.
    """
    cdef Py_buffer view
    cdef Cursor read
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start > view.len:
            return None
        read.position, read.end = <const uint8_t*>view.buf + start, <const uint8_t*>view.buf + view.len
        read.flexible, read.failed = version >= 9, False
        return _produce_request(version, &read, data, <const uint8_t*>view.buf, kind)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


cdef object _produce_request(int version, Cursor* read, data, const uint8_t* base, kind):
    cdef int64_t acks, timeout_ms, topic_count, partition_count, partition, size
    cdef const uint8_t* start
    skip_tags(read)
    transactional_id = string(read)
    acks, timeout_ms = number(read, 2), number(read, 4)
    topics = []
    topic_count = count(read)
    while topic_count > 0 and not read.failed:
        topic_count -= 1
        name = topic(read, version >= 13)
        partitions = []
        partition_count = count(read)
        while partition_count > 0 and not read.failed:
            partition_count -= 1
            partition = number(read, 4)
            size = uvarint(read) - 1 if read.flexible else number(read, 4)
            start = raw(read, max(size, 0))
            if start != NULL:
                partitions.append(_of(kind, (partition, data[start - base : read.position - base])))
            skip_tags(read)
        skip_tags(read)
        topics.append((name, partitions))
    return None if read.failed else (transactional_id, acks, timeout_ms, topics)


# --- writing ---------------------------------------------------------------------------------------------------------


cdef class OutputBuffer:
    """A growing array of bytes. The caller reserves room before it writes."""

    cdef bytearray data
    cdef uint8_t* position
    cdef bint flexible

    def __cinit__(self, bint flexible):
        self.flexible = flexible
        self.begin()

    cdef int begin(self) except -1:
        self.data = bytearray(4 * MOST_FIELDS_BYTES)
        self.position = <uint8_t*>PyByteArray_AS_STRING(self.data)
        return 0

    cdef Py_ssize_t used(self):
        return self.position - <uint8_t*>PyByteArray_AS_STRING(self.data)

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = self.used()
        if PyByteArray_GET_SIZE(self.data) - used < size:
            PyByteArray_Resize(self.data, 2 * (used + size))
            self.position = <uint8_t*>PyByteArray_AS_STRING(self.data) + used
        return 0

    cdef bytearray take(self):
        """Return the bytes that were written since ``begin``. Call ``begin`` before the next write."""
        cdef bytearray data = self.data
        PyByteArray_Resize(data, self.used())
        return data

    cdef void number(self, int64_t value, int size) noexcept:
        cdef int i
        for i in range(size):
            self.position[i] = <uint8_t>(value >> (8 * (size - 1 - i)))
        self.position += size

    cdef void uvarint(self, uint64_t value) noexcept:
        while value > 0x7F:
            self.position[0] = <uint8_t>(value & 0x7F | 0x80)
            self.position += 1
            value >>= 7
        self.position[0] = <uint8_t>value
        self.position += 1

    cdef void count(self, int64_t value) noexcept:
        if self.flexible:
            self.uvarint(value + 1)
        else:
            self.number(value, 4)

    cdef void tags(self) noexcept:
        if self.flexible:
            self.position[0] = 0
            self.position += 1

    cdef int raw(self, const void* data, Py_ssize_t size) except -1:
        self.reserve(size + MOST_FIELDS_BYTES)
        memcpy(self.position, data, size)
        self.position += size
        return 0

    cdef int topic(self, name) except -1:
        cdef bytes encoded
        if isinstance(name, bytes):
            encoded = name
        else:
            encoded = (<str>name).encode()
            if self.flexible:
                self.uvarint(PyBytes_GET_SIZE(encoded) + 1)
            else:
                self.number(PyBytes_GET_SIZE(encoded), 2)
        return self.raw(PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))


cdef inline void put_size(bytearray frame, int64_t size) noexcept:
    cdef uint8_t* start = <uint8_t*>PyByteArray_AS_STRING(frame)
    cdef int i
    for i in range(4):
        start[i] = <uint8_t>(size >> (24 - 8 * i))


def encode_fetch(
    int version,
    int64_t correlation_id,
    results,
    int64_t error,
    int64_t session_id,
    int64_t throttle_ms,
    int64_t copied_bytes,
    int64_t read_bytes,
):
    """Return the pieces of a response; None if a partition has aborted transactions or a diverging epoch.

    Batches of fewer than ``copied_bytes`` are copied between the fields. Batches of up to ``read_bytes`` are read into
    memory.
    """
    cdef OutputBuffer buffer = OutputBuffer(version >= 12)
    cdef int64_t before_bytes = 0, size
    cdef Py_buffer view
    cdef tuple result
    cdef dict results_by_topic = {}
    cdef list pieces = []
    for item in results:
        result = <tuple>item
        if result[6] or result[8] is not None:
            return None
        results_by_topic.setdefault(result[0], []).append(result)
    buffer.number(0, 4)
    buffer.number(correlation_id, 4)
    buffer.tags()
    buffer.number(throttle_ms, 4)
    if version >= 7:
        buffer.number(error, 2)
        buffer.number(session_id, 4)
    buffer.count(len(results_by_topic))
    for name, partitions in results_by_topic.items():
        buffer.topic(name)
        buffer.count(len(<list>partitions))
        for item in <list>partitions:
            result = <tuple>item
            batches = result[7]
            size = 0 if batches is None else batches.size_bytes
            buffer.reserve(MOST_FIELDS_BYTES)
            buffer.number(result[1], 4)
            buffer.number(result[2], 2)
            buffer.number(result[3], 8)
            buffer.number(result[4], 8)
            if version >= 5:
                buffer.number(result[5], 8)
            buffer.count(0)
            if version >= 11:
                buffer.number(-1, 4)  # preferred read replica
            buffer.count(size)
            if size >= copied_bytes:
                before_bytes += buffer.used() + size
                pieces.append(buffer.take())
                pieces.append(batches.read() if size <= read_bytes else batches)
                buffer.begin()
            elif size:
                data = batches.read()
                PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
                try:
                    buffer.raw(view.buf, view.len)
                finally:
                    PyBuffer_Release(&view)
            buffer.tags()
        buffer.reserve(MOST_FIELDS_BYTES)
        buffer.tags()
    buffer.tags()
    before_bytes += buffer.used()
    pieces.append(buffer.take())
    put_size(pieces[0], before_bytes - 4)
    return pieces


def encode_produce(int version, int64_t correlation_id, topics, int64_t throttle_ms):
    """Return the frame of a response; None if a partition has a message or errors of records."""
    cdef OutputBuffer buffer = OutputBuffer(version >= 9)
    cdef tuple result
    cdef bytearray frame
    buffer.number(0, 4)
    buffer.number(correlation_id, 4)
    buffer.tags()
    buffer.count(len(topics))
    for name, partitions in topics:
        buffer.topic(name)
        buffer.count(len(partitions))
        for item in partitions:
            result = <tuple>item
            if result[5] is not None or result[6]:
                return None
            buffer.reserve(MOST_FIELDS_BYTES)
            buffer.number(result[0], 4)
            buffer.number(result[1], 2)
            buffer.number(result[2], 8)
            buffer.number(result[3], 8)
            if version >= 5:
                buffer.number(result[4], 8)
            if version >= 8:
                buffer.count(0)
                buffer.number(0 if buffer.flexible else -1, 1 if buffer.flexible else 2)  # no message
            buffer.tags()
        buffer.reserve(MOST_FIELDS_BYTES)
        buffer.tags()
    buffer.number(throttle_ms, 4)
    buffer.tags()
    frame = buffer.take()
    put_size(frame, PyByteArray_GET_SIZE(frame) - 4)
    return bytes(frame)
