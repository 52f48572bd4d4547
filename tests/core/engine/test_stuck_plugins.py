"""Calls of plugins have a time limit: when an engine or a reader opens, when a service starts, at first use."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from stratalog import Engine, Record, open_engine, open_reader
from stratalog.errors import PluginError
from stratalog.spi import Codec, OpenContext, Provider, SegmentStore, Service, hookimpl
from stratalog_local.store import LocalStore


class Stuck(Service):
    """Plugin whose segment store and codec do not open, and whose service does not start, until the test ends."""

    def __init__(self) -> None:
        self.gate, self.opening, self.stuck_hook = threading.Event(), threading.Event(), False

    def open_store(self, context: OpenContext) -> NoReturn:
        self.gate.wait()
        raise ZeroDivisionError(context.location)

    def open_codec(self, context: OpenContext) -> NoReturn:
        self.opening.set()
        self.open_store(context)

    def start(self, engine: Engine) -> None:
        del engine
        self.gate.wait()

    def stop(self, deadline_ns: int) -> None: ...

    @hookimpl
    def stratalog_segment_stores(self) -> Sequence[Provider[SegmentStore]]:
        if self.stuck_hook:
            self.gate.wait()
        return [Provider(name="stuck", schemes=frozenset({"stuck"}), open=self.open_store)]

    @hookimpl
    def stratalog_codecs(self) -> Sequence[Provider[Codec]]:
        return [Provider(name="stuck", open=self.open_codec)]

    @hookimpl
    def stratalog_services(self) -> Sequence[Provider[Service]]:
        return [Provider(name="stuck", open=lambda _: self)]


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    plugin = Stuck()
    yield plugin
    plugin.gate.set()


SHORT = {"plugin.deadline.ms": 500}


@pytest.mark.parametrize("opened", [open_engine, open_reader])
def test_a_store_that_does_not_open_is_named(opened: Callable[..., object], stuck: Stuck) -> None:
    with pytest.raises(
        PluginError, match=r"segment store 'stuck' version 1 \(plugin .*Stuck\): open did not return in"
    ):
        opened("stuck://there", plugins=[stuck], config=SHORT)


def test_a_hook_that_does_not_return_is_named(tmp_path: Path, stuck: Stuck) -> None:
    stuck.stuck_hook = True
    with pytest.raises(PluginError, match=r"stratalog_segment_stores of plugin '.*Stuck' failed.*did not return in"):
        open_reader(tmp_path, plugins=[stuck], config=SHORT)


@pytest.mark.parametrize("opened", [open_engine, open_reader])
def test_an_import_that_does_not_return_is_named(
    opened: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    name = f"stuck_{opened.__name__}"  # the module is imported again each time
    (tmp_path / f"{name}.py").write_text("import threading\nthreading.stuck_gate.wait()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(threading, "stuck_gate", stuck.gate, raising=False)
    with pytest.raises(PluginError, match=f"plugin module '{name}': the import did not return in"):
        opened(tmp_path / "data", config={**SHORT, "plugins.modules": name})


def test_an_installed_plugin_whose_import_does_not_return_is_left_out(
    tmp_path: Path,
    install_distribution: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    stuck: Stuck,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = "import threading\nthreading.stuck_gate.wait()\n"
    install_distribution("acme-dist", entry_points={"acme": "stuck_acme"}, modules={"stuck_acme": source})
    monkeypatch.setattr(threading, "stuck_gate", stuck.gate, raising=False)
    with open_engine(tmp_path, config=SHORT) as engine:
        engine.create_topic("t")
    assert "of acme-dist 1.0: the import did not return in" in caplog.text


def test_a_service_that_does_not_start_is_named(tmp_path: Path, stuck: Stuck) -> None:
    config = {"plugin.deadline.ms": 500, "service.stop.ms": 1, "services": "stuck"}
    with (
        open_engine(tmp_path, plugins=[stuck], config=config) as engine,
        pytest.raises(PluginError, match=r"service 'stuck' version 1 \(plugin .*Stuck\): start did not return in"),
    ):
        engine.start()


def test_a_codec_that_does_not_open_is_named_at_its_first_use_and_the_next_use_does_not_wait(
    tmp_path: Path, stuck: Stuck
) -> None:
    with open_engine(tmp_path, plugins=[stuck], config=SHORT) as engine:
        engine.create_topic("t", config={"compression.type": "stuck"})
        for _ in range(2):
            with pytest.raises(
                PluginError, match=r"codec 'stuck' version 1 \(plugin .*Stuck\): open did not return in"
            ):
                engine.log("t", 0).append([Record(value=b"v")])


def test_components_of_other_kinds_open_while_one_does_not(tmp_path: Path, stuck: Stuck) -> None:
    errors: list[PluginError] = []

    def append() -> None:
        try:
            engine.log("t", 0).append([Record(value=b"v")])
        except PluginError as error:
            errors.append(error)

    with open_engine(tmp_path, plugins=[stuck], config={"plugin.deadline.ms": 60_000}) as engine:
        engine.create_topic("t", config={"compression.type": "stuck"})
        thread = threading.Thread(target=append)
        thread.start()
        assert stuck.opening.wait(60)
        engine.create_topic("other", config={"index.extra": "bloom", "cleanup.policy": "compact"})
        assert engine.log("other", 0).append([Record(key=b"k", value=b"v")]).base_offset == 0
        assert thread.is_alive()
        stuck.gate.set()
        thread.join()
    assert "raised ZeroDivisionError" in str(errors)


@pytest.mark.parametrize("opened", [open_engine, open_reader])
def test_a_store_that_opens_too_late_is_closed(opened: Callable[..., object], tmp_path: Path) -> None:
    gate, closed = threading.Event(), threading.Event()

    class LateStore(LocalStore):
        def close(self) -> None:
            super().close()
            closed.set()

    def open_late(context: OpenContext) -> SegmentStore:
        gate.wait(60)
        return LateStore(dataclasses.replace(context, location=str(tmp_path)))

    class Late:
        @hookimpl
        def stratalog_segment_stores(self) -> Sequence[Provider[SegmentStore]]:
            return [Provider(name="late", schemes=frozenset({"late"}), open=open_late)]

    with pytest.raises(PluginError, match="open did not return in"):
        opened("late://there", plugins=[Late()], config=SHORT)
    assert not closed.is_set()
    gate.set()
    assert closed.wait(60)
