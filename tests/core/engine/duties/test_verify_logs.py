"""``Engine.verify`` checks both tiers of a running engine, and restores objects of the tier from local disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from stratalog import Engine, Record, TopicPartition, open_engine
from stratalog.segment.components import Components
from stratalog.segment.finding import FindingKind
from stratalog.segment.segment import Segment
from stratalog.segment.segment_check import StoredIndex, read_stored_indexes
from stratalog.spi.indexes import IndexRole

NAME = TopicPartition("orders", 0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Yield an engine with three closed segments in both tiers, and an active segment."""
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "data", tier=(tmp_path / "bucket").as_uri()) as new_engine:
        new_engine.create_topic("orders", config={"index.interval.bytes": 0, "retention.ms": -1})
        log = new_engine.log("orders", 0)
        for number in range(3):
            log.append([Record(timestamp_ms=1000 + number, value=bytes([number]) * 300)] * 2)
            log.append([Record(timestamp_ms=1000 + number, value=b"second")])
            log.roll()
        new_engine.offload()
        log.append([Record(value=b"active")])
        yield new_engine


def objects(folder: Path) -> list[Path]:
    return sorted(folder.glob("bucket/orders-*/0/segments/*"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_sound_log_has_no_findings_and_each_closed_segment_is_checked_in_both_tiers(engine: Engine) -> None:
    (result,) = engine.verify(deep=True)
    assert (result.log, result.segments, result.repairs, result.ok) == (NAME, 6, (), True)


def test_damage_of_closed_local_segments_is_found_while_the_log_is_written(engine: Engine, tmp_path: Path) -> None:
    flip(tmp_path / "data" / "orders-0" / f"{3:020}.log", 80)
    flip(tmp_path / "data" / "orders-0" / f"{0:020}.index", 7)
    engine.log("orders", 0).append([Record(value=b"more")])
    (result,) = engine.verify()
    assert [repair.finding.kind for repair in result.repairs] == [FindingKind.INDEX, FindingKind.DAMAGE]
    assert not result.ok
    assert not any(repair.done for repair in result.repairs)


def test_damaged_objects_are_restored_from_local_disk_only_with_repair(engine: Engine, tmp_path: Path) -> None:
    first, second, _ = objects(tmp_path)
    before = first.read_bytes(), second.read_bytes()
    flip(first, 100)
    second.unlink()
    (damaged,) = engine.verify(deep=True)
    assert [repair.finding.kind for repair in damaged.repairs] == [FindingKind.LOG, FindingKind.MISSING]
    assert not damaged.ok
    (repaired,) = engine.verify([NAME], deep=True, repair=True)
    assert [repair.done for repair in repaired.repairs] == ["put back", "put back"]
    assert repaired.ok
    assert (first.read_bytes(), second.read_bytes()) == before
    assert engine.verify(deep=True)[0].repairs == ()


def test_an_object_without_a_sound_local_copy_stays_as_it_is(engine: Engine, tmp_path: Path) -> None:
    first = objects(tmp_path)[0]
    flip(first, 100)
    flip(tmp_path / "data" / "orders-0" / f"{0:020}.log", 80)
    damaged = first.read_bytes()
    (result,) = engine.verify(deep=True, repair=True)
    assert [repair.done for repair in result.repairs] == ["", ""]
    assert f"{0:020}.log" in result.repairs[-1].failure
    assert first.read_bytes() == damaged


def test_an_engine_without_a_tier_checks_local_disk(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append([Record(value=b"v")])
        log.roll()
        assert [(result.segments, result.ok) for result in engine.verify(repair=True)] == [(1, True)]


def test_a_segment_that_retention_deletes_during_the_check_is_not_reported(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = engine.log("orders", 0)

    def after_deletion(
        segment: Segment, components: Components, names: Collection[str]
    ) -> dict[IndexRole, StoredIndex]:
        log.delete_records(3)
        engine.apply_retention()
        return read_stored_indexes(segment, components, names)

    monkeypatch.setattr("stratalog.engine.duties.verify_logs.read_stored_indexes", after_deletion)
    (result,) = engine.verify()
    assert (result.segments, result.repairs) == (4, ())
