"""Tests of ``hostile_batches``: the functions that change or shrink bytes have the documented effects."""

from __future__ import annotations

from random import Random
from zlib import crc32

import pytest
from crc32c import crc32c

import twins
from entry_parts import entries_of, parts_of_entry, parts_of_records, seal
from hostile_batches import lie, scramble, shrink
from stratalog import Record
from stratalog.spi import BatchHeader
from stratalog_formats.kernels.dispatch import PYTHON

FORMATS = twins.formats(PYTHON)


def valid(name: str) -> bytes:
    headers = (("h", b"v"), ("n", None)) if name == "v2" else ()
    records = [Record(timestamp_ms=1000), Record(timestamp_ms=70_000, key=b"k", value=bytes(100), headers=headers)]
    return bytes(FORMATS[name].encode(records, BatchHeader(base_offset=300), None, None))


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_parts_of_an_entry_are_the_whole_entry(name: str) -> None:
    data = valid(name)
    assert b"".join(entries_of(data * 2)) == data * 2
    for entry in entries_of(data):
        parts = parts_of_entry(entry)
        assert b"".join(raw for _, raw in parts) == entry
        fields = dict(parts)
        covered, crc = (entry[21:], crc32c) if name == "v2" else (entry[16:], crc32)
        assert int.from_bytes(fields["CRC"], "big") == crc(covered)
        assert fields["magic"] == bytes((int(name[1]),))


def test_the_parts_of_records_are_the_whole_section() -> None:
    section = dict(parts_of_entry(valid("v2")))["records"]
    first, second = parts_of_records(section)
    assert b"".join(raw for _, raw in first + second) == section
    assert [name for name, _ in first] == [
        *("length", "attributes", "timestamp delta", "offset delta"),
        *("key length", "key", "value length", "value", "header count"),
    ]
    assert dict(first)["key length"] == b"\1"
    assert dict(second)["value"] == bytes(100)
    assert [raw for name, raw in second if name == "header key"] == [b"h", b"n"]


@pytest.mark.parametrize("name", list(FORMATS))
def test_sealing_makes_any_change_a_valid_one(name: str) -> None:
    data = entries_of(valid(name))[0]
    changed = bytearray(data)
    changed[-1] ^= 1
    assert FORMATS[name].scan(changed, 0, len(changed), check_crc=True).reason
    seal(changed)
    assert len(FORMATS[name].scan(changed, 0, len(changed), check_crc=True)) == 1


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_forged_batch_has_one_wrong_field_and_a_valid_crc(name: str) -> None:
    data, chance = valid(name), Random(1)  # noqa: S311 - the same lies each time
    stories, scannable_count = set[str](), 0
    for _ in range(300):
        mutant = lie([data], twins.codecs_of(name), chance)
        stories.add(mutant.story.partition(" was ")[0])
        scannable_count += len(FORMATS[name].scan(mutant.data, 0, len(mutant.data), check_crc=True)) > 0
    fields = {story.rpartition(": ")[2] for story in stories}
    assert fields >= {"size", "CRC", "magic", "attributes"}
    assert scannable_count > 200


@pytest.mark.parametrize(
    "make", [lambda chance: lie([valid("v2")], [], chance), lambda chance: scramble([valid("v1")], chance)]
)
def test_the_same_chance_gives_the_same_mutants(make: object) -> None:
    assert callable(make)
    first, second = (Random(seed) for seed in (3, 3))  # noqa: S311 - that is what is tested
    mutants = [make(first) for _ in range(50)]
    assert mutants == [make(second) for _ in range(50)]
    assert len({mutant.data for mutant in mutants}) > 25


def test_a_failing_batch_is_reduced_to_a_small_plain_one() -> None:
    tries = 0

    def fails(data: bytes) -> bool:
        nonlocal tries
        tries += 1
        return b"\x07" in data and len(data) >= 5

    assert shrink(bytes(range(200)), fails) in {
        b"\7\0\0\0\0",
        b"\0\7\0\0\0",
        b"\0\0\7\0\0",
        b"\0\0\0\7\0",
        b"\0\0\0\0\7",
    }
    assert tries <= 500
    assert shrink(b"abc", lambda _: False, tries=3) == b"abc"
