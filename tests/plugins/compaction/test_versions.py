from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from stratalog import Record, RecordColumns
from stratalog.model.records import int64_column
from stratalog.spi import Verdict
from stratalog_compaction.versions import EXTENSIONS, SLOT_BYTES, VersionMap, open_version_map

SECRET = bytes(range(16))
KEEP, DROP, AT_HORIZON = Verdict.KEEP, Verdict.DROP, Verdict.DROP_AT_HORIZON
Opener = Callable[[int, int, bytes], VersionMap]
Row = tuple[bytes | None, bytes | None, int]  # key, value, number

keys = st.one_of(st.none(), st.binary(max_size=2), st.binary(min_size=7, max_size=17))
rows = st.tuples(keys, st.sampled_from([None, b"", b"v"]), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3))


@pytest.fixture(params=["python", "compiled"])
def opener(request: pytest.FixtureRequest) -> Opener:
    if request.param == "python":
        return VersionMap
    twin = compiled_twin(EXTENSIONS[0])
    map_opener: Opener = twin.CompiledVersionMap
    return map_opener


def columns(rows: list[Row], start: int = 0) -> tuple[RecordColumns, memoryview]:
    records = [Record(offset=offset, key=key, value=value) for offset, (key, value, _) in enumerate(rows, start)]
    return RecordColumns.from_records(records), int64_column(number for _, _, number in rows)


def verdicts(version_map: VersionMap, rows: list[Row], start: int = 0) -> list[int]:
    verdict_bytes = bytearray(len(rows))
    version_map.judge(*columns(rows, start), verdict_bytes)
    return list(verdict_bytes)


def test_the_greatest_stays_and_of_equal_ones_the_last(opener: Opener) -> None:
    rows: list[Row] = [
        (b"a", b"", 5),
        (b"b", b"", 1),
        (b"a", None, 9),
        (None, b"", 99),
        (b"a", b"", 7),
        (b"b", b"", 1),
    ]
    version_map = opener(10, 9, SECRET)
    assert version_map.observe(*columns(rows)) == 6
    assert len(version_map) == 2
    assert verdicts(version_map, rows) == [DROP, DROP, AT_HORIZON, DROP, DROP, KEEP]


def test_a_record_of_the_second_pass_counts_if_its_key_is_known(opener: Opener) -> None:
    version_map = opener(10, 9, SECRET)
    version_map.observe(*columns([(b"a", b"", 3)], start=9))
    assert verdicts(version_map, [(b"a", b"", 8), (b"z", b"", 8), (b"a", b"", 7), (b"z", b"", 7)]) == [
        KEEP,
        KEEP,
        DROP,
        KEEP,
    ]
    assert verdicts(version_map, [(b"a", b"", 3)], start=9) == [DROP]


def test_a_full_map_takes_what_it_knows_and_nothing_else(opener: Opener) -> None:
    version_map = opener(10, 2, SECRET)
    rows: list[Row] = [(b"a", b"", 1), (b"b", b"", 1), (None, b"", 1), (b"a", b"", 5), (b"c", b"", 1), (b"a", b"", 9)]
    assert version_map.observe(*columns(rows)) == 4
    assert verdicts(version_map, rows[:4]) == [DROP, KEEP, DROP, KEEP]


@given(st.lists(rows, max_size=300), st.integers(2, 60), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_twins_agree(listed: list[Row], slots: int, chance: random.Random) -> None:
    usable = chance.randrange(1, slots)
    maps: list[VersionMap] = [VersionMap(slots, usable, SECRET), open_version_map(slots, usable, SECRET[::-1])]
    observed_rows = listed[chance.randrange(len(listed) + 1) :]
    start = len(listed) - len(observed_rows)
    observed_counts = {version_map.observe(*columns(observed_rows, start)) for version_map in maps}
    assert len(observed_counts) == 1
    assert len({len(version_map) for version_map in maps}) == 1
    assert verdicts(maps[0], listed) == verdicts(maps[1], listed)


@given(st.lists(rows, max_size=200))
def test_a_map_has_the_verdicts_of_a_dictionary(listed: list[Row]) -> None:
    version_map = open_version_map(401, 400, SECRET)
    version_map.observe(*columns(listed))
    greatest: dict[bytes, tuple[int, int]] = {}
    for offset, (key, _, number) in enumerate(listed):
        if key is not None:
            greatest[key] = max(greatest.get(key, (number, offset)), (number, offset))
    expected = [
        DROP if key is None or greatest[key] != (number, offset) else AT_HORIZON if value is None else KEEP
        for offset, (key, value, number) in enumerate(listed)
    ]
    assert verdicts(version_map, listed) == expected


@pytest.mark.parametrize(("slots", "usable", "secret"), [(3, 3, SECRET), (2, 0, SECRET), (4, 2, b"short")])
def test_sizes_that_make_no_map_are_refused(opener: Opener, slots: int, usable: int, secret: bytes) -> None:
    with pytest.raises(ValueError, match="wrong sizes"):
        opener(slots, usable, secret)


def test_columns_that_do_not_fit_are_refused(opener: Opener) -> None:
    version_map = opener(4, 3, SECRET)
    records, numbers = columns([(b"key", b"", 1), (b"yek", b"", 1)])
    with pytest.raises(ValueError, match=r"rows|argument"):
        version_map.observe(records, numbers[:1])
    short_records = RecordColumns(
        b"ke", 1, offset=records.offset[:1], key_position=records.key_position[:1], key_size=records.key_size[:1],
        value_position=records.value_position[:1], value_size=records.value_size[:1],
    )  # fmt: skip
    with pytest.raises(IndexError, match="a field of 3 bytes at 0 is not inside the arena"):
        version_map.observe(short_records, numbers[:1])
    with pytest.raises(IndexError, match="a field of 3 bytes at 0 is not inside the arena"):
        version_map.judge(short_records, numbers[:1], bytearray(1))


def test_a_slot_has_32_bytes() -> None:
    assert SLOT_BYTES == 32
