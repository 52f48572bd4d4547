"""The keys of records, in blocks: hashed four at a time, with their slots prefetched from memory together.

Each block is hashed before the previous block is looked up. Its slots arrive from memory during that lookup.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from stratalog.spi.siphash cimport Hash, hash_of

from stratalog_compaction.columns cimport Cursor, column, start_of
from stratalog_compaction.hashtable cimport Table, home_of, slot_at

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define FETCH_SOON(at) __builtin_prefetch(at)
    #else
    #define FETCH_SOON(at) ((void)(at))
    #endif
    """
    void FETCH_SOON(const void* at) noexcept nogil

cdef extern from "lanes.h" nogil:
    void lanes_choose(int allowed)
    bint hash_four(
        const uint8_t* arena, const int32_t* position, const int32_t* size, const uint64_t* secret, uint64_t* into
    )

cdef enum:
    BLOCK = 64  # records at a time
    LANES = 4
    ALL_LANES = 2  # for lanes_choose: all that the processor has

cdef struct Keys:
    Cursor arena
    int64_t arena_bytes
    const int32_t* position
    const int32_t* size
    const int64_t* offset

cdef struct Block:  # block of keys, none of them null
    int64_t count
    int64_t row[BLOCK]
    int32_t position[BLOCK]
    int32_t size[BLOCK]
    Hash hash[BLOCK]


cdef inline list open_keys(Keys* keys, records):
    """Point ``keys`` at the columns. The caller must keep the returned list while it reads."""
    cdef int64_t count = records.count
    cdef list held = [
        memoryview(records.arena).cast("B"),
        column(records.key_position, "i", count),
        column(records.key_size, "i", count),
        column(records.offset, "q", count),
    ]
    keys.arena, keys.arena_bytes = <Cursor>start_of(held[0]), len(held[0])
    keys.position, keys.size = <const int32_t*>start_of(held[1]), <const int32_t*>start_of(held[2])
    keys.offset = <const int64_t*>start_of(held[3])
    return held


cdef inline object outside(records):
    """Raise the error of the first key that is not inside the arena, or return another error if there is none."""
    records.keys()
    return IndexError("the keys changed while they were read")


cdef inline bint add(Block* block, const Keys* keys, int64_t row) noexcept nogil:
    """Add the key of a row to a block that has room. Return False if the key is not inside the arena."""
    if not 0 <= keys.position[row] <= keys.arena_bytes - keys.size[row]:
        return False
    block.row[block.count], block.position[block.count], block.size[block.count] = row, keys.position[row], keys.size[row]
    block.count += 1
    return True


cdef inline void hash_block(Block* block, const Keys* keys, const Table* table, int words) noexcept nogil:
    """Hash all keys, and prefetch their slots."""
    cdef int64_t i = 0
    cdef const uint64_t* slot
    while block.count - i >= LANES and hash_four(
        keys.arena, block.position + i, block.size + i, table.secret, <uint64_t*>(block.hash + i)
    ):
        i += LANES
    for i in range(i, block.count):
        block.hash[i] = hash_of(keys.arena + block.position[i], block.size[i], table.secret)
    for i in range(block.count):
        slot = slot_at(table, words, home_of(table, block.hash[i].a))
        FETCH_SOON(slot)
        FETCH_SOON(<Cursor>(slot + words) - 1)  # a slot may span two cache lines
