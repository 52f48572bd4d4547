# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled version of ``versions``, which documents each method."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from stratalog.spi import Verdict

from stratalog_compaction.keymap import check_sizes, table_memory
from stratalog_compaction.versions import SLOT_BYTES

from stratalog_compaction.columns cimport column, start_of
from stratalog_compaction.hashtable cimport Table, find, open_table, place
from stratalog_compaction.keys cimport (
    ALL_LANES,
    BLOCK,
    Block,
    Keys,
    add,
    hash_block,
    lanes_choose,
    open_keys,
    outside,
)

lanes_choose(ALL_LANES)

cdef enum:
    WORDS = 4  # words of a slot: two of the hash, the number, and the offset
    NONE = -1
    OUTSIDE = -2

cdef uint8_t KEEP = Verdict.KEEP.value
cdef uint8_t DROP = Verdict.DROP.value
cdef uint8_t DROP_AT_HORIZON = Verdict.DROP_AT_HORIZON.value


cdef inline bint is_below(const uint64_t* slot, int64_t number, int64_t offset) noexcept nogil:
    """Return True if the version in a slot is less than the version of ``number`` and ``offset``."""
    return <int64_t>slot[2] < number or (<int64_t>slot[2] == number and <int64_t>slot[3] < offset)


cdef inline void remember(uint64_t* slot, int64_t number, int64_t offset) noexcept nogil:
    slot[2], slot[3] = <uint64_t>number, <uint64_t>offset


cdef int64_t take(Block* block, const Keys* keys, int64_t row, int64_t count) noexcept nogil:
    """Fill a block with keys from ``row`` on. Return the next row; OUTSIDE if a key is not inside the arena."""
    block.count = 0
    while row < count and block.count < BLOCK:
        if keys.size[row] >= 0 and not add(block, keys, row):
            return OUTSIDE
        row += 1
    return row


cdef int64_t observe_all(Table* table, const Keys* keys, const int64_t* number, int64_t count) noexcept nogil:
    """Return the number of processed records; OUTSIDE if a key is not inside the arena."""
    cdef Block[2] blocks
    cdef int64_t row = 0, turn = 0, refused
    blocks[0].count = blocks[1].count = 0
    while row < count or blocks[turn].count:
        turn ^= 1
        row = take(blocks + turn, keys, row, count)
        if row == OUTSIDE:
            return OUTSIDE
        hash_block(blocks + turn, keys, table, WORDS)
        refused = observe_block(table, keys, number, blocks + (turn ^ 1))
        if refused != NONE:
            return refused
    return count


cdef int64_t observe_block(Table* table, const Keys* keys, const int64_t* number, const Block* block) noexcept nogil:
    """Store the versions of a block.

    If the table is full, return the row of the first record whose key is not in it; otherwise NONE.
    """
    cdef int64_t i, row, before
    cdef uint64_t* slot
    for i in range(block.count):
        row, before = block.row[i], table.count
        slot = place(table, WORDS, block.hash[i]) if before < table.usable else find(table, WORDS, block.hash[i])
        if slot == NULL:
            return row
        if table.count > before or is_below(slot, number[row], keys.offset[row]):
            remember(slot, number[row], keys.offset[row])
    return NONE


cdef bint judge_all(
    const Table* table,
    const Keys* keys,
    const int64_t* number,
    const int32_t* value_size,
    int64_t count,
    uint8_t* verdicts,
) noexcept nogil:
    """Write the verdicts. Return False if a key is not inside the arena."""
    cdef Block[2] blocks
    cdef int64_t row = 0, turn = 0, i
    for i in range(count):
        verdicts[i] = DROP  # replaced below if the record has a key without a greater version
    blocks[0].count = blocks[1].count = 0
    while row < count or blocks[turn].count:
        turn ^= 1
        row = take(blocks + turn, keys, row, count)
        if row == OUTSIDE:
            return False
        hash_block(blocks + turn, keys, table, WORDS)
        judge_block(table, keys, number, value_size, blocks + (turn ^ 1), verdicts)
    return True


cdef void judge_block(
    const Table* table,
    const Keys* keys,
    const int64_t* number,
    const int32_t* value_size,
    const Block* block,
    uint8_t* verdicts,
) noexcept nogil:
    """Write the verdicts of a block, and store greater versions of keys in the table."""
    cdef int64_t i, row
    cdef uint64_t* slot
    for i in range(block.count):
        row = block.row[i]
        slot = find(table, WORDS, block.hash[i])
        if slot != NULL and is_below(slot, number[row], keys.offset[row]):
            remember(slot, number[row], keys.offset[row])
        if slot == NULL or (<int64_t>slot[2] == number[row] and <int64_t>slot[3] == keys.offset[row]):
            verdicts[row] = KEEP if value_size[row] >= 0 else DROP_AT_HORIZON


cdef class CompiledVersionMap:
    cdef Table table
    cdef object memory  # owns the memory of the table

    def __init__(self, slots, usable, bytes secret):
        check_sizes(slots, usable, secret)
        if slots >> 32:
            raise ValueError(f"a map has less than 2^32 slots, not {slots}")
        self.memory = memoryview(table_memory(slots * SLOT_BYTES))
        open_table(&self.table, <void*>start_of(self.memory), slots, usable, PyBytes_AS_STRING(secret))

    def __len__(self):
        return self.table.count

    def observe(self, records, numbers):
        cdef Keys keys
        cdef int64_t count = records.count, processed
        buffers = open_keys(&keys, records)
        number_column = column(numbers, "q", count)
        cdef const int64_t* number = <const int64_t*>start_of(number_column)
        with nogil:
            processed = observe_all(&self.table, &keys, number, count)
        if processed == OUTSIDE:
            raise outside(records)
        return processed

    def judge(self, records, numbers, bytearray verdicts):
        cdef Keys keys
        cdef int64_t count = records.count
        cdef uint8_t* verdict_bytes = verdicts
        cdef bint is_inside
        buffers = open_keys(&keys, records)
        number_column, sizes = column(numbers, "q", count), column(records.value_size, "i", count)
        cdef const int64_t* number = <const int64_t*>start_of(number_column)
        cdef const int32_t* value_size = <const int32_t*>start_of(sizes)
        if len(verdicts) < count:
            raise ValueError(f"there is room for {len(verdicts)} verdicts, {count} are needed")
        view = memoryview(verdicts)  # prevents a resize meanwhile
        with nogil:
            is_inside = judge_all(&self.table, &keys, number, value_size, count, verdict_bytes)
        if not is_inside:
            raise outside(records)
