"""Requests and responses of DescribeUserScramCredentials and AlterUserScramCredentials."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, Wire, part, served
from stratalog_gateway.security.users import load_users

SHA_256, SHA_512 = 1, 2
SALT = b"salt of carol"


@pytest.fixture
def file(users: Path, tmp_path: Path) -> Path:
    """Return a copy of the file of users that a test may change."""
    return Path(shutil.copy(users, tmp_path / "users.json"))


@pytest.fixture
def guarded(tmp_path: Path, file: Path) -> Iterator[Served]:
    with served(tmp_path / "logs", users_file=str(file)) as gateway:
        yield gateway


def upsertion(name: str = "carol", **values: Any) -> Any:
    fields: dict[str, Any] = {"name": name, "mechanism": SHA_256, "iterations": 4096, "salt": SALT, **values}
    if "salted_password" not in fields:  # a million iterations would take half a second in each process
        fields["salted_password"] = hashlib.pbkdf2_hmac("sha256", b"secret", SALT, fields["iterations"])
    return part("AlterUserScramCredentials", 0, "ScramCredentialUpsertion", **fields)


def deletion(name: str, mechanism: int = SHA_256) -> Any:
    return part("AlterUserScramCredentials", 0, "ScramCredentialDeletion", name=name, mechanism=mechanism)


def altered(wire: Wire, *upsertions: Any, deletions: tuple[Any, ...] = ()) -> dict[str, tuple[int, str | None]]:
    response = wire.ask("AlterUserScramCredentials", 0, deletions=deletions, upsertions=upsertions)
    return {result.user: (result.error_code, result.error_message) for result in response.results}


def described(wire: Wire, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """Return the error code and the list of (mechanism, iterations), by user."""
    user_names = tuple(part("DescribeUserScramCredentials", 0, "UserName", name=name) for name in names)
    response = wire.ask("DescribeUserScramCredentials", 0, users=user_names or None)
    assert response.error_code == 0
    return {
        result.user: (result.error_code, [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in response.results
    }


def test_a_new_user_has_the_password_that_the_client_salted(guarded: Served, file: Path) -> None:
    with guarded.wire() as wire:
        assert altered(wire, upsertion(iterations=5000)) == {"carol": (0, None)}
        assert described(wire, "carol") == {"carol": (0, [(SHA_256, 5000)])}
    credential = load_users(file)["carol"]["SCRAM-SHA-256"]
    assert credential.accepts("secret")
    assert not credential.accepts("other")


def test_all_users_are_described(guarded: Served, file: Path) -> None:
    with guarded.wire() as wire:
        assert described(wire) == {name: (0, [(SHA_256, 4096), (SHA_512, 4096)]) for name in load_users(file)}


def test_a_user_without_keys_is_gone(guarded: Served, file: Path) -> None:
    [name, *other_names] = load_users(file)
    with guarded.wire() as wire:
        assert altered(wire, deletions=(deletion(name), deletion(name, SHA_512))) == {name: (0, None)}
        assert described(wire, name)[name][0] == 91
    assert list(load_users(file)) == other_names


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (upsertion(mechanism=3), 33),
        (upsertion(""), 93),
        (upsertion(iterations=4095), 93),
        (upsertion(iterations=1_000_001, salted_password=bytes(32)), 93),
        (upsertion(salt=b""), 93),
        (upsertion(salted_password=b"short"), 93),
    ],
)
def test_a_wrong_change_is_refused_alone(guarded: Served, file: Path, wanted: Any, code: int) -> None:
    before = set(load_users(file))
    with guarded.wire() as wire:
        results = altered(wire, wanted, upsertion("dave"), deletions=(deletion("erin"),))
    assert {name: error for name, (error, _) in results.items()} == {"erin": 91, wanted.name: code, "dave": 0}
    assert set(load_users(file)) == {*before, "dave"}


def test_a_user_is_changed_and_described_once_in_a_request(guarded: Served, file: Path) -> None:
    before = file.read_bytes()
    with guarded.wire() as wire:
        assert altered(wire, upsertion(), upsertion())["carol"][0] == 92
        assert described(wire, "carol", "carol") == {"carol": (92, [])}
    assert file.read_bytes() == before


@pytest.mark.parametrize("names", [("\ufb01nn", "finn"), ("finn", "\ufb01nn")])
def test_spellings_of_one_name_are_one_user(guarded: Served, file: Path, names: tuple[str, str]) -> None:
    valid, invalid = upsertion(names[0]), upsertion(names[1], mechanism=SHA_512, salt=b"")
    with guarded.wire() as wire:
        for changes in ((valid, invalid), (invalid, valid)):
            assert [error for error, _ in altered(wire, *changes).values()] == [93, 93]
        assert [error for error, _ in altered(wire, valid, upsertion(names[1])).values()] == [92, 92]
    assert "finn" not in load_users(file)


def test_without_a_file_there_are_no_users(tmp_path: Path) -> None:
    with served(tmp_path / "logs") as gateway, gateway.wire() as wire:
        assert altered(wire, upsertion()) == {"carol": (54, "users.file is not set")}
        assert described(wire) == {}
        assert described(wire, "carol") == {"carol": (91, [])}
