"""A real Kafka 2.8 broker with its ZooKeeper: the last version that writes the formats V0 and V1."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented there, but imported without "as"
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from kafka_broker import CLIENT_SECONDS, STOP_SECONDS, KafkaBroker


class ZooKeeperBroker(KafkaBroker):
    """A ``KafkaBroker`` of Kafka 2.8. ZooKeeper runs while the context manager is active; the broker waits for it."""

    _keeper: subprocess.Popen[str] | None = None

    def _cluster(self) -> dict[str, str]:
        return {
            "broker.id": "1",
            "zookeeper.connect": f"127.0.0.1:{self._second_port}",
            "listeners": f"PLAINTEXT://{self.address}",
        }

    def _prepare(self, properties: Path) -> None:
        settings = properties.with_name("zookeeper.properties")
        settings.write_text(
            f"dataDir={self._folder / 'zookeeper'}\nclientPort={self._second_port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\n"
        )
        command = self.tools.command("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings))
        with (self._folder / "zookeeper.out").open("w") as output:
            self._keeper = subprocess.Popen(
                command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT, text=True
            )

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait(STOP_SECONDS)

    def alter(self, topic: str, key: str, value: str) -> None:
        """Change a setting of a topic."""
        admin = self._admin()
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(CLIENT_SECONDS)
