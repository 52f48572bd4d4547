# cython: boundscheck=False, wraparound=False
"""Well-formed entries of a manifest, parsed by compiled code: a plan of a large read parses hundreds of thousands.

``page_codec`` parses all others, and reports what is wrong with them.
"""

from cpython.dict cimport PyDict_CheckExact
from cpython.list cimport PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t

from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.stored import RECORD_FACTS

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    int PyUnicode_IS_ASCII(object text)
    str PyUnicode_FromObject(object text)
    int PyObject_GenericSetAttr(object target, object name, object value) except -1

cdef enum:
    FIELDS = 12
    MOST_EXTRA = 64
    SHA256_DIGITS = 64
    MAX_KEY_BYTES = 1024

cdef dict KINDS = {str(kind): kind for kind in FileKind}


cdef bint number_in(object value, int64_t least, int64_t most, int64_t* number) except -1:
    """Set ``number``; return False if the value is no integer in [least, most]."""
    cdef int overflow = 0
    if not PyLong_CheckExact(value):
        return False
    number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return not overflow and least <= number[0] <= most


cdef bint is_hash(object value) except -1:
    """Return True for 64 hexadecimal digits in lower case."""
    cdef Py_ssize_t size, i
    cdef const char* text
    if not PyUnicode_CheckExact(value):
        return False
    text = PyUnicode_AsUTF8AndSize(value, &size)
    if size != SHA256_DIGITS:
        return False
    for i in range(size):
        if not (b"0" <= text[i] <= b"9" or b"a" <= text[i] <= b"f"):
            return False
    return True


cdef bint is_label(object value) except -1:
    """Return True for ``name@version``.

    The name has lower-case letters, digits and underscores; the version is a number of up to nine digits.
    """
    cdef Py_ssize_t size, i = 0, start
    cdef const char* text
    if not PyUnicode_CheckExact(value):
        return False
    text = PyUnicode_AsUTF8AndSize(value, &size)
    if not size or not b"a" <= text[0] <= b"z":
        return False
    while i < size and (b"a" <= text[i] <= b"z" or b"0" <= text[i] <= b"9" or text[i] == b"_"):
        i += 1
    if i == size or text[i] != b"@":
        return False
    start = i = i + 1
    if i == size or not b"1" <= text[i] <= b"9":
        return False
    while i < size and b"0" <= text[i] <= b"9":
        i += 1
    return i == size and i - start <= 9


cdef bint is_key(object value) except -1:
    """Return True for an object key of printable ASCII; no part is empty or begins with a dot."""
    cdef Py_ssize_t size, i
    cdef const char* text
    cdef char before = b"/"
    if not PyUnicode_CheckExact(value) or not PyUnicode_IS_ASCII(value):
        return False
    text = PyUnicode_AsUTF8AndSize(value, &size)
    if size > MAX_KEY_BYTES:
        return False
    for i in range(size):
        if not b" " <= text[i] <= b"~" or (before == b"/" and (text[i] == b"/" or text[i] == b".")):
            return False
        before = text[i]
    return before != b"/"


cdef tuple epochs_of(object value):
    """Return the leader epochs; None if they are not well-formed."""
    cdef int64_t epoch = 0, start = 0
    cdef list epochs = []
    if not PyList_CheckExact(value):
        return None
    for pair in <list>value:
        if not PyList_CheckExact(pair) or len(<list>pair) != 2:
            return None
        if not number_in((<list>pair)[0], 0, INT32_MAX, &epoch) or not number_in((<list>pair)[1], 0, INT64_MAX, &start):
            return None
        epochs.append(EpochEntry(epoch, start))
    return tuple(epochs)


cdef dict slices_of(object value, object objects, str prefix):
    """Return the slices; None if they are not well-formed."""
    cdef int64_t number = 0, position = 0, size = 0
    cdef list names = []
    cdef dict slices = {}
    if not PyList_CheckExact(objects) or not PyDict_CheckExact(value):
        return None
    for name in <list>objects:
        if not PyUnicode_CheckExact(name) or not is_key(prefix + <str>name):
            return None
        names.append(prefix + <str>name)
    for kind, place in (<dict>value).items():
        if kind not in KINDS or not PyList_CheckExact(place) or len(<list>place) != 3:
            return None
        if not number_in((<list>place)[0], 0, len(names) - 1, &number):
            return None
        if not number_in((<list>place)[1], 0, INT64_MAX, &position) or not number_in((<list>place)[2], 0, INT64_MAX - position, &size):
            return None
        object_slice = ObjectSlice.__new__(ObjectSlice)
        PyObject_GenericSetAttr(object_slice, "key", names[number])
        PyObject_GenericSetAttr(object_slice, "position", (<list>place)[1])
        PyObject_GenericSetAttr(object_slice, "size_bytes", (<list>place)[2])
        slices[KINDS[kind]] = object_slice
    return slices


cdef bint is_flat(dict values) except -1:
    """Return True for a few values, none of which has values itself."""
    if len(values) > MOST_EXTRA:
        return False
    for item in values.values():
        if isinstance(item, (dict, list)):
            return False
    return True


def entry_of(value, str prefix not None, log, topic_id):
    """Return the entry of a log that is stored as ``value``, or None if ``page_codec`` must parse it.

    Args:
        value: result of ``json.loads``.
        prefix: prefix of the log's keys.
        log: name of the log.
        topic_id: id of its topic.
    """
    cdef int64_t base = 0, end = 0, number = 0
    cdef dict fields, extra
    if not PyDict_CheckExact(value) or len(<dict>value) != FIELDS:
        return None
    fields = <dict>value
    base_offset, end_offset, size_bytes = fields.get("base_offset"), fields.get("end_offset"), fields.get("size_bytes")
    max_timestamp_ms, modified_ms = fields.get("max_timestamp_ms"), fields.get("modified_ms")
    requires, stored_extra = fields.get("requires"), fields.get("extra")
    if not number_in(base_offset, 0, INT64_MAX, &base) or not number_in(end_offset, base, INT64_MAX, &end):
        return None
    if not number_in(size_bytes, 0, INT64_MAX, &number) or not number_in(max_timestamp_ms, -1, INT64_MAX, &number):
        return None
    if not number_in(modified_ms, -INT64_MAX, INT64_MAX, &number):
        return None
    if not is_label(fields.get("layout")) or not is_hash(fields.get("sha256")):
        return None
    if not PyList_CheckExact(requires) or len(<list>requires) or not PyDict_CheckExact(stored_extra) or len(<dict>stored_extra) > MOST_EXTRA:
        return None
    for item in (<dict>stored_extra).values():
        if isinstance(item, list) or (isinstance(item, dict) and not is_flat(item)):
            return None
    epochs, slices = epochs_of(fields.get("leader_epochs")), slices_of(fields.get("slices"), fields.get("objects"), prefix)
    if epochs is None or slices is None:
        return None
    extra = (<dict>stored_extra).copy()
    info = SegmentInfo.__new__(SegmentInfo)
    for name, least in RECORD_FACTS.items():
        fact = extra.pop(name, None)
        if fact is not None and not number_in(fact, least, INT64_MAX, &number):
            return None
        PyObject_GenericSetAttr(info, name, fact)
    PyObject_GenericSetAttr(info, "log", log)
    PyObject_GenericSetAttr(info, "topic_id", topic_id)
    PyObject_GenericSetAttr(info, "base_offset", base_offset)
    PyObject_GenericSetAttr(info, "end_offset", end_offset)
    PyObject_GenericSetAttr(info, "size_bytes", size_bytes)
    PyObject_GenericSetAttr(info, "max_timestamp_ms", max_timestamp_ms)
    PyObject_GenericSetAttr(info, "modified_ms", modified_ms)
    PyObject_GenericSetAttr(info, "leader_epochs", epochs)
    entry = StoredSegment.__new__(StoredSegment)
    PyObject_GenericSetAttr(entry, "info", info)
    PyObject_GenericSetAttr(entry, "layout", fields["layout"])
    PyObject_GenericSetAttr(entry, "slices", slices)
    PyObject_GenericSetAttr(entry, "sha256", fields["sha256"])
    PyObject_GenericSetAttr(entry, "requires", ())
    PyObject_GenericSetAttr(entry, "extra", extra)
    return entry


cdef str quoted(object value):
    """Return ``value`` as a JSON string; None if it is no text of ASCII, or if a character needs an escape."""
    cdef Py_ssize_t size, i
    cdef const char* text
    if not PyUnicode_CheckExact(value) or not PyUnicode_IS_ASCII(value):
        return None
    text = PyUnicode_AsUTF8AndSize(value, &size)
    for i in range(size):
        if not b" " <= text[i] <= b"~" or text[i] == b'"' or text[i] == b"\\":
            return None
    return f'"{<str>value}"'


cdef str members(object values, bint nested):
    """Return the members of a JSON object of texts, numbers and, if ``nested``, objects of these; None for others."""
    cdef list items = []
    if not PyDict_CheckExact(values):
        return None
    for name, value in (<dict>values).items():
        key = quoted(name)
        if PyLong_CheckExact(value):
            text = str(value)
        elif nested and PyDict_CheckExact(value):
            text = members(value, False)
            text = None if text is None else f"{{{text}}}"
        else:
            text = quoted(value)
        if key is None or text is None:
            return None
        items.append(f"{key}:{text}")
    return ",".join(items)


cdef str texts(object values):
    """Return the items of a JSON array of texts; None if one needs an escape."""
    cdef list items = []
    for value in values:
        text = quoted(value)
        if text is None:
            return None
        items.append(text)
    return ",".join(items)


def text_of(entry, str prefix not None):
    """Return an entry as JSON text, or None if ``page_codec`` must encode it.

    Args:
        entry: the entry.
        prefix: prefix of the keys of the entry's log.
    """
    cdef list objects = [], slices = [], facts = []
    info, extra, requires = entry.info, members(entry.extra, True), texts(entry.requires)
    layout, sha256 = quoted(entry.layout), quoted(entry.sha256)
    for kind, place in entry.slices.items():
        name = place.key.removeprefix(prefix)
        if name not in objects:
            objects.append(name)
        slices.append(f'"{PyUnicode_FromObject(kind)}":[{objects.index(name)},{place.position},{place.size_bytes}]')
    names = texts(objects)
    if extra is None or requires is None or layout is None or sha256 is None or names is None:
        return None
    if extra:
        facts.append(extra)
    for name in RECORD_FACTS:
        fact = getattr(info, name)
        if fact is not None:
            facts.append(f'"{name}":{fact}')
    epochs = ",".join([f"[{epoch_entry.epoch},{epoch_entry.start_offset}]" for epoch_entry in info.leader_epochs])
    return (
        f'{{"base_offset":{info.base_offset},"end_offset":{info.end_offset},"size_bytes":{info.size_bytes},'
        f'"max_timestamp_ms":{info.max_timestamp_ms},"modified_ms":{info.modified_ms},"leader_epochs":[{epochs}],'
        f'"layout":{layout},"slices":{{{",".join(slices)}}},"sha256":{sha256},"requires":[{requires}],'
        f'"extra":{{{",".join(facts)}}},"objects":[{names}]}}'
    )
