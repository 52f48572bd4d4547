"""What records hold; and bytes objects that are written over where nobody has kept them.

A bytes object of which a reader has the only reference is changed as CPython's own ``_PyBytes_Resize`` changes one: nobody
can tell. That saves the allocator two calls a field, most of what a record costs its reader.
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

    /* ob_shash is deprecated for who reads it. */
    #if defined(__GNUC__)
    #pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    #elif defined(_MSC_VER)
    #pragma warning(disable : 4996)
    #endif

    #define STRATALOG_BYTES_HEAD ((Py_ssize_t)offsetof(PyBytesObject, ob_sval))

    /* The contents that fit the memory which an allocator that deals in 16 bytes takes for so many. */
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

    /* At least 2 bytes: those of 0 and 1 are shared by all. */
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
    bint is_alone "stratalog_is_alone"(PyObject* object) noexcept  # not None, and nobody else has it
    bytes stratalog_bytes(Cursor data, Py_ssize_t size)
    bint stratalog_rewrite(PyObject* last, Cursor data, Py_ssize_t size) noexcept


cdef inline bytes made(Cursor data, int32_t size):
    """New bytes, which ``rewritten`` may change later."""
    return stratalog_bytes(data, size)


cdef inline bint rewritten(PyObject* last, Cursor arena, int64_t arena_bytes, int32_t position, int32_t size) noexcept:
    """Write a field over ``last``, which is None or was ``made``, if that has room for it and no other reference.

    Not if the field is null, or not inside the arena.
    """
    return size > 0 and inside(position, size, arena_bytes) and stratalog_rewrite(last, arena + position, size)


cdef inline bint is_content(object value) noexcept:
    return value is None or PyBytes_CheckExact(value)


cdef inline bint are_headers(object headers) noexcept:
    """Whether it is a tuple of pairs of exactly the right types."""
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
