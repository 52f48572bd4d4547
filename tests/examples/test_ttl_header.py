"""The example that stands for every stranger's cleanup policy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import ttl_header
from stratalog import Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.spi import CleanupPolicy
from stratalog.testing.contracts import CleanupPolicyContract
from ttl_header.policy import TtlHeaderPolicy

FOLDER = Path(__file__).parents[2] / "examples" / "ttl_header"
CONFIG = {"cleanup.policy": "ttl_header", "min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0}


class TestTtlHeaderPolicy(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return TtlHeaderPolicy()


def record(name: bytes, stamp_ms: int, ttl: bytes | None, header: str = "ttl-ms") -> Record:
    return Record(key=name, value=b"." * 800, timestamp_ms=stamp_ms, headers=() if ttl is None else ((header, ttl),))


def test_each_record_goes_when_its_own_time_is_over(tmp_path: Path) -> None:
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
        assert [found.key for found in log.records()] == [b"none", b"odd", b"odd", b"new"]
        assert all(spared)  # segments of which nothing has expired are not read


def test_the_header_is_the_topics_choice_and_policies_join(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_engine(tmp_path, plugins=[ttl_header], env=Env(clock=clock)) as engine:
        engine.create_topic("t", config={**CONFIG, "cleanup.policy": "compact,ttl_header", "ttl_header.name": "life"})
        log, now_ms = engine.log("t", 0), clock.now_ms()
        log.append([record(b"a", now_ms, b"10", "life"), record(b"b", now_ms, b"10"), record(b"b", now_ms, b"10")])
        log.roll()
        clock.advance_ms(10)
        engine.run_cleaner()
        assert [(found.offset, found.key) for found in log.records()] == [(2, b"b")]


def test_it_imports_the_contract_and_nothing_else_of_stratalog() -> None:
    lines = [line for path in (FOLDER / "ttl_header").glob("*.py") for line in path.read_text().splitlines()]
    imported = {line.split()[1] for line in lines if line.startswith(("import stratalog", "from stratalog"))}
    assert imported == {"stratalog.spi"}


def test_it_can_be_installed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*command, str(FOLDER)], check=True, capture_output=True)  # noqa: S603 - our own command
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {"ttl_header/__init__.py", "ttl_header/policy.py", "ttl_header/py.typed"} <= names
    assert points.split() == ["[stratalog.v1]", "ttl_header", "=", "ttl_header"]
