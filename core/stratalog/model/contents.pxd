"""The contents of records, and the reuse of bytes objects that no caller has kept.

If an iterator has the only reference to a bytes object, it changes the object in place, as CPython's own
``_PyBytes_Resize`` does. No other code can observe the change. Two calls of the allocator for each field are saved.
"""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t

from stratalog.model.views cimport Cursor, inside

cdef extern from *:
    """
    #include <stddef.h>
    #include <string.h>

    /* ob_shash is deprecated for readers; this code only resets it. */
    #if defined(__GNUC__)
    #pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    #elif defined(_MSC_VER)
    #pragma warning(disable : 4996)
    #endif

    #define STRATALOG_BYTES_HEAD ((Py_ssize_t)offsetof(PyBytesObject, ob_sval))

    /* The largest size that fits the memory of a bytes object of this size, with an allocator in units of 16 bytes. */
    static inline Py_ssize_t stratalog_room(Py_ssize_t size)
    {
        return ((STRATALOG_BYTES_HEAD + size + 16) & ~(Py_ssize_t)15) - STRATALOG_BYTES_HEAD - 1;
    }

    static inline void stratalog_put(PyObject *into, const unsigned char *data, Py_ssize_t size)
    {
        memcpy(PyBytes_AS_STRING(into), data, (size_t)size);
        PyBytes_AS_STRING(into)[size] = 0;
        Py_SET_SIZE((PyVarObject *)into, size);
    }

    /* Objects of 0 and 1 bytes are left to CPython, which shares them. */
    static inline PyObject *stratalog_bytes(const unsigned char *data, Py_ssize_t size)
    {
        PyObject *made;
        if (size < 2 || size > PY_SSIZE_T_MAX - STRATALOG_BYTES_HEAD - 16)
            return PyBytes_FromStringAndSize((const char *)data, size);
        made = PyBytes_FromStringAndSize(NULL, stratalog_room(size));
        if (made != NULL)
            stratalog_put(made, data, size);
        return made;
    }

    static inline int stratalog_is_alone(PyObject *object)
    {
    #ifdef Py_GIL_DISABLED
        return 0; /* another thread may be about to take a reference */
    #else
        return object != Py_None && Py_REFCNT(object) == 1;
    #endif
    }

    static inline int stratalog_rewrite(PyObject *last, const unsigned char *data, Py_ssize_t size)
    {
        if (!stratalog_is_alone(last) || Py_SIZE(last) < 2 || size < 2)
            return 0;
        if (stratalog_room(Py_SIZE(last)) != stratalog_room(size))
            return 0;
        stratalog_put(last, data, size);
        ((PyBytesObject *)last)->ob_shash = -1;
        return 1;
    }
    """
    bint is_alone "stratalog_is_alone"(PyObject* object) noexcept  # not None, and without another reference
    bytes stratalog_bytes(Cursor data, Py_ssize_t size)
    bint stratalog_rewrite(PyObject* last, Cursor data, Py_ssize_t size) noexcept


cdef inline bytes made(Cursor data, int32_t size):
    """Return a new bytes object, which ``rewritten`` may change later."""
    return stratalog_bytes(data, size)


cdef inline bint rewritten(PyObject* last, Cursor arena, int64_t arena_bytes, int32_t position, int32_t size) noexcept:
    """Write a field over ``last`` if ``last`` has the right room and no other reference. Return True if written.

    ``last`` is None or a result of ``made``. A field that is null or not inside the arena is not written.
    """
    return size > 0 and inside(position, size, arena_bytes) and stratalog_rewrite(last, arena + position, size)


cdef inline bint is_content(object value) noexcept:
    return value is None or PyBytes_CheckExact(value)


cdef inline bint are_headers(object headers) noexcept:
    """Return True if ``headers`` is a tuple of tuples (str, bytes or None), without subclasses of these types."""
    cdef Py_ssize_t i
    cdef object header
    if not PyTuple_CheckExact(headers):
        return False
    for i in range(PyTuple_GET_SIZE(headers)):
        header = <object>PyTuple_GET_ITEM(headers, i)
        if not PyTuple_CheckExact(header) or PyTuple_GET_SIZE(header) != 2:
            return False
        if not PyUnicode_CheckExact(<object>PyTuple_GET_ITEM(header, 0)):
            return False
        if not is_content(<object>PyTuple_GET_ITEM(header, 1)):
            return False
    return True


cdef inline int64_t content_size(bytes content) noexcept:
    return 0 if content is None else PyBytes_GET_SIZE(content)
