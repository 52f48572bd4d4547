"""The example of a policy that works on columns."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import arrow_latest
from arrow_latest import ArrowLatest
from example_plugins import imported_of_stratalog, wheel_of
from stratalog import Record, open_engine
from stratalog.spi import CleanupPolicy
from stratalog.testing.contracts import CleanupPolicyContract

CONFIG = {"min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0, "delete.retention.ms": 0, "segment.bytes": 4096}


class TestArrowLatest(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return ArrowLatest(pa)


def records() -> list[Record]:
    chance = random.Random(5)  # noqa: S311 - the same in every run
    keys = [b"", *(b"k%d" % n for n in range(20))]
    return [Record(timestamp_ms=n, key=chance.choice(keys), value=chance.choice([None, b"v" * 50])) for n in range(300)]


def test_it_keeps_what_compact_keeps(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[arrow_latest]) as engine:
        kept_records = []
        for policy in ("compact", "arrow_latest"):
            engine.create_topic(policy, config={**CONFIG, "cleanup.policy": policy})
            log = engine.log(policy, 0)
            for record in records():
                log.append([record])
            log.roll()
            log.append([Record(timestamp_ms=400, key=b"active", value=b"v")])
            for result in engine.run_cleaner():
                assert result.error is None
            kept_records.append([(record.offset, record.key, record.value) for record in log.records()])
        assert kept_records[0] == kept_records[1]
        assert len(kept_records[0]) < 30


def test_keys_that_need_too_much_memory_lose_no_record(tmp_path: Path) -> None:
    settings = {"log.cleaner.dedupe.buffer.size": 4096, "log.cleaner.threads": 1}
    with open_engine(tmp_path, plugins=[arrow_latest], config=settings) as engine:
        engine.create_topic("t", config={**CONFIG, "cleanup.policy": "arrow_latest", "segment.bytes": 1 << 20})
        log = engine.log("t", 0)
        log.append(records())
        log.roll()
        (result,) = engine.run_cleaner()
        assert "log.cleaner.dedupe.buffer.size" in str(result.error)
        assert len(list(log.records())) == 300


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    assert imported_of_stratalog("arrow_latest") <= {"stratalog", "stratalog.errors", "stratalog.spi"}


@pytest.mark.long
def test_it_can_be_installed(tmp_path: Path) -> None:
    names, points = wheel_of("arrow_latest", tmp_path)
    assert {"arrow_latest/__init__.py", "arrow_latest/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "arrow_latest", "=", "arrow_latest"]
