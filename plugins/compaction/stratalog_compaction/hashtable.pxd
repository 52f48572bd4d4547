"""A table of hashes, compiled: what the maps of this plugin have in common.

Open addressing with linear probing, where a key that is far from its place takes that of one that is nearer (Robin Hood
hashing): a search for a key that is not there ends as soon as one that is there.

A slot is some words: both halves of the hash, never 0 together, then what is known of the key. ``words`` is how many;
callers pass a constant.
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
    """A table over zeroed memory."""
    table.slots, table.size, table.usable, table.count = <uint64_t*>slots, size, usable, 0
    memcpy(table.secret, secret, sizeof(table.secret))


cdef inline uint64_t* slot_at(const Table* table, int words, uint64_t at) noexcept nogil:
    return table.slots + at * words


cdef inline bint is_free(const uint64_t* slot) noexcept nogil:
    return slot[0] == 0 and slot[1] == 0


cdef inline uint64_t home_of(const Table* table, uint64_t a) noexcept nogil:
    """The slot where a hash belongs."""
    return (a >> 32) * table.size >> 32


cdef inline uint64_t distance_of(const Table* table, uint64_t a, uint64_t at) noexcept nogil:
    """How far a hash at slot ``at`` is from where it belongs."""
    cdef uint64_t home = home_of(table, a)
    return at - home if at >= home else at + table.size - home


cdef inline uint64_t* find(const Table* table, int words, Hash key) noexcept nogil:
    """The slot of a key; NULL if it is not there."""
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
    """The slot of a key, which is put there if it is not there: then ``table.count`` grows, and what is known of the key
    is not set. A slot is free.
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
    """Move what stands from ``first`` to the next free slot on by one: none comes before one that is farther from home."""
    cdef uint64_t gap = first, slot_bytes = 8 * <uint64_t>words
    while not is_free(slot_at(table, words, gap)):
        gap += 1
        if gap == table.size:
            gap = 0
    if gap < first:  # round the end
        memmove(slot_at(table, words, 1), table.slots, gap * slot_bytes)
        gap = table.size - 1
        memcpy(table.slots, slot_at(table, words, gap), slot_bytes)
    memmove(slot_at(table, words, first + 1), slot_at(table, words, first), (gap - first) * slot_bytes)
