"""Consumers of both protocols keep their groups while a directory moves from a real broker to the gateway and back.

The members only commit, and do not fetch: the log directory does not contain the broker's epochs, and librdkafka
ignores a leader whose epoch is lower than one that it has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("kio", reason="the extra gateway is not installed")

from confluent_kafka import Consumer, KafkaException, TopicPartition

from kafka_broker import CLUSTER_ID, KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Record, open_engine
from stratalog.env.clock import SystemClock
from stratalog.group_states import ConsumerGroupMetadata, GroupMetadata
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.settings import GatewaySection

SESSION_MS = 300_000  # longer than a start of the broker
POLLS = 600
WAITS = {
    "_TRANSPORT",
    "_WAIT_COORD",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "_TIMED_OUT",
}


@dataclass
class Member:
    """A consumer, with its rebalances and the values that it received."""

    consumer: Consumer
    rebalances: list[str] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)

    def poll(self) -> None:
        message = self.consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.values.append(message.value())

    def commit(self, offset: int) -> None:
        """Commit the offset in the member's current generation. Retry until the client has found the coordinator."""
        for _ in range(POLLS):
            try:
                self.consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
            except KafkaException as error:
                if error.args[0].name() not in WAITS:
                    raise
                self.poll()
            else:
                return
        raise AssertionError("the coordinator does not accept the commit")


def member(broker: KafkaBroker, group: str, **settings: Any) -> Member:
    member = Member(
        Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                **settings,
            }
        )
    )
    member.consumer.subscribe(
        ["orders"],
        on_assign=lambda *_: member.rebalances.append("assigned"),
        on_revoke=lambda *_: member.rebalances.append("revoked"),
        on_lost=lambda *_: member.rebalances.append("lost"),
    )
    return member


def until(condition: Callable[[], bool], members: list[Member]) -> None:
    for _ in range(POLLS):
        if condition():
            return
        for member in members:
            member.poll()
    raise AssertionError([(member.rebalances, member.values) for member in members])


@pytest.mark.long
def test_groups_move_to_the_gateway_and_back_without_a_rebalance(
    kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {
        "group.consumer.session.timeout.ms": str(SESSION_MS),
        "group.consumer.max.session.timeout.ms": str(SESSION_MS),
    }
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("broker"), settings) as broker:
        broker.create_topics({"orders": 1})
        broker.produce(["orders"], [Record(value=b"broker")])
        old = member(broker, "old", **{"session.timeout.ms": SESSION_MS, "max.poll.interval.ms": SESSION_MS})
        new = member(broker, "new", **{"group.protocol": "consumer"})
        members = [old, new]
        until(lambda: all(item.values == [b"broker"] for item in members), members)
        broker.stop()
        port = int(broker.address.rpartition(":")[2])
        section = GatewaySection(port=port, cluster_id=CLUSTER_ID, consumer_session_ms=SESSION_MS)
        with open_engine(broker.log_dir) as engine:
            gateway = Gateway(engine, section, SystemClock())
            gateway.start()
            for item in members:
                item.commit(7)
            states = [record.value for name in ("old", "new") for record in engine.group_states().states(name)]
            gateway.stop()
        [classic] = [item for item in states if isinstance(item, GroupMetadata)]
        [modern] = [item for item in states if isinstance(item, ConsumerGroupMetadata)]
        assert (classic.generation, len(classic.members), modern.epoch) == (1, 1, 1)
        broker.start()
        for item in members:
            item.commit(8)
        assert [broker.committed(name, "orders")[0] for name in ("old", "new")] == [8, 8]
        assert [item.rebalances for item in members] == [["assigned"], ["assigned"]]
        for item in members:
            item.consumer.close()
        assert broker.remarks() == []
