"""The extra index ``bloom``: no key of a segment is missed, false positives are rare, and both kernels agree."""

from __future__ import annotations

import struct
from pathlib import Path
from zlib import crc32

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

import twins
from stratalog import Record, RecordColumns, open_engine, open_reader
from stratalog.spi import ExtraIndex, TopicConfig
from stratalog.testing.contracts import ExtraIndexContract
from stratalog_formats.indexes.bloom import BloomIndex, BloomReader
from stratalog_formats.indexes.bloom_section import BloomSection
from stratalog_formats.kernels.dispatch import Kernels

ALL = (1 << 64) - 1


class TestBloom(ExtraIndexContract):
    @pytest.fixture(params=twins.TWINS)
    def extra_index(self, request: pytest.FixtureRequest) -> ExtraIndex:
        return BloomIndex(twins.kernels_of(request.param))


class TestSmallBloom(TestBloom):
    """The contract for a filter with one bit for each key: most lookups are false positives, but no key is missed."""

    @staticmethod
    def config() -> TopicConfig:
        return TopicConfig(sections={"bloom": BloomSection(bits_per_key=1)})


def filter_of(keys: list[bytes | None], section: BloomSection, kernels: Kernels) -> bytes:
    """Return the index of keys, each of which is added twice."""
    builder = BloomIndex(kernels).builder(TopicConfig(sections={"bloom": section}))
    for _ in range(2):
        builder.add(RecordColumns.from_records([Record(key=key) for key in keys]))
    return bytes(builder.finish())


@given(keys=st.lists(st.none() | st.binary(max_size=40), max_size=30), bits=st.integers(1, 40))
def test_both_twins_make_the_same_bytes_and_answers(keys: list[bytes | None], bits: int) -> None:
    section = BloomSection(bits_per_key=bits)
    filters = {filter_of(keys, section, kernels) for kernels in twins.twins()}
    assert len(filters) == 1
    (data,) = filters
    readers = [BloomReader(data, kernels) for kernels in twins.twins()]
    assert all(reader.may_hold_key(key) for reader in readers for key in keys if key is not None)
    for other_key in (b"", b"another", b"x" * 50):
        assert len({reader.may_hold_key(other_key) for reader in readers}) == 1


@pytest.mark.parametrize(("bits", "most"), [(10, 0.02), (20, 0.001)])
def test_few_other_keys_seem_to_be_there(bits: int, most: float) -> None:
    filter_bytes = filter_of([b"key %d" % n for n in range(2000)], BloomSection(bits_per_key=bits), twins.twins()[-1])
    assert len(filter_bytes) == pytest.approx(2000 * bits / 8, abs=10)
    reader = BloomReader(filter_bytes)
    assert sum(reader.may_hold_key(b"other %d" % number) for number in range(5000)) <= most * 5000


@pytest.mark.parametrize("count", [101, 1000])
def test_too_many_keys_get_no_filter(count: int) -> None:
    for kernels in twins.twins():
        assert filter_of([b"%d" % n for n in range(count)], BloomSection(max_keys=100), kernels) == b""
        assert filter_of([b"%d" % n for n in range(100)], BloomSection(max_keys=100), kernels)


def test_an_empty_filter_is_refused() -> None:
    """The compiled code divides by the size of the filter, and a division by 0 would end the process."""
    for kernels in twins.twins():
        with pytest.raises(ValueError, match="at least one byte"):
            kernels.may_hold(b"", b"key", 1)
        with pytest.raises(ValueError, match="at least one byte"):
            kernels.fill_filter(bytes(8), 1, 0)


def test_a_key_outside_the_arena_is_refused() -> None:
    records = RecordColumns.from_records([Record(key=b"key")])
    short_records = RecordColumns(b"ke", 1, key_position=records.key_position, key_size=records.key_size)
    for kernels in twins.twins():
        with pytest.raises(IndexError, match="a field of 3 bytes at 0 is not inside the arena"):
            kernels.hash_keys(short_records)


def test_the_bits_of_a_key_are_those_that_the_page_describes() -> None:
    """Indexes in buckets must stay readable. Other tests would pass if the reader and the writer changed together."""
    data = filter_of([b"customer-17"], BloomSection(bits_per_key=40), twins.twins()[-1])
    size, count = struct.unpack_from("<IB", data)
    h = crc32c(b"customer-17") | crc32(b"customer-17") << 32
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ h >> 33) * factor & ALL
    h ^= h >> 33
    a, b = h & 0xFFFFFFFF, h >> 32 | 1
    expected = {(a + i * b) % (8 * size) for i in range(count)}
    assert {p for p in range(8 * size) if data[5 + p // 8] >> p % 8 & 1} == expected


def test_a_lookup_reads_only_the_segments_that_may_hold_the_key(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    tier = (tmp_path / "tier").as_uri()
    config = {"index.extra": "bloom", "bloom.bits.per.key": 20, "remote.storage.enable": True}
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config=config)
        log = engine.log("t", 0)
        for segment in range(5):
            log.append([Record(key=b"%d-%d" % (segment, number), value=b"." * 5000) for number in range(50)])
            log.roll()
        (result,) = engine.make_extra_indexes()
        assert result.segments == 5
        assert [record.offset for record in log.records_with_key(b"3-7")] == [157]
        assert list(log.records_with_key(b"3-50")) == []
        engine.offload()
    with open_reader(tier) as reader:
        log_reader = reader.log("t", 0)
        answers = [
            entry.reader is not None and entry.reader.may_hold_key(b"3-7") for entry in log_reader.extra_index("bloom")
        ]
        assert answers == [False, False, False, True, False]
        assert [record.offset for record in log_reader.records_with_key(b"3-7")] == [157]
