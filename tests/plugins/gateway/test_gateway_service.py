from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway_bed import Wire
from stratalog import open_engine
from stratalog.env import Env
from stratalog.errors import ConfigError, PluginImportError
from stratalog.spi.service_contract import Service
from stratalog.testing.contracts import ServiceContract
from stratalog_gateway.gateway_service import GatewayService
from stratalog_gateway.security.endpoints import is_loopback
from stratalog_gateway.settings import GatewaySection


class TestGateway(ServiceContract):
    @pytest.fixture
    def service(self) -> Service:
        return GatewayService(GatewaySection(port=0), Env())


def test_the_service_answers_from_start_to_stop(tmp_path: Path) -> None:
    service = GatewayService(GatewaySection(port=0), Env())
    assert service.address == ""
    with open_engine(tmp_path) as engine:
        service.start(engine)
        with Wire(service.address) as wire:
            assert wire.ask("ApiVersions", 0).error_code == 0
            service.stop(Env().clock.monotonic_ns() + 10_000_000_000)
            assert wire.receive() is None
    assert service.address == ""


def test_an_address_that_is_taken_is_an_error(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        first = GatewayService(GatewaySection(port=0), Env())
        first.start(engine)
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match="choose a free address"):
            GatewayService(GatewaySection(port=port), Env()).start(engine)
        first.stop(Env().clock.monotonic_ns())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])  # noqa: S104 - refused
def test_an_address_that_others_reach_needs_insecure(tmp_path: Path, host: str) -> None:
    with open_engine(tmp_path) as engine, pytest.raises(ConfigError, match="not authenticated: set insecure"):
        GatewayService(GatewaySection(host=host), Env()).start(engine)
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stratalog_gateway.gateway_service", None)
    with pytest.raises(PluginImportError, match=r"pip install 'stratalog\[gateway\]'"):
        open_engine(tmp_path, config={"services": ["gateway"]})
