"""Requests and responses of DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, Wire, part, served

QUOTAS = (
    {"user": "alice", "client-id": "reports", "consumer_byte_rate": 1000},
    {"user": "alice", "producer_byte_rate": 500, "consumer_byte_rate": 600},
    {"client-id": "<default>", "producer_byte_rate": 10},
    {"ip": "10.0.0.1", "connection_creation_rate": 20},
)
EXACT, DEFAULT, ANY = 0, 1, 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quotas.json"
    path.write_text(json.dumps({"version": 1, "quotas": QUOTAS}))
    return path


@pytest.fixture
def limited(tmp_path: Path, file: Path) -> Iterator[Served]:
    with served(tmp_path / "logs", quotas_file=str(file)) as gateway:
        yield gateway


def component(kind: str, match_type: int, match: str | None = None) -> Any:
    return part("DescribeClientQuotas", 1, "ComponentData", entity_type=kind, match_type=match_type, match=match)


def described(wire: Wire, *components: Any, strict: bool = False) -> list[dict[str, Any]]:
    response = wire.ask("DescribeClientQuotas", 1, components=components, strict=strict)
    assert (response.error_code, response.error_message) == (0, "")
    return [
        {entity.entity_type: entity.entity_name for entity in entry.entity}
        | {limit.key: limit.value for limit in entry.values}
        for entry in response.entries
    ]


def entry(entity: dict[str, str | None], **limits: float | None) -> Any:
    """Return the change of an entity's limits; None removes a limit."""
    return part(
        "AlterClientQuotas", 1, "EntryData",
        entity=tuple(
            part("AlterClientQuotas", 1, "EntityData", entity_type=kind, entity_name=name) for kind, name in entity.items()
        ),
        ops=tuple(
            part("AlterClientQuotas", 1, "OpData", key=key, value=value or 0.0, remove=value is None)
            for key, value in limits.items()
        ),
    )  # fmt: skip


def altered(wire: Wire, *entries: Any, validate_only: bool = False) -> list[int]:
    response = wire.ask("AlterClientQuotas", 1, entries=entries, validate_only=validate_only)
    return [result.error_code for result in response.entries]


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ((), False, [0, 1, 2, 3]),
        ((("user", EXACT, "alice"),), False, [0, 1]),
        ((("user", EXACT, "alice"),), True, [1]),
        ((("user", ANY, None), ("client-id", ANY, None)), True, [0]),
        ((("client-id", DEFAULT, None),), False, [2]),
        ((("client-id", EXACT, "reports"),), True, []),
        ((("ip", ANY, None),), False, [3]),
    ],
)
def test_a_filter_selects_as_in_kafka(
    limited: Served, components: tuple[tuple[str, int, str | None], ...], expected: list[int], *, strict: bool
) -> None:
    with limited.wire() as wire:
        quotas = described(wire, *(component(*fields) for fields in components), strict=strict)
    expected_quotas = [
        {name: None if value == "<default>" else value for name, value in QUOTAS[n].items()} for n in expected
    ]
    assert quotas == expected_quotas


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ((("color", ANY, None),), 35),
        ((("user", ANY, None), ("user", ANY, None)), 42),
        ((("user", 3, None),), 42),
        ((("user", EXACT, None),), 42),
        ((("user", DEFAULT, "alice"),), 42),
        ((("user", ANY, None), ("ip", ANY, None)), 42),
    ],
)
def test_a_wrong_filter_is_refused(
    limited: Served, components: tuple[tuple[str, int, str | None], ...], code: int
) -> None:
    with limited.wire() as wire:
        response = wire.ask(
            "DescribeClientQuotas", 1, components=tuple(component(*fields) for fields in components), strict=False
        )
    assert (response.error_code, response.entries) == (code, None)


def test_limits_are_set_and_removed_in_the_file(limited: Served, file: Path) -> None:
    with limited.wire() as wire:
        changes = (
            entry({"user": "bob"}, producer_byte_rate=7.5),
            entry({"user": "alice"}, producer_byte_rate=None, consumer_byte_rate=700),
            entry({"client-id": None}, producer_byte_rate=None),
        )
        assert altered(wire, *changes, validate_only=True) == [0, 0, 0]
        assert json.loads(file.read_text())["quotas"] == list(QUOTAS)
        assert altered(wire, *changes) == [0, 0, 0]
        assert described(wire, component("user", EXACT, "bob")) == [{"user": "bob", "producer_byte_rate": 7.5}]
    assert json.loads(file.read_text())["quotas"] == [
        QUOTAS[0],
        {"user": "alice", "consumer_byte_rate": 700},
        QUOTAS[3],
        {"user": "bob", "producer_byte_rate": 7.5},
    ]


def test_all_forms_of_an_address_name_the_same_quota(limited: Served) -> None:
    short, long = "::1", "0:0:0:0:0:0:0:1"
    with limited.wire() as wire:
        assert altered(wire, entry({"ip": long}, connection_creation_rate=5)) == [0]
        assert described(wire, component("ip", EXACT, long)) == [{"ip": short, "connection_creation_rate": 5}]
        assert described(wire, component("ip", EXACT, "localhost")) == []
        assert altered(wire, entry({"ip": short}, connection_creation_rate=None)) == [0]
        assert described(wire, component("ip", EXACT, short)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        entry({}, producer_byte_rate=1),
        entry({"color": "red"}, producer_byte_rate=1),
        entry({"user": ""}, producer_byte_rate=1),
        entry({"user": "x", "ip": "::1"}, producer_byte_rate=1),
        entry({"user": "x"}, connection_creation_rate=1),
        entry({"user": "x"}, request_percentage=1),
        entry({"user": "x"}, producer_byte_rate=-1),
        entry({"user": "x"}, producer_byte_rate=0),
        entry({"user": "x"}, consumer_byte_rate=float("inf")),
    ],
)
def test_a_wrong_change_is_refused_alone(limited: Served, wrong: Any) -> None:
    with limited.wire() as wire:
        assert altered(wire, wrong, entry({"user": "bob"}, producer_byte_rate=1)) == [42, 0]
        assert [quota for quota in described(wire) if quota.get("user") == "x"] == []


def test_an_entity_is_changed_once_in_a_request(limited: Served) -> None:
    with limited.wire() as wire:
        assert altered(wire, *[entry({"user": "bob"}, producer_byte_rate=1)] * 2) == [42, 42]


def test_without_a_file_there_are_no_quotas(tmp_path: Path) -> None:
    with served(tmp_path / "logs") as gateway, gateway.wire() as wire:
        assert described(wire) == []
        assert altered(wire, entry({"user": "bob"}, producer_byte_rate=1)) == [42]
