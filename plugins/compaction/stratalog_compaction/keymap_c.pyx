# cython: boundscheck=False, wraparound=False, cdivision=True
"""The newest offset of each key, compiled; the twin of ``keymap``, which says what each method does.

A table with linear probing, where a key that is far from its place takes that of one that is nearer (Robin Hood
hashing): a search for a key that is not there ends as soon as one that is there. Records are handled in blocks, whose
hashes are computed and whose slots are fetched from memory together.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from stratalog.spi import Verdict
from stratalog.spi.siphash cimport Hash, hash_of

from stratalog_compaction.keydigest import HEAD, MAX_BITS, SECTION_KEYS, bucket_bits
from stratalog_compaction.keymap import SLOT_BYTES, check_sizes, table_memory

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define FETCH_SOON(at) __builtin_prefetch(at)
    #else
    #define FETCH_SOON(at) ((void)(at))
    #endif
    """
    void FETCH_SOON(const void* at) noexcept nogil

cdef enum:
    BLOCK = 64  # records at a time

cdef uint8_t KEEP = Verdict.KEEP.value
cdef uint8_t DROP = Verdict.DROP.value
cdef uint8_t DROP_AT_HORIZON = Verdict.DROP_AT_HORIZON.value

ctypedef const uint8_t* Cursor

cdef struct Slot:  # free if both halves of the hash are 0
    uint64_t a
    uint64_t b
    int64_t offset

cdef struct Table:
    Slot* slots
    uint64_t size
    int64_t usable
    int64_t count
    uint64_t secret[2]

cdef struct Kept:  # hashes of keys that stay; none if there is no room
    uint64_t* hashes
    int64_t count
    int64_t room

cdef struct Keys:
    Cursor arena
    int64_t arena_bytes
    const int32_t* position
    const int32_t* size
    const int64_t* offset


# --- table -------------------------------------------------------------------------------------------------------


cdef inline uint64_t home_of(const Table* table, uint64_t a) noexcept nogil:
    """The slot where a hash belongs; there are less than 2^32."""
    return (a >> 32) * table.size >> 32


cdef inline uint64_t distance_of(const Table* table, uint64_t a, uint64_t at) noexcept nogil:
    """How far a hash at slot ``at`` is from where it belongs."""
    cdef uint64_t home = home_of(table, a)
    return at - home if at >= home else at + table.size - home


cdef void put(Table* table, Hash key, int64_t offset) noexcept nogil:
    """Remember an offset; there is a free slot."""
    cdef uint64_t at = home_of(table, key.a), distance = 0, other
    cdef Slot carried, before
    cdef Slot* slot
    cdef bint is_new = False
    carried.a, carried.b, carried.offset = key.a, key.b, offset
    while True:
        slot = table.slots + at
        if slot.a == 0 and slot.b == 0:
            slot[0] = carried
            table.count += 1
            return
        if not is_new and slot.a == key.a and slot.b == key.b:
            slot.offset = offset
            return
        other = distance_of(table, slot.a, at)
        if other < distance:
            before = slot[0]
            slot[0] = carried
            carried, distance, is_new = before, other, True
        distance += 1
        at += 1
        if at == table.size:
            at = 0


cdef int64_t offset_of(const Table* table, Hash key) noexcept nogil:
    """What is known of a key, -1 if nothing."""
    cdef uint64_t at = home_of(table, key.a), distance = 0
    cdef const Slot* slot
    while True:
        slot = table.slots + at
        if slot.a == key.a and slot.b == key.b:
            return slot.offset
        if (slot.a == 0 and slot.b == 0) or distance_of(table, slot.a, at) < distance:
            return -1
        distance += 1
        at += 1
        if at == table.size:
            at = 0


cdef bint hash_block(const Table* table, const Keys* keys, int64_t first, int64_t end, Hash* into) noexcept nogil:
    """The hashes of the records [first, end) that have keys; False if a key is not inside the arena."""
    cdef int64_t i
    cdef uint64_t home
    for i in range(first, end):
        if keys.size[i] < 0:
            continue
        if keys.position[i] < 0 or <int64_t>keys.position[i] + keys.size[i] > keys.arena_bytes:
            return False
        into[i - first] = hash_of(keys.arena + keys.position[i], keys.size[i], table.secret)
        home = home_of(table, into[i - first].a)
        FETCH_SOON(table.slots + home)
        FETCH_SOON(<Cursor>(table.slots + home + 1) - 1)  # a slot may lie in two lines
    return True


cdef int64_t observe_all(Table* table, const Keys* keys, int64_t count) noexcept nogil:
    """How many records were taken; -1 if a key is not inside the arena."""
    cdef Hash[BLOCK] hashes
    cdef int64_t first = 0, end, i
    while first < count:
        end = min(first + BLOCK, count)
        if not hash_block(table, keys, first, end, hashes):
            return -1
        for i in range(first, end):
            if keys.size[i] >= 0:
                if table.count >= table.usable:
                    return i
                put(table, hashes[i - first], keys.offset[i])
        first = end
    return count


cdef int64_t judge_all(
    const Table* table,
    const Keys* keys,
    const int32_t* value_size,
    int64_t first,
    int64_t count,
    uint8_t* verdicts,
    Kept* kept,
) noexcept nogil:
    """Write the verdicts of [first, count) while there is room for what stays.

    Where it ended; -1 if a key is not inside the arena.
    """
    cdef Hash[BLOCK] hashes
    cdef int64_t end, i
    while first < count and (kept.hashes == NULL or kept.count + BLOCK <= kept.room):
        end = min(first + BLOCK, count)
        if not hash_block(table, keys, first, end, hashes):
            return -1
        for i in range(first, end):
            if keys.size[i] < 0 or offset_of(table, hashes[i - first]) > keys.offset[i]:
                verdicts[i] = DROP
                continue
            verdicts[i] = KEEP if value_size[i] >= 0 else DROP_AT_HORIZON
            if kept.hashes != NULL:
                kept.hashes[kept.count] = hashes[i - first].a
                kept.count += 1
        first = end
    return first


# --- digests -----------------------------------------------------------------------------------------------------


cdef inline uint64_t bucket_of(uint64_t a, int bits) noexcept nogil:
    return a >> 32 >> (32 - bits)


cdef inline uint32_t rest_of(uint64_t a, int bits) noexcept nogil:
    return <uint32_t>(a >> (32 - bits))


cdef void sum_up(const uint64_t* hashes, int64_t count, int bits, uint32_t* starts, uint32_t* rests) noexcept nogil:
    """Sort by bucket. ``starts`` has a place more than there are buckets, and is all 0."""
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
    """Whether a key of the table seems to be there; also if the starts are in no order."""
    cdef uint64_t at, bucket
    cdef uint32_t i, rest, end
    cdef const Slot* slot
    for at in range(table.size):
        slot = table.slots + at
        if slot.a == 0 and slot.b == 0:
            continue
        bucket, rest = bucket_of(slot.a, bits), rest_of(slot.a, bits)
        end = starts[bucket + 1]
        if end > count or starts[bucket] > end:
            return True
        for i in range(starts[bucket], end):
            if rests[i] == rest:
                return True
    return False


# --- columns -----------------------------------------------------------------------------------------------------


cdef inline const void* start_of(object view) noexcept:
    return PyMemoryView_GET_BUFFER(view).buf


cdef object column(object data, str code, int64_t count):
    view = memoryview(data)
    if view.format != code or view.ndim != 1 or not view.c_contiguous:
        raise TypeError(f"a column of format {code} is needed, not {view.format}")
    if len(view) < count:
        raise ValueError(f"a column has {len(view)} rows, {count} are needed")
    return view


cdef list open_keys(Keys* keys, records):
    """Point ``keys`` at the columns; the caller holds the list while it reads."""
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


cdef object outside():
    return IndexError("a key is not inside the arena")


cdef class CompiledKeyMap:
    cdef Table table
    cdef Kept kept
    cdef list sections
    cdef object memory  # keeps the table

    hash_name = "siphash-1-3"

    def __cinit__(self):
        self.kept.hashes = NULL

    def __dealloc__(self):
        free(self.kept.hashes)

    def __init__(self, slots, usable, bytes secret, *, sums_up=False):
        check_sizes(slots, usable, secret)
        if slots >> 32:
            raise ValueError(f"a map has less than 2^32 slots, not {slots}")
        self.memory = memoryview(table_memory(slots * SLOT_BYTES))
        self.table.slots = <Slot*>start_of(self.memory)
        self.table.size, self.table.usable, self.table.count = slots, usable, 0
        memcpy(self.table.secret, PyBytes_AS_STRING(secret), sizeof(self.table.secret))
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
        cdef int64_t count = records.count, taken
        held = open_keys(&keys, records)
        with nogil:
            taken = observe_all(&self.table, &keys, count)
        if taken < 0:
            raise outside()
        return taken

    def judge(self, records, bytearray verdicts):
        cdef Keys keys
        cdef int64_t count = records.count, done = 0
        cdef uint8_t* into = verdicts
        held = open_keys(&keys, records)
        sizes = column(records.value_size, "i", count)
        cdef const int32_t* value_size = <const int32_t*>start_of(sizes)
        if len(verdicts) < count:
            raise ValueError(f"there is room for {len(verdicts)} verdicts, {count} are needed")
        view = memoryview(verdicts)  # nobody resizes it meanwhile
        while True:
            with nogil:
                done = judge_all(&self.table, &keys, value_size, done, count, into, &self.kept)
            if done < 0:
                raise outside()
            if done == count:
                return
            self.close_section()

    cdef close_section(self):
        cdef int bits = bucket_bits(self.kept.count)
        cdef int64_t words = (<int64_t>1 << bits) + 1
        cdef bytes made = PyBytes_FromStringAndSize(NULL, HEAD.size + 4 * (words + self.kept.count))
        cdef uint32_t* into = <uint32_t*>PyBytes_AS_STRING(made)
        into[0], into[1] = <uint32_t>self.kept.count, <uint32_t>bits
        memset(into + 2, 0, 4 * words)
        with nogil:
            sum_up(self.kept.hashes, self.kept.count, bits, into + 2, into + 2 + words)
        self.kept.count = 0
        self.sections.append(made)

    def digest(self, *, end):
        if self.kept.hashes == NULL:
            return []
        if end and (self.kept.count or not self.sections):
            self.close_section()
        taken, self.sections = self.sections, []
        return taken

    def holds_any_of(self, section):
        cdef const uint32_t* words
        cdef int64_t first
        cdef int bits
        cdef uint32_t count
        cdef bint found
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
            found = holds_any(&self.table, words + 2, words + first, bits, count)
        return found
