"""Check of a tier in parts: one process lists the objects, and several tasks check them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from stratalog import Record, TopicPartition, open_engine
from stratalog.errors import ConfigError, UnknownTopicError
from stratalog.reading import CheckPlan, Finding, ReadSource, check, plan_checks
from stratalog.segment.finding import FindingKind


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Return the folder of a tier with two topics of one partition, with several segments each."""
    folder = tmp_path / "tier"
    folder.mkdir()
    with open_engine(tmp_path / "data", tier=folder.as_uri()) as engine:
        for topic in ("orders", "payments"):
            engine.create_topic(topic, config={"segment.bytes": 3_000})
            for number in range(10):
                engine.log(topic, 0).append([Record(key=b"%d" % number, value=bytes(100))] * 10)
            engine.log(topic, 0).roll()
        engine.offload()
    return folder


def found(folder: Path, plan: CheckPlan) -> list[Finding]:
    source = ReadSource(folder.as_uri())
    sent_jobs = [pickle.loads(pickle.dumps(work)) for work in plan.checks]  # noqa: S301 - made just now
    looked = [item for work in sent_jobs for _, items in check(source, work) for item in items]
    return [*plan.found, *looked]


def objects(folder: Path, topic: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*.seg") if path.relative_to(folder).parts[0].startswith(topic))


def test_a_whole_tier_has_nothing_wrong_and_each_segment_is_looked_into_once(tier: Path) -> None:
    plan = plan_checks(ReadSource(tier.as_uri()), checks=3)
    assert found(tier, plan) == []
    assert plan.logs == (TopicPartition("orders", 0), TopicPartition("payments", 0))
    segments = [(log, segment.info.base_offset) for work in plan.checks for log, _, segment in work.segments]
    assert len(segments) == len(set(segments)) == len(objects(tier, ""))


@pytest.mark.long
def test_damage_is_found_at_any_place(tier: Path) -> None:
    first, second = objects(tier, "orders")[:2]
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    second.unlink()
    objects(tier, "payments")[0].write_bytes(b"short")
    findings = found(tier, plan_checks(ReadSource(tier.as_uri())))
    flaws = {(item.log and item.log.topic, Path(item.place).name): item.kind for item in findings}
    assert flaws["orders", first.name] is FindingKind.LOG
    assert flaws["orders", second.name] is FindingKind.MISSING
    assert any(item.log == TopicPartition("payments", 0) and item.kind is FindingKind.SIZE for item in findings)


def test_records_are_read_only_if_asked_for(tier: Path) -> None:
    damaged = objects(tier, "orders")[0]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    plan = plan_checks(ReadSource(tier.as_uri()), deep=False)
    assert found(tier, plan) == []
    assert not any(work.deep for work in plan.checks)


def test_topics_are_chosen_by_name(tier: Path) -> None:
    objects(tier, "payments")[0].unlink()
    source = ReadSource(tier.as_uri())
    assert found(tier, plan_checks(source, topics=["orders"])) == []
    with pytest.raises(UnknownTopicError, match="strangers"):
        plan_checks(source, topics=["orders", "strangers"])


def test_a_directory_or_an_earlier_state_is_refused(tier: Path) -> None:
    with pytest.raises(ConfigError, match="give its URI"):
        plan_checks(ReadSource(str(tier)))
    with pytest.raises(ConfigError, match="without as_of"):
        plan_checks(ReadSource(tier.as_uri(), as_of=1))


def test_a_number_of_checks_below_1_is_refused(tier: Path) -> None:
    with pytest.raises(ConfigError, match="checks"):
        plan_checks(ReadSource(tier.as_uri()), checks=0)
