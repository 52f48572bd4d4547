"""Unmodified clients over TLS and SASL: librdkafka (confluent-kafka), kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority
from gateway_bed import Served, served
from gateway_users import PASSWORDS
from stratalog import Record
from stratalog.env.clock import SystemClock

SASL_SSL, SASL_PLAINTEXT, SSL = "SASL_SSL", "SASL_PLAINTEXT", "SSL"
SECURED = [
    (SASL_SSL, "PLAIN"),
    (SASL_SSL, "SCRAM-SHA-512"),
    (SASL_PLAINTEXT, "SCRAM-SHA-256"),
    (SASL_PLAINTEXT, "OAUTHBEARER"),
]
TIME_S = 3600


jwt = pytest.importorskip("jwt", reason="the extra gateway-oauth is not installed")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa", reason="cryptography is not installed")


@dataclass(frozen=True)
class Secured:
    """A gateway with a listener for each protocol, and the files and tokens of its clients."""

    served: Served
    authority: Path
    certificate: Path
    token: Callable[[], str]

    def bootstrap(self, listener: str) -> str:
        return self.served.addresses[listener]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, users: Path) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]}))
    acls = folder / "acls.json"
    acls.write_text(json.dumps({"version": 1, "acls": [
        {"principal": f"User:{name}", "operation": operation, "resourceType": kind, "resourceName": resource}
        for name in ("alice", "CN=orders,O=Example,C=DE")
        for operation, kind, resource in (("All", "Topic", "orders"), ("All", "Group", "g"))
    ]}))  # fmt: skip

    def token() -> str:
        now_s = SystemClock().now_ms() // 1000
        claims = {"sub": "alice", "aud": "kafka", "iss": "https://issuer", "iat": now_s, "exp": now_s + TIME_S}
        return str(jwt.encode(claims, key, algorithm="RS256", headers={"kid": "1"}))

    with served(
        folder / "logs",
        listeners=tuple(f"{name}://127.0.0.1:0" for name in (SSL, SASL_SSL, SASL_PLAINTEXT)),
        mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        users_file=str(users),
        acls_file=str(acls),
        keystore=str(authority.issue("server.pem", "gateway")),
        truststore=str(authority.file),
        client_auth="required",
        jwks_url=keys.as_uri(),
        expected_audience=("kafka",),
        expected_issuer="https://issuer",
    ) as gateway:
        gateway.engine.create_topic("orders")
        gateway.engine.create_topic("hidden")
        gateway.engine.log("orders").append([Record(value=b"0")])
        yield Secured(gateway, authority.file, authority.issue("client.pem", "orders"), token)


def rdkafka(secured: Secured, listener: str, mechanism: str, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": secured.bootstrap(listener),
        "security.protocol": listener,
        **options,
    }
    settings |= {"ssl.ca.location": str(secured.authority), "topic.metadata.refresh.interval.ms": 200}
    if listener == SSL:
        settings |= {"ssl.certificate.location": str(secured.certificate), "ssl.key.location": str(secured.certificate)}
    elif mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.mechanism": mechanism,
            "oauth_cb": lambda _: (secured.token(), SystemClock().now_ms() / 1000 + TIME_S),
        }
    else:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
    return settings


@pytest.mark.parametrize(("listener", "mechanism"), [*SECURED, (SSL, "")])
def test_librdkafka_produces_and_sees_only_its_topic(secured: Secured, listener: str, mechanism: str) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    failed: list[Any] = []
    producer = confluent.Producer(rdkafka(secured, listener, mechanism))
    producer.poll(0)
    producer.produce("orders", value=b"v", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(20) == 0
    assert failed == []
    assert set(producer.list_topics(timeout=20).topics) == {"orders"}


def test_librdkafka_gets_an_error_for_a_wrong_password(secured: Secured) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    failed = threading.Event()

    def on_error(error: Any) -> None:
        if error.name() == "_AUTHENTICATION":
            failed.set()

    settings = rdkafka(secured, SASL_PLAINTEXT, "SCRAM-SHA-256", error_cb=on_error) | {"sasl.password": "wrong"}
    producer = confluent.Producer(settings)
    for _ in range(200):
        if failed.is_set():
            return
        producer.poll(0.1)
    raise AssertionError("no error arrived")


def client_context(secured: Secured, listener: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(secured.authority))
    if listener == SSL:
        context.load_cert_chain(str(secured.certificate))
    return context


class Tokens:
    """Token provider with the interface that kafka-python and aiokafka require."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def token(self) -> str:
        return self._token()

    def extensions(self) -> dict[str, str]:
        return {}


@pytest.mark.parametrize(("listener", "mechanism"), [*SECURED, (SSL, "")])
def test_kafka_python_reads(secured: Secured, listener: str, mechanism: str) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    oauth = pytest.importorskip("kafka.net.sasl.oauth", reason="kafka-python is not installed")
    settings: dict[str, Any] = {"security_protocol": listener}
    if listener in {SSL, SASL_SSL}:
        settings["ssl_context"] = client_context(secured, listener)
    if mechanism == "OAUTHBEARER":
        provider = type("Provider", (Tokens, oauth.AbstractTokenProvider), {})
        settings |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": provider(secured.token)}
    elif mechanism:
        settings |= {
            "sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": PASSWORDS["alice"],
        }  # fmt: skip
    consumer = kafka.KafkaConsumer(
        "orders", bootstrap_servers=secured.bootstrap(listener), auto_offset_reset="earliest", fetch_max_wait_ms=20,
        consumer_timeout_ms=20_000, **settings,
    )  # fmt: skip
    assert next(consumer).value == b"0"
    consumer.close()


@pytest.mark.parametrize(("listener", "mechanism"), [(SASL_SSL, "PLAIN"), (SASL_PLAINTEXT, "SCRAM-SHA-256"), (SSL, "")])
def test_aiokafka_reads(secured: Secured, listener: str, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")

    async def read() -> bytes:
        settings: dict[str, Any] = {"security_protocol": listener}
        if listener in {SSL, SASL_SSL}:
            settings["ssl_context"] = client_context(secured, listener)
        if mechanism:
            settings |= {
                "sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": PASSWORDS["alice"],
            }  # fmt: skip
        consumer = aiokafka.AIOKafkaConsumer(
            "orders", bootstrap_servers=secured.bootstrap(listener), auto_offset_reset="earliest", fetch_max_wait_ms=20,
            **settings,
        )  # fmt: skip
        await consumer.start()
        try:
            return bytes((await asyncio.wait_for(consumer.getone(), 20)).value)
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == b"0"
