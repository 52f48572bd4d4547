"""The example of an extra index from another package."""

from __future__ import annotations

from pathlib import Path

import pytest

import bloom_index
from bloom_index.index import BloomIndex, BloomReader
from bloom_index.settings import BloomSection
from example_plugins import imported_of_stratalog, wheel_of
from stratalog import Record, RecordColumns, open_engine, open_reader
from stratalog.registry.plugin_check import check_plugin
from stratalog.spi import ExtraIndex, TopicConfig
from stratalog.testing.contracts import EngineContract, EngineSetup, ExtraIndexContract


def filter_of(count: int, section: BloomSection) -> bytes:
    """Return the filter of ``count`` keys, each of which is added twice."""
    builder = BloomIndex().builder(TopicConfig(sections={"bloom_index": section}))
    for _ in range(2):
        builder.add(RecordColumns.from_records([Record(key=b"key %d" % number) for number in range(count)]))
    return bytes(builder.finish())


class TestBloomIndex(ExtraIndexContract):
    @pytest.fixture
    def extra_index(self) -> ExtraIndex:
        return BloomIndex()


class TestSmallBloomIndex(TestBloomIndex):
    """The contract for a filter with one bit for each key: most lookups are false positives, but no key is missed."""

    @staticmethod
    def config() -> TopicConfig:
        return TopicConfig(sections={"bloom_index": BloomSection(bits_per_key=1)})


@pytest.mark.long
class TestBloomIndexInAnEngine(EngineContract):
    missing = "bloom_index"

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        return EngineSetup(plugins=[bloom_index], topic={"index.extra": "bloom_index"})


@pytest.mark.parametrize(("bits", "most"), [(10, 0.02), (20, 0.001)])
def test_few_other_keys_seem_to_be_there(bits: int, most: float) -> None:
    bloom_filter = filter_of(2000, BloomSection(bits_per_key=bits))
    assert len(bloom_filter) == pytest.approx(2000 * bits / 8, abs=10)
    reader = BloomReader(bloom_filter)
    assert all(reader.may_hold_key(b"key %d" % number) for number in range(2000))
    assert sum(reader.may_hold_key(b"other %d" % number) for number in range(5000)) <= most * 5000


def test_too_many_keys_get_no_filter() -> None:
    assert filter_of(100, BloomSection(max_keys=100))
    assert filter_of(101, BloomSection(max_keys=100)) == b""
    assert filter_of(1000, BloomSection(max_keys=100)) == b""


def test_a_key_is_found_without_reading_the_segments_that_lack_it(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    tier = (tmp_path / "tier").as_uri()
    config = {"index.extra": "bloom_index", "bloom_index.bits.per.key": 20, "remote.storage.enable": True}
    with open_engine(tmp_path / "data", tier=tier, plugins=[bloom_index]) as engine:
        engine.create_topic("t", config=config)
        log = engine.log("t", 0)
        for segment in range(5):
            log.append([Record(key=b"%d-%d" % (segment, number), value=b"." * 100) for number in range(50)])
            log.roll()
        (index_result,) = engine.make_extra_indexes()
        assert index_result.segments == 5
        assert [tier_log.offset for tier_log in log.records_with_key(b"3-7")] == [157]
        assert list(log.records_with_key(b"3-50")) == []
        engine.offload()
    with open_reader(tier, plugins=[bloom_index]) as reader:
        tier_log = reader.log("t", 0)
        assert [record.offset for record in tier_log.records_with_key(b"3-7")] == [157]
        answers = [
            entry.reader is not None and entry.reader.may_hold_key(b"3-7")
            for entry in tier_log.extra_index("bloom_index")
        ]
        assert answers == [False, False, False, True, False]


def test_its_structure_is_right() -> None:
    assert check_plugin(bloom_index) == []


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    assert imported_of_stratalog("bloom_index") <= {"stratalog", "stratalog.errors", "stratalog.spi"}


@pytest.mark.long
def test_it_can_be_installed(tmp_path: Path) -> None:
    names, points = wheel_of("bloom_index", tmp_path)
    assert {"bloom_index/__init__.py", "bloom_index/index.py", "bloom_index/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "bloom_index", "=", "bloom_index"]
