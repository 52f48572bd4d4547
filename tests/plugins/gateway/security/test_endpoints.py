from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gateway_bed import served
from stratalog import open_engine
from stratalog.env import Env
from stratalog.errors import ConfigError
from stratalog_gateway.gateway_service import GatewayService
from stratalog_gateway.settings import GatewaySection


def test_listeners_have_names_protocols_and_addresses_of_their_own() -> None:
    endpoints = GatewaySection(
        listeners=("INTERNAL://[::1]:9092", "SASL_SSL://:9093"),
        advertised_listeners=("SASL_SSL://kafka.example.org:443",),
        protocol_map=("internal:plaintext",),
    ).endpoints()
    assert [endpoint.uri for endpoint in endpoints] == ["INTERNAL://[::1]:9092", "SASL_SSL://kafka.example.org:443"]
    assert [(endpoint.host, endpoint.protocol) for endpoint in endpoints] == [
        ("::1", "PLAINTEXT"),
        ("0.0.0.0", "SASL_SSL"),  # noqa: S104 - not used
    ]


@pytest.mark.parametrize(
    ("listeners", "advertised", "reason"),
    [
        (("127.0.0.1:9092",), (), "not of the form NAME://HOST:PORT"),
        (("SSL://127.0.0.1:99999",), (), "not of the form NAME://HOST:PORT"),
        (("SSL://::1:9092",), (), "not of the form NAME://HOST:PORT"),
        (("OTHER://127.0.0.1:9092",), (), "add OTHER:PROTOCOL to listener.security.protocol.map"),
        (("SSL://127.0.0.1:1", "ssl://127.0.0.1:2"), (), "SSL is used twice"),
        (("SSL://127.0.0.1:1",), ("SASL_SSL://a:1",), "no listener is named SASL_SSL"),
    ],
)
def test_a_wrong_listener_is_named(listeners: tuple[str, ...], advertised: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        GatewaySection(listeners=listeners, advertised_listeners=advertised).endpoints()


@pytest.mark.parametrize(
    ("listener", "client_auth", "needs"),
    [
        ("PLAINTEXT://10.0.0.1:1", "none", True),
        ("SSL://10.0.0.1:1", "requested", True),
        ("SSL://10.0.0.1:1", "required", False),
        ("SASL_PLAINTEXT://10.0.0.1:1", "none", False),
        ("SASL_SSL://10.0.0.1:1", "none", False),
        ("PLAINTEXT://127.0.0.1:1", "none", False),
    ],
)
def test_only_a_listener_without_authentication_that_others_reach_needs_insecure(
    listener: str, client_auth: str, *, needs: bool
) -> None:
    section = GatewaySection(listeners=("PLAINTEXT://127.0.0.1:0", listener), client_auth=client_auth, protocol_map=())
    if listener.startswith("PLAINTEXT"):
        section = GatewaySection(listeners=(listener,), client_auth=client_auth)
    assert bool(section.contradiction()) == needs


def test_clients_are_given_the_address_of_their_listener(tmp_path: Path) -> None:
    listeners = ("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.1:0")
    with served(tmp_path, listeners=listeners, protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT")) as gateway:
        for name in ("INSIDE", "OUTSIDE"):
            with gateway.wire(name) as wire:
                [broker] = wire.ask("Metadata", 1, topics=None).brokers
                coordinator = wire.ask("FindCoordinator", 1, key="g", key_type=0)
                [described_broker] = wire.ask("DescribeCluster", 0, include_cluster_authorized_operations=False).brokers
            assert {f"{node.host}:{node.port}" for node in (broker, coordinator, described_broker)} == {
                gateway.addresses[name]
            }
        assert gateway.addresses["INSIDE"] == gateway.bootstrap != gateway.addresses["OUTSIDE"]


@pytest.mark.parametrize("host", ["0.0.0.0", "0:0::0"])  # noqa: S104 - refused
def test_an_unspecified_address_is_not_advertised(tmp_path: Path, host: str) -> None:
    section = GatewaySection(host=host, port=0, insecure=True)
    with open_engine(tmp_path) as engine, pytest.raises(ConfigError, match=r"set advertised\.host"):
        GatewayService(section, Env()).start(engine)
    dataclasses.replace(section, advertised_host="kafka.example.org").check_advertised()
