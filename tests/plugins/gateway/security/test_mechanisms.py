from __future__ import annotations

import base64
from pathlib import Path
from random import Random

import pytest

from gateway_users import PASSWORDS
from scram_client import ScramClient
from stratalog_gateway.security.mechanisms import AuthenticationError, OAuthBearer, Plain, Scram
from stratalog_gateway.security.users import ALGORITHMS, Users, load_users, make_credential


@pytest.fixture(scope="module")
def table(users: Path) -> Users:
    return load_users(users)


@pytest.mark.parametrize("mechanism", ALGORITHMS)
def test_scram_proves_both_sides(table: Users, mechanism: str) -> None:
    server, client = Scram(mechanism, table), ScramClient(ALGORITHMS[mechanism], "alice", PASSWORDS["alice"])
    final = client.final(server.evaluate(client.first))
    assert server.name == ""
    assert server.evaluate(final) == client.expected
    assert server.name == "alice"


def test_the_example_of_rfc_7677_makes_the_same_keys() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = make_credential("SCRAM-SHA-256", "pencil", salt, 4096)
    assert base64.b64encode(credential.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(credential.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_names_with_commas_and_compatible_letters_are_found() -> None:
    name = "ops, europe=1"
    table = {name: {"SCRAM-SHA-256": make_credential("SCRAM-SHA-256", "p", iterations=4096)}}
    server, client = Scram("SCRAM-SHA-256", table), ScramClient("sha256", name, "p")
    server.evaluate(client.final(server.evaluate(client.first)))
    assert server.name == name
    server = Scram("SCRAM-SHA-256", {"IX": table[name]})
    client = ScramClient("sha256", "\u2168", "p")  # the single character ROMAN NUMERAL NINE
    server.evaluate(client.final(server.evaluate(client.first)))
    assert server.name == "IX"


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "secret of alice")])
def test_a_wrong_password_and_an_unknown_user_fail_in_the_same_step(table: Users, name: str, password: str) -> None:
    server, client = Scram("SCRAM-SHA-512", table), ScramClient("sha512", name, password)
    first = server.evaluate(client.first)
    with pytest.raises(AuthenticationError) as caught:
        server.evaluate(client.final(first))
    assert caught.value.message == ""
    assert server.name == ""
    # The same salt in each attempt.
    assert Scram("SCRAM-SHA-512", table).evaluate(client.first).split(b",")[1] == first.split(b",")[1]


@pytest.mark.parametrize(
    "first",
    [b"", b"y,,n=alice,r=x", b"p=tls-unique,,n=alice,r=x", b"n,,n=alice", b"n,,r=x,n=alice", b"n,a=bob,n=alice,r=x",
     b"n,,n=al=ice,r=x", b"n,,n=alice,r=\xff", b"n,,n=alice,r=x y"],
)  # fmt: skip
def test_a_wrong_first_message_fails(table: Users, first: bytes) -> None:
    with pytest.raises(AuthenticationError):
        Scram("SCRAM-SHA-256", table).evaluate(first)


@pytest.mark.parametrize("change", ["nonce", "binding", "proof", "short proof"])
def test_a_changed_final_message_fails(table: Users, change: str) -> None:
    server, client = Scram("SCRAM-SHA-256", table), ScramClient("sha256", "alice", PASSWORDS["alice"])
    first = server.evaluate(client.first)
    final = client.final(first, binding="cD10bHM=" if change == "binding" else "biws")
    changed = {
        "nonce": final.replace(b"r=abcdefgh", b"r=zbcdefgh"),
        "binding": final,
        "proof": final.replace(b"p=", b"p=AAAA")[:-4] + b"",
        "short proof": final[: final.index(b"p=") + 2] + b"AAAA",
    }[change]
    with pytest.raises(AuthenticationError):
        server.evaluate(changed)


def test_plain_compares_with_the_salted_keys(table: Users) -> None:
    server = Plain(table)
    assert server.evaluate(b"\0alice\0secret of alice") == b""
    assert server.name == "alice"
    assert Plain(table).evaluate(b"bob\0bob\0secret of bob") == b""


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0nobody\0secret of alice", "Invalid username or password"),
        (b"bob\0alice\0secret of alice", "different from username"),
        (b"\0\0x", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"alice", "expected 3 tokens, got 1"),
        (b"\0a\0b\0c", "expected 3 tokens, got 4"),
        (b"\xff\0a\0b", "not UTF-8"),
    ],
)
def test_plain_refuses(table: Users, token: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        Plain(table).evaluate(token)


def checked(token: str) -> tuple[str, int]:
    if token != "good":
        raise AuthenticationError("expired")
    return "alice", 5


@pytest.mark.parametrize(
    "response",
    [b"n,,\1auth=Bearer good\1\1", b"n,a=alice,\1auth=bearer good\1\1", b"n,,\1host=x\1auth=Bearer good\1port=1\1\1"],
)
def test_a_token_names_the_principal_and_its_time(response: bytes) -> None:
    server = OAuthBearer(checked)
    assert server.evaluate(response) == b""
    assert (server.name, server.expires_ms) == ("alice", 5)


def test_a_wrong_token_fails_after_the_client_has_seen_the_status() -> None:
    server = OAuthBearer(checked)
    assert server.evaluate(b"n,,\1auth=Bearer bad\1\1") == b'{"status":"invalid_token"}'
    with pytest.raises(AuthenticationError, match="expired"):
        server.evaluate(b"\1")
    assert server.name == ""


@pytest.mark.parametrize(
    "response",
    [b"", b"n,,", b"n,,\1\1", b"n,,\1auth=Basic good\1\1", b"y,,\1auth=Bearer good\1\1", b"n,,\1auth=Bearer good\1",
     b"n,a=bob,\1auth=Bearer good\1\1", b"\1", b"n,,\1auth=Bearer go od\1\1"],
)  # fmt: skip
def test_a_wrong_response_with_a_token_fails(response: bytes) -> None:
    with pytest.raises(AuthenticationError):
        OAuthBearer(checked).evaluate(response)


def test_damaged_tokens_raise_no_other_error(table: Users) -> None:
    chance = Random(3)  # noqa: S311 - the same tokens in each run
    seeds = (b"\0alice\0secret of alice", b"n,,n=alice,r=abcdefgh", b"n,,\1auth=Bearer good\1\1")
    outcomes = set()
    for number in range(600):
        token = bytearray(seeds[number % 3])
        for _ in range(chance.randint(1, 3)):
            token[chance.randrange(len(token))] = chance.choice((0, 1, 44, 61, 0x7F, 0xFF, chance.randrange(256)))
        mechanism = (Plain({}), Scram("SCRAM-SHA-256", table), OAuthBearer(checked))[number % 3]
        try:
            mechanism.evaluate(bytes(token))
            outcomes.add("answered")
        except AuthenticationError:
            outcomes.add("refused")
    assert outcomes == {"answered", "refused"}
