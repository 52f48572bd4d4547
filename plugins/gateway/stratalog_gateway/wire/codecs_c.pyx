# cython: boundscheck=False, wraparound=False, cdivision=True
"""Produce and Fetch messages, compiled.

Each function returns None for unusual messages, and the caller then uses its form in Python: for malformed requests,
and for responses with texts, aborted transactions or diverging epochs. Errors of requests are raised only there.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef object _of = tuple.__new__
cdef Py_ssize_t UUID_BYTES = 16
cdef Py_ssize_t MOST_FIELDS_BYTES = 64  # more than the fields of a message before or after a name or batches


# --- reading ---------------------------------------------------------------------------------------------------------


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    bint flexible
    bint failed  # a value reaches past the end, or is malformed


cdef inline int64_t number(Cursor* read, int size) noexcept:
    """Return the next signed number of ``size`` bytes."""
    cdef uint64_t found = 0
    cdef int i
    if read.end - read.at < size:
        read.failed = True
        return 0
    for i in range(size):
        found = found << 8 | read.at[i]
    read.at += size
    return <int64_t>(found << (64 - 8 * size)) >> (64 - 8 * size)


cdef inline int64_t uvarint(Cursor* read) noexcept:
    cdef int64_t found = 0
    cdef int shift = 0
    cdef uint8_t byte
    while read.at < read.end and shift < 35:
        byte = read.at[0]
        read.at += 1
        found |= <int64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return found
        shift += 7
    read.failed = True
    return 0


cdef inline int64_t count(Cursor* read) noexcept:
    """Return the number of elements of an array; 0 for a null array."""
    cdef int64_t found = uvarint(read) - 1 if read.flexible else number(read, 4)
    if found > read.end - read.at:
        read.failed = True
    return 0 if found < 0 or read.failed else found


cdef inline const uint8_t* raw(Cursor* read, int64_t size) noexcept:
    """Return the start of the next ``size`` bytes; NULL if the request has fewer."""
    cdef const uint8_t* start = read.at
    if size < 0 or size > read.end - start:
        read.failed = True
        return NULL
    read.at += size
    return start


cdef inline void skip_tags(Cursor* read) noexcept:
    cdef int64_t left
    if not read.flexible:
        return
    left = uvarint(read)
    while left > 0 and not read.failed:
        uvarint(read)
        raw(read, uvarint(read))
        left -= 1


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
        read.at, read.end = <const uint8_t*>view.buf + start, <const uint8_t*>view.buf + view.len
        read.flexible, read.failed = version >= 12, False
        return _fetch_request(version, &read, kind)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


cdef object _fetch_request(int version, Cursor* read, kind):
    cdef int64_t max_wait_ms, min_bytes, max_bytes, isolation, session_id = 0, session_epoch = -1
    cdef int64_t topics, partitions, partition, leader_epoch, offset, last_epoch
    cdef bint has_ids = version >= 13
    skip_tags(read)
    if version < 15:
        number(read, 4)
    max_wait_ms, min_bytes, max_bytes, isolation = number(read, 4), number(read, 4), number(read, 4), number(read, 1)
    if version >= 7:
        session_id, session_epoch = number(read, 4), number(read, 4)
    wanted = []
    topics = count(read)
    while topics > 0 and not read.failed:
        topics -= 1
        name = topic(read, has_ids)
        partitions = count(read)
        while partitions > 0 and not read.failed:
            partitions -= 1
            partition = number(read, 4)
            leader_epoch = number(read, 4) if version >= 9 else -1
            offset = number(read, 8)
            last_epoch = number(read, 4) if version >= 12 else -1
            if version >= 5:
                number(read, 8)
            wanted.append(_of(kind, (name, partition, leader_epoch, offset, last_epoch, number(read, 4))))
            skip_tags(read)
        skip_tags(read)
    if version >= 7 and count(read):
        return None
    if read.failed:
        return None
    return max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, wanted, [], has_ids


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
        read.at, read.end = <const uint8_t*>view.buf + start, <const uint8_t*>view.buf + view.len
        read.flexible, read.failed = version >= 9, False
        return _produce_request(version, &read, data, <const uint8_t*>view.buf, kind)
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


cdef object _produce_request(int version, Cursor* read, data, const uint8_t* base, kind):
    cdef int64_t acks, timeout_ms, count_of_topics, partitions, partition, size
    cdef const uint8_t* start
    skip_tags(read)
    transactional_id = string(read)
    acks, timeout_ms = number(read, 2), number(read, 4)
    topics = []
    count_of_topics = count(read)
    while count_of_topics > 0 and not read.failed:
        count_of_topics -= 1
        name = topic(read, version >= 13)
        produced = []
        partitions = count(read)
        while partitions > 0 and not read.failed:
            partitions -= 1
            partition = number(read, 4)
            size = uvarint(read) - 1 if read.flexible else number(read, 4)
            start = raw(read, max(size, 0))
            if start != NULL:
                produced.append(_of(kind, (partition, data[start - base : read.at - base])))
            skip_tags(read)
        skip_tags(read)
        topics.append((name, produced))
    return None if read.failed else (transactional_id, acks, timeout_ms, topics)


# --- writing ---------------------------------------------------------------------------------------------------------


cdef class Out:
    """A growing array of bytes. The caller reserves room before it writes."""

    cdef bytearray data
    cdef uint8_t* at
    cdef bint flexible

    def __cinit__(self, bint flexible):
        self.flexible = flexible
        self.begin()

    cdef int begin(self) except -1:
        self.data = bytearray(4 * MOST_FIELDS_BYTES)
        self.at = <uint8_t*>PyByteArray_AS_STRING(self.data)
        return 0

    cdef Py_ssize_t used(self):
        return self.at - <uint8_t*>PyByteArray_AS_STRING(self.data)

    cdef int reserve(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = self.used()
        if PyByteArray_GET_SIZE(self.data) - used < size:
            PyByteArray_Resize(self.data, 2 * (used + size))
            self.at = <uint8_t*>PyByteArray_AS_STRING(self.data) + used
        return 0

    cdef bytearray take(self):
        """Return the bytes so far. Call ``begin`` before you write again."""
        cdef bytearray found = self.data
        PyByteArray_Resize(found, self.used())
        return found

    cdef void number(self, int64_t value, int size) noexcept:
        cdef int i
        for i in range(size):
            self.at[i] = <uint8_t>(value >> (8 * (size - 1 - i)))
        self.at += size

    cdef void uvarint(self, uint64_t value) noexcept:
        while value > 0x7F:
            self.at[0] = <uint8_t>(value & 0x7F | 0x80)
            self.at += 1
            value >>= 7
        self.at[0] = <uint8_t>value
        self.at += 1

    cdef void count(self, int64_t value) noexcept:
        if self.flexible:
            self.uvarint(value + 1)
        else:
            self.number(value, 4)

    cdef void tags(self) noexcept:
        if self.flexible:
            self.at[0] = 0
            self.at += 1

    cdef int raw(self, const void* data, Py_ssize_t size) except -1:
        self.reserve(size + MOST_FIELDS_BYTES)
        memcpy(self.at, data, size)
        self.at += size
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
    cdef uint8_t* at = <uint8_t*>PyByteArray_AS_STRING(frame)
    cdef int i
    for i in range(4):
        at[i] = <uint8_t>(size >> (24 - 8 * i))


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

    Batches of fewer than ``copied_bytes`` are copied between the fields, and larger ones up to ``read_bytes`` are read.
    """
    cdef Out out = Out(version >= 12)
    cdef int64_t before_bytes = 0, size
    cdef Py_buffer view
    cdef tuple found
    cdef dict grouped = {}
    cdef list pieces = []
    for item in results:
        found = <tuple>item
        if found[6] or found[8] is not None:
            return None
        grouped.setdefault(found[0], []).append(found)
    out.number(0, 4)
    out.number(correlation_id, 4)
    out.tags()
    out.number(throttle_ms, 4)
    if version >= 7:
        out.number(error, 2)
        out.number(session_id, 4)
    out.count(len(grouped))
    for name, partitions in grouped.items():
        out.topic(name)
        out.count(len(<list>partitions))
        for item in <list>partitions:
            found = <tuple>item
            batches = found[7]
            size = 0 if batches is None else batches.size_bytes
            out.reserve(MOST_FIELDS_BYTES)
            out.number(found[1], 4)
            out.number(found[2], 2)
            out.number(found[3], 8)
            out.number(found[4], 8)
            if version >= 5:
                out.number(found[5], 8)
            out.count(0)
            if version >= 11:
                out.number(-1, 4)  # preferred read replica
            out.count(size)
            if size >= copied_bytes:
                before_bytes += out.used() + size
                pieces.append(out.take())
                pieces.append(batches.read() if size <= read_bytes else batches)
                out.begin()
            elif size:
                data = batches.read()
                PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
                try:
                    out.raw(view.buf, view.len)
                finally:
                    PyBuffer_Release(&view)
            out.tags()
        out.reserve(MOST_FIELDS_BYTES)
        out.tags()
    out.tags()
    before_bytes += out.used()
    pieces.append(out.take())
    put_size(pieces[0], before_bytes - 4)
    return pieces


def encode_produce(int version, int64_t correlation_id, topics, int64_t throttle_ms):
    """Return the frame of a response; None if a partition has a message or errors of records."""
    cdef Out out = Out(version >= 9)
    cdef tuple found
    cdef bytearray frame
    out.number(0, 4)
    out.number(correlation_id, 4)
    out.tags()
    out.count(len(topics))
    for name, partitions in topics:
        out.topic(name)
        out.count(len(partitions))
        for item in partitions:
            found = <tuple>item
            if found[5] is not None or found[6]:
                return None
            out.reserve(MOST_FIELDS_BYTES)
            out.number(found[0], 4)
            out.number(found[1], 2)
            out.number(found[2], 8)
            out.number(found[3], 8)
            if version >= 5:
                out.number(found[4], 8)
            if version >= 8:
                out.count(0)
                out.number(0 if out.flexible else -1, 1 if out.flexible else 2)  # no message
            out.tags()
        out.reserve(MOST_FIELDS_BYTES)
        out.tags()
    out.number(throttle_ms, 4)
    out.tags()
    frame = out.take()
    put_size(frame, PyByteArray_GET_SIZE(frame) - 4)
    return bytes(frame)
