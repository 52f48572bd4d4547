"""Requests and responses of DescribeAcls, CreateAcls and DeleteAcls."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, Wire, part, served
from stratalog_gateway.security.acls import load_acls

Write = Callable[..., Path]
ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
ACLS = (
    "alice allow Read Topic orders",
    "alice allow Read Topic ord Prefixed",
    "bob deny Write Topic *",
    "bob allow Read Group orders",
)


@pytest.fixture
def acls(acl_file: Write) -> Path:
    return acl_file(*ACLS)


@pytest.fixture
def guarded(tmp_path: Path, acls: Path) -> Iterator[Served]:
    with served(tmp_path / "logs", acls_file=str(acls), super_users="User:admin; User:ANONYMOUS") as gateway:
        yield gateway


def described(wire: Wire, **values: Any) -> set[tuple[str, str]]:
    """Return pairs of the name of a resource and the principal of one of its ACLs."""
    response = wire.ask("DescribeAcls", 2, **{**ANY, **values})
    assert response.error_code == 0
    return {(resource.resource_name, acl.principal) for resource in response.resources for acl in resource.acls}


def creation(**values: Any) -> Any:
    fields = {
        "resource_type": 2, "resource_name": "new", "resource_pattern_type": 4, "principal": "User:carol",
        "host": "10.0.0.1", "operation": 10, "permission_type": 2, **values,
    }  # fmt: skip
    return part("CreateAcls", 2, "AclCreation", **fields)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, {("orders", "User:alice"), ("ord", "User:alice"), ("*", "User:bob"), ("orders", "User:bob")}),
        ({"resource_type_filter": 3}, {("orders", "User:bob")}),
        ({"resource_name_filter": "orders", "resource_type_filter": 2}, {("orders", "User:alice")}),
        (
            {"resource_name_filter": "orders", "resource_type_filter": 2, "pattern_type_filter": 2},
            {("orders", "User:alice"), ("ord", "User:alice"), ("*", "User:bob")},
        ),
        ({"pattern_type_filter": 4}, {("ord", "User:alice")}),
        ({"resource_name_filter": "orders", "pattern_type_filter": 4}, set()),
        ({"principal_filter": "User:bob", "operation": 4}, {("*", "User:bob")}),
        ({"permission_type": 2}, {("*", "User:bob")}),
        ({"host_filter": "10.0.0.1"}, set()),
    ],
)
def test_a_filter_selects_as_in_kafka(guarded: Served, values: dict[str, Any], names: set[tuple[str, str]]) -> None:
    with guarded.wire() as wire:
        assert described(wire, **values) == names


def test_acls_are_created_and_deleted_in_the_file(guarded: Served, acls: Path) -> None:
    with guarded.wire() as wire:
        response = wire.ask("CreateAcls", 2, creations=(creation(), creation(), creation(principal="nobody")))
        assert [result.error_code for result in response.results] == [0, 0, 42]
        [created_acl] = [acl for acl in load_acls(acls).all if acl.principal == "User:carol"]
        assert created_acl.to_json() == {
            "resourceType": "Topic", "resourceName": "new", "patternType": "Prefixed", "principal": "User:carol",
            "host": "10.0.0.1", "operation": "DescribeConfigs", "permissionType": "Deny",
        }  # fmt: skip
        acl_filter = part("DeleteAcls", 2, "DeleteAclsFilter", **{**ANY, "principal_filter": "User:alice"})
        [result] = wire.ask("DeleteAcls", 2, filters=(acl_filter,)).filter_results
        assert {acl.resource_name for acl in result.matching_acls} == {"orders", "ord"}
        assert {acl.principal for acl in load_acls(acls).all} == {"User:bob", "User:carol"}
        assert ("new", "User:carol") in described(wire)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"operation": 1}, "1 is not a valid Operation"),
        ({"resource_type": 99}, "99 is not a valid ResourceType"),
        ({"resource_pattern_type": 2}, "2 is not a valid PatternType"),
        ({"permission_type": 0}, "0 is not a valid Permission"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"host": ""}, "Invalid empty host"),
        ({"principal": "User:"}, "Invalid principal User:"),
        (
            {"principal": "bob"},
            (
                "Could not parse principal from `bob` (no colon is present separating the principal type from the "
                "principal name)"
            ),
        ),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
    ],
)
def test_a_wrong_acl_is_refused_alone(guarded: Served, acls: Path, values: dict[str, Any], reason: str) -> None:
    with guarded.wire() as wire:
        [result] = wire.ask("CreateAcls", 2, creations=(creation(**values),)).results
    assert (result.error_code, result.error_message) == (42, reason)
    assert len(load_acls(acls).all) == len(ACLS)


def test_without_a_file_of_acls_security_is_disabled(gateway: Served) -> None:
    with gateway.wire() as wire:
        assert wire.ask("DescribeAcls", 2, **ANY).error_code == 54
        assert wire.ask("CreateAcls", 2, creations=(creation(),)).results[0].error_code == 54
        acl_filter = part("DeleteAcls", 2, "DeleteAclsFilter", **ANY)
        assert wire.ask("DeleteAcls", 2, filters=(acl_filter,)).filter_results[0].error_code == 54


def test_a_change_that_cannot_be_written_is_an_error_and_changes_nothing(
    guarded: Served, acls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        del descriptor
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with guarded.wire() as wire:
        assert wire.ask("CreateAcls", 2, creations=(creation(),)).results[0].error_code == 56
        acl_filter = part("DeleteAcls", 2, "DeleteAclsFilter", **ANY)
        [result] = wire.ask("DeleteAcls", 2, filters=(acl_filter,)).filter_results
        assert (result.error_code, result.matching_acls) == (56, ())
        assert len(described(wire)) == len(ACLS)
    monkeypatch.undo()
    assert len(load_acls(acls).all) == len(ACLS)
    assert [path.name for path in acls.parent.glob("acls*")] == ["acls.json"]


def test_a_change_does_not_replace_a_file_that_an_administrator_has_edited_wrongly(guarded: Served, acls: Path) -> None:
    edited = acls.read_text()[:-2] + ","
    acls.write_text(edited)
    with guarded.wire() as wire:
        [result] = wire.ask("CreateAcls", 2, creations=(creation(),)).results
        assert (result.error_code, "is not JSON" in result.error_message) == (56, True)
        acl_filter = part("DeleteAcls", 2, "DeleteAclsFilter", **ANY)
        assert wire.ask("DeleteAcls", 2, filters=(acl_filter,)).filter_results[0].error_code == 56
        assert acls.read_text() == edited
        assert len(described(wire)) == len(ACLS)
