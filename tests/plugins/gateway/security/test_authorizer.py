from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError
from stratalog_gateway.security.acls import Acl, AclFile, load_acls
from stratalog_gateway.security.authorizer import Authorizer
from stratalog_gateway.security.resources import Operation, PatternType, Permission, ResourceType

TOPIC = ResourceType.TOPIC
Write = Callable[..., Path]


def authorizer(path: Path, *, allow_everyone: bool = False, clock: ManualClock | None = None) -> Authorizer:
    file = AclFile(str(path), clock or ManualClock())
    return Authorizer(file, frozenset({"User:admin"}), allow_everyone=allow_everyone)


def may(acl_authorizer: Authorizer, user: str, operation: Operation, topic: str, host: str = "10.0.0.1") -> bool:
    return acl_authorizer.allows(f"User:{user}", host, operation, TOPIC, topic)


def test_an_acl_that_denies_has_priority(acl_file: Write) -> None:
    acl_authorizer = authorizer(acl_file("* allow Read Topic *", "alice deny All Topic orders- Prefixed"))
    assert may(acl_authorizer, "alice", Operation.READ, "prices")
    assert may(acl_authorizer, "bob", Operation.READ, "orders-1")
    assert not may(acl_authorizer, "alice", Operation.READ, "orders-1")
    assert not may(acl_authorizer, "bob", Operation.WRITE, "orders-1")


@pytest.mark.parametrize("operation", ["Read", "Write", "Delete", "Alter", "Describe", "All"])
def test_operations_imply_describe_only_if_they_are_allowed(acl_file: Write, operation: str) -> None:
    assert may(authorizer(acl_file(f"alice allow {operation} Topic t")), "alice", Operation.DESCRIBE, "t")
    acl_authorizer = authorizer(acl_file("alice allow Describe Topic t", f"alice deny {operation} Topic t"))
    assert may(acl_authorizer, "alice", Operation.DESCRIBE, "t") == (operation not in {"Describe", "All"})


def test_alter_configs_implies_describe_configs(acl_file: Write) -> None:
    acl_authorizer = authorizer(acl_file("alice allow AlterConfigs Topic t"))
    assert may(acl_authorizer, "alice", Operation.DESCRIBE_CONFIGS, "t")
    assert not may(acl_authorizer, "alice", Operation.DESCRIBE, "t")


def test_a_prefix_covers_names_that_begin_with_it_and_a_literal_name_only_itself(acl_file: Write) -> None:
    acl_authorizer = authorizer(acl_file("alice allow Read Topic ord Prefixed", "bob allow Read Topic ord"))
    assert [may(acl_authorizer, "alice", Operation.READ, name) for name in ("or", "ord", "orders")] == [
        False,
        True,
        True,
    ]
    assert [may(acl_authorizer, "bob", Operation.READ, name) for name in ("or", "ord", "orders")] == [
        False,
        True,
        False,
    ]


def test_a_resource_without_acls_is_closed_unless_everyone_is_allowed(acl_file: Write) -> None:
    path = acl_file("bob allow Read Topic orders")
    assert not may(authorizer(path), "alice", Operation.READ, "prices")
    lenient_authorizer = authorizer(path, allow_everyone=True)
    assert may(lenient_authorizer, "alice", Operation.READ, "prices")
    assert not may(lenient_authorizer, "alice", Operation.READ, "orders")


def test_super_users_may_do_everything(acl_file: Write) -> None:
    assert may(authorizer(acl_file("admin deny All Topic *")), "admin", Operation.DELETE, "orders")


@pytest.mark.parametrize(
    ("text", "host", "other_host"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.2"),
        ("::1", "::1", "::2"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1", "2001:db8::2"),  # Java's text of an IPv6 address, which brokers compare
    ],
)
def test_an_acl_can_be_limited_to_an_address(tmp_path: Path, text: str, host: str, other_host: str) -> None:
    path = tmp_path / "acls.json"
    acl = Acl(TOPIC, "t", PatternType.LITERAL, "User:alice", text, Operation.READ, Permission.ALLOW)
    path.write_text(json.dumps({"version": 1, "acls": [acl.to_json()]}))
    assert load_acls(path).all == (acl,)
    assert may(authorizer(path), "alice", Operation.READ, "t", host)
    assert not may(authorizer(path), "alice", Operation.READ, "t", other_host)


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        (["alice allow Write Topic t"], True),
        (["alice allow Write Topic t", "alice deny Write Topic t"], False),
        (["alice allow Write Topic t Prefixed", "alice deny Write Topic t"], True),
        (["alice allow Write Topic tt", "alice deny Write Topic t Prefixed"], False),
        (["alice allow Write Topic t", "* deny Write Topic *"], False),
        (["alice allow Read Topic t"], False),
        ([], False),
    ],
)
def test_a_producer_needs_one_topic_that_it_may_write(acl_file: Write, acls: list[str], *, allowed: bool) -> None:
    acl_authorizer = authorizer(acl_file(*acls))
    assert acl_authorizer.allows_any("User:alice", "10.0.0.1", Operation.WRITE, TOPIC) == allowed


def test_a_changed_file_counts_within_a_second_and_a_wrong_one_never(acl_file: Write) -> None:
    clock = ManualClock()
    path = acl_file("alice allow Read Topic t")
    acl_authorizer = authorizer(path, clock=clock)
    assert may(acl_authorizer, "alice", Operation.READ, "t")
    acl_file("bob allow Read Topic t")
    assert may(acl_authorizer, "alice", Operation.READ, "t")
    clock.advance_ms(1000)
    assert not may(acl_authorizer, "alice", Operation.READ, "t")
    path.write_text("{")
    clock.advance_ms(1000)
    assert may(acl_authorizer, "bob", Operation.READ, "t")
    path.unlink()
    clock.advance_ms(1000)
    assert may(acl_authorizer, "bob", Operation.READ, "t")


def test_a_changed_file_that_cannot_be_read_for_a_time_counts_later(
    acl_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    clock = ManualClock()
    acl_authorizer = authorizer(acl_file("alice allow Read Topic t"), clock=clock)
    acl_file("bob allow Read Topic t")
    with monkeypatch.context() as full:
        full.setattr(Path, "read_bytes", refuse)
        clock.advance_ms(1000)
        assert may(acl_authorizer, "alice", Operation.READ, "t")
    clock.advance_ms(1000)
    assert not may(acl_authorizer, "alice", Operation.READ, "t")
    assert may(acl_authorizer, "bob", Operation.READ, "t")


def test_a_file_that_is_missing_or_wrong_is_logged_once(acl_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    path = acl_file("alice allow Read Topic t")
    acl_authorizer = authorizer(path, clock=clock)

    def warnings() -> int:
        for _ in range(3):
            clock.advance_ms(1000)
            assert may(acl_authorizer, "alice", Operation.READ, "t")
        return len(caplog.records)

    path.unlink()
    assert warnings() == 1
    path.write_text("{")
    assert warnings() == 2
    path.write_text("{{")
    assert warnings() == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "is not JSON"),
        ('{"version": 2, "acls": []}', 'is not an object with "version": 1'),
        ('{"version": 1}', "acls is missing, or is not a list"),
        ('{"version": 1, "acls": [1]}', r"acls\[0\] is not an object of texts"),
        ('{"version": 1, "acls": [{"principal": "User:a"}]}', r"acls\[0\] has no operation"),
    ],
)
def test_a_wrong_file_is_an_error_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "acls.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        authorizer(path)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("operation", "Fly", "'Fly' is not one of All, Read"),
        ("resourceType", "Broker", "'Broker' is not one of Topic"),
        ("principal", "alice", "not of the form User:NAME"),
        ("resourceName", "", "resourceName is empty"),
        ("resourceType", "Cluster", r"resourceName of a cluster must be kafka-cluster or \*, not 't'"),
        ("color", "red", "unknown field color"),
    ],
)
def test_a_wrong_acl_is_an_error_with_its_number(tmp_path: Path, field: str, value: str, reason: str) -> None:
    acl = {"principal": "User:a", "operation": "Read", "resourceType": "Topic", "resourceName": "t", field: value}
    path = tmp_path / "acls.json"
    path.write_text(json.dumps({"version": 1, "acls": [acl]}))
    with pytest.raises(ConfigError, match=rf"acls\[0\].*{reason}"):
        load_acls(path)


def test_a_change_is_written_and_counts_at_once(acl_file: Write) -> None:
    path = acl_file("alice allow Read Topic t")
    file = AclFile(str(path), ManualClock())
    [first_acl] = file.current.all
    added_acl = Acl(TOPIC, "u", PatternType.PREFIXED, "User:bob", "*", Operation.DESCRIBE_CONFIGS, Permission.DENY)
    file.add([added_acl, added_acl])
    assert [*load_acls(path).all] == [*file.current.all] == [first_acl, added_acl]
    assert file.remove(lambda acl: acl.name == "t") == [first_acl]
    assert [*load_acls(path).all] == [*file.current.all] == [added_acl]
    assert [entry.name for entry in path.parent.iterdir()] == ["acls.json"]


def test_a_change_replaces_the_file_that_a_symbolic_link_names(tmp_path: Path, acl_file: Write) -> None:
    path = acl_file("alice allow Read Topic t")
    (tmp_path / "etc").mkdir()
    link = tmp_path / "etc" / "acls.json"
    link.symlink_to(path)
    AclFile(str(link), ManualClock()).remove(lambda acl: acl.name == "t")
    assert link.is_symlink()
    assert [*load_acls(path).all] == []
