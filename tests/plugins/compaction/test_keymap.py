from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from stratalog import Record, RecordColumns
from stratalog.spi import Verdict
from stratalog_compaction.keydigest import HEAD
from stratalog_compaction.keymap import EXTENSIONS, SLOT_BYTES, KeyMap, open_key_map

SECRET = bytes(range(16))
KEEP, DROP, AT_HORIZON = Verdict.KEEP, Verdict.DROP, Verdict.DROP_AT_HORIZON
Opener = Callable[[int, int, bytes], KeyMap]

keys = st.one_of(st.none(), st.binary(max_size=3), st.binary(min_size=7, max_size=17))
values = st.sampled_from([None, b"", b"v"])


@pytest.fixture(params=["python", "compiled"])
def opener(request: pytest.FixtureRequest) -> Opener:
    if request.param == "python":
        return KeyMap
    twin = compiled_twin(EXTENSIONS[0])
    map_opener: Opener = twin.CompiledKeyMap
    return map_opener


def columns(pairs: list[tuple[bytes | None, bytes | None]], start: int = 0) -> RecordColumns:
    return RecordColumns.from_records(
        Record(offset=offset, key=key, value=value) for offset, (key, value) in enumerate(pairs, start)
    )


def verdicts(key_map: KeyMap, records: RecordColumns) -> list[int]:
    verdict_bytes = bytearray(records.count)
    key_map.judge(records, verdict_bytes)
    return list(verdict_bytes)


def test_the_last_of_each_key_stays(opener: Opener) -> None:
    records = columns([(b"a", b"1"), (b"b", b"1"), (b"a", None), (None, b"x"), (b"", b"1")])
    key_map = opener(10, 9, SECRET)
    assert key_map.observe(records) == 5
    assert len(key_map) == 3
    assert verdicts(key_map, records) == [DROP, KEEP, AT_HORIZON, DROP, KEEP]


def test_records_newer_than_the_map_or_unknown_to_it_stay(opener: Opener) -> None:
    key_map = opener(10, 9, SECRET)
    key_map.observe(columns([(b"a", b"1")], start=7))
    assert verdicts(key_map, columns([(b"a", b"1"), (b"z", b"1")], start=8)) == [KEEP, KEEP]


def test_a_full_map_takes_no_further_key_not_even_one_that_it_has(opener: Opener) -> None:
    """Kafka's map behaves in the same way. Records without keys need no room in the map."""
    key_map = opener(10, 2, SECRET)
    pairs: list[tuple[bytes | None, bytes | None]] = [(b"a", b""), (b"a", b""), (b"b", b""), (None, b""), (b"a", b"")]
    assert key_map.observe(columns(pairs)) == 4
    assert len(key_map) == 2
    assert key_map.observe(columns([(None, b"")])) == 1


def test_all_slots_except_one_can_be_filled(opener: Opener) -> None:
    count = 200
    key_map = opener(count + 1, count, SECRET)
    records = columns([(b"%d" % key, b"") for key in range(count)])
    assert key_map.observe(records) == count
    assert verdicts(key_map, records) == [KEEP] * count
    assert verdicts(key_map, columns([(b"%d" % key, b"") for key in range(count, 2 * count)])) == [KEEP] * count


@given(st.lists(st.tuples(keys, values), max_size=300), st.integers(2, 40), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_twins_agree(listed: list[tuple[bytes | None, bytes | None]], slots: int, chance: random.Random) -> None:
    records, usable = columns(listed), chance.randrange(1, slots)
    marked = range(chance.randrange(20), chance.randrange(20, 320))
    maps = [KeyMap(slots, usable, SECRET), open_key_map(slots, usable, chance.randbytes(16), marked=marked)]
    observed_counts = {key_map.observe(records) for key_map in maps}
    assert len(observed_counts) == 1
    assert len({len(key_map) for key_map in maps}) == 1
    assert verdicts(maps[0], records) == verdicts(maps[1], records)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=200))
def test_twins_agree_on_offsets_that_do_not_ascend(listed: list[tuple[int, int]]) -> None:
    records = RecordColumns.from_records(Record(offset=offset, key=b"%d" % key, value=b"") for key, offset in listed)
    maps = [KeyMap(50, 49, SECRET), open_key_map(50, 49, SECRET, marked=range(5, 40))]
    assert [key_map.observe(records) for key_map in maps] == [len(listed)] * 2
    assert verdicts(maps[0], records) == verdicts(maps[1], records)


def test_marks_cover_no_record_that_was_not_shown() -> None:
    """Marks exist only for the dirty range. For records below it, the map is searched for their keys."""
    key_map = open_key_map(50, 49, SECRET, marked=range(10, 20))
    key_map.observe(columns([(b"a", b""), (b"a", b""), (b"b", b"")], start=10))
    assert verdicts(key_map, columns([(b"a", b""), (b"b", b""), (b"c", b"")], start=7)) == [DROP, DROP, KEEP]
    assert verdicts(key_map, columns([(b"a", b""), (b"b", b""), (b"c", b"")], start=11)) == [KEEP, KEEP, KEEP]


@pytest.mark.parametrize("allowed", [0, 1, 2])
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=15, unique=True), st.binary(min_size=16, max_size=16))
@settings(max_examples=60)
def test_keys_are_hashed_alike_whatever_the_processor_has(allowed: int, listed: list[bytes], secret: bytes) -> None:
    twin = compiled_twin(EXTENSIONS[0])
    twin.choose_lanes(allowed)
    try:
        key_map = twin.CompiledKeyMap(32, 31, secret, sums_up=True)
        verdicts(key_map, columns([(key, b"") for key in listed]))
        (section,) = key_map.digest(end=True)
    finally:
        twin.choose_lanes(2)
    bits = HEAD.unpack_from(section)[1]
    rests = array("I", section[HEAD.size + 4 * ((1 << bits) + 1) :])
    assert sorted(rests) == sorted(siphash(key, secret) >> (32 - bits) & 0xFFFFFFFF for key in listed)


def siphash(key: bytes, secret: bytes) -> int:
    """Return the first half of SipHash-1-3 with 128 bits of output, computed after the description of its authors."""
    mask = (1 << 64) - 1
    low, high = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]

    def turn(index: int, bits: int) -> int:
        return (v[index] << bits | v[index] >> (64 - bits)) & mask

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & mask, (v[2] + v[3]) & mask
            v[1], v[3] = turn(1, 13) ^ v[0], turn(3, 16) ^ v[2]
            v[0] = turn(0, 32)
            v[2], v[0] = (v[2] + v[1]) & mask, (v[0] + v[3]) & mask
            v[1], v[3] = turn(1, 17) ^ v[2], turn(3, 21) ^ v[0]
            v[2] = turn(2, 32)

    padded = key + bytes(7 - len(key) % 8) + bytes((len(key) & 0xFF,))
    for position in range(0, len(padded), 8):
        word = int.from_bytes(padded[position : position + 8], "little")
        v[3] ^= word
        rounds(1)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(3)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@given(st.lists(st.tuples(keys, values), max_size=200))
def test_a_map_has_the_verdicts_of_a_dictionary(listed: list[tuple[bytes | None, bytes | None]]) -> None:
    records, key_map = columns(listed), open_key_map(401, 400, SECRET)
    key_map.observe(records)
    last_offsets = {key: offset for offset, (key, _) in enumerate(listed)}
    expected = [
        DROP if key is None or last_offsets[key] > offset else AT_HORIZON if value is None else KEEP
        for offset, (key, value) in enumerate(listed)
    ]
    assert verdicts(key_map, records) == expected


@pytest.mark.parametrize(("slots", "usable", "secret"), [(1, 1, SECRET), (2, 0, SECRET), (4, 2, b"short")])
def test_sizes_that_make_no_map_are_refused(opener: Opener, slots: int, usable: int, secret: bytes) -> None:
    with pytest.raises(ValueError, match="wrong sizes"):
        opener(slots, usable, secret)


def test_a_key_outside_the_arena_is_refused(opener: Opener) -> None:
    key_map, records = opener(4, 3, SECRET), columns([(b"key", b"")])
    short_records = RecordColumns(
        b"ke", 1, offset=records.offset, key_position=records.key_position, key_size=records.key_size,
        value_position=records.value_position, value_size=records.value_size,
    )  # fmt: skip
    with pytest.raises(IndexError, match="a field of 3 bytes at 0 is not inside the arena"):
        key_map.observe(short_records)
    with pytest.raises(IndexError, match="a field of 3 bytes at 0 is not inside the arena"):
        key_map.judge(short_records, bytearray(1))


def test_a_slot_has_24_bytes() -> None:
    assert SLOT_BYTES == 24


@pytest.mark.long
def test_ten_million_keys_fit_256_mib() -> None:
    """The map has Kafka's default load factor. When it is full, it refuses further keys, and loses none."""
    twin = compiled_twin(EXTENSIONS[0])
    slots = (256 << 20) // SLOT_BYTES
    usable = int(slots * 0.9)
    key_map, chance, rows, key_bytes = twin.CompiledKeyMap(slots, usable, SECRET), random.Random(1), 100_000, 8  # noqa: S311 - the same in every run
    positions, sizes = array("i", range(0, rows * key_bytes, key_bytes)), array("i", [key_bytes]) * rows
    first = chance.randbytes(rows * key_bytes)
    for start in range(0, 10_000_000, rows):
        arena = chance.randbytes(rows * key_bytes) if start else first
        assert key_map.observe(keyed(arena, start, positions, sizes)) == rows
    assert len(key_map) == 10_000_000
    verdicts = bytearray(rows)
    key_map.judge(keyed(first, 0, positions, sizes), verdicts)
    assert verdicts == bytes((Verdict.KEEP,)) * rows
    assert (
        key_map.observe(keyed(chance.randbytes(rows * key_bytes), 10_000_000, positions, sizes)) == usable - 10_000_000
    )


def keyed(arena: bytes, start: int, positions: array[int], sizes: array[int]) -> RecordColumns:
    """Return records whose keys are adjacent in memory."""
    return RecordColumns(
        arena, len(positions), offset=memoryview(array("q", range(start, start + len(positions)))),
        key_position=memoryview(positions), key_size=memoryview(sizes),
        value_position=memoryview(positions), value_size=memoryview(sizes),
    )  # fmt: skip
