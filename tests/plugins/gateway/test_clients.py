"""Unmodified clients: librdkafka (confluent-kafka) and kafka-python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, served
from stratalog import Record


def confluent() -> Any:
    return pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


def rdkafka_consumer(gateway: Served, **options: Any) -> Any:
    fast = {
        "fetch.wait.max.ms": 20,
        "heartbeat.interval.ms": 100,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    settings = {"bootstrap.servers": gateway.bootstrap, "group.id": "g", **fast, **options}
    return confluent().Consumer({name: value for name, value in settings.items() if value is not None})


def polled(consumer: Any, count: int) -> list[Any]:
    """Poll until ``count`` records have arrived, and return them."""
    messages: list[Any] = []
    for _ in range(200):
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            messages.append(message)
        if len(messages) >= count:
            return messages
    raise AssertionError(f"{len(messages)} records of {count}")


def until(condition: Callable[[], object], *consumers: Any) -> None:
    """Poll consumers until a condition is true."""
    for _ in range(300):
        if condition():
            return
        for consumer in consumers:
            consumer.poll(0.05)
    raise AssertionError("this never happens")


@pytest.mark.parametrize(("acks", "codec"), [("0", "none"), ("1", "lz4"), ("all", "zstd")])
def test_librdkafka_produces_and_reads(gateway: Served, acks: str, codec: str) -> None:
    failed: list[Any] = []
    settings = {
        "bootstrap.servers": gateway.bootstrap,
        "acks": acks,
        "compression.type": codec,
        "enable.idempotence": acks == "all",
    }
    producer = confluent().Producer(settings)
    for number in range(100):
        producer.produce(
            "orders",
            value=b"%d" % number,
            key=b"k",
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(20) == 0
    assert failed == []
    consumer = rdkafka_consumer(gateway)
    consumer.subscribe(["orders"])
    assert [message.value() for message in polled(consumer, 100)] == [b"%d" % number for number in range(100)]
    consumer.close()


def test_two_members_share_the_partitions_and_one_takes_over(gateway: Served) -> None:
    gateway.engine.create_topic("orders", partitions=4)
    first, second = rdkafka_consumer(gateway), rdkafka_consumer(gateway)
    for consumer in (first, second):
        consumer.subscribe(["orders"])
    until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
    second.close()
    until(lambda: len(first.assignment()) == 4, first)
    first.close()


def test_a_restart_keeps_committed_offsets(tmp_path: Path) -> None:
    for start in (0, 3):
        with served(tmp_path) as gateway:
            if not start:
                gateway.engine.create_topic("orders")
                gateway.engine.log("orders", 0).append([Record(value=b"%d" % number) for number in range(6)])
            consumer = rdkafka_consumer(gateway, **{"max.poll.interval.ms": 6000, "session.timeout.ms": 6000})
            consumer.subscribe(["orders"])
            messages = polled(consumer, 3)[:3]
            assert [message.offset() for message in messages] == [start, start + 1, start + 2]
            consumer.commit(message=messages[-1], asynchronous=False)
            consumer.close()


def test_a_client_reads_from_offset_0_through_both_tiers(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    with served(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as gateway:
        gateway.engine.create_topic("orders", config={"local.retention.bytes": 0})
        log = gateway.engine.log("orders", 0)
        for number in range(30):
            log.append([Record(value=b"%d" % number)])
            if number % 10 == 9 and number < 29:
                log.roll()
        gateway.engine.offload()
        gateway.engine.apply_retention()
        assert log.offsets().local_log_start == 20
        consumer = rdkafka_consumer(gateway)
        consumer.subscribe(["orders"])
        assert [message.offset() for message in polled(consumer, 30)] == list(range(30))
        consumer.close()


@pytest.fixture
def dropped_sockets() -> Iterator[None]:
    """Collect the garbage of a client that does not close the socket of a connection that it is opening."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's close drops such sockets
@pytest.mark.usefixtures("dropped_sockets")
def test_kafka_python_produces_reads_and_commits(gateway: Served) -> None:
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.bootstrap, acks="all", compression_type="lz4")
    for number in range(50):
        producer.send("orders", value=b"%d" % number)
    producer.flush(20)
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=gateway.bootstrap, group_id="python", auto_offset_reset="earliest", enable_auto_commit=False,
        fetch_max_wait_ms=20, consumer_timeout_ms=20_000,
    )  # fmt: skip
    consumer.subscribe(["orders"])
    assert [next(consumer).value for _ in range(50)] == [b"%d" % number for number in range(50)]
    consumer.commit()
    consumer.close()
    assert [group_offset.offset for group_offset in gateway.engine.group_offsets("python").values()] == [50]


def test_librdkafka_uses_the_consumer_protocol(tmp_path: Path) -> None:
    protocol = {"group.protocol": "consumer", "heartbeat.interval.ms": None}
    with served(tmp_path, consumer_heartbeat_ms=100) as gateway:
        gateway.engine.create_topic("orders", partitions=4)
        gateway.engine.log("orders", 0).append([Record(value=b"%d" % number) for number in range(6)])
        first, second = rdkafka_consumer(gateway, **protocol), rdkafka_consumer(gateway, **protocol)
        first.subscribe(["orders"])
        first.commit(message=polled(first, 3)[2], asynchronous=False)
        second.subscribe(["^ord.*"])
        until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
        second.close()
        until(lambda: len(first.assignment()) == 4, first)
        first.close()
        assert [group_offset.offset for group_offset in gateway.engine.group_offsets("g").values()] == [3]
