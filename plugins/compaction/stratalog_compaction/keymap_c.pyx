# cython: boundscheck=False, wraparound=False, cdivision=True
"""The newest offset of each key, compiled; the twin of ``keymap``, which says what each method does.

A table with linear probing, where a key that is far from its place takes that of one that is nearer (Robin Hood
hashing): a search for a key that is not there ends as soon as one that is there. Records are handled in blocks, whose
hashes are computed and whose slots are fetched from memory together.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from stratalog.spi import Verdict
from stratalog.spi.siphash cimport Hash, hash_of

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


cdef bint judge_all(
    const Table* table, const Keys* keys, const int32_t* value_size, int64_t count, uint8_t* verdicts
) noexcept nogil:
    """Write the verdicts; False if a key is not inside the arena."""
    cdef Hash[BLOCK] hashes
    cdef int64_t first = 0, end, i
    while first < count:
        end = min(first + BLOCK, count)
        if not hash_block(table, keys, first, end, hashes):
            return False
        for i in range(first, end):
            if keys.size[i] < 0 or offset_of(table, hashes[i - first]) > keys.offset[i]:
                verdicts[i] = DROP
            else:
                verdicts[i] = KEEP if value_size[i] >= 0 else DROP_AT_HORIZON
        first = end
    return True


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
    cdef object memory  # keeps the table

    def __init__(self, slots, usable, bytes secret):
        check_sizes(slots, usable, secret)
        if slots >> 32:
            raise ValueError(f"a map has less than 2^32 slots, not {slots}")
        self.memory = memoryview(table_memory(slots * SLOT_BYTES))
        self.table.slots = <Slot*>start_of(self.memory)
        self.table.size, self.table.usable, self.table.count = slots, usable, 0
        memcpy(self.table.secret, PyBytes_AS_STRING(secret), sizeof(self.table.secret))

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
        cdef int64_t count = records.count
        cdef bint fits
        cdef uint8_t* into = verdicts
        held = open_keys(&keys, records)
        sizes = column(records.value_size, "i", count)
        cdef const int32_t* value_size = <const int32_t*>start_of(sizes)
        if len(verdicts) < count:
            raise ValueError(f"there is room for {len(verdicts)} verdicts, {count} are needed")
        view = memoryview(verdicts)  # nobody resizes it meanwhile
        with nogil:
            fits = judge_all(&self.table, &keys, value_size, count, into)
        if not fits:
            raise outside()
