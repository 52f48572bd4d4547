"""Kafka's own tools use the gateway over TLS and SCRAM: users, quotas, ACLs, produce and consume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("kio", reason="the extra gateway is not installed")

from certificates import Authority
from gateway_bed import Served, served
from gateway_users import PASSWORDS
from kafka_tools import KafkaTools
from stratalog_gateway.security.users import ALGORITHMS, make_credential, save_users

LISTENER, NEW_PASSWORD = "SASL_SSL", "secret of carol"
TOOLS = "org.apache.kafka.tools"
JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule"


class Console:
    """Runs Kafka's tools as one user."""

    def __init__(self, tools: KafkaTools, gateway: Served, folder: Path, user: str, password: str) -> None:
        self._tools, self._bootstrap, self._folder = tools, gateway.addresses[LISTENER], folder
        self._properties = folder / f"{user}.properties"
        lines = {
            "security.protocol": LISTENER,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{JAAS} required username="{user}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "authority.pem"),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def run(self, tool: str, *arguments: str, config: str = "--command-config", given: str = "") -> str:
        """Run a tool to its end, and return its output."""
        options = ("--bootstrap-server", self._bootstrap, config, str(self._properties))
        return self._tools.run(tool, *options, *arguments, folder=self._folder, given=given).stdout


@contextmanager
def secured(folder: Path) -> Iterator[Served]:
    """Yield a gateway with one administrator, which allows nothing to other users."""
    admin = {kind: make_credential(kind, PASSWORDS["admin"], iterations=4096) for kind in ALGORITHMS}
    save_users(folder / "users.json", {"admin": admin})
    (folder / "acls.json").write_text(json.dumps({"version": 1, "acls": []}))
    (folder / "quotas.json").write_text(json.dumps({"version": 1, "quotas": []}))
    with served(
        folder / "logs",
        listeners=(f"{LISTENER}://127.0.0.1:0",),
        mechanisms=("SCRAM-SHA-512",),
        users_file=str(folder / "users.json"),
        acls_file=str(folder / "acls.json"),
        quotas_file=str(folder / "quotas.json"),
        super_users="User:admin",
        keystore=str(Authority(folder).issue("server.pem", "gateway")),
    ) as gateway:
        yield gateway


@pytest.mark.long
@pytest.mark.timeout(400)
def test_an_administrator_makes_a_user_who_produces_and_consumes(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    with secured(tmp_path) as gateway:
        admin = Console(kafka_tools, gateway, tmp_path, "admin", PASSWORDS["admin"])
        carol = Console(kafka_tools, gateway, tmp_path, "carol", NEW_PASSWORD)
        password = f"SCRAM-SHA-512=[iterations=4096,password={NEW_PASSWORD}]"
        user = ("--entity-type", "users", "--entity-name", "carol")
        assert "Completed" in admin.run("kafka.admin.ConfigCommand", "--alter", "--add-config", password, *user)
        quota = ("--alter", "--add-config", "consumer_byte_rate=1000000")
        assert "Completed" in admin.run("kafka.admin.ConfigCommand", *quota, *user)
        described = admin.run("kafka.admin.ConfigCommand", "--describe", *user)
        assert "consumer_byte_rate=1000000.0" in described
        assert "SCRAM-SHA-512=iterations=4096" in described

        assert "Created topic orders" in admin.run(f"{TOOLS}.TopicCommand", "--create", "--topic", "orders")
        denied_output = carol.run(
            f"{TOOLS}.ConsoleProducer", "--topic", "orders", config="--producer.config", given="1\n"
        )
        assert "TOPIC_AUTHORIZATION_FAILED" in denied_output or "TopicAuthorizationException" in denied_output
        allowed = ("--producer", "--consumer", "--topic", "orders", "--group", "g")
        assert "Adding ACLs" in admin.run(f"{TOOLS}.AclCommand", "--add", "--allow-principal", "User:carol", *allowed)
        sent = carol.run(
            f"{TOOLS}.ConsoleProducer", "--topic", "orders", config="--producer.config", given="one\ntwo\n"
        )
        assert "ERROR" not in sent
        consumed = carol.run(
            f"{TOOLS}.consumer.ConsoleConsumer", "--topic", "orders", "--group", "g", "--from-beginning",
            "--max-messages", "2", "--timeout-ms", "60000", config="--consumer.config",
        )  # fmt: skip
        assert consumed.splitlines()[:2] == ["one", "two"]
        assert "User:carol" in admin.run(f"{TOOLS}.AclCommand", "--list", "--topic", "orders")
