"""Single requests, and the responses that a Kafka broker would send."""

from __future__ import annotations

import datetime as dt
import errno
import struct
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import NOW_MS, Served, Wire, part, request, response, served
from stratalog import Engine, Log, Record, TopicId, TopicInfo, TopicPartition, TransactionCoordinator, Transfer
from stratalog.client.group_offsets import GroupOffsets
from stratalog.env import Env
from stratalog.env.clock import SystemClock
from stratalog.errors import (
    CorruptBatchError,
    LogDirError,
    NotLeaderOrFollowerError,
    StorageError,
    SystemLimitError,
)
from stratalog.group_states import OffsetsRecord
from stratalog.testing.faults import FaultyVfs, failing
from stratalog_gateway.groups import group_table
from stratalog_gateway.groups.classic_group import ClassicGroup
from stratalog_gateway.groups.group_table import GroupEntry
from stratalog_gateway.handlers.dispatch import APIS
from stratalog_gateway.node import Node, WaitingFetch
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.fetch_codec import decode_fetch
from stratalog_gateway.wire.messages import Header

SECOND = dt.timedelta(seconds=1)


@pytest.fixture
def orders(gateway: Served) -> Served:
    gateway.engine.create_topic("orders", partitions=2)
    return gateway


def produced(
    wire: Wire, data: bytes, *, topic: str = "orders", acks: int = 1, transactional_id: str | None = None
) -> Any:
    wire.send(produce_frame(data, acks=acks, topic=topic, transactional_id=transactional_id))
    return response("Produce", 8, wire.receive() or b"").responses[0].partition_responses[0]


def produce_frame(data: bytes, *, acks: int = 1, topic: str = "orders", transactional_id: str | None = None) -> bytes:
    partition = part("Produce", 8, "PartitionProduceData", index=0, records=data)
    topics = (part("Produce", 8, "TopicProduceData", name=topic, partition_data=(partition,)),)
    values = {"transactional_id": transactional_id, "acks": acks, "timeout": SECOND, "topic_data": topics}
    return request("Produce", 8, values)


def fetched(
    wire: Wire,
    offset: int,
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    version: int = 11,
    **fields: Any,
) -> Any:
    values = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    topics = (
        part(
            "Fetch",
            version,
            "FetchTopic",
            topic="orders",
            partitions=(part("Fetch", version, "FetchPartition", **values),),
        ),
    )
    return wire.ask(
        "Fetch", version, replica_id=-1, max_wait=dt.timedelta(milliseconds=wait_ms), min_bytes=min_bytes,
        max_bytes=max_bytes, isolation_level=0, session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=(),
        rack_id="",
    ).responses[0].partitions[0]  # fmt: skip


def listed(wire: Wire, timestamp: int, *, isolation: int = 0, partition: int = 0, version: int = 9) -> Any:
    requested_partition = part(
        "ListOffsets",
        version,
        "ListOffsetsPartition",
        partition_index=partition,
        current_leader_epoch=-1,
        timestamp=timestamp,
    )
    topics = (part("ListOffsets", version, "ListOffsetsTopic", name="orders", partitions=(requested_partition,)),)
    result = wire.ask("ListOffsets", version, replica_id=-1, isolation_level=isolation, topics=topics)
    return result.topics[0].partitions[0]


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(gateway: Served) -> None:
    with gateway.wire() as wire:
        wire.send(b"\x00\x12\x00\x63\x00\x00\x00\x07\xff\xff\x00")
        frame = wire.receive()
    assert frame is not None
    api_versions = response("ApiVersions", 0, frame)
    assert api_versions.error_code == 35
    assert {key.api_key for key in api_versions.api_keys} == set(APIS)


@pytest.mark.parametrize("head", [b"\x7f\x00\x00\x00", b"\x00\x03\x00\x63", b"\xff\xff\xff\xff"])
def test_an_unknown_api_or_version_closes_the_connection(gateway: Served, head: bytes) -> None:
    with gateway.wire() as wire:
        wire.send(head + b"\x00\x00\x00\x07\xff\xff")
        assert wire.receive() is None


@pytest.mark.parametrize("version", range(5))
def test_each_version_of_api_versions_returns_the_announced_apis(gateway: Served, version: int) -> None:
    values = {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
    with gateway.wire() as wire:
        api_versions = wire.ask("ApiVersions", version, **values)
    assert {key.api_key: key.max_version for key in api_versions.api_keys} == {
        key: api.last for key, api in APIS.items()
    }


@pytest.mark.parametrize(("version", "levels"), [(3, set()), (4, {0})])
def test_supported_features_of_level_0_are_announced_only_to_clients_that_accept_them(
    gateway: Served, version: int, levels: set[int]
) -> None:
    with gateway.wire() as wire:
        api_versions = wire.ask("ApiVersions", version, client_software_name="test", client_software_version="1")
    assert {feature.min_version for feature in api_versions.supported_features} == levels
    assert {feature.name for feature in api_versions.finalized_features} == {"group.version", "transaction.version"}


def test_unknown_tagged_fields_are_ignored(orders: Served) -> None:
    """A later release of a client may add tagged fields to a version that the gateway knows (KIP-482)."""
    tags = b"\x02" + b"\x00\x03abc" + b"\x05\x00"  # field 0 with three bytes, field 5 without any
    head = struct.pack(">hhih", 3, 9, 7, 1) + b"c"
    body = b"\x02" + b"\x07orders" + tags + b"\x00\x00\x00"  # one topic, and three flags
    with orders.wire() as wire:
        wire.send(head + tags + body + tags)
        frame = wire.receive()
        assert frame is not None
        assert [topic.name for topic in response("Metadata", 9, frame).topics] == ["orders"]
        wire.send(head + tags + body + tags[:-1])
        assert wire.receive() is None


def test_requests_are_answered_in_order(gateway: Served) -> None:
    with gateway.wire() as wire:
        for _ in range(3):
            wire.send(request("ApiVersions", 0, {}))
        assert all(wire.receive() is not None for _ in range(3))


def test_metadata_creates_a_topic_only_if_allowed(gateway: Served) -> None:
    def ask(name: str | None, topic_id: uuid.UUID | None = None, *, allowed: bool) -> Any:
        topic = part("Metadata", 12, "MetadataRequestTopic", topic_id=topic_id, name=name)
        with gateway.wire() as wire:
            return wire.ask(
                "Metadata",
                12,
                topics=(topic,),
                allow_auto_topic_creation=allowed,
                include_topic_authorized_operations=False,
            )

    assert ask("orders", allowed=False).topics[0].error_code == 3
    created = ask("orders", allowed=True)
    assert (created.topics[0].error_code, len(created.topics[0].partitions)) == (0, 1)
    assert f"{created.brokers[0].host}:{created.brokers[0].port}" == gateway.bootstrap
    for name in (None, ""):  # Java clients send an empty name
        assert ask(name, created.topics[0].topic_id, allowed=False).topics[0].name == "orders"
    assert ask(None, uuid.uuid4(), allowed=True).topics[0].error_code == 100
    for allowed in (True, False):
        assert ask("no/name", allowed=allowed).topics[0].error_code == 17
    gateway.engine.create_topic("of.one")
    assert ask("of_one", allowed=True).topics[0].error_code == 17, "CreateTopics refuses this name too"
    assert list(gateway.engine.topics()) == ["of.one", "orders"]


@pytest.mark.parametrize("acks", [1, -1])
def test_produce_and_fetch(orders: Served, acks: int) -> None:
    data = orders.batch([b"a", b"b"])
    with orders.wire() as wire:
        assert (produced(wire, data, acks=acks).base_offset, produced(wire, data, acks=acks).base_offset) == (0, 2)
        partition = fetched(wire, 1)
    assert (partition.error_code, partition.high_watermark, len(partition.records)) == (0, 4, 2 * len(data))
    assert [record.value for record in orders.engine.log("orders", 0).records()] == [b"a", b"b"] * 2


def test_acks_0_has_no_response_and_an_error_closes_the_connection(orders: Served) -> None:
    data = orders.batch([b"a"])
    with orders.wire() as wire:
        wire.send(produce_frame(data, acks=0))
        assert wire.ask("ApiVersions", 0).error_code == 0  # the first response is that of this request
        assert orders.engine.log("orders", 0).offsets().log_end == 1
        wire.send(produce_frame(data, acks=0, topic="nothing"))
        assert wire.receive() is None


def offsets_of(wire: Wire, count: int) -> list[int]:
    frames = [wire.receive() or b"" for _ in range(count)]
    return [response("Produce", 8, frame).responses[0].partition_responses[0].base_offset for frame in frames]


def test_appends_that_arrive_together_are_answered_in_order(orders: Served) -> None:
    data = orders.batch([b"a"])
    framed = [struct.pack(">i", len(frame)) + frame for frame in [produce_frame(data)] * 40]
    with orders.wire() as wire:
        wire.send_raw(b"".join(framed))
        assert offsets_of(wire, 40) == list(range(40))
        wire.send_raw(b"".join(framed[:3]) + framed[3][:50])
        assert offsets_of(wire, 3) == [40, 41, 42]
        wire.send_raw(framed[3][50:])
        assert offsets_of(wire, 1) == [43]


def test_appends_before_one_that_closes_the_connection_are_answered(orders: Served) -> None:
    data = orders.batch([b"a"])
    frames = [produce_frame(data), produce_frame(data), produce_frame(data, acks=0, topic="nothing")]
    with orders.wire() as wire:
        wire.send_raw(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        assert offsets_of(wire, 2) == [0, 1]
        assert wire.receive() is None


def test_large_fetches_are_the_bytes_of_the_log(orders: Served) -> None:
    data = orders.batch([b"v" * 30_000])
    with orders.wire() as wire:
        for _ in range(8):
            produced(wire, data)
        partition = fetched(wire, 2, max_bytes=6 * len(data))
    with orders.engine.log("orders", 0).fetch(2, 6 * len(data)) as expected:
        assert partition.records == expected.read()


def test_refused_appends_report_the_reason(orders: Served) -> None:
    data = orders.batch([b"a"])
    with orders.wire() as wire:
        assert produced(wire, data[:-1] + b"\1").error_code == 2
        assert produced(wire, b"").error_code == 87
        assert produced(wire, data, topic="nothing").error_code == 3
        assert produced(wire, data, topic="__consumer_offsets").error_code == 17
        assert produced(wire, data, acks=2).error_code == 21
        assert produced(wire, orders.batch([b"a"], producer=(7, 0, 0), transactional=True)).error_code == 53
    assert orders.engine.log("orders", 0).offsets().log_end == 0


def test_a_retry_of_an_idempotent_producer_gets_the_same_offset(orders: Served) -> None:
    with orders.wire() as wire:
        producer = wire.ask(
            "InitProducerId", 4, transactional_id=None, transaction_timeout=SECOND, producer_id=-1, producer_epoch=-1
        )
        assert (producer.error_code, producer.producer_epoch) == (0, 0)
        data = orders.batch([b"a"], producer=(producer.producer_id, 0, 0))
        assert [produced(wire, data).base_offset for _ in range(2)] == [0, 0]
        assert produced(wire, orders.batch([b"a"], producer=(producer.producer_id, 0, 5))).error_code == 45


def test_the_append_time_is_returned_if_the_log_stores_it(gateway: Served) -> None:
    gateway.engine.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    with gateway.wire() as wire:
        result = produced(wire, gateway.batch([b"a"]))
    [record] = gateway.engine.log("orders", 0).records()
    assert result.log_append_time is not None
    assert int(result.log_append_time.timestamp() * 1000 + 0.5) == record.timestamp_ms


def test_a_fetch_waits_for_records(orders: Served) -> None:
    with orders.wire() as wire, orders.wire() as producer_wire:
        fetch_thread = threading.Thread(target=lambda: partitions.append(fetched(wire, 0, wait_ms=20_000)))
        partitions: list[Any] = []
        fetch_thread.start()
        produced(producer_wire, orders.batch([b"a"]))
        fetch_thread.join(15)
        assert not fetch_thread.is_alive()
    assert partitions[0].high_watermark == 1


def test_a_fetch_waits_for_records_of_the_process(orders: Served) -> None:
    with orders.wire() as wire:
        fetch_thread = threading.Thread(target=lambda: partitions.append(fetched(wire, 0, wait_ms=20_000)))
        partitions: list[Any] = []
        fetch_thread.start()
        orders.engine.log("orders", 0).append([Record(value=b"a")])
        fetch_thread.join(15)
    assert partitions[0].high_watermark == 1


def test_a_closed_log_is_reported_by_a_code_on_which_clients_look_for_it_again(orders: Served) -> None:
    """A log is closed before its topic disappears from the list of topics."""
    data = orders.batch([b"a"])
    orders.engine.log("orders", 0).close()
    with orders.wire() as wire:
        assert produced(wire, data).error_code == 6


def test_a_fetch_ends_when_its_topic_is_deleted(orders: Served) -> None:
    with orders.wire() as wire:
        fetch_thread = threading.Thread(target=lambda: partitions.append(fetched(wire, 0, wait_ms=20_000)))
        partitions: list[Any] = []
        fetch_thread.start()
        orders.engine.delete_topic("orders")
        fetch_thread.join(15)
    assert partitions[0].error_code == 3


def test_a_request_with_the_id_of_a_topic_does_not_use_a_topic_that_is_created_again_meanwhile(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = orders.engine.topics()["orders"].topic_id
    assert topic_id is not None
    batch = orders.batch([b"v"])
    topic_of = Node.topic_of

    def found_before_the_deletion(node: Node, id_bytes: bytes) -> str | None:
        name = topic_of(node, id_bytes)
        if name is not None:
            orders.engine.delete_topic(name)
            orders.engine.create_topic(name, partitions=2)
        return name

    monkeypatch.setattr(Node, "topic_of", found_before_the_deletion)
    with orders.wire() as wire:
        records = part("Produce", 13, "PartitionProduceData", index=0, records=batch)
        topics = (part("Produce", 13, "TopicProduceData", topic_id=topic_id.as_uuid, partition_data=(records,)),)
        produced = wire.ask(
            "Produce", 13, transactional_id=None, acks=1, timeout=SECOND, topic_data=topics
        ).responses[0].partition_responses[0]  # fmt: skip
        assert (produced.error_code, orders.engine.log("orders", 0).offsets().log_end) == (100, 0)
        created = orders.engine.topics()["orders"].topic_id
        assert created is not None
        partition = part("Fetch", 13, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        fetched_partition = wire.ask(
            "Fetch", 13, replica_id=-1, max_wait=dt.timedelta(), min_bytes=1, max_bytes=1 << 20, isolation_level=0,
            session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
            topics=(part("Fetch", 13, "FetchTopic", topic_id=created.as_uuid, partitions=(partition,)),),
        ).responses[0].partitions[0]  # fmt: skip
        assert fetched_partition.error_code == 100


def test_a_watch_is_closed_if_a_topic_has_changed_before_the_watch_is_known(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, find = Node(orders.engine, GatewaySection(), SystemClock()), orders.engine.log

    def changed(topic: str, partition: int) -> Log:
        orders.engine.create_topic("new")
        node.topics()  # closes the caches that `watch` uses
        return find(topic, partition)

    monkeypatch.setattr(orders.engine, "log", changed)
    assert not node.watch("orders", 0).add(WaitingFetch(lambda: None), find("orders", 0).offsets())


def test_a_fetch_keeps_its_limits(orders: Served) -> None:
    data = orders.batch([bytes(1000)])
    with orders.wire() as wire:
        for _ in range(5):
            produced(wire, data)
        assert len(fetched(wire, 0, max_bytes=2 * len(data)).records) == 2 * len(data)
        assert len(fetched(wire, 0, partition_max_bytes=3 * len(data)).records) == 3 * len(data)
        assert len(fetched(wire, 0, max_bytes=1).records) == len(data)  # otherwise a client makes no progress
        assert fetched(wire, 6).error_code == 1
        assert fetched(wire, 5, current_leader_epoch=99).error_code == 75


@pytest.mark.parametrize("limits", [{"max_bytes": 2500}, {"partition_max_bytes": 2500}, {"max_bytes": 2}])
def test_a_fetch_that_its_limits_cut_does_not_wait_for_more_bytes(orders: Served, limits: dict[str, int]) -> None:
    data = orders.batch([bytes(1000)])
    with orders.wire() as wire:
        for _ in range(3):
            produced(wire, data)
        assert len(fetched(wire, 0, wait_ms=600_000, min_bytes=2500, **limits).records) in {len(data), 2 * len(data)}


def test_a_fetch_at_the_end_of_a_segment_does_not_wait_for_more_bytes(orders: Served) -> None:
    data = orders.batch([bytes(1000)])
    with orders.wire() as wire:
        produced(wire, data)
        orders.engine.log("orders", 0).roll()
        produced(wire, data)
        assert len(fetched(wire, 0, wait_ms=600_000, min_bytes=1500).records) == len(data)


def test_a_partition_that_cannot_be_read_does_not_keep_a_fetch_from_the_others(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Transfer.read

    def fail(self: Transfer) -> memoryview:
        if self.size_bytes > 1000:
            raise LogDirError("the disk failed", "orders-0")
        return read(self)

    gateway.engine.create_topic("orders", partitions=2)
    gateway.engine.log("orders", 0).append([Record(value=bytes(20_000))])
    gateway.engine.log("orders", 1).append([Record(value=b"a")])
    monkeypatch.setattr(Transfer, "read", fail)
    requested_partitions = tuple(
        part("Fetch", 11, "FetchPartition", partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(2)
    )
    with gateway.wire() as wire:
        partitions = wire.ask(
            "Fetch", 11, replica_id=-1, max_wait=SECOND, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
            session_id=0, session_epoch=-1,
            topics=(part("Fetch", 11, "FetchTopic", topic="orders", partitions=requested_partitions),),
            forgotten_topics_data=(), rack_id="",
        ).responses[0].partitions  # fmt: skip
    assert [(partition.error_code, len(partition.records) > 0) for partition in partitions] == [
        (LogDirError.kafka_code, False),
        (0, True),
    ]


def test_a_fetch_that_fails_releases_its_files(orders: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    release, released = Transfer.release, list[Transfer]()

    def count(self: Transfer) -> None:
        released.append(self)
        release(self)

    orders.engine.log("orders", 0).append([Record(value=bytes(20_000))])
    monkeypatch.setattr(Transfer, "release", count)
    monkeypatch.setattr("stratalog_gateway.handlers.fetch.encode_fetch", fail)
    with orders.wire() as wire, pytest.raises(AssertionError):
        fetched(wire, 0)
    assert len(released) == 1


def test_a_fetch_without_partitions_does_not_wait(orders: Served) -> None:
    with orders.wire() as wire:
        result = wire.ask(
            "Fetch", 11, replica_id=-1, max_wait=dt.timedelta(seconds=600), min_bytes=1, max_bytes=1, isolation_level=0,
            session_id=0, session_epoch=-1, topics=(), forgotten_topics_data=(), rack_id="",
        )  # fmt: skip
    assert (result.error_code, result.responses) == (0, ())


def test_offsets_for_all_special_timestamps(orders: Served) -> None:
    log = orders.engine.log("orders", 0)
    log.append([Record(timestamp_ms=NOW_MS + step, value=b"x") for step in (0, 900, 500)])
    log.delete_records(1)
    with orders.wire() as wire:
        partition_by_stamp = {stamp: listed(wire, stamp) for stamp in (-1, -2, -3, -4, -5, NOW_MS + 1, NOW_MS + 901)}
        assert listed(wire, -1, partition=9).error_code == 3
    assert {stamp: partition.offset for stamp, partition in partition_by_stamp.items()} == {
        -1: 3,
        -2: 1,
        -3: 1,
        -4: 1,
        -5: -1,
        NOW_MS + 1: 1,
        NOW_MS + 901: -1,
    }
    assert partition_by_stamp[-3].timestamp == NOW_MS + 900


def test_a_special_timestamp_that_the_version_does_not_have_is_refused(orders: Served) -> None:
    orders.engine.log("orders", 0).append([Record(value=b"v")])
    with orders.wire() as wire:
        for timestamp, first in ((-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-100, 11)):
            for version in range(4, 10):
                partition = listed(wire, timestamp, version=version)
                assert partition.error_code == (35 if version < first else 0)


def test_an_offset_has_the_leader_epoch_of_its_record(orders: Served) -> None:
    log = orders.engine.log("orders", 0)
    before = log.leader_epoch
    log.append([Record(timestamp_ms=NOW_MS, value=b"x")])
    log.lead(before + 1)
    log.append([Record(timestamp_ms=NOW_MS + 1, value=b"x")])
    log.lead(before + 2)
    with orders.wire() as wire:
        epochs = [listed(wire, stamp).leader_epoch for stamp in (-1, -2, -3, -4, -5, NOW_MS, NOW_MS + 1, NOW_MS + 2)]
    assert epochs == [before + 2, before, before + 1, before, -1, before, before + 1, -1]


def test_topics_are_created_changed_and_deleted(gateway: Served) -> None:
    def topic(name: str, **values: Any) -> Any:
        fields = {"num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": (), **values}
        return part("CreateTopics", 7, "CreatableTopic", name=name, **fields)

    with gateway.wire() as wire:
        config = part("CreateTopics", 7, "CreatableTopicConfig", name="retention.ms", value="5")
        unknown_config = part("CreateTopics", 7, "CreatableTopicConfig", name="retention", value="5")
        nulls = tuple(
            part("CreateTopics", 7, "CreatableTopicConfig", name=name, value=None)
            for name in ("retention.ms", "segment.bytes")
        )
        requested_topics = (
            topic("orders", configs=(config,)), topic("zero", num_partitions=0), topic("copies", replication_factor=3),
            topic("no/name"), topic("setting", configs=(unknown_config,)), topic("null", configs=nulls),
        )  # fmt: skip
        results = wire.ask("CreateTopics", 7, topics=requested_topics, timeout=SECOND, validate_only=False).topics
        assert [item.error_code for item in results] == [0, 37, 38, 17, 40, 40]
        assert results[5].error_message == "Null value not supported for topic configs: retention.ms,segment.bytes"
        assert {item.name: item.value for item in results[0].configs}["retention.ms"] == "5"
        assert (
            wire.ask("CreateTopics", 7, topics=requested_topics[:1], timeout=SECOND, validate_only=False)
            .topics[0]
            .error_code
            == 36
        )
        twice = (topic("twice"), topic("twice", num_partitions=1))
        [result] = wire.ask("CreateTopics", 7, topics=twice, timeout=SECOND, validate_only=False).topics
        assert (result.name, result.error_code) == ("twice", 42)
        copied = (topic("orders", replication_factor=3),)
        [result] = wire.ask("CreateTopics", 7, topics=copied, timeout=SECOND, validate_only=False).topics
        assert result.error_code == 36
        for only_check in (False, True):
            misspelt = (topic("a name", replication_factor=3),)
            [result] = wire.ask("CreateTopics", 7, topics=misspelt, timeout=SECOND, validate_only=only_check).topics
            assert result.error_code == 17
        place = part("CreateTopics", 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(1,))
        placed_topics = (
            topic("other"), topic("counted", assignments=(place,)),
            topic("free", assignments=(place,), num_partitions=-1, replication_factor=-1),
            topic("order_s"), topic("order.s"),
        )  # fmt: skip
        placed_results = wire.ask("CreateTopics", 7, topics=placed_topics, timeout=SECOND, validate_only=False).topics
        assert [item.error_code for item in placed_results] == [0, 42, 0, 0, 17]
        for name in ("other", "free", "order_s"):
            gateway.engine.delete_topic(name)
        of_plugin = part("CreateTopics", 7, "CreatableTopicConfig", name="ttl.ms", value="5")
        checked = (
            topic("new", configs=(of_plugin,)), topic("no/name"), topic(".."), topic("n" * 250),
            topic("setting", configs=(unknown_config,)),
        )  # fmt: skip
        checked_results = wire.ask("CreateTopics", 7, topics=checked, timeout=SECOND, validate_only=True).topics
        assert [item.error_code for item in checked_results] == [0, 17, 17, 17, 40]
        assert list(gateway.engine.topics()) == ["orders"]
        for count, code, text in (
            (1, 37, "The topic orders currently has 2 partition(s); 1 would not be an increase."),
            (2, 37, "Topic already has 2 partition(s)."),
            (4, 0, None),
        ):
            resized_topic = part(
                "CreatePartitions", 3, "CreatePartitionsTopic", name="orders", count=count, assignments=None
            )
            [resized] = wire.ask(
                "CreatePartitions", 3, topics=(resized_topic,), timeout=SECOND, validate_only=False
            ).results
            assert (resized.error_code, resized.error_message) == (code, text)
        twice = tuple(
            part("CreatePartitions", 3, "CreatePartitionsTopic", name="orders", count=count, assignments=None)
            for count in (5, 6)
        )
        twice_results = wire.ask("CreatePartitions", 3, topics=twice, timeout=SECOND, validate_only=False).results
        assert [item.error_code for item in twice_results] == [42]
        assert len(gateway.engine.topics()["orders"].partitions) == 4
        deleted_topic = part("DeleteTopics", 6, "DeleteTopicState", name=None, topic_id=results[0].topic_id)
        assert [
            wire.ask("DeleteTopics", 6, topics=(deleted_topic,), timeout=SECOND).responses[0].error_code
            for _ in range(2)
        ] == [0, 100]
    assert gateway.engine.topics() == {}


def test_no_topic_is_created_between_the_look_up_of_an_id_and_the_deletion(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the deletion could delete a new topic with the same name."""
    topic_of, create, locks, is_held = Node.topic_of, Engine.create_topic, list[Any](), list[bool]()

    def looked_up(node: Node, topic_id: bytes) -> str | None:
        locks.append(node.changing_topics)
        is_held.append(node.changing_topics.locked())
        return topic_of(node, topic_id)

    def created(engine: Engine, name: str, **options: Any) -> TopicInfo:
        is_held.append(locks[0].locked())
        return create(engine, name, **options)

    monkeypatch.setattr(Node, "topic_of", looked_up)
    monkeypatch.setattr(Engine, "create_topic", created)
    topic_id = orders.engine.topics()["orders"].topic_id
    assert topic_id is not None
    with orders.wire() as wire:
        state = part("DeleteTopics", 6, "DeleteTopicState", name=None, topic_id=topic_id.as_uuid)
        assert wire.ask("DeleteTopics", 6, topics=(state,), timeout=SECOND).responses[0].error_code == 0
        topic = part("CreateTopics", 7, "CreatableTopic", name="orders", num_partitions=1, replication_factor=1,
                     assignments=(), configs=())  # fmt: skip
        assert (
            wire.ask("CreateTopics", 7, topics=(topic,), timeout=SECOND, validate_only=False).topics[0].error_code == 0
        )
        metadata_topic = part("Metadata", 4, "MetadataRequestTopic", name="prices")
        assert (
            wire.ask("Metadata", 4, topics=(metadata_topic,), allow_auto_topic_creation=True).topics[0].error_code == 0
        )
    assert is_held == [True, True, True]


def test_settings_are_described_and_altered(orders: Served) -> None:
    def described(wire: Wire, name: str, *keys: str, kind: int = 2) -> Any:
        resource = part(
            "DescribeConfigs",
            4,
            "DescribeConfigsResource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=keys or None,
        )
        return wire.ask(
            "DescribeConfigs", 4, resources=(resource,), include_synonyms=False, include_documentation=True
        ).results[0]

    def alter(wire: Wire, *changes: tuple[str, int, str | None]) -> int:
        configs = tuple(
            part("IncrementalAlterConfigs", 1, "AlterableConfig", name=name, config_operation=how, value=value)
            for name, how, value in changes
        )
        resource = part(
            "IncrementalAlterConfigs",
            1,
            "AlterConfigsResource",
            resource_type=2,
            resource_name="orders",
            configs=configs,
        )
        code: int = (
            wire.ask("IncrementalAlterConfigs", 1, resources=(resource,), validate_only=False).responses[0].error_code
        )
        return code

    with orders.wire() as wire:
        assert alter(wire, ("retention.ms", 0, "77"), ("cleanup.policy", 2, "compact")) == 0
        settings = {item.name: (item.value, item.config_source) for item in described(wire, "orders").configs}
        assert settings["retention.ms"] == ("77", 1)
        assert settings["cleanup.policy"] == ("delete,compact", 1)
        assert settings["preallocate"] == ("false", 5)
        assert alter(wire, ("retention.ms", 1, None), ("cleanup.policy", 3, "delete")) == 0
        assert [item.config_source for item in described(wire, "orders", "retention.ms").configs] == [5]
        assert orders.engine.topics()["orders"].config.cleanup_policy == ("compact",)
        assert alter(wire, ("retention.ms", 0, "abc")) == 40
        assert alter(wire, ("no.setting", 0, "1")) == 40
        assert [alter(wire, ("compression.type", how, "gzip")) for how in (2, 3)] == [40, 40]  # no list
        settings = {item.name: (item.config_type, item.config_source) for item in described(wire, "orders").configs}
        assert settings["compression.type"] == (2, 5)
        assert settings["cleanup.policy"] == (7, 1)
        assert described(wire, "nothing").error_code == 3
        broker = described(wire, "1", kind=4)
        assert broker.error_code == 0
        assert {item.name for item in broker.configs}.isdisjoint({"port", "users.file", "read.only.refresh.ms"})
        assert described(wire, "9", kind=4).error_code == 42


def test_records_are_deleted(orders: Served) -> None:
    orders.engine.log("orders", 0).append([Record(value=b"x")] * 3)
    with orders.wire() as wire:
        for offset, expected in ((2, (0, 2)), (9, (1, -1))):
            partition = part("DeleteRecords", 2, "DeleteRecordsPartition", partition_index=0, offset=offset)
            topics = (part("DeleteRecords", 2, "DeleteRecordsTopic", name="orders", partitions=(partition,)),)
            result = wire.ask("DeleteRecords", 2, topics=topics, timeout=SECOND).topics[0].partitions[0]
            assert (result.error_code, result.low_watermark) == expected


def test_negative_offsets_are_stored_as_by_a_broker(orders: Served) -> None:
    with orders.wire() as wire:
        for offset in (-2, -1):  # kafkajs commits them to reset a group to the start or to the end
            partition = part(
                "OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset,
                committed_metadata=None,
            )  # fmt: skip
            topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(partition,)),)
            values = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
            assert wire.ask("OffsetCommit", 2, **values).topics[0].partitions[0].error_code == 0
            group = part("OffsetFetch", 8, "OffsetFetchRequestGroup", group_id="g", topics=None)
            [topic] = wire.ask("OffsetFetch", 8, groups=(group,), require_stable=True).groups[0].topics
            assert topic.partitions[0].committed_offset == offset


def test_offsets_are_committed_read_and_deleted(orders: Served) -> None:
    def commit(wire: Wire, partition: int, *, generation: int = -1, metadata: str = "m") -> int:
        requested_partition = part(
            "OffsetCommit", 8, "OffsetCommitRequestPartition", partition_index=partition, committed_offset=5,
            committed_leader_epoch=0, committed_metadata=metadata,
        )  # fmt: skip
        topics = (
            part("OffsetCommit", 8, "OffsetCommitRequestTopic", name="orders", partitions=(requested_partition,)),
        )
        values = {
            "group_id": "g",
            "generation_id_or_member_epoch": generation,
            "member_id": "",
            "group_instance_id": None,
            "topics": topics,
        }
        code: int = wire.ask("OffsetCommit", 8, **values).topics[0].partitions[0].error_code
        return code

    with orders.wire() as wire:
        assert [
            commit(wire, 1, generation=3),
            commit(wire, 0),
            commit(wire, 7),
            commit(wire, 1, generation=3),
            commit(wire, 1, metadata="m" * 5000),
            commit(wire, 1, metadata="\U0001f600" * 2049),  # two units of UTF-16 each
            commit(wire, 0, metadata="\u00e9" * 4096),
            commit(wire, 0),
        ] == [22, 0, 3, 25, 12, 12, 0, 0]
        group = part("OffsetFetch", 8, "OffsetFetchRequestGroup", group_id="g", topics=None)
        [topic] = wire.ask("OffsetFetch", 8, groups=(group,), require_stable=True).groups[0].topics
        assert [(item.partition_index, item.committed_offset, item.metadata) for item in topic.partitions] == [
            (0, 5, "m")
        ]
        requested_topic = part("OffsetFetch", 1, "OffsetFetchRequestTopic", name="orders", partition_indexes=(0, 1))
        [topic] = wire.ask("OffsetFetch", 1, group_id="g", topics=(requested_topic,)).topics
        assert [item.committed_offset for item in topic.partitions] == [5, -1]
        assert [item.group_id for item in wire.ask("ListGroups", 4, states_filter=("Empty",)).groups] == ["g"]
        assert (
            wire.ask("DescribeGroups", 5, groups=("g", "h"), include_authorized_operations=False).groups[1].group_state
            == "Dead"
        )
        deleted = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
        topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deleted,)),)
        assert wire.ask("OffsetDelete", 0, group_id="g", topics=topics).topics[0].partitions[0].error_code == 0
        assert orders.engine.group_offsets("g") == {}
        orders.engine.alter_group_offsets("g", {TopicPartition("orders", 1): 3})
        assert [item.error_code for item in wire.ask("DeleteGroups", 2, groups_names=("g", "h")).results] == [0, 69]


def test_a_group_exists_when_its_first_member_has_got_an_id(orders: Served) -> None:
    protocol = part("JoinGroup", 5, "JoinGroupRequestProtocol", name="range", metadata=b"")
    with orders.wire() as wire:
        join_response = wire.ask(
            "JoinGroup", 5, group_id="g", session_timeout=SECOND * 60, rebalance_timeout=SECOND * 60, member_id="",
            group_instance_id=None, protocol_type="consumer", protocols=(protocol,),
        )  # fmt: skip
        assert join_response.error_code == 79  # MEMBER_ID_REQUIRED
        [group] = wire.ask("DescribeGroups", 6, groups=("g",), include_authorized_operations=False).groups
        assert (group.error_code, group.group_state) == (0, "Empty")
        assert [item.error_code for item in wire.ask("DeleteGroups", 2, groups_names=("g", "g2")).results] == [0, 69]


def test_a_group_that_is_deleted_twice_in_one_request_is_in_the_response_once(orders: Served) -> None:
    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    with orders.wire() as wire:
        results = wire.ask("DeleteGroups", 2, groups_names=("g", "g")).results
    assert [(item.group_id, item.error_code) for item in results] == [("g", 0)]


def test_a_group_that_never_had_members_has_no_protocol_type(orders: Served) -> None:
    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    with orders.wire() as wire:
        [listed_group] = wire.ask("ListGroups", 4, states_filter=()).groups
        [described_group] = wire.ask("DescribeGroups", 5, groups=("g",), include_authorized_operations=False).groups
    assert (listed_group.group_state, listed_group.protocol_type) == ("Empty", "")
    assert (described_group.group_state, described_group.protocol_type) == ("Empty", "")


def test_a_group_that_cannot_be_read_is_an_error_of_the_response(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway once closed the connection, and clients repeated the request until their timeout."""
    read = GroupOffsets.states

    def states(offsets: GroupOffsets, group: str) -> tuple[OffsetsRecord, ...]:
        if group == "h":
            raise LogDirError("the disk is gone", "")
        return read(offsets, group)

    for group in ("g", "h"):
        orders.engine.alter_group_offsets(group, {TopicPartition("orders", 0): 3})
    monkeypatch.setattr(GroupOffsets, "states", states)
    with orders.wire() as wire:
        listing = wire.ask("ListGroups", 4, states_filter=())
        assert (listing.error_code, listing.groups) == (16, ())
        described_groups = wire.ask("DescribeGroups", 5, groups=("g", "h"), include_authorized_operations=False).groups
        assert [(item.error_code, item.group_state) for item in described_groups] == [(0, "Empty"), (16, "")]
        groups = tuple(
            part("OffsetFetch", 9, "OffsetFetchRequestGroup", group_id=name, member_id="m", member_epoch=1, topics=None)
            for name in ("g", "h")
        )
        read_groups = wire.ask("OffsetFetch", 9, groups=groups, require_stable=False).groups
        assert [(item.error_code, len(item.topics)) for item in read_groups] == [(0, 1), (16, 0)]


def test_the_types_of_groups_are_those_of_a_broker(orders: Served) -> None:
    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    with orders.wire() as wire:
        wire.ask(
            "ConsumerGroupHeartbeat", 1, group_id="h", member_id="m", member_epoch=0, instance_id=None, rack_id=None,
            rebalance_timeout=SECOND, subscribed_topic_names=("orders",), subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=(),
        )  # fmt: skip
        groups = wire.ask("ListGroups", 5, states_filter=(), types_filter=()).groups
        assert [(item.group_id, item.group_type) for item in groups] == [("g", "classic"), ("h", "consumer")]
        groups = wire.ask("ListGroups", 5, states_filter=(), types_filter=("Consumer",)).groups
        assert [item.group_id for item in groups] == ["h"]


@pytest.mark.parametrize("error", [SystemLimitError, LogDirError])
def test_offsets_that_cannot_be_stored_or_read_have_an_error_of_coordinators(
    orders: Served, monkeypatch: pytest.MonkeyPatch, error: type[LogDirError]
) -> None:
    """Java clients retry after NOT_COORDINATOR, and fail after the code of the storage error."""

    def fail(*arguments: object, **options: object) -> None:
        del arguments, options
        raise error("the file cannot be opened", "")

    monkeypatch.setattr(GroupOffsets, "commit", fail)
    monkeypatch.setattr(GroupOffsets, "committed", fail)
    partitions = tuple(
        part(
            "OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=number, committed_offset=5,
            committed_metadata="",
        )
        for number in (0, 9)
    )  # fmt: skip
    topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=partitions),)
    with orders.wire() as wire:
        [topic] = wire.ask(
            "OffsetCommit", 2, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics
        ).topics
        read = wire.ask("OffsetFetch", 7, group_id="g", topics=None, require_stable=False)
    assert [item.error_code for item in topic.partitions] == [16, 3]
    assert read.error_code == 16


def test_no_offset_of_a_topic_is_committed_after_its_deletion_has_removed_the_offsets(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, codes = GroupOffsets.commit, list[int]()

    def commit(offsets: GroupOffsets, *arguments: Any, **options: Any) -> None:
        store(offsets, *arguments, **options)
        if "durable" in arguments:  # the deletion of the offsets
            codes.append(wire.ask("OffsetCommit", 2, **values).topics[0].partitions[0].error_code)

    partition = part(
        "OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata=""
    )
    topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(partition,)),)
    values = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -SECOND / 1000,
        "topics": topics,
    }  # fmt: skip
    with orders.wire() as wire:
        for _ in range(2):  # the first commit creates __consumer_offsets
            assert wire.ask("OffsetCommit", 2, **values).topics[0].partitions[0].error_code == 0
        monkeypatch.setattr(GroupOffsets, "commit", commit)
        orders.engine.delete_topic("orders")
    assert (codes, orders.engine.group_offsets("g")) == ([3], {})


def test_no_member_commits_while_offsets_of_its_group_are_deleted(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, groups, is_held = GroupOffsets.commit, list[GroupEntry](), list[bool]()

    def opened(group: ClassicGroup) -> GroupEntry:
        groups.append(GroupEntry(group))
        return groups[-1]

    def commit(offsets: GroupOffsets, *arguments: Any, **options: Any) -> None:
        is_held.append(groups[-1].lock.locked())
        store(offsets, *arguments, **options)

    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    monkeypatch.setattr(group_table, "GroupEntry", opened)
    monkeypatch.setattr(GroupOffsets, "commit", commit)
    deleted = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deleted,)),)
    with orders.wire() as wire:
        assert wire.ask("OffsetDelete", 0, group_id="g", topics=topics).topics[0].partitions[0].error_code == 0
    assert (is_held, orders.engine.group_offsets("g")) == ([True], {})


def error_of_commit(gateway: Served, topic_id: TopicId) -> int:
    """Commit an offset by the id of a topic, and return the error code of its partition."""
    partition = part(
        "OffsetCommit", 10, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata=""
    )
    topics = (part("OffsetCommit", 10, "OffsetCommitRequestTopic", topic_id=topic_id.as_uuid, partitions=(partition,)),)
    with gateway.wire() as wire:
        (topic,) = wire.ask(
            "OffsetCommit", 10, group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=topics,
        ).topics  # fmt: skip
    assert topic.topic_id == topic_id.as_uuid
    error: int = topic.partitions[0].error_code
    return error


def test_a_commit_is_answered_although_a_topic_is_deleted_after_its_id_was_looked_up(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = orders.engine.topics()["orders"].topic_id
    assert topic_id is not None
    topic_of = Node.topic_of

    def found_before_the_deletion(node: Node, id_bytes: bytes) -> str | None:
        name = topic_of(node, id_bytes)
        if name is not None:
            orders.engine.delete_topic(name)
        return name

    monkeypatch.setattr(Node, "topic_of", found_before_the_deletion)
    assert error_of_commit(orders, topic_id) == 3


def test_an_offset_is_not_committed_to_a_topic_that_is_created_again_after_the_id_was_looked_up(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id, alter = orders.engine.topics()["orders"].topic_id, Engine.alter_group_offsets
    assert topic_id is not None

    def altered(engine: Engine, group: str, offsets: Any, *arguments: Any, **options: Any) -> None:
        if any(offset is not None for offset in offsets.values()):
            engine.delete_topic("orders")
            engine.create_topic("orders", partitions=2)
        alter(engine, group, offsets, *arguments, **options)

    monkeypatch.setattr(Engine, "alter_group_offsets", altered)
    assert error_of_commit(orders, topic_id) == 100
    assert orders.engine.group_offsets("g") == {}


def test_offsets_of_a_group_of_another_type_can_be_deleted_when_its_members_have_left(orders: Served) -> None:
    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    deleted = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deleted,)),)
    with orders.wire() as wire:
        protocol = part("JoinGroup", 3, "JoinGroupRequestProtocol", name="default", metadata=b"")
        join_response = wire.ask(
            "JoinGroup", 3, group_id="g", session_timeout=SECOND * 60, rebalance_timeout=SECOND * 60, member_id="",
            protocol_type="connect", protocols=(protocol,),
        )  # fmt: skip
        assert wire.ask("OffsetDelete", 0, group_id="g", topics=topics).error_code == 68
        assert wire.ask("LeaveGroup", 1, group_id="g", member_id=join_response.member_id).error_code == 0
        assert wire.ask("OffsetDelete", 0, group_id="g", topics=topics).error_code == 0
    assert orders.engine.group_offsets("g") == {}


def test_the_deletion_of_offsets_names_partitions_that_do_not_exist(orders: Served) -> None:
    def topic(name: str, *numbers: int) -> Any:
        partitions = tuple(part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=n) for n in numbers)
        return part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name=name, partitions=partitions)

    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    with orders.wire() as wire:
        result = wire.ask("OffsetDelete", 0, group_id="g", topics=(topic("orders", 0, 1, 2), topic("unknown", 0)))
    assert [[item.error_code for item in topic.partitions] for topic in result.topics] == [[0, 0, 3], [3]]
    assert orders.engine.group_offsets("g") == {}


def test_offsets_of_a_group_with_members_of_unknown_subscriptions_are_not_deleted(orders: Served) -> None:
    orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 3})
    deleted = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deleted,)),)
    with orders.wire() as wire:
        protocol = part("JoinGroup", 3, "JoinGroupRequestProtocol", name="own", metadata=b"text")
        wire.ask(
            "JoinGroup", 3, group_id="g", session_timeout=SECOND * 60, rebalance_timeout=SECOND * 60, member_id="",
            protocol_type="consumer", protocols=(protocol,),
        )  # fmt: skip
        assert wire.ask("OffsetDelete", 0, group_id="g", topics=topics).topics[0].partitions[0].error_code == 86
    assert orders.engine.group_offsets("g")[TopicPartition("orders", 0)].offset == 3


def test_requests_of_members_that_name_no_group_are_refused(gateway: Served) -> None:
    protocol = part("JoinGroup", 3, "JoinGroupRequestProtocol", name="range", metadata=b"")
    member = {"group_id": "", "member_id": "m"}
    joining = {
        "session_timeout": SECOND * 60, "rebalance_timeout": SECOND * 60, "protocol_type": "consumer",
        "protocols": (protocol,),
    }  # fmt: skip
    with gateway.wire() as wire:
        codes = [
            wire.ask("JoinGroup", 3, **member, **joining).error_code,
            wire.ask("SyncGroup", 2, **member, generation_id=1, assignments=()).error_code,
            wire.ask("Heartbeat", 2, **member, generation_id=1).error_code,
            wire.ask("LeaveGroup", 1, **member).error_code,
        ]
    assert codes == [24, 24, 24, 24]


def test_offsets_of_the_group_without_a_name_are_committed_read_and_deleted(orders: Served) -> None:
    committed = part(
        "OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=3, committed_metadata="",
    )  # fmt: skip
    topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(committed,)),)
    requested = (part("OffsetFetch", 1, "OffsetFetchRequestTopic", name="orders", partition_indexes=(0,)),)
    with orders.wire() as wire:
        response = wire.ask("OffsetCommit", 2, group_id="", member_id="", topics=topics)
        assert response.topics[0].partitions[0].error_code == 0
        response = wire.ask("OffsetFetch", 1, group_id="", topics=requested)
        assert response.topics[0].partitions[0].committed_offset == 3
        assert wire.ask("OffsetDelete", 0, group_id="", topics=()).error_code == 24  # INVALID_GROUP_ID
        assert [item.group_id for item in wire.ask("ListGroups", 4, states_filter=()).groups] == [""]
        [group] = wire.ask("DescribeGroups", 6, groups=("",), include_authorized_operations=False).groups
        assert (group.error_code, group.group_state) == (0, "Empty")
        assert [item.error_code for item in wire.ask("DeleteGroups", 2, groups_names=("",)).results] == [0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotLeaderOrFollowerError("another leader"), 15),
        (LogDirError("the log directory is offline", "/logs"), 16),
        (CorruptBatchError("a wrong checksum", "0.log"), -1),
    ],
)
def test_each_request_of_a_group_that_cannot_be_loaded_gets_an_error_code(
    orders: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: StorageError,
    expected: int,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(GroupOffsets, "states", fail)
    protocol = part("JoinGroup", 9, "JoinGroupRequestProtocol", name="range", metadata=b"")
    leaving = part("LeaveGroup", 5, "MemberIdentity", member_id="m", group_instance_id=None, reason=None)
    deleted = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    offset = part(
        "OffsetCommit", 8, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata=""
    )
    transactional_offset = part(
        "TxnOffsetCommit", 3, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=1,
        committed_leader_epoch=-1, committed_metadata=None,
    )  # fmt: skip
    with orders.wire() as wire:
        join_response = wire.ask(
            "JoinGroup", 9, group_id="g", member_id="m", session_timeout=SECOND * 60, rebalance_timeout=SECOND * 60,
            protocol_type="consumer", protocols=(protocol,), reason=None,
        )  # fmt: skip
        sync_response = wire.ask(
            "SyncGroup", 5, group_id="g", member_id="m", generation_id=1, protocol_type="consumer",
            protocol_name="range", assignments=(),
        )  # fmt: skip
        topics = (part("OffsetCommit", 8, "OffsetCommitRequestTopic", name="orders", partitions=(offset,)),)
        commit_response = wire.ask(
            "OffsetCommit", 8, group_id="g", member_id="m", generation_id_or_member_epoch=1, topics=topics
        )
        leave_response = wire.ask("LeaveGroup", 5, group_id="g", members=(leaving,))
        topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deleted,)),)
        delete_response = wire.ask("OffsetDelete", 0, group_id="g", topics=topics)
        topics = (
            part(
                "TxnOffsetCommit", 3, "TxnOffsetCommitRequestTopic", name="orders", partitions=(transactional_offset,)
            ),
        )
        txn_commit_response = wire.ask(
            "TxnOffsetCommit", 3, transactional_id="t", group_id="g", producer_id=1, producer_epoch=0, topics=topics
        )
        codes = [
            join_response.error_code,
            sync_response.error_code,
            wire.ask("Heartbeat", 4, group_id="g", member_id="m", generation_id=1).error_code,
            leave_response.error_code,
            wire.ask("LeaveGroup", 2, group_id="g", member_id="m").error_code,
            commit_response.topics[0].partitions[0].error_code,
            delete_response.error_code,
            txn_commit_response.topics[0].partitions[0].error_code,
        ]
    assert codes == [expected] * 8
    assert f"a group cannot be loaded: {error} group=g" in caplog.text


def test_members_that_repeat_their_requests_after_the_disk_was_full_continue(tmp_path: Path) -> None:
    files = FaultyVfs()
    protocol = part("JoinGroup", 9, "JoinGroupRequestProtocol", name="range", metadata=b"")
    offset = part(
        "OffsetCommit", 8, "OffsetCommitRequestPartition", partition_index=0, committed_offset=5, committed_metadata=""
    )
    topics = (part("OffsetCommit", 8, "OffsetCommitRequestTopic", name="orders", partitions=(offset,)),)
    deletion = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    deletion = part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deletion,))

    def commit(wire: Wire) -> int:
        commit_response = wire.ask(
            "OffsetCommit", 8, group_id="old", member_id="", generation_id_or_member_epoch=-1, topics=topics
        )
        code: int = commit_response.topics[0].partitions[0].error_code
        return code

    def codes(wire: Wire) -> list[int]:
        join_response = wire.ask(
            "JoinGroup", 9, group_id="g", member_id="", group_instance_id="one", session_timeout=SECOND * 60,
            rebalance_timeout=SECOND * 60, protocol_type="consumer", protocols=(protocol,), reason=None,
        )  # fmt: skip
        assert join_response.error_code == 0
        sync_response = wire.ask(
            "SyncGroup", 5, group_id="g", member_id=join_response.member_id, generation_id=join_response.generation_id,
            group_instance_id="one", protocol_type="consumer", protocol_name="range", assignments=(),
        )  # fmt: skip
        beat = wire.ask(
            "ConsumerGroupHeartbeat", 1, group_id="new", member_id="m", member_epoch=0, rebalance_timeout=SECOND * 60,
            subscribed_topic_names=("orders",), topic_partitions=(),
        )  # fmt: skip
        delete_response = wire.ask("OffsetDelete", 0, group_id="old", topics=(deletion,))
        return [sync_response.error_code, beat.error_code, commit(wire), delete_response.error_code]

    with served(tmp_path, env=Env(files=files)) as gateway:
        for topic in ("orders", "__consumer_offsets"):
            gateway.engine.create_topic(topic)
        with gateway.wire() as wire:
            assert commit(wire) == 0
            files.rule = failing("write", errno.ENOSPC, times=100)
            assert codes(wire) == [16] * 4
            assert wire.ask("DeleteGroups", 2, groups_names=("old",)).results[0].error_code == 16
            files.rule = None
            assert codes(wire) == [0] * 4
            assert commit(wire) == 0
            assert wire.ask("DeleteGroups", 2, groups_names=("old",)).results[0].error_code == 0


def test_transactions_that_cannot_be_listed_get_an_error_code(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LogDirError("the log directory is offline", "/logs")

    monkeypatch.setattr(TransactionCoordinator, "states", fail)
    with gateway.wire() as wire:
        listing = wire.ask("ListTransactions", 1, state_filters=("No",), producer_id_filters=(), duration_filter=-1)
    assert (listing.error_code, listing.unknown_state_filters) == (LogDirError.kafka_code, ())


def test_a_group_is_coordinated_here(gateway: Served) -> None:
    with gateway.wire() as wire:
        groups = wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=("g", "h")).coordinators
        assert [(item.key, item.error_code, item.node_id) for item in groups] == [("g", 0, 1), ("h", 0, 1)]
        assert wire.ask("FindCoordinator", 0, key="g").node_id == 1


def test_a_group_of_the_consumer_protocol_is_described_with_its_authorized_operations(orders: Served) -> None:
    with orders.wire() as wire:
        wire.ask(
            "ConsumerGroupHeartbeat", 0, group_id="g", member_id="m", member_epoch=0, rebalance_timeout=SECOND,
            subscribed_topic_names=("orders",), topic_partitions=(),
        )  # fmt: skip
        for is_asked, operations in ((True, 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11), (False, -(1 << 31))):
            description = wire.ask("ConsumerGroupDescribe", 0, group_ids=("g",), include_authorized_operations=is_asked)
            assert (description.groups[0].error_code, description.groups[0].authorized_operations) == (0, operations)


def test_the_end_of_a_leader_epoch(orders: Served) -> None:
    orders.engine.log("orders", 0).append([Record(value=b"x")] * 3)
    epoch = orders.engine.log("orders", 0).leader_epoch
    with orders.wire() as wire:
        partition = part(
            "OffsetForLeaderEpoch",
            4,
            "OffsetForLeaderPartition",
            partition=0,
            current_leader_epoch=-1,
            leader_epoch=epoch,
        )
        topics = (part("OffsetForLeaderEpoch", 4, "OffsetForLeaderTopic", topic="orders", partitions=(partition,)),)
        epoch_end = wire.ask("OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics).topics[0].partitions[0]
    assert (epoch_end.error_code, epoch_end.leader_epoch, epoch_end.end_offset) == (0, epoch, 3)


def test_a_cut_fetch_is_not_read_beyond_its_end() -> None:
    assert decode_fetch(Header(1, 4, 7, "", 0), memoryview(bytes(25))).partitions == []
