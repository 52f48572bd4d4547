"""A hash table that the maps of this plugin share, compiled.

It uses open addressing with linear probing. A key that is far from its home slot takes the slot of a key that is nearer
to its own (Robin Hood hashing). A search for an absent key therefore ends as early as one for a present key.

A slot has ``words`` words: both halves of the hash, never both 0, and then the value of the key. Callers pass ``words``
as a constant.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memmove

from stratalog.spi.siphash cimport Hash

cdef struct Table:
    uint64_t* slots
    uint64_t size  # in slots; less than 2^32
    int64_t usable
    int64_t count
    uint64_t secret[2]


cdef inline void open_table(Table* table, void* slots, uint64_t size, int64_t usable, const void* secret) noexcept:
    """Open a table over zeroed memory."""
    table.slots, table.size, table.usable, table.count = <uint64_t*>slots, size, usable, 0
    memcpy(table.secret, secret, sizeof(table.secret))


cdef inline uint64_t* slot_at(const Table* table, int words, uint64_t at) noexcept nogil:
    return table.slots + at * words


cdef inline bint is_free(const uint64_t* slot) noexcept nogil:
    return slot[0] == 0 and slot[1] == 0


cdef inline uint64_t home_of(const Table* table, uint64_t a) noexcept nogil:
    """Return the home slot of a hash."""
    return (a >> 32) * table.size >> 32


cdef inline uint64_t distance_of(const Table* table, uint64_t a, uint64_t at) noexcept nogil:
    """Return the distance of a hash at slot ``at`` from its home slot."""
    cdef uint64_t home = home_of(table, a)
    return at - home if at >= home else at + table.size - home


cdef inline uint64_t* find(const Table* table, int words, Hash key) noexcept nogil:
    """Return the slot of a key, or NULL if the key is absent."""
    cdef uint64_t at = home_of(table, key.a), distance = 0
    cdef uint64_t* slot
    while True:
        slot = slot_at(table, words, at)
        if slot[0] == key.a and slot[1] == key.b:
            return slot
        if is_free(slot) or distance_of(table, slot[0], at) < distance:
            return NULL
        distance += 1
        at += 1
        if at == table.size:
            at = 0


cdef inline uint64_t* place(Table* table, int words, Hash key) noexcept nogil:
    """Return the slot of a key, and insert the key if it is absent.

    An insert increments ``table.count`` and leaves the value unset. The table must have a free slot.
    """
    cdef uint64_t at = home_of(table, key.a), distance = 0
    cdef uint64_t* slot
    while True:
        slot = slot_at(table, words, at)
        if slot[0] == key.a and slot[1] == key.b:
            return slot
        if is_free(slot):
            break
        if distance_of(table, slot[0], at) < distance:
            push_on(table, words, at)
            break
        distance += 1
        at += 1
        if at == table.size:
            at = 0
    slot[0], slot[1] = key.a, key.b
    table.count += 1
    return slot


cdef inline void push_on(Table* table, int words, uint64_t first) noexcept nogil:
    """Shift the entries from ``first`` up to the next free slot by one slot.

    Entries stay ordered by their home slots.
    """
    cdef uint64_t gap = first, slot_bytes = 8 * <uint64_t>words
    while not is_free(slot_at(table, words, gap)):
        gap += 1
        if gap == table.size:
            gap = 0
    if gap < first:  # the shift wraps around the end of the table
        memmove(slot_at(table, words, 1), table.slots, gap * slot_bytes)
        gap = table.size - 1
        memcpy(table.slots, slot_at(table, words, gap), slot_bytes)
    memmove(slot_at(table, words, first + 1), slot_at(table, words, first), (gap - first) * slot_bytes)
