"""Access to columns of records."""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int64_t, uint8_t

ctypedef const uint8_t* Cursor


cdef inline const void* start_of(object view) noexcept:
    return PyMemoryView_GET_BUFFER(view).buf


cdef inline object column(object data, str code, int64_t count):
    view = memoryview(data)
    if view.format != code or view.ndim != 1 or not view.c_contiguous:
        raise TypeError(f"a column of format {code} is needed, not {view.format}")
    if len(view) < count:
        raise ValueError(f"a column has {len(view)} rows, {count} are needed")
    return view
