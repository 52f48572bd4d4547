"""Common functions of the compiled kernels: access to buffers, big-endian integers, varints."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from stratalog.model.views cimport Cursor, size_of, start_of

cdef enum:
    OVERHEAD_BYTES = 12
    FRAME_BYTES = 17
    MIN_ENTRY_SIZE = 14
    BATCH_HEADER_BYTES = 61
    BATCH_CRC_POSITION = 17
    BATCH_CHECKED_FROM = 21
    MIN_RECORD_BYTES = 7
    LOG_APPEND_TIME = 0x08
    MAX_INT32 = 0x7FFFFFFF


# --- buffers -----------------------------------------------------------------------------------------------------


cdef inline object flat(object data):
    """Return a view of ``data`` as contiguous bytes. Pointers into the view are valid as long as the view exists."""
    return memoryview(data).cast("B")


cdef inline object uninitialised(int64_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef inline uint8_t* at_start(object buffer) noexcept:
    return <uint8_t*>PyByteArray_AS_STRING(buffer)


cdef inline object column(object data, Py_UCS4 code, int64_t count):
    """Return a view of ``data``, which must be a column of format ``code`` with at least ``count`` rows."""
    view = memoryview(data)
    cdef const Py_buffer* found = PyMemoryView_GET_BUFFER(view)
    cdef bint is_flat = found.ndim == 1 and (found.strides[0] == found.itemsize or found.shape[0] == 1)
    if found.format == NULL or <Py_UCS4><uint8_t>found.format[0] != code or found.format[1]:
        raise TypeError(f"a column of format {code} is needed, not {view.format}")
    if not is_flat:
        raise TypeError("a column must be a contiguous memoryview of one dimension")
    if found.shape[0] < count:
        raise ValueError(f"a column has {len(view)} rows, {count} are needed")
    return view


# --- integers ----------------------------------------------------------------------------------------------------


cdef inline uint32_t big_32(Cursor at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t big_64(Cursor at) noexcept nogil:
    return <uint64_t>big_32(at) << 32 | big_32(at + 4)


cdef inline void put_32(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1], at[2], at[3] = <uint8_t>(value >> 24), <uint8_t>(value >> 16), <uint8_t>(value >> 8), <uint8_t>value


cdef inline void put_64(uint8_t* at, uint64_t value) noexcept nogil:
    put_32(at, <uint32_t>(value >> 32))
    put_32(at + 4, <uint32_t>value)


cdef inline int64_t add(int64_t a, int64_t b) noexcept nogil:
    """Add with wrap-around on overflow, as a Java long."""
    return <int64_t>(<uint64_t>a + <uint64_t>b)


cdef inline int64_t subtract(int64_t a, int64_t b) noexcept nogil:
    return <int64_t>(<uint64_t>a - <uint64_t>b)


# --- entries -------------------------------------------------------------------------------------------------------


cdef enum Stop:  # reason why there is no (further) entry
    RAN_OUT
    CUT_OFF
    ANOTHER_MAGIC
    TOO_SMALL
    SHORTER_THAN_HEADER
    BAD_CRC
    OFFSET_OVERFLOW
    NO_MEMORY


cdef inline Stop framed(Cursor at, int64_t left, int magic, int64_t* size) noexcept nogil:
    """Set ``size`` to the size of the entry at ``at``, and return RAN_OUT. Without an entry, return the reason."""
    cdef int32_t body
    if left < FRAME_BYTES:
        return CUT_OFF
    body = <int32_t>big_32(at + 8)
    size[0] = <int64_t>body + OVERHEAD_BYTES
    if body < MIN_ENTRY_SIZE:
        return TOO_SMALL
    if at[FRAME_BYTES - 1] != magic:
        return ANOTHER_MAGIC
    if size[0] > left:
        return CUT_OFF
    return RAN_OUT


# --- varints -----------------------------------------------------------------------------------------------------


cdef inline int read_int32(Cursor* cursor, Cursor end, int64_t* value) noexcept nogil:
    """Read a zigzag varint of at most 5 bytes; drop bits above the 32nd. Return -1 if it is cut off or longer."""
    cdef uint64_t raw
    if read_varint(cursor, end, 28, &raw):
        return -1
    value[0] = <int32_t>((<uint32_t>raw >> 1) ^ (0 - (<uint32_t>raw & 1)))
    return 0


cdef inline int read_size(Cursor* cursor, Cursor end, int64_t* size) noexcept nogil:
    """Read a number as ``read_int32`` does. Set ``size`` to -1 for any negative number."""
    cdef uint64_t raw
    if read_varint(cursor, end, 28, &raw):
        return -1
    size[0] = -1 if raw & 1 else <int64_t>(<uint32_t>raw >> 1)
    return 0


cdef inline int read_int64(Cursor* cursor, Cursor end, int64_t* value) noexcept nogil:
    """Read a zigzag varint of at most 10 bytes; drop bits above the 64th. Return -1 if it is cut off or longer."""
    cdef uint64_t raw
    if read_varint(cursor, end, 63, &raw):
        return -1
    value[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return 0


cdef inline int read_varint(Cursor* cursor, Cursor end, int last_shift, uint64_t* raw) noexcept nogil:
    """Read the bits of a varint; return -1 if it is cut off or too long. Most varints have one or two bytes."""
    cdef Cursor at = cursor[0]
    if at < end and at[0] < 0x80:
        raw[0] = at[0]
        cursor[0] = at + 1
        return 0
    if end - at >= 2 and at[1] < 0x80:
        raw[0] = (at[0] & 0x7F) | <uint64_t>at[1] << 7
        cursor[0] = at + 2
        return 0
    return read_long_varint(cursor, end, last_shift, raw)


cdef inline int read_long_varint(Cursor* cursor, Cursor end, int last_shift, uint64_t* raw) noexcept nogil:
    cdef Cursor at = cursor[0]
    cdef uint64_t bits = 0
    cdef int shift = 0
    while True:
        if at >= end or shift > last_shift:
            return -1
        bits |= <uint64_t>(at[0] & 0x7F) << shift
        shift += 7
        at += 1
        if at[-1] < 0x80:
            break
    cursor[0] = at
    raw[0] = bits
    return 0


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ (<uint64_t>0 - (<uint64_t>value >> 63))


cdef inline int64_t varint_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    cdef int64_t size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t* write_varint(uint8_t* at, int64_t value) noexcept nogil:
    cdef uint64_t raw = zigzag(value)
    while raw > 0x7F:
        at[0] = <uint8_t>(raw | 0x80)
        at += 1
        raw >>= 7
    at[0] = <uint8_t>raw
    return at + 1


cdef inline int64_t field_size(int64_t size) noexcept nogil:
    """Return the encoded size of a field of ``size`` bytes, including its length; a ``size`` of -1 is null."""
    return varint_size(size) + (size if size > 0 else 0)


cdef inline uint8_t* write_field(uint8_t* at, const void* data, int64_t size) noexcept nogil:
    at = write_varint(at, size)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


# --- records -----------------------------------------------------------------------------------------------------

cdef enum:
    SHORT_HEAD_BYTES = 7  # attributes, and three varints of at most two bytes


cdef struct Row:  # one record; a size of -1 is null
    int64_t delta_ms
    int64_t delta
    Cursor key
    int64_t key_size
    Cursor value
    int64_t value_size
    Cursor headers  # the bytes after the number of headers
    int64_t header_count


cdef inline int read_short(Cursor* cursor, uint64_t* raw) noexcept nogil:
    """Read the bits of a varint of one or two bytes. Return -1 if it is longer. Two bytes must be readable."""
    cdef Cursor at = cursor[0]
    if at[0] < 0x80:
        raw[0] = at[0]
        cursor[0] = at + 1
        return 0
    raw[0] = (at[0] & 0x7F) | <uint64_t>at[1] << 7
    cursor[0] = at + 2
    return -1 if at[1] >= 0x80 else 0


cdef inline int read_record(Cursor* at, Cursor stop, Row* row) noexcept nogil:
    """Read the record at ``at``, and move ``at`` to its end. Return -1 if its fields do not fit its length or ``stop``.

    Most records have short first numbers, and are long enough to read these numbers without bounds checks.
    """
    cdef Cursor p
    cdef Cursor end
    cdef int64_t size
    cdef uint64_t since, delta, key, value
    if read_size(at, stop, &size) or size < 1 or size > stop - at[0]:
        return -1
    p = at[0] + 1  # after the attributes: any value, ignored
    end = at[0] + size
    at[0] = end  # set early: the processor can then start with the next record before this record is decoded
    if size < SHORT_HEAD_BYTES or read_short(&p, &since) or read_short(&p, &delta) or read_short(&p, &key):
        return read_fields(end - size + 1, end, row)
    row.delta_ms = <int64_t>((since >> 1) ^ (0 - (since & 1)))
    row.delta = <int64_t>((delta >> 1) ^ (0 - (delta & 1)))
    row.key, row.key_size = p, -1 if key & 1 else <int64_t>(key >> 1)
    if row.key_size > 0:
        p += row.key_size
    if end - p < 2 or read_short(&p, &value):
        return read_fields(end - size + 1, end, row)
    row.value, row.value_size = p, -1 if value & 1 else <int64_t>(value >> 1)
    if row.value_size > 0:
        p += row.value_size
    return read_rest(p, end, row)


cdef inline int read_fields(Cursor p, Cursor end, Row* row) noexcept nogil:
    """Read the fields of a record from its attributes to its end, with numbers of any size."""
    if read_int64(&p, end, &row.delta_ms):
        return -1
    return read_after_ms(p, end, row)


cdef inline int read_after_ms(Cursor p, Cursor end, Row* row) noexcept nogil:
    """Read the fields of a record after its timestamp."""
    if read_int32(&p, end, &row.delta):
        return -1
    if read_size(&p, end, &row.key_size) or row.key_size > end - p:
        return -1
    row.key = p
    if row.key_size > 0:
        p += row.key_size
    if read_size(&p, end, &row.value_size) or row.value_size > end - p:
        return -1
    row.value = p
    if row.value_size > 0:
        p += row.value_size
    return read_rest(p, end, row)


cdef inline int read_rest(Cursor p, Cursor end, Row* row) noexcept nogil:
    """Read the headers of a record, which follow its value. Return -1 if they do not end at ``end``."""
    if p >= end or read_size(&p, end, &row.header_count) or row.header_count < 0 or row.header_count > end - p:
        return -1
    row.headers = p
    if row.header_count and skip_headers(&p, end, row.header_count):
        return -1
    return 0 if p == end else -1


cdef inline int64_t skip_headers(Cursor* cursor, Cursor end, int64_t count) noexcept nogil:
    """Move ``cursor`` over ``count`` headers. Return -1 if they do not fit."""
    cdef int64_t size
    while count:
        if read_size(cursor, end, &size) or size < 0 or size > end - cursor[0]:
            return -1
        cursor[0] += size
        if read_size(cursor, end, &size) or size > end - cursor[0]:
            return -1
        if size > 0:
            cursor[0] += size
        count -= 1
    return 0
