"""``stratalog run``: the duties that it runs, and its end."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from own_command import running_command
from stratalog import Record, open_engine

SETTINGS = """
services = ["beacon"]
"remote.log.manager.task.interval.ms" = 50
"""
BEACON = """
import sys
from stratalog.spi import Provider, Service, hookimpl

class Beacon(Service):
    def start(self, engine):
        print("lit over", len(engine.partitions()), flush=True)
    def stop(self, deadline_ns):
        print("out", flush=True)

@hookimpl
def stratalog_services():
    return [Provider(name="beacon", open=lambda context: Beacon())]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
def test_run_continues_until_a_signal(tmp_path: Path, bucket: Path, number: signal.Signals) -> None:
    tier = bucket.as_uri()
    with open_engine(tmp_path / "logs", tier=tier) as engine:
        engine.create_topic("orders")
        log = engine.log("orders", 0)
        log.append([Record(value=b"v")])
        log.roll()
    (tmp_path / "beacon.py").write_text(BEACON)
    installed = tmp_path / "beacon-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: beacon\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[stratalog.v1]\nbeacon = beacon\n")
    (tmp_path / "stratalog.toml").write_text(SETTINGS)
    arguments = ["run", "--dir", str(tmp_path / "logs"), "--tier", tier, "--config", "stratalog.toml", "--json"]
    with running_command(*arguments, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "lit over 1\n"
        process.send_signal(number)
        beacon_line, *duties = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert beacon_line == "out"
    reports = {item["duty"]: item for item in map(json.loads, duties)}
    assert {"sync", "retention", "offload"} <= set(reports)
    assert not any(item["failures"] for item in reports.values())
    assert (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
