"""The example of an exporter: what it serves is what the engine tells."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

import exporter
from exporter import CONTENT_TYPE, Exporter, ExporterSection
from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.errors import PluginError, StorageError
from stratalog.spi import Service
from stratalog.testing.contracts import ServiceContract
from stratalog.testing.faults import FaultyVfs, failing

LINE = re.compile(r'(# (HELP|TYPE) stratalog_[a-z_]+ .+|stratalog_[a-z_]+(\{([a-z]+="[^"]*",?)+\})? \d+(\.\d+)?)\Z')
FIXED = re.compile(r"(stratalog_log_end_offset|stratalog_log_dir_offline|stratalog_logs)\b")


@pytest.fixture
def files() -> FaultyVfs:
    return FaultyVfs()


@pytest.fixture
def engine(tmp_path: Path, files: FaultyVfs) -> Iterator[Engine]:
    with open_engine(tmp_path / "logs", env=Env(files=files)) as made:
        made.create_topic("orders", partitions=2)
        made.log("orders", 0).append([Record(value=b"v")])
        yield made


@pytest.fixture
def service(engine: Engine) -> Iterator[Exporter]:
    made = Exporter(ExporterSection(port=0))
    made.start(engine)
    yield made
    made.stop(0)


def get(port: int, path: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_the_metrics_are_the_engines(service: Exporter, engine: Engine) -> None:
    status, kind, text = get(service.port, "/metrics")
    assert (status, kind) == (200, CONTENT_TYPE)
    assert [line for line in text.splitlines() if not LINE.match(line)] == []
    expected = [line for line in engine.metrics_text().splitlines() if FIXED.match(line)]
    assert len(expected) > 3
    assert set(expected) <= set(text.splitlines())
    assert 'stratalog_log_end_offset{topic="orders",partition="0"} 1' in text


def test_an_engine_is_well_until_something_is_wrong(service: Exporter, engine: Engine, files: FaultyVfs) -> None:
    assert get(service.port, "/healthy")[::2] == (200, "well\n")
    files.rule = failing("sync", errno.EIO)
    with pytest.raises(StorageError):
        engine.log("orders", 1).append([Record(value=b"x")], durability="durable")
    files.rule = None
    status, _, text = get(service.port, "/healthy")
    assert status == 503
    assert 'stratalog_log_failed{topic="orders",partition="1"} 1' in text


def test_there_is_nothing_else(service: Exporter) -> None:
    assert get(service.port, "/")[0] == 404


def test_a_silent_guest_holds_up_no_stop(service: Exporter) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 30) as silent:
        assert get(service.port, "/healthy")[0] == 200
        port = service.port
        service.stop(0)
        silent.close()
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthy")


def test_a_port_that_is_taken_is_reported_when_it_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"services": ["exporter"], "plugins": {"exporter": {"port": taken.getsockname()[1]}}}
        with (
            open_engine(tmp_path / "logs", config=settings, plugins=[exporter]) as engine,
            pytest.raises(PluginError, match=r"service 'exporter' version 1 .*: start raised OSError"),
        ):
            engine.start()


class TestExporter(ServiceContract):
    @pytest.fixture
    def service(self) -> Service:
        return Exporter(ExporterSection(port=0))
