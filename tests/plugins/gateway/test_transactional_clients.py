"""Unmodified transactional producers: librdkafka (confluent-kafka), kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, served
from stratalog import Engine, TopicPartition

ORDERS = TopicPartition("orders", 0)


def prepare(engine: Engine) -> None:
    """Create the topics. The internal ones have only one partition, because each test creates them."""
    engine.create_topic("orders", partitions=2)
    engine.create_topic("done", partitions=2)
    for topic in ("__transaction_state", "__consumer_offsets"):
        engine.create_topic(topic, config={"cleanup.policy": "compact"})


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "logs") as gateway:
        prepare(gateway.engine)
        yield gateway


def confluent() -> Any:
    return pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


def rdkafka_producer(gateway: Served, transactional_id: str = "tx", **options: Any) -> Any:
    producer = confluent().Producer(
        {"bootstrap.servers": gateway.bootstrap, "transactional.id": transactional_id, **options}
    )
    producer.init_transactions(30)
    return producer


def rdkafka_consumer(gateway: Served, topic: str, group: str = "g") -> Any:
    consumer = confluent().Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.subscribe([topic])
    return consumer


def polled(consumer: Any, count: int) -> list[Any]:
    """Poll until ``count`` records have arrived, and return them."""
    messages: list[Any] = []
    for _ in range(300):
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            messages.append(message)
        if len(messages) >= count:
            return messages
    raise AssertionError(f"{len(messages)} records of {count}")


def committed(engine: Engine, topic: str) -> list[bytes | None]:
    return sorted(
        (
            record.value
            for partition in range(2)
            for record in engine.log(topic, partition).records(isolation="read_committed")
        ),
        key=lambda value: value or b"",
    )


def test_librdkafka_reads_committed_records_only(orders: Served) -> None:
    producer = rdkafka_producer(orders)
    for ends_with, values in (("commit", b"ab"), ("abort", b"cd"), ("commit", b"ef")):
        producer.begin_transaction()
        for number in values:
            producer.produce("orders", value=bytes([number]), partition=0)
        assert producer.flush(30) == 0
        (producer.commit_transaction if ends_with == "commit" else producer.abort_transaction)(30)
    consumer = rdkafka_consumer(orders, "orders")
    assert [message.value() for message in polled(consumer, 4)] == [b"a", b"b", b"e", b"f"]
    consumer.close()


def test_librdkafka_consumes_transforms_and_produces_exactly_once(orders: Served) -> None:
    source = confluent().Producer({"bootstrap.servers": orders.bootstrap})
    for number in range(20):
        source.produce("orders", value=b"%02d" % number, partition=number % 2)
    assert source.flush(30) == 0
    for attempt in range(3):  # the first worker fails in the middle of its transaction
        consumer, producer = rdkafka_consumer(orders, "orders"), rdkafka_producer(orders)
        producer.begin_transaction()
        messages = polled(consumer, 10)
        for message in messages:
            producer.produce("done", value=b"done " + message.value())
        if attempt:
            places = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
        else:
            assert producer.flush(30) == 0
        consumer.close()
    assert committed(orders.engine, "done") == [b"done %02d" % number for number in range(20)]
    assert sum(group_offset.offset for group_offset in orders.engine.group_offsets("g").values()) == 20


def test_a_fenced_librdkafka_producer_cannot_commit(orders: Served) -> None:
    old = rdkafka_producer(orders)
    old.begin_transaction()
    old.produce("orders", value=b"old", partition=0)
    assert old.flush(30) == 0
    new = rdkafka_producer(orders)
    new.begin_transaction()
    new.produce("orders", value=b"new", partition=0)
    new.commit_transaction(30)
    with pytest.raises(confluent().KafkaException) as raised:
        old.commit_transaction(30)
    assert raised.value.args[0].fatal()
    assert committed(orders.engine, "orders") == [b"new"]


def test_kafka_python_commits_and_aborts(orders: Served) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    producer = kafka.KafkaProducer(bootstrap_servers=orders.bootstrap, transactional_id="py", retry_backoff_ms=10)
    producer.init_transactions()
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.send("orders", value=value, partition=1).get(timeout=30)
        if commit:
            offsets = {kafka.TopicPartition("done", 0): kafka.structs.OffsetAndMetadata(7, "", -1)}
            producer.send_offsets_to_transaction(offsets, "g")
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    assert committed(orders.engine, "orders") == [b"a", b"c"]
    assert orders.engine.group_offsets("g")[TopicPartition("done", 0)].offset == 7


def test_aiokafka_commits_and_aborts(orders: Served) -> None:
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")

    async def run() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=orders.bootstrap, transactional_id="aio") as producer:
            async with producer.transaction():
                await producer.send_and_wait("orders", b"a", partition=0)
                await producer.send_offsets_to_transaction({aiokafka.TopicPartition("done", 1): 3}, "g")
            await producer.begin_transaction()
            await producer.send_and_wait("orders", b"b", partition=0)
            await producer.abort_transaction()

    asyncio.run(run())
    assert committed(orders.engine, "orders") == [b"a"]
    assert orders.engine.group_offsets("g")[TopicPartition("done", 1)].offset == 3


@pytest.mark.parametrize("commit", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_client_ends_its_transaction_after_a_restart(tmp_path: Path, *, commit: bool) -> None:
    quick: dict[str, Any] = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50}
    with served(tmp_path / "logs") as first:
        prepare(first.engine)
        port = int(first.bootstrap.rpartition(":")[2])
        producer = rdkafka_producer(first, **quick)
        producer.begin_transaction()
        producer.produce("orders", value=b"before", partition=0)
        assert producer.flush(30) == 0
    with served(tmp_path / "logs", port=port) as second:
        assert second.engine.log(*ORDERS).open_transactions()
        producer.produce("orders", value=b"after", partition=0)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
        assert committed(second.engine, "orders") == ([b"after", b"before"] if commit else [])
