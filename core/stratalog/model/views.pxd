"""RecordColumns as pointers, for the compiled modules of ``stratalog.model``."""

from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t

ctypedef const uint8_t* Cursor

cdef struct Source:  # the columns in the order of ROW_COLUMNS and FLAT_COLUMNS
    Cursor arena
    int64_t arena_bytes
    int64_t count
    const int64_t* offset
    const int64_t* timestamp_ms
    const int32_t* timestamp_type
    const int32_t* leader_epoch
    const int32_t* key_position
    const int32_t* key_size
    const int32_t* value_position
    const int32_t* value_size
    const int32_t* header_first
    const int32_t* header_count
    int64_t headers  # number of all headers
    const int32_t* name_position
    const int32_t* name_size
    const int32_t* content_position
    const int32_t* content_size


cdef inline Cursor start_of(object view) noexcept:
    return <Cursor>PyMemoryView_GET_BUFFER(view).buf


cdef inline int64_t size_of(object view) noexcept:
    return PyMemoryView_GET_BUFFER(view).len


cdef inline bint inside(int32_t position, int32_t size, int64_t arena_bytes) noexcept nogil:
    """Return True if a field is inside the arena. ``size`` must not be negative."""
    return position >= 0 and <int64_t>position + size <= arena_bytes


cdef inline object point_arena(Source* source, object arena):
    """Set the arena of ``source``, and return a view that keeps the arena's memory alive."""
    view = memoryview(arena).cast("B")
    source.arena, source.arena_bytes = start_of(view), size_of(view)
    return view


cdef inline void point_rows(Source* source, list views, int64_t count) noexcept:
    """Set the record columns of ``source``. The caller must keep ``views`` alive while it uses ``source``."""
    source.count = count
    source.offset, source.timestamp_ms = <const int64_t*>start_of(views[0]), <const int64_t*>start_of(views[1])
    source.timestamp_type, source.leader_epoch = <const int32_t*>start_of(views[2]), <const int32_t*>start_of(views[3])
    source.key_position, source.key_size = <const int32_t*>start_of(views[4]), <const int32_t*>start_of(views[5])
    source.value_position, source.value_size = <const int32_t*>start_of(views[6]), <const int32_t*>start_of(views[7])


cdef inline void point_headers(Source* source, list six, int64_t total) noexcept:
    """Set the columns from ``header_first`` on. The caller must keep ``six`` alive while it uses ``source``."""
    source.header_first, source.header_count = <const int32_t*>start_of(six[0]), <const int32_t*>start_of(six[1])
    source.headers = total
    source.name_position, source.name_size = <const int32_t*>start_of(six[2]), <const int32_t*>start_of(six[3])
    source.content_position, source.content_size = <const int32_t*>start_of(six[4]), <const int32_t*>start_of(six[5])


cdef inline list open_source(Source* source, columns, list views):
    """Set all pointers of ``source``, and return the views that keep the memory alive.

    ``views`` is the result of ``views_of(columns)``; a view of the arena is added to it.
    """
    point_rows(source, views, len(views[0]))
    point_headers(source, views[8:], len(views[10]))
    views.append(point_arena(source, columns.arena))
    return views
