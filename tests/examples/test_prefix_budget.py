"""The example of a policy that observes the whole log, in the tier and on local disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

import prefix_budget
from example_plugins import imported_of_stratalog, wheel_of
from prefix_budget import PrefixBudget, PrefixBudgetSection
from stratalog import Engine, Log, Record, open_engine
from stratalog.spi import CleanupPolicy, Section
from stratalog.testing.contracts import CleanupPolicyContract, EngineContract, EngineSetup

CONFIG = {
    "cleanup.policy": "prefix_budget",
    "prefix_budget.records": 3,
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
}

TIERED = {
    "cleanup.policy": "prefix_budget,delete",
    "retention.ms": -1,
    "remote.storage.enable": True,
    "local.retention.bytes": 0,
}


class TestPrefixBudget(CleanupPolicyContract):
    sections: ClassVar[Mapping[str, Section]] = {"prefix_budget": PrefixBudgetSection(records=2)}

    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return PrefixBudget()


@pytest.mark.long
class TestPrefixBudgetInAnEngine(EngineContract):
    missing = "no cleanup policy 'prefix_budget'"

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        topic = {"cleanup.policy": "prefix_budget,delete", "prefix_budget.records": 1_000_000}
        return EngineSetup(plugins=[prefix_budget], topic=topic)


def append(log: Log, *keys: bytes) -> None:
    log.append([Record(key=key, value=b"v") for key in keys])
    log.roll()


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


def cleaned(engine: Engine) -> None:
    for result in engine.run_cleaner():
        assert result.error is None


def test_the_newest_records_of_each_prefix_stay(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[prefix_budget]) as engine:
        engine.create_topic("t", config=CONFIG)
        log = engine.log("t", 0)
        append(log, b"a/1", b"a/1", b"b/1", b"a/2")
        append(log, b"a/3", b"b/2", b"c")
        cleaned(engine)
        assert offsets(log) == [1, 2, 3, 4, 5, 6]


def test_records_in_the_tier_count_with_those_on_local_disk(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path / 'tier'}", plugins=[prefix_budget]) as engine:
        engine.create_topic("t", config={**CONFIG, **TIERED})
        log = engine.log("t", 0)
        append(log, b"a/1", b"a/2", b"b/1", b"b/2")
        engine.offload()
        engine.apply_retention()
        assert log.offsets().local_log_start == 4
        log.append([Record(key=b"a/3", value=b"v"), Record(key=b"a/4", value=b"v")])  # in the active segment
        (preview,) = [engine.preview_cleaner(plan) for plan in engine.plan_cleaner() if plan.part == "tier"]
        assert preview is not None
        assert offsets(log) == [0, 1, 2, 3, 4, 5], "a preview changes nothing"
        assert preview.segments[0].bytes_after < preview.segments[0].bytes_before
        cleaned(engine)
        assert offsets(log) == [1, 2, 3, 4, 5]


def test_a_filter_without_memory_says_which_setting_to_raise(tmp_path: Path) -> None:
    settings = {"log.cleaner.dedupe.buffer.size": 4096, "log.cleaner.threads": 1}
    with open_engine(tmp_path, plugins=[prefix_budget], config=settings) as engine:
        engine.create_topic("t", config=CONFIG)
        append(engine.log("t", 0), *(b"%d/" % number for number in range(100)))
        (result,) = engine.run_cleaner()
        assert "log.cleaner.dedupe.buffer.size" in str(result.error)
        assert len(offsets(engine.log("t", 0))) == 100


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    assert imported_of_stratalog("prefix_budget") <= {"stratalog", "stratalog.errors", "stratalog.spi"}


@pytest.mark.long
def test_it_can_be_installed(tmp_path: Path) -> None:
    names, points = wheel_of("prefix_budget", tmp_path)
    assert {"prefix_budget/__init__.py", "prefix_budget/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "prefix_budget", "=", "prefix_budget"]
