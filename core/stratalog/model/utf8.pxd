"""Header names as valid UTF-8 for Arrow: U+FFFD replaces invalid bytes."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from stratalog.model.views cimport Cursor


cdef inline int64_t sequence(Cursor text, int64_t size, bint* valid) noexcept nogil:
    """Return the length (bytes) of the first UTF-8 sequence, and set ``valid``.

    If the sequence is invalid, return the number of bytes that one U+FFFD replaces.
    """
    cdef uint8_t first = text[0], low = 0x80, high = 0xBF
    cdef int64_t wanted, length = 1
    valid[0] = True
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        wanted = 2
    elif 0xE0 <= first <= 0xEF:
        wanted = 3
        if first == 0xE0:
            low = 0xA0
    elif 0xF0 <= first <= 0xF4:
        wanted = 4
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        valid[0] = False
        return 1
    while length < wanted and length < size and low <= text[length] <= high:
        length += 1
        low, high = 0x80, 0xBF
    valid[0] = length == wanted and not (first == 0xED and text[1] >= 0xA0)  # the latter: an encoded surrogate
    return length


cdef inline bint is_ascii(Cursor text, int64_t size) noexcept nogil:
    cdef uint8_t found = 0
    cdef int64_t i
    for i in range(size):
        found |= text[i]
    return found < 0x80


cdef inline int64_t clean(Cursor text, int64_t size, uint8_t* into, int64_t room) noexcept nogil:
    """Copy text with U+FFFD for invalid UTF-8, as ``record_py.text_of`` does. Return the size of the result (bytes).

    Return -1 if the result is larger than ``room``. If ``into`` is NULL, copy nothing and only return the size.
    """
    cdef int64_t at = 0, used = 0, length
    cdef bint valid
    if is_ascii(text, size):
        if into != NULL:
            if size > room:
                return -1
            memcpy(into, text, size)
        return size
    while at < size:
        length = sequence(text + at, size - at, &valid)
        if into != NULL:
            if (length if valid else 3) > room - used:
                return -1
            if valid:
                memcpy(into + used, text + at, length)
            else:
                into[used], into[used + 1], into[used + 2] = 0xEF, 0xBF, 0xBD
        used += length if valid else 3
        at += length
    return used
