from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from stratalog import Record, RecordColumns
from stratalog.extensions import extension
from stratalog.spi import Verdict
from stratalog_compaction.keydigest import HEAD, SECTION_KEYS, holds_any, section_of
from stratalog_compaction.keymap import EXTENSIONS, KeyMap

SECRET = bytes(range(16))
hashes = st.lists(st.integers(0, (1 << 64) - 1), max_size=200)


def columns(keys: list[bytes | None], start: int = 0) -> RecordColumns:
    return RecordColumns.from_records(
        Record(offset=offset, key=key, value=b"v") for offset, key in enumerate(keys, start)
    )


@pytest.fixture(params=["python", "compiled"])
def twin(request: pytest.FixtureRequest) -> type[KeyMap]:
    if request.param == "python":
        return KeyMap
    compiled = compiled_twin(EXTENSIONS[0])
    map_type: type[KeyMap] = compiled.CompiledKeyMap
    return map_type


def summed_up(twin: type[KeyMap], keys: list[bytes | None]) -> list[bytes]:
    key_map = twin(4, 3, SECRET, sums_up=True)
    key_map.judge(columns(keys), bytearray(len(keys)))
    return list(key_map.digest(end=True))


def knowing(twin: type[KeyMap], keys: list[bytes | None]) -> KeyMap:
    key_map = twin(len(keys) + 2, len(keys) + 1, SECRET)
    key_map.observe(columns(keys))
    return key_map


@given(hashes)
def test_a_key_in_a_section_is_found(listed: list[int]) -> None:
    section = memoryview(section_of(listed))
    for key_hash in listed:
        assert holds_any(section, [key_hash])


def test_a_section_contains_exactly_the_keys_that_stay(twin: type[KeyMap]) -> None:
    keys: list[bytes | None] = [b"key-%d" % number for number in range(1000)]
    (section,) = summed_up(twin, [*keys, None])
    view = memoryview(section)
    assert all(knowing(twin, [key]).holds_any_of(view) for key in keys)
    assert not knowing(twin, [b"other-%d" % number for number in range(1000)]).holds_any_of(view)
    assert not knowing(twin, [None]).holds_any_of(view)


def test_a_key_whose_record_was_dropped_is_not_in_it(twin: type[KeyMap]) -> None:
    key_map = twin(10, 9, SECRET, sums_up=True)
    key_map.observe(columns([b"a"], start=5))
    verdicts = bytearray(3)
    key_map.judge(columns([b"a", b"b", b"c"]), verdicts)
    assert list(verdicts) == [Verdict.DROP, Verdict.KEEP, Verdict.KEEP]
    (section,) = key_map.digest(end=True)
    assert not knowing(twin, [b"a"]).holds_any_of(memoryview(section))
    assert knowing(twin, [b"b"]).holds_any_of(memoryview(section))


@pytest.mark.long
def test_a_digest_grows_by_sections(twin: type[KeyMap]) -> None:
    """The digest is returned in sections, so that only a small part is in memory. Each section is returned once."""
    key_map = twin(4, 3, SECRET, sums_up=True)
    keys: list[bytes | None] = [b"%d" % number for number in range(SECTION_KEYS + 500)]
    sections = []
    for first in range(0, len(keys), 100_000):
        part = columns(keys[first : first + 100_000])
        key_map.judge(part, bytearray(part.count))
        sections += key_map.digest(end=False)
    sections += key_map.digest(end=True)
    assert len(sections) == 2
    assert sum(HEAD.unpack_from(section)[0] for section in sections) == len(keys)
    assert max(len(section) for section in sections) < 4.6 * SECTION_KEYS
    for key in keys[:: SECTION_KEYS // 7]:
        assert sum(knowing(twin, [key]).holds_any_of(memoryview(section)) for section in sections) == 1


def test_a_segment_without_records_has_a_section_too(twin: type[KeyMap]) -> None:
    key_map = twin(4, 3, SECRET, sums_up=True)
    (section,) = key_map.digest(end=True)
    assert not knowing(twin, [b"k"]).holds_any_of(memoryview(section))
    assert len(key_map.digest(end=True)) == 1


def test_a_map_that_need_not_sum_up_makes_no_digest(twin: type[KeyMap]) -> None:
    key_map = twin(4, 3, SECRET)
    key_map.judge(columns([b"k"]), bytearray(1))
    assert key_map.digest(end=True) == []


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_bytes_that_are_no_section_exclude_no_key_and_never_crash(data: bytes) -> None:
    for map_type in (KeyMap, getattr(extension(EXTENSIONS[0]), "CompiledKeyMap", KeyMap)):
        key_map = knowing(map_type, [b"a", b"b"])
        may_hold = key_map.holds_any_of(memoryview(data))
        # Fmt: skip.
        is_section = len(data) >= HEAD.size and len(data) == HEAD.size + 4 * (
            (1 << min(HEAD.unpack_from(data)[1], 32)) + 1 + HEAD.unpack_from(data)[0]
        )
        assert may_hold or is_section


def test_starts_that_lead_outside_are_not_followed(twin: type[KeyMap]) -> None:
    chance = random.Random(1)  # noqa: S311 - the same in every run
    section = bytearray(section_of(chance.getrandbits(64) for _ in range(100)))
    key_map = knowing(twin, [b"%d" % number for number in range(1000)])
    for number in range((1 << HEAD.unpack_from(section)[1]) + 1):
        damaged_section = bytearray(section)
        struct.pack_into("<I", damaged_section, HEAD.size + 4 * number, 0xFFFFFFFF)
        assert key_map.holds_any_of(memoryview(bytes(damaged_section)))
