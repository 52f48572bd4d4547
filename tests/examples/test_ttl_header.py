"""The example of a cleanup policy from another package."""

from __future__ import annotations

from pathlib import Path

import pytest

import ttl_header
from example_plugins import imported_of_stratalog, wheel_of
from stratalog import Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.spi import CleanupPolicy
from stratalog.testing.contracts import CleanupPolicyContract, EngineContract, EngineSetup
from ttl_header.policy import TtlHeaderPolicy

CONFIG = {"cleanup.policy": "ttl_header", "min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0}


class TestTtlHeaderPolicy(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return TtlHeaderPolicy()


@pytest.mark.long
class TestTtlHeaderInAnEngine(EngineContract):
    missing = "no cleanup policy 'ttl_header'"

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        return EngineSetup(plugins=[ttl_header], topic={"cleanup.policy": "ttl_header,delete"})


def record(name: bytes, stamp_ms: int, ttl: bytes | None, header: str = "ttl-ms") -> Record:
    return Record(key=name, value=b"." * 800, timestamp_ms=stamp_ms, headers=() if ttl is None else ((header, ttl),))


def test_each_record_is_dropped_when_its_own_time_is_over(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_engine(tmp_path, plugins=[ttl_header], env=Env(clock=clock)) as engine:
        engine.create_topic("t", config={**CONFIG, "segment.bytes": 1000})
        log, now_ms = engine.log("t", 0), clock.now_ms()
        for name, ttl in ((b"short", b"1000"), (b"long", b"5000"), (b"none", None), (b"odd", b"soon"), (b"odd", b"-5")):
            log.append([record(name, now_ms, ttl)])
            log.roll()
        engine.run_cleaner()
        assert len(list(log.records())) == 5
        spared = []
        for moment_ms in (1000, 1000, 3000):
            clock.advance_ms(moment_ms)
            log.append([record(b"new", clock.now_ms(), b"1")])
            log.roll()
            (result,) = engine.run_cleaner()
            assert result.error is None
            spared.append(result.stats.segments_spared)
        assert [log_record.key for log_record in log.records()] == [b"none", b"odd", b"odd", b"new"]
        assert all(spared)  # segments without an expired record are not read


def test_the_header_is_the_topics_choice_and_policies_join(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_engine(tmp_path, plugins=[ttl_header], env=Env(clock=clock)) as engine:
        engine.create_topic("t", config={**CONFIG, "cleanup.policy": "compact,ttl_header", "ttl_header.name": "life"})
        log, now_ms = engine.log("t", 0), clock.now_ms()
        log.append([record(b"a", now_ms, b"10", "life"), record(b"b", now_ms, b"10"), record(b"b", now_ms, b"10")])
        log.roll()
        clock.advance_ms(10)
        engine.run_cleaner()
        assert [(log_record.offset, log_record.key) for log_record in log.records()] == [(2, b"b")]


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    assert imported_of_stratalog("ttl_header") <= {"stratalog", "stratalog.errors", "stratalog.spi"}


@pytest.mark.long
def test_it_can_be_installed(tmp_path: Path) -> None:
    names, points = wheel_of("ttl_header", tmp_path)
    assert {"ttl_header/__init__.py", "ttl_header/policy.py", "ttl_header/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "ttl_header", "=", "ttl_header"]
