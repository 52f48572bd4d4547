"""The sizes of records in Arrow's buffers, and checks of the records' columns."""

from libc.stdint cimport UINT32_MAX, int32_t, int64_t, uint32_t
from libc.string cimport memset

from stratalog.model.utf8 cimport clean
from stratalog.model.views cimport Source, inside


cdef struct Extent:  # sizes of the records of one Arrow batch
    int64_t rows
    int64_t headers
    int64_t key_bytes
    int64_t key_nulls
    int64_t value_bytes
    int64_t value_nulls
    int64_t name_bytes
    int64_t content_bytes
    int64_t content_nulls

cdef enum Fault:
    FINE
    OUTSIDE  # a key, a value or a header is not inside the arena, or a header has no name
    OUTSIDE_HEADERS
    TOO_LARGE


cdef inline bint is_inside(
    const int32_t* position, const int32_t* size, int64_t rows, int64_t arena_bytes, int64_t* total_bytes, int64_t* nulls
) noexcept nogil:
    """Return True if all fields of a column are inside the arena; set ``total_bytes`` and ``nulls``.

    The loop has no branches, because compilers can then vectorize it.
    """
    cdef uint32_t end = <uint32_t>min(arena_bytes, <int64_t>UINT32_MAX), bad = 0, null, wrong
    cdef int64_t i, total = 0, count = 0
    for i in range(rows):
        null = size[i] < 0
        wrong = position[i] < 0
        wrong |= <uint32_t>position[i] + <uint32_t>size[i] > end
        bad |= wrong & (null ^ 1)
        count += null
        total += 0 if null else size[i]
    total_bytes[0], nulls[0] = total, count
    return not bad


cdef inline bint have_headers(const int32_t* counts, int64_t rows) noexcept nogil:
    cdef int32_t found = 0
    cdef int64_t i
    for i in range(rows):
        found |= counts[i]
    return found != 0


cdef inline bint fits_at_once(const Source* source, int64_t start, int64_t limit, Extent* extent) noexcept nogil:
    """Return True, and set ``extent``, if all records from ``start`` on are valid, fit and have no headers."""
    cdef int64_t rows = source.count - start
    cdef bint fits = not have_headers(source.header_count + start, rows) and is_inside(
        source.key_position + start,
        source.key_size + start,
        rows,
        source.arena_bytes,
        &extent.key_bytes,
        &extent.key_nulls,
    ) and is_inside(
        source.value_position + start,
        source.value_size + start,
        rows,
        source.arena_bytes,
        &extent.value_bytes,
        &extent.value_nulls,
    ) and extent.key_bytes <= limit and extent.value_bytes <= limit
    extent.rows = rows
    return fits


cdef inline Fault add_field(
    int32_t position, int32_t size, int64_t arena_bytes, int64_t* total_bytes, int64_t* nulls
) noexcept nogil:
    if size < 0:
        nulls[0] += 1
    elif not inside(position, size, arena_bytes):
        return OUTSIDE
    else:
        total_bytes[0] += size
    return FINE


cdef inline Fault add_headers(const Source* source, int64_t i, Extent* extent, int64_t* n) noexcept nogil:
    """Add the headers of record ``i`` to ``extent``. After an error, ``n`` is the row of the wrong header."""
    cdef int64_t first = source.header_first[i], count = source.header_count[i]
    if first < 0 or count < 0 or first + count > source.headers:
        return OUTSIDE_HEADERS
    for n[0] in range(first, first + count):
        if source.name_size[n[0]] < 0 or not inside(source.name_position[n[0]], source.name_size[n[0]], source.arena_bytes):
            return OUTSIDE
        extent.name_bytes += clean(source.arena + source.name_position[n[0]], source.name_size[n[0]], NULL, 0)
        if add_field(
            source.content_position[n[0]],
            source.content_size[n[0]],
            source.arena_bytes,
            &extent.content_bytes,
            &extent.content_nulls,
        ):
            return OUTSIDE
    extent.headers += count
    return FINE


cdef inline Fault measure(const Source* source, int64_t start, int64_t limit, Extent* extent, int64_t* n) noexcept nogil:
    """Set ``extent`` for as many records from ``start`` on as fit ``limit``, at least one. Return FINE or an error.

    After an error, ``extent`` has the records before the error, and ``n`` is the row of the wrong header if any.
    """
    cdef Extent now
    cdef Fault fault
    cdef int64_t i
    memset(&now, 0, sizeof(now))
    if fits_at_once(source, start, limit, extent):
        return FINE
    extent[0] = now
    for i in range(start, source.count):
        fault = add_field(
            source.key_position[i], source.key_size[i], source.arena_bytes, &now.key_bytes, &now.key_nulls
        )
        if fault == FINE:
            fault = add_field(
                source.value_position[i], source.value_size[i], source.arena_bytes, &now.value_bytes, &now.value_nulls
            )
        if fault == FINE and source.header_count[i]:
            fault = add_headers(source, i, &now, n)
        if fault == FINE and (
            now.key_bytes > limit
            or now.value_bytes > limit
            or now.name_bytes > limit
            or now.content_bytes > limit
            or now.headers > limit
        ):
            return FINE if extent.rows else TOO_LARGE
        if fault != FINE:
            return fault
        now.rows += 1
        extent[0] = now
    return FINE
