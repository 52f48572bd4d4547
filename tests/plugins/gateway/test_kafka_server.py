from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Wire, part, request
from stratalog import Record, open_engine
from stratalog.errors import ConfigError, UnknownTopicError
from stratalog.testing.kafka_server import KafkaServer
from stratalog.testing.kafka_server import kafka_server as serve
from stratalog.testing.movable_clock import MovableClock

SECOND = dt.timedelta(seconds=1)


def test_the_fixture_serves_an_empty_cluster(kafka_server: KafkaServer) -> None:
    with Wire(kafka_server.bootstrap) as wire:
        assert wire.ask("Metadata", 1, topics=None).topics == ()
        kafka_server.engine.create_topic("orders")
        assert [topic.name for topic in wire.ask("Metadata", 1, topics=None).topics] == ["orders"]


def test_two_servers_run_beside_each_other_and_a_directory_keeps_its_records(tmp_path: Path) -> None:
    with serve(tmp_path / "a") as first, serve(tmp_path / "b", {"node.id": 5}) as second:
        assert first.bootstrap != second.bootstrap
        first.engine.create_topic("orders")
        first.engine.log("orders").append([Record(value=b"v")])
        with Wire(second.bootstrap) as wire:
            assert [broker.node_id for broker in wire.ask("Metadata", 1, topics=None).brokers] == [5]
    with serve(tmp_path / "a") as reopened:
        assert [record.value for record in reopened.engine.log("orders").records()] == [b"v"]


def test_a_topic_has_settings_and_values(kafka_server: KafkaServer) -> None:
    name = kafka_server.topic("orders", partitions=2, retention_ms=1000)
    assert kafka_server.engine.topics()[name].config.retention_ms == 1000
    for number in (1, 0):
        kafka_server.engine.log(name, number).append([Record(value=b"%d" % number)])
    assert kafka_server.values(name) == [b"0", b"1"]


def test_values_of_a_missing_topic_are_an_error_that_names_the_topics(kafka_server: KafkaServer) -> None:
    kafka_server.topic("orders")
    with pytest.raises(UnknownTopicError, match="there is no topic order in the server: did you mean 'orders'"):
        kafka_server.values("order")


def test_a_moved_clock_ends_the_session_of_a_member(kafka_server: KafkaServer) -> None:
    with Wire(kafka_server.bootstrap) as wire:
        join_fields = {
            "group_id": "g", "session_timeout": SECOND * 60, "rebalance_timeout": SECOND * 60, "protocol_type": "consumer",
            "protocols": (part("JoinGroup", 2, "JoinGroupRequestProtocol", name="range", metadata=b""),),
        }  # fmt: skip
        member_id = wire.ask("JoinGroup", 2, **join_fields, member_id="").member_id
        assignment = part("SyncGroup", 1, "SyncGroupRequestAssignment", member_id=member_id, assignment=b"")
        values = {"group_id": "g", "generation_id": 1, "member_id": member_id}
        assert wire.ask("SyncGroup", 1, **values, assignments=(assignment,)).error_code == 0
        assert wire.ask("Heartbeat", 1, **values).error_code == 0
        kafka_server.clock.advance_ms(60_001)
        while wire.ask("DescribeGroups", 1, groups=("g",)).groups[0].members:
            assert wire.ask("ApiVersions", 0).error_code == 0
        assert wire.ask("Heartbeat", 1, **values).error_code == 25


def test_a_moved_clock_lets_records_expire(kafka_server: KafkaServer) -> None:
    log = kafka_server.engine.log(kafka_server.topic("orders", retention_ms=3_600_000))
    log.append([Record(value=b"v")])
    log.roll()
    kafka_server.engine.apply_retention()
    assert log.offsets().log_start == 0
    kafka_server.clock.advance_ms(3_600_001)
    kafka_server.engine.apply_retention()
    assert log.offsets().log_start == 1


def test_a_clock_is_not_moved_back() -> None:
    clock = MovableClock()
    before = clock.now_ms()
    clock.advance_ms(1000)
    assert clock.now_ms() >= before + 1000
    assert not clock.wait(threading.Event(), 0)
    with pytest.raises(ValueError, match="earlier"):
        clock.advance_ms(-1)


def test_dropped_connections_can_be_opened_again(kafka_server: KafkaServer) -> None:
    with Wire(kafka_server.bootstrap) as wire:
        assert wire.ask("ApiVersions", 0).error_code == 0
        kafka_server.faults.drop_connections()
        assert wire.receive() is None
    with Wire(kafka_server.bootstrap) as wire:
        assert wire.ask("ApiVersions", 0).error_code == 0


def creation() -> bytes:
    topic = part("CreateTopics", 4, "CreatableTopic", name="orders", num_partitions=1, replication_factor=1,
                 assignments=(), configs=())  # fmt: skip
    return request("CreateTopics", 4, {"topics": (topic,), "timeout": SECOND, "validate_only": False})


@pytest.mark.parametrize(("fault", "is_done"), [("lost_requests", False), ("lost_responses", True)])
def test_a_lost_response_has_been_handled_and_a_lost_request_has_not(
    kafka_server: KafkaServer, fault: str, *, is_done: bool
) -> None:
    with getattr(kafka_server.faults, fault)("CreateTopics", "DeleteTopics"), Wire(kafka_server.bootstrap) as wire:
        assert wire.ask("ApiVersions", 0).error_code == 0
        wire.send(creation())
        assert wire.receive() is None
    assert ("orders" in kafka_server.engine.topics()) == is_done
    with Wire(kafka_server.bootstrap) as wire:
        wire.send(creation())
        assert wire.receive() is not None


def fetched(wire: Wire, topic: str) -> Any:
    partition = part("Fetch", 11, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (part("Fetch", 11, "FetchTopic", topic=topic, partitions=(partition,)),)
    return wire.ask(
        "Fetch", 11, replica_id=-1, max_wait=SECOND * 0, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=(), rack_id="",
    )  # fmt: skip


def received(wire: Wire, server: KafkaServer) -> bytes | None:
    """Return the next frame, while another thread advances the server's clock by hours."""
    frames: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: frames.append(wire.receive()))
    waiting.start()
    while waiting.is_alive():
        server.clock.advance_ms(3_600_000)
        waiting.join(0.01)
    return frames[0]


def test_another_leader_is_answered_until_the_fault_ends(kafka_server: KafkaServer) -> None:
    kafka_server.topic("orders")
    kafka_server.topic("prices")
    with Wire(kafka_server.bootstrap) as wire:
        assert fetched(wire, "orders").responses[0].partitions[0].error_code == 0
        with kafka_server.faults.not_leader("orders"):
            assert fetched(wire, "orders").responses[0].partitions[0].error_code == 6
            assert fetched(wire, "prices").responses[0].partitions[0].error_code == 0
        assert fetched(wire, "orders").responses[0].partitions[0].error_code == 0


def test_a_throttled_fetch_is_empty_and_the_next_request_waits_for_the_clock(kafka_server: KafkaServer) -> None:
    kafka_server.topic("orders")
    with Wire(kafka_server.bootstrap) as wire:
        with kafka_server.faults.throttled(3_600_000):
            response = fetched(wire, "orders")
            assert (response.throttle_time, response.responses) == (SECOND * 3600, ())
        wire.send(request("ApiVersions", 0, {}))
        assert received(wire, kafka_server) is not None


def test_a_throttled_client_gets_the_records_with_its_next_fetch(kafka_server: KafkaServer) -> None:
    kafka_server.topic("orders")
    with kafka_server.faults.throttled(1), Wire(kafka_server.bootstrap) as wire:
        answers = [fetched(wire, "orders") for _ in range(4)]
    outcomes = [(answer.throttle_time > SECOND * 0, len(answer.responses)) for answer in answers]
    assert outcomes == [(True, 0), (False, 1)] * 2


def test_throttled_clients_with_the_same_client_id_get_the_records_in_turn(kafka_server: KafkaServer) -> None:
    kafka_server.topic("orders")
    with (
        kafka_server.faults.throttled(1),
        Wire(kafka_server.bootstrap) as first_wire,
        Wire(kafka_server.bootstrap) as second_wire,
    ):
        answers = [fetched(wire, "orders") for _ in range(2) for wire in (first_wire, second_wire)]
    assert [len(answer.responses) for answer in answers] == [0, 0, 1, 1]


def test_a_slow_request_waits_for_the_clock(kafka_server: KafkaServer) -> None:
    kafka_server.topic("orders")
    with kafka_server.faults.slow("Metadata", 3_600_000), Wire(kafka_server.bootstrap) as wire:
        wire.send(request("Metadata", 1, {"topics": None}))
        assert received(wire, kafka_server) is not None


def test_the_end_of_the_fault_ends_the_delay(kafka_server: KafkaServer) -> None:
    with Wire(kafka_server.bootstrap) as wire:
        with kafka_server.faults.slow("Metadata", 3_600_000):
            wire.send(request("Metadata", 1, {"topics": None}))
        assert wire.receive() is not None


def test_a_fault_of_an_unknown_api_is_an_error(kafka_server: KafkaServer) -> None:
    with pytest.raises(ConfigError, match="no API Fetsch"), kafka_server.faults.slow("Fetsch", 1):
        raise AssertionError("the fault is in effect")


def test_an_idempotent_producer_survives_lost_responses(kafka_server: KafkaServer) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    kafka_server.topic("orders")
    settings = {"bootstrap.servers": kafka_server.bootstrap, "enable.idempotence": True, "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 10, "log_level": 0}  # fmt: skip
    producer = confluent.Producer(settings)
    with kafka_server.faults.lost_responses("Produce"):
        producer.produce("orders", value=b"once")
        for _ in range(1000):
            producer.poll(0.01)
            if kafka_server.values("orders"):
                break
    assert producer.flush(20) == 0
    assert kafka_server.values("orders") == [b"once"]


def test_a_service_that_the_settings_do_not_name_is_an_error(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine, pytest.raises(ConfigError, match="add gateway to services"):
        engine.service("gateway")
