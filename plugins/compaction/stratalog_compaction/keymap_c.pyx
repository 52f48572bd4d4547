# cython: boundscheck=False, wraparound=False, cdivision=True
"""Compiled version of ``keymap``, which documents each method."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from stratalog.spi import Verdict
from stratalog.spi.siphash cimport Hash

from stratalog_compaction.keydigest import HEAD, MAX_BITS, SECTION_KEYS, bucket_bits
from stratalog_compaction.keymap import SLOT_BYTES, check_sizes, mark_bytes, table_memory

from stratalog_compaction.columns cimport column, start_of
from stratalog_compaction.hashtable cimport Table, find, is_free, open_table, place, slot_at
from stratalog_compaction.keys cimport (
    ALL_LANES,
    BLOCK,
    FETCH_SOON,
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
    WORDS = 3  # words of a slot: two of the hash, and the offset
    NONE = -1
    OUTSIDE = -2

cdef uint8_t KEEP = Verdict.KEEP.value
cdef uint8_t DROP = Verdict.DROP.value
cdef uint8_t DROP_AT_HORIZON = Verdict.DROP_AT_HORIZON.value

cdef struct Kept:  # hashes of kept keys; NULL without a digest
    uint64_t* hashes
    int64_t count
    int64_t room


cdef struct Marks:  # one bit per offset, set if a later record has the same key; NULL without bits
    uint8_t* bits
    int64_t first
    int64_t count
    int64_t newest
    int64_t notes
    uint64_t noted[BLOCK]  # bits to set once they have been fetched from memory


# --- marks -------------------------------------------------------------------------------------------------------


cdef inline void follow(Marks* marks, int64_t offset, int64_t before) noexcept nogil:
    """Add ``before``, the offset that ``offset`` replaces, to the bits to set. NONE means that the key is new.

    If offsets do not ascend, discard all marks.
    """
    cdef uint64_t bit = <uint64_t>before - <uint64_t>marks.first
    if offset <= marks.newest:
        marks.bits = NULL
        return
    marks.newest = offset
    if before != NONE and bit < <uint64_t>marks.count:
        FETCH_SOON(marks.bits + (bit >> 3))
        marks.noted[marks.notes] = bit
        marks.notes += 1


cdef inline void mark(Marks* marks) noexcept nogil:
    """Set the bits that ``follow`` added."""
    cdef int64_t i
    if marks.bits != NULL:
        for i in range(marks.notes):
            marks.bits[marks.noted[i] >> 3] |= 1 << (marks.noted[i] & 7)
    marks.notes = 0


cdef inline bint is_marked(const Marks* marks, int64_t offset) noexcept nogil:
    cdef uint64_t bit = <uint64_t>offset - <uint64_t>marks.first
    return marks.bits != NULL and bit < <uint64_t>marks.count and marks.bits[bit >> 3] >> (bit & 7) & 1


# --- records -----------------------------------------------------------------------------------------------------


cdef int64_t observe_all(Table* table, Marks* marks, const Keys* keys, int64_t count) noexcept nogil:
    """Return the number of processed records; OUTSIDE if a key is not inside the arena."""
    cdef Block[2] blocks
    cdef int64_t row = 0, turn = 0, refused = NONE
    blocks[0].count = blocks[1].count = 0
    while row < count or blocks[turn].count:
        turn ^= 1
        blocks[turn].count = 0
        while row < count and blocks[turn].count < BLOCK:
            if keys.size[row] >= 0 and not add(blocks + turn, keys, row):
                return OUTSIDE
            row += 1
        hash_block(blocks + turn, keys, table, WORDS)
        refused = observe_block(table, marks, keys, blocks + (turn ^ 1))
        if refused != NONE:
            break
    mark(marks)
    return count if refused == NONE else refused


cdef int64_t observe_block(Table* table, Marks* marks, const Keys* keys, const Block* block) noexcept nogil:
    """Store the offsets of a block.

    Return the row of the first record for which the table has no slot; NONE if all are stored.
    """
    cdef int64_t i, offset, before
    cdef uint64_t* slot
    mark(marks)
    for i in range(block.count):
        before = table.count
        if before >= table.usable:
            return block.row[i]
        offset = keys.offset[block.row[i]]
        slot = place(table, WORDS, block.hash[i])
        if marks.bits != NULL:
            follow(marks, offset, <int64_t>slot[2] if table.count == before else NONE)
        slot[2] = <uint64_t>offset
    return NONE


cdef int64_t judge_all(
    const Table* table,
    const Marks* marks,
    const Keys* keys,
    const int32_t* value_size,
    int64_t row,
    int64_t count,
    uint8_t* verdicts,
    Kept* kept,
) noexcept nogil:
    """Write the verdicts of [row, count) while there is room for the kept hashes.

    Return the first row without a verdict; OUTSIDE if a key is not inside the arena.
    """
    cdef Block[2] blocks
    cdef int64_t turn = 0
    cdef bint has_room
    blocks[0].count = blocks[1].count = 0
    while True:
        has_room = kept.hashes == NULL or kept.count + 2 * BLOCK <= kept.room
        if not blocks[turn].count and (row == count or not has_room):
            return row
        turn ^= 1
        blocks[turn].count = 0
        while has_room and row < count and blocks[turn].count < BLOCK:
            if keys.size[row] < 0 or is_marked(marks, keys.offset[row]):
                verdicts[row] = DROP
            elif not add(blocks + turn, keys, row):
                return OUTSIDE
            row += 1
        hash_block(blocks + turn, keys, table, WORDS)
        judge_block(table, keys, value_size, blocks + (turn ^ 1), verdicts, kept)


cdef void judge_block(
    const Table* table,
    const Keys* keys,
    const int32_t* value_size,
    const Block* block,
    uint8_t* verdicts,
    Kept* kept,
) noexcept nogil:
    """Write the verdicts of a block. The caller must ensure room for the kept hashes."""
    cdef int64_t i, row
    cdef const uint64_t* slot
    for i in range(block.count):
        row = block.row[i]
        slot = find(table, WORDS, block.hash[i])
        if slot != NULL and <int64_t>slot[2] > keys.offset[row]:
            verdicts[row] = DROP
            continue
        verdicts[row] = KEEP if value_size[row] >= 0 else DROP_AT_HORIZON
        if kept.hashes != NULL:
            kept.hashes[kept.count] = block.hash[i].a
            kept.count += 1


# --- digests -----------------------------------------------------------------------------------------------------


cdef inline uint64_t bucket_of(uint64_t a, int bits) noexcept nogil:
    return a >> 32 >> (32 - bits)


cdef inline uint32_t rest_of(uint64_t a, int bits) noexcept nogil:
    return <uint32_t>(a >> (32 - bits))


cdef void sum_up(const uint64_t* hashes, int64_t count, int bits, uint32_t* starts, uint32_t* rests) noexcept nogil:
    """Sort the hashes by bucket. ``starts`` must have one element more than there are buckets, and all must be 0."""
    cdef int64_t i
    cdef uint64_t bucket
    for i in range(count):
        starts[bucket_of(hashes[i], bits)] += 1
    for i in range(1, (<int64_t>1 << bits) + 1):
        starts[i] += starts[i - 1]
    for i in range(count):
        bucket = bucket_of(hashes[i], bits)
        starts[bucket] -= 1
        rests[starts[bucket]] = rest_of(hashes[i], bits)


cdef bint holds_any(
    const Table* table, const uint32_t* starts, const uint32_t* rests, int bits, uint32_t count
) noexcept nogil:
    """Return True if the section may contain a key of the table, or if its bucket starts are not in order."""
    cdef uint64_t index, bucket
    cdef uint32_t i, rest, end
    cdef const uint64_t* slot
    for index in range(table.size):
        slot = slot_at(table, WORDS, index)
        if is_free(slot):
            continue
        bucket, rest = bucket_of(slot[0], bits), rest_of(slot[0], bits)
        end = starts[bucket + 1]
        if end > count or starts[bucket] > end:
            return True
        for i in range(starts[bucket], end):
            if rests[i] == rest:
                return True
    return False


# --- the map ------------------------------------------------------------------------------------------------------


cdef class CompiledKeyMap:
    cdef Table table
    cdef Marks marks
    cdef Kept kept
    cdef list sections
    cdef object memory  # owns the memory of the table and of the marks after it

    hash_name = "siphash-1-3"

    def __cinit__(self):
        self.kept.hashes = NULL

    def __dealloc__(self):
        free(self.kept.hashes)

    def __init__(self, slots, usable, bytes secret, *, sums_up=False, marked=range(0)):
        check_sizes(slots, usable, secret)
        if slots >> 32:
            raise ValueError(f"a map has less than 2^32 slots, not {slots}")
        self.memory = memoryview(table_memory(slots * SLOT_BYTES + mark_bytes(marked)))
        open_table(&self.table, <void*>start_of(self.memory), slots, usable, PyBytes_AS_STRING(secret))
        self.marks.bits = NULL
        if marked:
            self.marks.bits = <uint8_t*>slot_at(&self.table, WORDS, self.table.size)
        self.marks.first, self.marks.count, self.marks.newest = marked.start, len(marked), NONE
        self.marks.notes = 0
        self.sections = []
        self.kept.count, self.kept.room = 0, SECTION_KEYS
        if sums_up and self.kept.hashes == NULL:
            self.kept.hashes = <uint64_t*>malloc(self.kept.room * sizeof(uint64_t))
            if self.kept.hashes == NULL:
                raise MemoryError

    def __len__(self):
        return self.table.count

    def observe(self, records):
        cdef Keys keys
        cdef int64_t count = records.count, processed
        buffers = open_keys(&keys, records)
        with nogil:
            processed = observe_all(&self.table, &self.marks, &keys, count)
        if processed == OUTSIDE:
            raise outside(records)
        return processed

    def judge(self, records, bytearray verdicts):
        cdef Keys keys
        cdef int64_t count = records.count, next_row = 0
        cdef uint8_t* verdict_bytes = verdicts
        buffers = open_keys(&keys, records)
        sizes = column(records.value_size, "i", count)
        cdef const int32_t* value_size = <const int32_t*>start_of(sizes)
        if len(verdicts) < count:
            raise ValueError(f"there is room for {len(verdicts)} verdicts, {count} are needed")
        view = memoryview(verdicts)  # prevents a resize during this call
        while True:
            with nogil:
                next_row = judge_all(
                    &self.table, &self.marks, &keys, value_size, next_row, count, verdict_bytes, &self.kept
                )
            if next_row == OUTSIDE:
                raise outside(records)
            if next_row == count:
                return
            self.close_section()

    cdef close_section(self):
        cdef int bits = bucket_bits(self.kept.count)
        cdef int64_t words = (<int64_t>1 << bits) + 1
        cdef bytes section = PyBytes_FromStringAndSize(NULL, HEAD.size + 4 * (words + self.kept.count))
        cdef uint32_t* section_words = <uint32_t*>PyBytes_AS_STRING(section)
        section_words[0], section_words[1] = <uint32_t>self.kept.count, <uint32_t>bits
        memset(section_words + 2, 0, 4 * words)
        with nogil:
            sum_up(self.kept.hashes, self.kept.count, bits, section_words + 2, section_words + 2 + words)
        self.kept.count = 0
        self.sections.append(section)

    def digest(self, *, end):
        if self.kept.hashes == NULL:
            return []
        if end and (self.kept.count or not self.sections):
            self.close_section()
        sections, self.sections = self.sections, []
        return sections

    def holds_any_of(self, section):
        cdef const uint32_t* words
        cdef int64_t first
        cdef int bits
        cdef uint32_t count
        cdef bint may_hold
        data = bytes(section)
        if len(data) < HEAD.size:
            return True
        words = <const uint32_t*>PyBytes_AS_STRING(data)
        count = words[0]
        if words[1] > MAX_BITS:
            return True
        bits = words[1]
        first = 2 + (<int64_t>1 << bits) + 1
        if len(data) != 4 * (first + count):
            return True
        with nogil:
            may_hold = holds_any(&self.table, words + 2, words + first, bits, count)
        return may_hold


def choose_lanes(int allowed):
    """Choose the vector instructions that the hash may use, for tests: 0 for none, 1 for AVX2, 2 for AVX-512."""
    lanes_choose(allowed)
