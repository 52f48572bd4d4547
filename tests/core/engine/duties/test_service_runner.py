"""Services of an engine: selection, start, stop and failures."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ClosedError, PluginError, UnknownComponentError
from stratalog.spi import LogOpened, OpenContext, Provider, Service, hookimpl


class RecordingService(Service):
    """Service that notes its calls, and the log end at its stop. Its start appends the log's own records again."""

    def __init__(self, name: str, calls: list[str], fails: str) -> None:
        self._name, self._told, self._fails = name, calls, fails
        self._engine: Engine | None = None
        self.deadline_ns = -1

    def start(self, engine: Engine) -> None:
        self._told.append(f"start {self._name}")
        if self._fails == "start":
            raise ConnectionError("nobody answers")
        self._engine = engine
        log = engine.log("orders", 0)
        with log.fetch(0) as fetched:
            log.append_as_leader(fetched.read())

    def stop(self, deadline_ns: int) -> None:
        self.deadline_ns = deadline_ns
        end = "" if self._engine is None else f" at {self._engine.log('orders', 0).offsets().log_end}"
        self._told.append(f"stop {self._name}{end}")
        if self._fails == "stop":
            raise ConnectionError("nobody answers")


class RecordingPlugin:
    """A plugin that offers services and keeps them.

    Args:
        services: by name of the service, the method that fails: ``start``, ``stop`` or "".
    """

    def __init__(self, **services: str) -> None:
        self.told: list[str] = []
        self.made = {name: RecordingService(name, self.told, fails) for name, fails in services.items()}

    @hookimpl
    def stratalog_services(self) -> Sequence[Provider[Service]]:
        return [Provider[Service](name=name, open=partial(_given, service)) for name, service in self.made.items()]


def _given(service: RecordingService, context: OpenContext) -> RecordingService:
    del context
    return service


def opened(folder: Path, stories: RecordingPlugin, *services: str, clock: ManualClock | None = None) -> Engine:
    """Return an engine with a topic of one record."""
    env = Env() if clock is None else Env(clock=clock)
    settings = {"services": list(services), "service.stop.ms": 7000}
    engine = open_engine(folder, config=settings, plugins=[stories], env=env)
    engine.create_topic("orders")
    engine.log("orders", 0).append([Record(value=b"v")])
    return engine


def test_services_start_in_order_and_stop_before_the_logs_close(tmp_path: Path) -> None:
    stories = RecordingPlugin(first="", second="", third="")
    with opened(tmp_path, stories, "third", "first") as engine:
        assert stories.told == []
        assert engine.start() is engine.start()
        assert stories.told == ["start third", "start first"]
    assert stories.told[2:] == ["stop first at 4", "stop third at 4"]  # each start appends all records of the log again
    engine.close()
    assert len(stories.told) == 4


def test_services_are_stopped_even_if_they_never_started(tmp_path: Path) -> None:
    stories = RecordingPlugin(first="")
    opened(tmp_path, stories, "first").close()
    assert stories.told == ["stop first"]


def test_all_services_have_one_deadline_to_stop(tmp_path: Path) -> None:
    stories, clock = RecordingPlugin(first="", second=""), ManualClock()
    opened(tmp_path, stories, "first", "second", clock=clock).close()
    assert {service.deadline_ns for service in stories.made.values()} == {clock.monotonic_ns() + 7_000_000_000}


def test_a_service_that_does_not_start_is_reported(tmp_path: Path) -> None:
    stories = RecordingPlugin(good="", bad="start", later="")
    with opened(tmp_path, stories, "good", "bad", "later") as engine:
        with pytest.raises(
            PluginError, match=r"service 'bad' version 1 .*: start raised ConnectionError: nobody answers"
        ):
            engine.start()
        assert stories.told == ["start good", "start bad"]
    assert stories.told[2:] == ["stop later", "stop bad", "stop good at 2"]


def test_a_service_that_fails_to_stop_does_not_prevent_the_close(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stories = RecordingPlugin(bad="stop", good="")
    with caplog.at_level(logging.WARNING, "stratalog.engine.duties.service_runner"):
        opened(tmp_path, stories, "good", "bad").close()
    assert stories.told == ["stop bad", "stop good"]
    assert "service bad failed to stop" in caplog.text
    with open_engine(tmp_path) as reopened:
        assert reopened.log("orders", 0).offsets().log_end == 1


def test_a_service_that_no_plugin_offers_prevents_opening(tmp_path: Path) -> None:
    with pytest.raises(UnknownComponentError, match="telegraph"):
        open_engine(tmp_path, config={"services": ["telegraph"]})
    open_engine(tmp_path).close()  # the lock was released


def test_a_closed_engine_starts_no_service(tmp_path: Path) -> None:
    stories = RecordingPlugin(first="")
    engine = opened(tmp_path, stories, "first")
    engine.close()
    with pytest.raises(ClosedError):
        engine.start()
    assert stories.told == ["stop first"]


class Hanging(Service):
    """Service whose stop never returns, or calls ``sys.exit``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.exits = False

    def start(self, engine: Engine) -> None:
        del engine

    def stop(self, deadline_ns: int) -> None:
        del deadline_ns
        if self.exits:
            sys.exit(3)
        self.gate.wait()


class HangingPlugin:
    """Plugin with a service that hangs, and a listener that hangs."""

    def __init__(self) -> None:
        self.service = Hanging()

    @hookimpl
    def stratalog_services(self) -> Sequence[Provider[Service]]:
        return [Provider[Service](name="hanging", open=lambda _: self.service)]

    @hookimpl
    def stratalog_on_log_opened(self, event: LogOpened) -> None:
        del event
        self.service.gate.wait()


class OpenedLogListener:
    """Plugin that listens for opened logs."""

    def __init__(self) -> None:
        self.heard = threading.Event()

    @hookimpl
    def stratalog_on_log_opened(self, event: LogOpened) -> None:
        del event
        self.heard.set()


def test_a_service_and_a_listener_that_hang_keep_the_engine_from_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, listener = HangingPlugin(), OpenedLogListener()
    engine = open_engine(tmp_path, config={"services": ["hanging"], "service.stop.ms": 1}, plugins=[plugin, listener])
    try:
        engine.start()
        engine.create_topic("orders")
        listener.heard.wait()  # the other listener is called although the first plugin does not return
        engine.log("orders", 0).append([Record(value=b"v")])
        with caplog.at_level(logging.WARNING):
            engine.close()
    finally:
        plugin.service.gate.set()
    assert "failed to stop" in caplog.text
    assert "a listener took too long to stop and was abandoned: plugin=" in caplog.text
    with open_engine(tmp_path) as reopened:
        assert reopened.log("orders", 0).offsets().log_end == 1


def test_a_service_that_exits_ends_no_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugin = HangingPlugin()
    plugin.service.exits = True
    plugin.service.gate.set()
    with caplog.at_level(logging.WARNING, "stratalog.engine.duties.service_runner"):
        open_engine(tmp_path, config={"services": ["hanging"]}, plugins=[plugin]).close()
    assert "stop raised SystemExit: 3" in caplog.text
