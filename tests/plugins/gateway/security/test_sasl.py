"""Single requests of clients that authenticate with SASL."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway_bed import Served, Wire, frame_of, request, response, served
from gateway_users import PASSWORDS
from scram_client import ScramClient
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.handlers.sasl import SaslRequests
from stratalog_gateway.handshake import enabled_mechanisms
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.endpoints import Endpoint, SecurityProtocol
from stratalog_gateway.security.mechanisms import OAuthBearer
from stratalog_gateway.security.users import load_users, save_users
from stratalog_gateway.security.watched_files import EditedFile
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.primitives import MalformedRequestError

ALICE = b"\0alice\0secret of alice"
ENDPOINT = Endpoint("SASL_PLAINTEXT", SecurityProtocol.SASL_PLAINTEXT, "127.0.0.1", 9092, "127.0.0.1")


@pytest.fixture
def sasl(tmp_path: Path, users: Path) -> Iterator[Served]:
    with served(
        tmp_path / "logs",
        listeners=("SASL_PLAINTEXT://127.0.0.1:0",),
        users_file=str(users),
        mechanisms=("PLAIN", "SCRAM-SHA-256"),
        failure_delay_ms=0,
    ) as gateway:
        yield gateway


def token(wire: Wire, data: bytes, version: int = 2) -> Any:
    return wire.ask("SaslAuthenticate", version, auth_bytes=data)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_client_authenticates_and_then_sends_requests(sasl: Served, version: int) -> None:
    with sasl.wire() as wire:
        assert {36, 17} <= {key.api_key for key in wire.ask("ApiVersions", 0).api_keys}
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").mechanisms == ("PLAIN", "SCRAM-SHA-256")
        assert token(wire, ALICE, version).error_code == 0
        assert wire.ask("Metadata", 1, topics=None).topics == ()
        assert token(wire, ALICE, version).error_code == 34
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 34
        assert wire.ask("ApiVersions", 0).error_code == 0


def test_tokens_of_the_older_handshake_have_no_header(sasl: Served) -> None:
    client = ScramClient("sha256", "bob", PASSWORDS["bob"])
    with sasl.wire() as wire:
        assert wire.ask("SaslHandshake", 0, mechanism="SCRAM-SHA-256").error_code == 0
        wire.send(client.first)
        first = wire.receive()
        assert first is not None
        wire.send(client.final(first))
        assert wire.receive() == client.expected
        assert wire.ask("Metadata", 1, topics=None).topics == ()
    with sasl.wire() as wire:
        assert wire.ask("SaslHandshake", 0, mechanism="PLAIN").error_code == 0
        wire.send(b"\0bob\0wrong")
        assert wire.receive() is None


def test_wrong_credentials_are_answered_and_end_the_connection(sasl: Served) -> None:
    with sasl.wire() as wire:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        answer = token(wire, b"\0alice\0wrong")
        assert (answer.error_code, answer.error_message) == (58, "Authentication failed: Invalid username or password")
        assert wire.receive() is None


def test_wrong_credentials_of_scram_do_not_show_if_the_user_exists(sasl: Served) -> None:
    texts = set()
    for name in ("alice", "nobody"):
        client = ScramClient("sha256", name, "wrong")
        with sasl.wire() as wire:
            assert wire.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-256").error_code == 0
            answer = token(wire, client.final(token(wire, client.first).auth_bytes))
            assert answer.error_code == 58
            texts.add(answer.error_message)
    assert texts == {
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    }


def test_a_mechanism_that_is_not_offered_is_answered_and_ends_the_connection(sasl: Served) -> None:
    with sasl.wire() as wire:
        handshake = wire.ask("SaslHandshake", 1, mechanism="GSSAPI")
        assert (handshake.error_code, handshake.mechanisms) == (33, ("PLAIN", "SCRAM-SHA-256"))
        assert wire.receive() is None


@pytest.mark.parametrize("api", ["Metadata", "SaslAuthenticate", "Produce", "Unknown"])
def test_a_request_before_the_handshake_closes_the_connection(sasl: Served, api: str) -> None:
    numbers = {"Metadata": 3, "SaslAuthenticate": 36, "Produce": 0, "Unknown": 999}
    with sasl.wire() as wire:
        wire.send(struct.pack(">hhih", numbers[api], 1, 7, -1) + bytes(8))
        assert wire.receive() is None


def test_api_versions_comes_at_most_once_before_the_handshake(sasl: Served) -> None:
    with sasl.wire() as wire:
        # Version 99, which the gateway refuses; the client then sends a lower version.
        wire.send(b"\x00\x12\x00\x63\x00\x00\x00\x07\xff\xff\x00")
        frame = wire.receive()
        assert frame is not None
        assert response("ApiVersions", 0, frame).error_code == 35
        assert wire.ask("ApiVersions", 0).error_code == 0
        wire.send(request("ApiVersions", 0, {}))
        assert wire.receive() is None


def test_another_request_instead_of_a_token_is_an_illegal_state(sasl: Served) -> None:
    with sasl.wire() as wire:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 34
        assert wire.receive() is None
    with sasl.wire() as wire:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        wire.send(request("Metadata", 1, {"topics": None}))
        assert wire.receive() is None


def test_requests_of_sasl_are_an_illegal_state_without_sasl(gateway: Served) -> None:
    with gateway.wire() as wire:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 34
        assert token(wire, ALICE).error_code == 34


def test_a_request_before_the_authentication_is_bounded(sasl: Served) -> None:
    with sasl.wire() as wire:
        wire.send_raw(struct.pack(">i", 600_000))
        assert wire.receive() is None
    with sasl.wire() as wire:
        assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
        assert token(wire, ALICE).error_code == 0
        wire.send_raw(struct.pack(">i", 600_000) + bytes(600_000))
        assert wire.receive() is None  # after the authentication, the size is allowed, but the content is wrong


def answered(data: memoryview, client: Client) -> Response:
    del data
    return Response([client.principal.encode()])


class Session:
    """A session of one connection, with a manual clock."""

    def __init__(self, users: Path, *, expires: Callable[[], Any] | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        section = GatewaySection(users_file=str(users), mechanisms=("PLAIN", "SCRAM-SHA-256"), **settings)
        mechanisms = dict(
            enabled_mechanisms(section, EditedFile(str(users), load_users, save_users, self.clock), self.clock)
        )
        if expires is not None:
            mechanisms["PLAIN"] = expires
        self.client = Client("127.0.0.1", ENDPOINT)
        self.requests = SaslRequests(self.client, answered, mechanisms, section, self.clock)

    def ask(self, api: str, version: int, **values: Any) -> Any:
        handler_response = self.requests(memoryview(request(api, version, values)))
        return response(api, version, frame_of(handler_response.pieces)[4:]), handler_response.is_last

    def handshake(self, mechanism: str = "PLAIN") -> int:
        code: int = self.ask("SaslHandshake", 1, mechanism=mechanism)[0].error_code
        return code

    def token(self, data: bytes = ALICE) -> Any:
        return self.ask("SaslAuthenticate", 2, auth_bytes=data)

    def request(self) -> bytes:
        return frame_of(self.requests(memoryview(request("ApiVersions", 0, {}))).pieces)


def lifetime_ms(reply: Any) -> int:
    return int(reply[0].session_lifetime.total_seconds() * 1000)


def test_a_session_ends_unless_the_client_authenticates_again(users: Path) -> None:
    session = Session(users, max_reauth_ms=60_000)
    assert session.handshake() == 0
    assert lifetime_ms(session.token()) == 60_000
    session.clock.advance_ms(59_000)
    assert session.handshake() == 0
    assert lifetime_ms(session.token()) == 60_000
    session.clock.advance_ms(60_000)
    assert session.request() == b"User:alice"
    session.clock.advance_ms(1)
    with pytest.raises(MalformedRequestError, match="the session of User:alice has expired"):
        session.request()


def test_a_client_keeps_principal_and_mechanism_when_it_authenticates_again(users: Path) -> None:
    session = Session(users, max_reauth_ms=60_000)
    session.handshake()
    session.token()
    session.clock.advance_ms(2000)
    session.handshake()
    answer, is_last = session.token(b"\0bob\0secret of bob")
    assert (answer.error_code, is_last, session.client.principal) == (58, True, "User:alice")
    session = Session(users, max_reauth_ms=60_000)
    session.handshake()
    session.token()
    session.clock.advance_ms(2000)
    assert session.handshake("SCRAM-SHA-256") == 0
    answer, is_last = session.token(b"n,,n=alice,r=x")
    assert (answer.error_code, is_last) == (58, True)


def test_a_client_authenticates_again_at_most_once_in_a_second(users: Path) -> None:
    session = Session(users, max_reauth_ms=60_000)
    session.handshake()
    session.token()
    assert session.handshake() == 0
    session.token()
    session.clock.advance_ms(999)
    handler_response = session.requests(memoryview(request("SaslHandshake", 1, {"mechanism": "PLAIN"})))
    assert handler_response.pieces == [b"User:alice"]  # a request that the handler gets, and refuses


def test_credentials_limit_the_session(users: Path) -> None:
    session = Session(users, expires=lambda: OAuthBearer(lambda _: ("alice", 1_700_000_005_000)))
    session.handshake()
    assert lifetime_ms(session.token(b"n,,\1auth=Bearer x\1\1")) == 5000
    session.clock.advance_ms(5001)
    with pytest.raises(MalformedRequestError, match="has expired"):
        session.request()


def test_without_a_limit_the_session_does_not_end(users: Path) -> None:
    session = Session(users)
    session.handshake()
    assert lifetime_ms(session.token()) == 0
    session.clock.advance_ms(1 << 40)
    assert session.request() == b"User:alice"


def test_damaged_requests_before_the_authentication_raise_no_other_error(users: Path) -> None:
    chance, answers = Random(7), 0  # noqa: S311 - the same requests in each run
    frames = [
        request("ApiVersions", 0, {}),
        request("SaslHandshake", 1, {"mechanism": "PLAIN"}),
        request("SaslHandshake", 0, {"mechanism": "SCRAM-SHA-256"}),
        request("SaslAuthenticate", 2, {"auth_bytes": b"\0alice\0x"}),
        request("SaslAuthenticate", 1, {"auth_bytes": b"n,,n=alice,r=x"}),
    ]
    for _ in range(300):
        session = Session(users)
        for _ in range(4):
            frame = bytearray(chance.choice(frames))
            for _ in range(chance.randint(0, 2)):
                frame[chance.randrange(len(frame))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
            try:
                is_last = session.requests(memoryview(frame)).is_last
            except MalformedRequestError:
                break
            answers += 1
            assert session.client.principal == "User:ANONYMOUS"
            if is_last:
                break
    assert answers > 50


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mechanisms": ()}, "sasl.enabled.mechanisms is empty"),
        ({"mechanisms": ("PLAIN",)}, "users.file is not set"),
        ({"mechanisms": ("PLAIN",), "users_file": "/nowhere"}, "/nowhere: No such file"),
        ({"mechanisms": ("OAUTHBEARER",)}, "sasl.oauthbearer.jwks.endpoint.url must be"),
    ],
)
def test_missing_settings_are_named(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with (
        pytest.raises(ConfigError, match=reason),
        served(tmp_path, listeners=("SASL_PLAINTEXT://127.0.0.1:0",), **settings),
    ):
        raise AssertionError("the gateway runs")
