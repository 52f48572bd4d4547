# cython: boundscheck=False, wraparound=False, cdivision=True
"""Records as objects: ``record_py`` as compiled code. ``record_py`` documents each function.

Positions and sizes are untrusted. This code checks each of them, therefore the compiler's bounds checks are off.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport Py_EQ, Py_NE, PyObject_RichCompare
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t
from libc.string cimport memcpy

from stratalog.model.contents cimport are_headers, content_size, is_alone, is_content, made, rewritten
from stratalog.model.views cimport (
    Cursor,
    Source,
    inside,
    open_source,
    point_arena,
    point_headers,
    size_of,
    start_of,
)

from stratalog.model.batches import TimestampType
from stratalog.model.column_views import FLAT_COLUMNS, null_name, outside, outside_headers, typed_view, views_of
from stratalog.model.record_checks import checked_fields, integer, name_bytes, no_record, too_large
from stratalog.model.record_py import Survey, restore_record, text_of

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    object PyUnicode_DecodeUTF8(const char* text, Py_ssize_t size, const char* errors)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    HEADER_OVERHEAD_BYTES = 4

cdef object CREATE_TIME = TimestampType.CREATE_TIME
cdef tuple TYPES = (TimestampType.NONE, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
cdef tuple NO_HEADERS = ()
cdef object KEEP = object()
cdef tuple HEADER_COLUMNS = ("header_first", "header_count", *FLAT_COLUMNS)


@cython.final
@cython.freelist(256)
@cython.no_gc  # the fields have exact types that hold no Record: no cycle is possible, and the collector skips records
cdef class Record:
    """One record, read or to be written. Immutable; the class cannot have subclasses.

    A record unpacks, compares, orders and hashes like the tuple of its fields.

    Attributes:
        offset: int64; the log assigns it when the record is written, and it is -1 before.
        timestamp_ms: int64 (ms since 1970); -1 means "no timestamp": an append then uses the time of the log's clock.
        timestamp_type: NONE for magic 0, otherwise CREATE_TIME or LOG_APPEND_TIME. An append ignores it.
        key: bytes, or None for no key. An empty key is a key.
        value: bytes, or None. In a compacted topic, a record with the value None is a tombstone.
        headers: pairs of name and value, in order; a name may repeat. A list is converted to a tuple.
        leader_epoch: int32; leader epoch of the batch, -1 if the format has none (magic 0 and 1).
        partition: int32; number of the partition from which the record was read, -1 for a record to be written.

    Raises:
        WrongTypeError: a field is of a wrong type.
        InvalidRecordError: a number does not fit its 64 or 32 bits.
    """

    _fields = ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers", "leader_epoch", "partition")
    _field_defaults = {
        "offset": -1,
        "timestamp_ms": -1,
        "timestamp_type": CREATE_TIME,
        "key": None,
        "value": None,
        "headers": (),
        "leader_epoch": -1,
        "partition": -1,
    }
    __match_args__ = _fields

    def __init__(
        self,
        offset=-1,
        timestamp_ms=-1,
        timestamp_type=CREATE_TIME,
        key=None,
        value=None,
        headers=NO_HEADERS,
        leader_epoch=-1,
        partition=-1,
    ):
        if self.headers is not None:
            raise TypeError("a record does not change")
        fill(self, offset, timestamp_ms, timestamp_type, key, value, headers, leader_epoch, partition)

    @classmethod
    def _make(cls, fields):
        cdef tuple listed = tuple(fields)
        if len(listed) != 8:
            raise TypeError(f"Expected 8 arguments, got {len(listed)}")
        return cls(*listed)

    def _replace(
        self,
        *,
        offset=KEEP,
        timestamp_ms=KEEP,
        timestamp_type=KEEP,
        key=KEEP,
        value=KEEP,
        headers=KEEP,
        leader_epoch=KEEP,
        partition=KEEP,
    ):
        return fill(
            Record.__new__(Record),
            self.offset if offset is KEEP else offset,
            self.timestamp_ms if timestamp_ms is KEEP else timestamp_ms,
            self.timestamp_type if timestamp_type is KEEP else timestamp_type,
            self.key if key is KEEP else key,
            self.value if value is KEEP else value,
            self.headers if headers is KEEP else headers,
            self.leader_epoch if leader_epoch is KEEP else leader_epoch,
            self.partition if partition is KEEP else partition,
        )

    def _asdict(self):
        return dict(zip(Record._fields, as_tuple(self)))

    def __iter__(self):
        return iter(as_tuple(self))

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return as_tuple(self)[index]

    def __richcmp__(self, other, int operation):
        cdef Record record
        if isinstance(other, Record):
            record = <Record>other
            if operation == Py_EQ or operation == Py_NE:
                return equal(<Record>self, record) is (operation == Py_EQ)
            other = as_tuple(record)
        elif not isinstance(other, tuple):
            return NotImplemented
        return PyObject_RichCompare(as_tuple(<Record>self), other, operation)

    def __hash__(self):
        return hash(as_tuple(self))

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp_ms={self.timestamp_ms}, timestamp_type={self.timestamp_type!r}, "
            f"key={self.key!r}, value={self.value!r}, headers={self.headers!r}, leader_epoch={self.leader_epoch}, "
            f"partition={self.partition})"
        )

    def __reduce__(self):
        return restore_record, as_tuple(self)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


cdef inline tuple as_tuple(Record record):
    return (
        record.offset,
        record.timestamp_ms,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
        record.leader_epoch,
        record.partition,
    )


cdef inline object equal(Record a, Record b):
    return (
        a.offset == b.offset
        and a.timestamp_ms == b.timestamp_ms
        and a.leader_epoch == b.leader_epoch
        and a.partition == b.partition
        and a.timestamp_type is b.timestamp_type
        and a.key == b.key
        and a.value == b.value
        and a.headers == b.headers
    )


# --- fields ------------------------------------------------------------------------------------------------------


cdef Record fill(Record into, offset, timestamp_ms, timestamp_type, key, value, headers, leader_epoch, partition):
    """Set the fields of a new record, or raise an error that names the wrong field."""
    cdef long long numbers[4]
    cdef int overflow[4]
    if not (
        PyLong_CheckExact(offset)
        and PyLong_CheckExact(timestamp_ms)
        and PyLong_CheckExact(leader_epoch)
        and PyLong_CheckExact(partition)
        and type(timestamp_type) is TimestampType
        and is_content(key)
        and is_content(value)
        and are_headers(headers)
    ):
        offset, timestamp_ms, timestamp_type, key, value, headers, leader_epoch, partition = checked_fields(
            offset, timestamp_ms, timestamp_type, key, value, headers, leader_epoch, partition
        )
    numbers[0] = PyLong_AsLongLongAndOverflow(offset, &overflow[0])
    numbers[1] = PyLong_AsLongLongAndOverflow(timestamp_ms, &overflow[1])
    numbers[2] = PyLong_AsLongLongAndOverflow(leader_epoch, &overflow[2])
    numbers[3] = PyLong_AsLongLongAndOverflow(partition, &overflow[3])
    if (
        overflow[0] or overflow[1] or overflow[2] or overflow[3]
        or not INT32_MIN <= numbers[2] <= INT32_MAX
        or not INT32_MIN <= numbers[3] <= INT32_MAX
    ):
        checked_fields(offset, timestamp_ms, timestamp_type, key, value, headers, leader_epoch, partition)
    into.offset, into.timestamp_ms, into.timestamp_type = numbers[0], numbers[1], timestamp_type
    into.key, into.value, into.headers = <bytes>key, <bytes>value, <tuple>headers
    into.leader_epoch, into.partition = <int32_t>numbers[2], <int32_t>numbers[3]
    return into


# --- from columns ------------------------------------------------------------------------------------------------


cdef inline bytes item(Cursor arena, int64_t arena_bytes, int32_t position, int32_t size):
    """Return one field as bytes; raise IndexError if the field is not inside the arena."""
    if size < 0:
        return None
    if not inside(position, size, arena_bytes):
        outside(position, size)
    return made(arena + position, size)


cdef object name(const Source* source, int64_t n):
    """Return the name of header ``n``."""
    cdef int32_t position = source.name_position[n], size = source.name_size[n]
    if size < 0:
        null_name()
    if not inside(position, size, source.arena_bytes):
        outside(position, size)
    try:
        return PyUnicode_DecodeUTF8(<const char*>source.arena + position, size, NULL)
    except UnicodeDecodeError:
        return text_of(PyBytes_FromStringAndSize(<const char*>source.arena + position, size))


cdef tuple headers_at(const Source* source, int32_t first, int32_t count):
    """Return the headers of one record that has at least one header."""
    cdef int64_t n
    cdef tuple result, header
    cdef object part
    if first < 0 or count < 0 or <int64_t>first + count > source.headers:
        outside_headers(first, count, source.headers)
    result = PyTuple_New(count)
    for n in range(count):
        header = (
            name(source, first + n),
            item(source.arena, source.arena_bytes, source.content_position[first + n], source.content_size[first + n]),
        )
        Py_INCREF(header)
        PyTuple_SET_ITEM(result, n, header)
    return result


cdef inline int fill_row(Record record, const Source* source, int64_t i, int32_t partition) except -1:
    """Set ``record``, which must have no other reference, to row ``i``.

    The key and the value of ``record`` must be None or results of ``made``.
    """
    cdef int32_t kind = source.timestamp_type[i]
    cdef int32_t key_position = source.key_position[i], key_size = source.key_size[i]
    cdef int32_t value_position = source.value_position[i], value_size = source.value_size[i]
    record.timestamp_type = TYPES[kind + 1] if -1 <= kind <= 1 else TimestampType(kind)
    record.offset = source.offset[i]
    record.timestamp_ms = source.timestamp_ms[i]
    record.leader_epoch = source.leader_epoch[i]
    record.partition = partition
    if not rewritten(<PyObject*>record.key, source.arena, source.arena_bytes, key_position, key_size):
        record.key = item(source.arena, source.arena_bytes, key_position, key_size)
    if not rewritten(<PyObject*>record.value, source.arena, source.arena_bytes, value_position, value_size):
        record.value = item(source.arena, source.arena_bytes, value_position, value_size)
    if source.header_count[i]:
        record.headers = headers_at(source, source.header_first[i], source.header_count[i])
    else:
        record.headers = NO_HEADERS
    return 0


def records_of(columns, partition):
    cdef Source source
    cdef list views = open_source(&source, columns, views_of(columns))
    cdef int64_t i
    cdef int32_t number = integer("partition", partition, 32)
    cdef list records = PyList_New(source.count)
    cdef Record record
    for i in range(source.count):
        record = Record.__new__(Record)
        fill_row(record, &source, i, number)
        Py_INCREF(record)
        PyList_SET_ITEM(records, i, record)
    return records


@cython.final
cdef class RecordIterator:
    """An iterator over the records of columns. Each record is made when it is requested.

    If the caller has not kept a record, the iterator reuses the object, as Python's ``zip`` reuses tuples. A loop
    variable still refers to the last record when the next record is requested. Therefore, the iterator keeps two
    records, and reuses the older one.
    """

    cdef Source source
    cdef list views
    cdef int64_t row
    cdef int32_t partition
    cdef Record last
    cdef Record before

    def __init__(self, columns, partition):
        self.views = open_source(&self.source, columns, views_of(columns))
        self.partition = integer("partition", partition, 32)

    def __iter__(self):
        return self

    def __next__(self):
        if self.row == self.source.count:
            raise StopIteration
        if not is_alone(<PyObject*>self.last):
            self.last, self.before = self.before, self.last
            if not is_alone(<PyObject*>self.last):
                self.last = Record.__new__(Record)
        fill_row(self.last, &self.source, self.row, self.partition)
        self.row += 1
        return self.last


def iterator_of(columns, partition):
    return RecordIterator(columns, partition)


def items_of(arena, positions, sizes):
    cdef object raw = memoryview(arena).cast("B")
    positions, sizes = typed_view(positions, "i", "position"), typed_view(sizes, "i", "size")
    cdef const int32_t* at = <const int32_t*>start_of(positions)
    cdef const int32_t* size = <const int32_t*>start_of(sizes)
    cdef int64_t i, count = len(positions)
    cdef list result
    cdef bytes found
    if count != len(sizes):
        raise ValueError(f"{count} positions and {len(sizes)} sizes")
    result = PyList_New(count)
    for i in range(count):
        found = item(start_of(raw), size_of(raw), at[i], size[i])
        Py_INCREF(found)
        PyList_SET_ITEM(result, i, found)
    return result


def headers_of(columns):
    cdef Source source
    cdef list views = [typed_view(getattr(columns, name), "i", name) for name in HEADER_COLUMNS]
    cdef object arena = point_arena(&source, columns.arena)
    cdef int64_t i, count = len(views[0])
    cdef list result
    cdef tuple headers
    if len(views[1]) != count:
        raise ValueError(f"{count} rows of header_first and {len(views[1])} of header_count")
    point_headers(&source, views, min([len(view) for view in views[2:]]))
    result = PyList_New(count)
    for i in range(count):
        headers = NO_HEADERS
        if source.header_count[i]:
            headers = headers_at(&source, source.header_first[i], source.header_count[i])
        Py_INCREF(headers)
        PyList_SET_ITEM(result, i, headers)
    return result


# --- survey of many records --------------------------------------------------------------------------------------


def survey(records, Py_ssize_t start, int64_t limit_bytes, int64_t overhead_bytes):
    cdef list rows = <list>records if type(records) is list else list(records)
    cdef int64_t size = 0, own, least_ms = INT64_MAX, largest_ms = INT64_MIN
    cdef Py_ssize_t i, count = len(rows)
    cdef bint null_key = False
    cdef Record record
    cdef tuple header
    if start < 0:
        raise IndexError(f"there is no record {start}")
    for i in range(start, count):
        if type(rows[i]) is not Record:
            raise no_record(rows[i])
        record = <Record>rows[i]
        own = overhead_bytes + content_size(record.key) + content_size(record.value)
        for header in record.headers:
            own += len(<str>header[0]) + content_size(header[1]) + HEADER_OVERHEAD_BYTES
        if size and size + own > limit_bytes:
            count = i
            break
        size += own
        null_key = null_key or record.key is None
        least_ms, largest_ms = min(least_ms, record.timestamp_ms), max(largest_ms, record.timestamp_ms)
    return Survey(count, least_ms, largest_ms, null_key)


# --- to columns --------------------------------------------------------------------------------------------------


cdef struct Target:  # the columns in the order of ROW_COLUMNS and FLAT_COLUMNS
    int64_t* wide[2]
    int32_t* narrow[8]
    int32_t* flat[4]
    char* arena
    int32_t used


cdef inline void place(Target* into, const char* data, Py_ssize_t size, int32_t* position, int32_t* number) noexcept:
    """Copy one field to the end of the arena, and set its position and size."""
    position[0], number[0] = into.used, <int32_t>size
    if size > 0:
        memcpy(into.arena + into.used, data, size)
        into.used += <int32_t>size


cdef inline void place_bytes(Target* into, bytes content, int32_t* position, int32_t* number) noexcept:
    if content is None:
        place(into, NULL, -1, position, number)
    else:
        place(into, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content), position, number)


cdef int64_t header_bytes(tuple headers, int64_t i) except -1:
    """Return the size of the header names and values of record ``i`` in bytes."""
    cdef int64_t size = 0
    cdef Py_ssize_t name_size
    cdef tuple header
    for header in headers:
        try:
            PyUnicode_AsUTF8AndSize(header[0], &name_size)
        except UnicodeEncodeError:
            name_bytes(header[0], i)
        size += name_size + content_size(header[1])
    return size


cdef object new_column(int64_t rows, str code):
    return memoryview(bytearray(rows * (8 if code == "q" else 4))).cast(code)


def columns_of(records):
    cdef list rows = list(records), columns
    cdef int64_t count = len(rows), i, total = 0, headers = 0, h = 0
    cdef Record record
    cdef Target into
    cdef tuple header
    cdef const char* text
    cdef Py_ssize_t size
    for i in range(count):
        if type(rows[i]) is not Record:
            raise no_record(rows[i])
        record = <Record>rows[i]
        total += content_size(record.key) + content_size(record.value)
        if record.headers:
            total += header_bytes(record.headers, i)
            headers += len(record.headers)
        if total > INT32_MAX or headers > INT32_MAX:
            raise too_large(i)
    arena = PyBytes_FromStringAndSize(NULL, total)
    into.arena, into.used = PyBytes_AS_STRING(arena), 0
    columns = [new_column(count, "q") for i in range(2)]
    columns += [new_column(count, "i") for i in range(8)]
    columns += [new_column(headers, "i") for i in range(4)]
    for i in range(2):
        into.wide[i] = <int64_t*>start_of(columns[i])
    for i in range(8):
        into.narrow[i] = <int32_t*>start_of(columns[2 + i])
    for i in range(4):
        into.flat[i] = <int32_t*>start_of(columns[10 + i])
    for i in range(count):
        record = <Record>rows[i]
        into.wide[0][i], into.wide[1][i] = record.offset, record.timestamp_ms
        into.narrow[0][i], into.narrow[1][i] = record.timestamp_type, record.leader_epoch
        place_bytes(&into, record.key, into.narrow[2] + i, into.narrow[3] + i)
        place_bytes(&into, record.value, into.narrow[4] + i, into.narrow[5] + i)
        into.narrow[6][i], into.narrow[7][i] = <int32_t>h, <int32_t>len(record.headers)
        if record.headers:
            for header in record.headers:
                text = PyUnicode_AsUTF8AndSize(header[0], &size)
                place(&into, text, size, into.flat[0] + h, into.flat[1] + h)
                place_bytes(&into, header[1], into.flat[2] + h, into.flat[3] + h)
                h += 1
    return arena, count, columns
