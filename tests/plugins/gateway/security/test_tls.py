from __future__ import annotations

import datetime as dt
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority, handshake, trusting
from gateway_bed import Wire, part, request, response, served
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError
from stratalog_gateway import connection
from stratalog_gateway.security.tls import TlsContext, distinguished_name, principal_mapping
from stratalog_gateway.settings import GatewaySection


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def name_of(connection: ssl.SSLSocket) -> str:
    certificate: Any = connection.getpeercert()
    return distinguished_name(certificate["subject"])


def settings(keystore: Path, **options: Any) -> GatewaySection:
    return GatewaySection(keystore=str(keystore), **options)


def test_new_connections_use_a_changed_certificate_and_open_ones_stay(authority: Authority) -> None:
    clock, keystore = ManualClock(), authority.issue("changing.pem", "first")
    server, client = TlsContext(settings(keystore), "none", clock), trusting(authority)
    old_server, old_client = handshake(server, client)
    assert name_of(old_client) == "CN=first,O=Example,C=DE"
    authority.issue("changing.pem", "second")
    clock.advance_ms(1000)
    new_server, new_client = handshake(server, client)
    assert name_of(new_client) == "CN=second,O=Example,C=DE"
    old_client.sendall(b"still here")
    assert old_server.recv(100) == b"still here"
    keystore.write_text("no certificate")
    clock.advance_ms(1000)
    last_server, last_client = handshake(server, client)
    assert name_of(last_client) == "CN=second,O=Example,C=DE"
    for open_socket in (old_server, old_client, new_server, new_client, last_server, last_client):
        open_socket.close()


def test_a_client_without_an_accepted_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    keystore = authority.issue("mutual.pem", "gateway")
    stranger = Authority(tmp_path, "stranger").issue("client.pem", "mallory")
    with served(
        tmp_path / "logs", listeners=("SSL://127.0.0.1:0",), keystore=str(keystore), truststore=str(authority.file),
        client_auth="required",
    ) as gateway:  # fmt: skip
        host, _, port = gateway.bootstrap.rpartition(":")
        for certificate in (None, stranger):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                answer_to_garbage(host, int(port), trusting(authority, certificate))


def answer_to_garbage(host: str, port: int, context: ssl.SSLContext) -> None:
    """Send four bytes, and raise if the handshake failed or the connection was closed.

    In TLS 1.3, a client notices a failed handshake only at its first read.
    """
    with (
        socket.create_connection((host, port), 10) as raw,
        context.wrap_socket(raw, server_hostname=host) as tls_socket,
    ):
        tls_socket.sendall(bytes(4))
        if not tls_socket.recv(1):
            raise ConnectionResetError("the gateway closed the connection")


def test_a_client_without_tls_or_without_data_does_not_affect_others(authority: Authority, tmp_path: Path) -> None:
    keystore = authority.issue("gateway.pem", "gateway")
    with served(tmp_path, listeners=("SSL://127.0.0.1:0",), keystore=str(keystore), idle_ms=200) as gateway:
        with Wire(gateway.bootstrap) as plain_wire:
            plain_wire.send(b"\0\x12\0\0\0\0\0\7\xff\xff")
            answer = plain_wire.receive_raw()
            assert answer == b"" or answer[:1] == b"\x15"  # a TLS alert
        with Wire(gateway.bootstrap) as silent_wire:
            assert silent_wire.receive() is None
        host, _, port = gateway.bootstrap.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 10) as raw,
            trusting(authority).wrap_socket(raw, server_hostname=host) as tls_socket,
        ):
            tls_socket.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\xff\xff")
            assert tls_socket.recv(4) != b""


def test_requests_of_one_tls_record_are_all_answered(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LONG_REQUEST_S", 30)  # a busy machine is quick
    keystore = authority.issue("gateway.pem", "gateway")
    with served(tmp_path, listeners=("SSL://127.0.0.1:0",), keystore=str(keystore)) as gateway:
        gateway.engine.create_topic("orders")
        partition = part("Produce", 8, "PartitionProduceData", index=0, records=gateway.batch([bytes(2900)]))
        topics = (part("Produce", 8, "TopicProduceData", name="orders", partition_data=(partition,)),)
        second = dt.timedelta(seconds=1)
        values = {"transactional_id": None, "acks": 1, "timeout": second, "topic_data": topics}
        frame = request("Produce", 8, values)
        host, _, port = gateway.bootstrap.rpartition(":")
        with (
            socket.create_connection((host, int(port)), 10) as raw,
            trusting(authority).wrap_socket(raw, server_hostname=host) as tls_socket,
            tls_socket.makefile("rb") as answers,
        ):
            tls_socket.sendall((struct.pack(">i", len(frame)) + frame) * 5)
            frames = [answers.read(*struct.unpack(">i", answers.read(4))) for _ in range(5)]
        results = [response("Produce", 8, frame).responses[0].partition_responses[0] for frame in frames]
        assert [result.base_offset for result in results] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((("countryName", "DE"),), "C=DE"),
        ((("commonName", 'a,b+c"d\\e<f>g;h'),), r"CN=a\,b\+c\"d\\e\<f\>g\;h"),
        ((("commonName", "#a "),), "CN=\\#a\\ "),
        ((("commonName", " "),), "CN=\\ "),
        ((("emailAddress", "a@b.c"),), "1.2.840.113549.1.9.1=#16056140622e63"),
        ((("emailAddress", "a" * 127),), "1.2.840.113549.1.9.1=#167f" + "61" * 127),
        ((("emailAddress", "a" * 130),), "1.2.840.113549.1.9.1=#168182" + "61" * 130),
        ((("emailAddress", "a" * 256),), "1.2.840.113549.1.9.1=#16820100" + "61" * 256),
        ((("userId", "u"), ("domainComponent", "d")), "UID=u+DC=d"),
    ],
)
def test_names_are_written_as_rfc_2253_wants(subject: tuple[tuple[str, str], ...], name: str) -> None:
    assert distinguished_name([subject]) == name


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "User:CN=Orders,O=Example,C=DE"),
        ("", "User:CN=Orders,O=Example,C=DE"),
        ("RULE:^CN=(.*?),.*$/$1/", "User:Orders"),
        ("RULE:^CN=(.*?),.*$/$1/L", "User:orders"),
        ("RULE:^CN=(.*?),O=(.*?),.*$/$1@$2/U", "User:ORDERS@EXAMPLE"),
        ("RULE:^OU=.*$/x/,RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "User:orders"),
        ("RULE:^OU=(.*)$/$1/, DEFAULT", "User:CN=Orders,O=Example,C=DE"),
    ],
)
def test_rules_make_the_principal(rules: str, principal: str) -> None:
    assert principal_mapping(rules)("CN=Orders,O=Example,C=DE") == principal


def test_a_subject_that_no_rule_matches_ends_the_connection() -> None:
    with pytest.raises(ssl.SSLError, match="no rule"):
        principal_mapping("RULE:^OU=(.*)$/$1/")("CN=orders")
    assert principal_mapping("RULE:^OU=(.*)$/$1/")(None) == "User:ANONYMOUS"


@pytest.mark.parametrize("rules", ["RULE:(/x/", "RULE:a/b", "default", "RULE:a/b/X"])
def test_a_wrong_rule_is_named(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl.principal.mapping.rules: .* is not of the form"):
        principal_mapping(rules)


@pytest.mark.parametrize(
    ("more", "client_auth", "reason"),
    [
        ({}, "none", "ssl.keystore.location is not set"),
        ({"keystore": "/nowhere.pem"}, "none", "/nowhere.pem: No such file"),
        ({"keystore": "/nowhere.pem"}, "required", "ssl.truststore.location is not set"),
    ],
)
def test_missing_files_are_named(more: dict[str, Any], client_auth: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TlsContext(GatewaySection(**more), client_auth, ManualClock())
