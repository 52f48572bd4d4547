"""An engine does not wait for a plugin without limit: neither to open nor to start."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from stratalog import Engine, open_engine
from stratalog.errors import PluginError
from stratalog.spi import OpenContext, Provider, SegmentStore, Service, hookimpl


class Stuck(Service):
    """A segment store that does not open, and a service that does not start, until the test ends."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def open_store(self, context: OpenContext) -> NoReturn:
        self.gate.wait()
        raise ZeroDivisionError(context.location)

    def start(self, engine: Engine) -> None:
        del engine
        self.gate.wait()

    def stop(self, deadline_ns: int) -> None: ...

    @hookimpl
    def stratalog_segment_stores(self) -> Sequence[Provider[SegmentStore]]:
        return [Provider(name="stuck", schemes=frozenset({"stuck"}), open=self.open_store)]

    @hookimpl
    def stratalog_services(self) -> Sequence[Provider[Service]]:
        return [Provider(name="stuck", open=lambda _: self)]


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.gate.set()


def test_a_store_that_does_not_open_is_named(stuck: Stuck) -> None:
    with pytest.raises(
        PluginError, match=r"segment store 'stuck' version 1 \(plugin .*Stuck\): open did not return in"
    ):
        open_engine("stuck://there", plugins=[stuck], config={"plugin.deadline.ms": 1})


def test_a_service_that_does_not_start_is_named(tmp_path: Path, stuck: Stuck) -> None:
    config = {"plugin.deadline.ms": 500, "service.stop.ms": 1, "services": "stuck"}
    with (
        open_engine(tmp_path, plugins=[stuck], config=config) as engine,
        pytest.raises(PluginError, match=r"service 'stuck' version 1 \(plugin .*Stuck\): start did not return in"),
    ):
        engine.start()
