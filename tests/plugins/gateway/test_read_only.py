"""Read-only gateways, which follow a writer through its tier or its directory."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, Wire, part
from stratalog import Engine, Record, TopicPartition, open_engine, open_reader
from stratalog.env.clock import SystemClock
from stratalog.errors import DiskFullError, StorageError, StoreTimeoutError
from stratalog.reading.tier_reader import BucketReader
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.read_only import ReadOnlySource
from stratalog_gateway.settings import GatewaySection

SECOND = dt.timedelta(seconds=1)
TOPIC, CLUSTER = 29, 31


def offloaded(engine: Engine, topic: str, count: int) -> None:
    """Append records, and move all closed segments to the tier."""
    if topic not in engine.topics():
        engine.create_topic(topic, config={"retention.ms": "123456789"})
    log = engine.log(topic)
    log.append([Record(value=b"%d" % number) for number in range(count)])
    log.roll()
    engine.offload()


@pytest.fixture
def tier(tmp_path: Path) -> str:
    (tmp_path / "tier").mkdir()
    return (tmp_path / "tier").as_uri()


@pytest.fixture
def writer(tmp_path: Path, tier: str) -> Iterator[Engine]:
    with open_engine(tmp_path / "writer", tier=tier) as engine:
        offloaded(engine, "orders", 5)
        yield engine


@contextlib.contextmanager
def following(place: str, state: Path, *, refresh_ms: int = 20) -> Iterator[tuple[Served, ReadOnlySource]]:
    with open_reader(place) as reader, open_engine(state, tier="", config={}) as engine:
        source = ReadOnlySource(reader, refresh_ms, SystemClock(), state / "topics.json")
        gateway = Gateway(engine, GatewaySection(port=0), SystemClock(), source)
        gateway.start()
        try:
            yield Served(engine, gateway), source
        finally:
            gateway.stop()


def fetched(wire: Wire, offset: int, *, wait_ms: int = 0, topic: str = "orders") -> Any:
    partition = part("Fetch", 11, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = (part("Fetch", 11, "FetchTopic", topic=topic, partitions=(partition,)),)
    return wire.ask(
        "Fetch", 11, replica_id=-1, max_wait=dt.timedelta(milliseconds=wait_ms), min_bytes=1, max_bytes=1 << 20,
        isolation_level=0, session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=(), rack_id="",
    ).responses[0].partitions[0]  # fmt: skip


def test_a_fetch_waits_until_the_writer_commits_more_to_its_tier(writer: Engine, tier: str, tmp_path: Path) -> None:
    with following(tier, tmp_path / "state") as (gateway, _), gateway.wire() as wire:
        assert [topic.name for topic in wire.ask("Metadata", 1, topics=None).topics] == ["orders"]
        assert (fetched(wire, 0).high_watermark, len(fetched(wire, 0).records) > 0) == (5, True)
        offloaded(writer, "orders", 3)
        assert fetched(wire, 5, wait_ms=20_000).high_watermark == 8
        offloaded(writer, "prices", 1)
        for _ in range(500):
            names = {topic.name for topic in wire.ask("Metadata", 1, topics=None).topics}
            if names == {"orders", "prices"}:
                break
        assert fetched(wire, 0, topic="prices", wait_ms=20_000).high_watermark == 1


def test_a_topic_that_was_created_again_has_its_new_records(writer: Engine, tier: str, tmp_path: Path) -> None:
    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, source), gateway.wire() as wire:
        assert fetched(wire, 0).high_watermark == 5
        before = source.topic_changes
        source.refresh()
        assert source.topic_changes == before
        writer.delete_topic("orders")
        offloaded(writer, "orders", 2)
        source.refresh()
        assert source.topic_changes == before + 1
        assert fetched(wire, 0).high_watermark == 2


def test_groups_read_a_topic_that_was_created_again_from_its_start(writer: Engine, tier: str, tmp_path: Path) -> None:
    offloaded(writer, "prices", 5)
    orders, prices = TopicPartition("orders", 0), TopicPartition("prices", 0)
    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, source):
        for group in ("g", "h"):
            gateway.engine.alter_group_offsets(group, {orders: 5, prices: 3}, must_exist=False)
        writer.delete_topic("orders")
        source.refresh()
        assert gateway.engine.group_offsets("g").keys() == {orders, prices}
        offloaded(writer, "orders", 8)
        source.refresh()
        assert [gateway.engine.group_offsets(group).keys() for group in ("g", "h")] == [{prices}, {prices}]


def test_an_error_of_one_topic_does_not_keep_the_offsets_of_another_deleted_topic(
    writer: Engine, tier: str, tmp_path: Path
) -> None:
    offloaded(writer, "prices", 5)
    forgotten, failing = list[str](), {"orders"}

    def forget(topic: str) -> None:
        if topic in failing:
            raise StorageError("the disk is full")
        forgotten.append(topic)

    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (_, source):
        source.attach(forget)
        for name in ("orders", "prices"):
            writer.delete_topic(name)
            offloaded(writer, name, 1)
        source.refresh()
        assert forgotten == ["prices"]
        failing.clear()
        source.refresh()
        assert forgotten == ["prices", "orders"]


def test_groups_read_a_topic_that_was_created_again_between_two_gateways_from_its_start(
    writer: Engine, tier: str, tmp_path: Path
) -> None:
    offloaded(writer, "prices", 5)
    orders, prices = TopicPartition("orders", 0), TopicPartition("prices", 0)
    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, _):
        gateway.engine.alter_group_offsets("g", {orders: 5, prices: 3}, must_exist=False)
    writer.delete_topic("orders")
    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, _):
        assert gateway.engine.group_offsets("g").keys() == {orders, prices}
    offloaded(writer, "orders", 8)
    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, _):
        assert gateway.engine.group_offsets("g").keys() == {prices}


def test_the_topics_are_locked_while_the_offsets_of_a_deleted_topic_are_removed(
    writer: Engine, tier: str, tmp_path: Path
) -> None:
    """Otherwise a request for the settings of another deleted topic raised KeyError."""
    is_locked = list[bool]()
    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (_, source):
        source.attach(lambda _: is_locked.append(source._lock.locked()))  # noqa: SLF001 - the subject
        writer.delete_topic("orders")
        offloaded(writer, "orders", 2)
        source.refresh()
    assert is_locked == [True]


def test_a_topic_that_was_created_again_is_shown_although_its_offsets_cannot_be_deleted_yet(
    writer: Engine, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DiskFullError("the disk is full", "")

    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, source), gateway.wire() as wire:
        assert fetched(wire, 0).high_watermark == 5
        gateway.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 5}, must_exist=False)
        writer.delete_topic("orders")
        offloaded(writer, "orders", 2)
        monkeypatch.setattr(Engine, "alter_group_offsets", fail)
        source.refresh()
        assert fetched(wire, 0).high_watermark == 2
        monkeypatch.undo()
        assert gateway.engine.group_offsets("g")
        source.refresh()
        assert gateway.engine.group_offsets("g") == {}


def described(wire: Wire, topic: str) -> Any:
    topics = wire.ask("Metadata", 10, topics=None, allow_auto_topic_creation=False,
                      include_cluster_authorized_operations=False, include_topic_authorized_operations=False).topics  # fmt: skip
    return next(entry for entry in topics if entry.name == topic)


@pytest.mark.parametrize("is_tier", [True, False])
def test_a_topic_that_was_created_again_before_a_client_has_used_it_has_its_new_id(
    writer: Engine, tier: str, tmp_path: Path, *, is_tier: bool
) -> None:
    place = tier if is_tier else str(tmp_path / "writer")
    with following(place, tmp_path / "state", refresh_ms=1 << 30) as (gateway, source), gateway.wire() as wire:
        writer.delete_topic("orders")
        offloaded(writer, "orders", 2)
        source.refresh()
        new_id = writer.topics()["orders"].topic_id
        assert new_id is not None
        assert described(wire, "orders").topic_id == new_id.as_uuid


def test_a_topic_that_was_created_again_has_its_new_records_also_after_a_refresh_that_failed(
    writer: Engine, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreTimeoutError("no answer", "")

    with following(tier, tmp_path / "state", refresh_ms=1 << 30) as (gateway, source), gateway.wire() as wire:
        offloaded(writer, "prices", 1)
        source.refresh()
        assert fetched(wire, 0).high_watermark == 5
        assert fetched(wire, 0, topic="prices").high_watermark == 1
        writer.delete_topic("orders")
        offloaded(writer, "orders", 2)
        offloaded(writer, "prices", 1)
        monkeypatch.setattr(BucketReader, "_read_newest", fail)
        with pytest.raises(StoreTimeoutError):
            source.refresh()
        monkeypatch.undo()
        source.refresh()
        assert fetched(wire, 0).high_watermark == 2
        assert fetched(wire, 0, topic="prices").high_watermark == 2
        new_id = writer.topics()["orders"].topic_id
        assert new_id is not None
        assert described(wire, "orders").topic_id == new_id.as_uuid


def test_changes_are_refused_with_the_codes_of_a_missing_permission(writer: Engine, tier: str, tmp_path: Path) -> None:
    del writer
    with following(tier, tmp_path / "state") as (gateway, _), gateway.wire() as wire:
        data = part("Produce", 8, "PartitionProduceData", index=0, records=b"")
        topics = (part("Produce", 8, "TopicProduceData", name="orders", partition_data=(data,)),)
        result = wire.ask("Produce", 8, transactional_id=None, acks=1, timeout=SECOND, topic_data=topics)
        assert result.responses[0].partition_responses[0].error_code == TOPIC
        result = wire.ask("InitProducerId", 1, transactional_id=None, transaction_timeout=SECOND)
        assert result.error_code == CLUSTER
        topic = part("CreateTopics", 4, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                     assignments=(), configs=())  # fmt: skip
        result = wire.ask("CreateTopics", 4, topics=(topic,), timeout=SECOND, validate_only=False)
        assert result.topics[0].error_code == TOPIC
        result = wire.ask("DeleteTopics", 3, topic_names=("orders",), timeout=SECOND)
        assert result.responses[0].error_code == TOPIC
        metadata_topics = (part("Metadata", 4, "MetadataRequestTopic", name="unknown"),)
        result = wire.ask("Metadata", 4, topics=metadata_topics, allow_auto_topic_creation=True)
        assert result.topics[0].error_code == 3
        resource = part("DescribeConfigs", 1, "DescribeConfigsResource", resource_type=2, resource_name="orders",
                      configuration_keys=("retention.ms",))  # fmt: skip
        result = wire.ask("DescribeConfigs", 1, resources=(resource,), include_synonyms=False).results[0]
        assert [(config.name, config.value) for config in result.configs] == [("retention.ms", "123456789")]


def test_two_gateways_on_one_tier_have_offsets_of_their_own(writer: Engine, tier: str, tmp_path: Path) -> None:
    del writer
    partition = part("OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=3,
                  committed_metadata="")  # fmt: skip
    topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(partition,)),)
    values = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "retention_time": SECOND}
    with following(tier, tmp_path / "one") as (first, _), following(tier, tmp_path / "two") as (second, _):
        with first.wire() as wire:
            assert wire.ask("OffsetCommit", 2, **values, topics=topics).topics[0].partitions[0].error_code == 0
        assert second.engine.group_offsets("g") == {}
    with following(tier, tmp_path / "one") as (reopened, _):
        assert reopened.engine.group_offsets("g")[TopicPartition("orders", 0)].offset == 3


def test_a_failed_refresh_is_logged_and_the_earlier_state_stays(
    writer: Engine, tier: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del writer
    with following(tier, tmp_path / "state") as (gateway, _), gateway.wire() as wire:
        assert fetched(wire, 0).high_watermark == 5
        shutil.move(tmp_path / "tier", tmp_path / "away")
        (tmp_path / "tier").write_text("no folder")
        with caplog.at_level(logging.WARNING, "stratalog_gateway.read_only"):
            for _ in range(500):
                if "earlier state" in caplog.text:
                    break
                assert wire.ask("ApiVersions", 0).error_code == 0
        assert [topic.name for topic in wire.ask("Metadata", 1, topics=None).topics] == ["orders"]


@pytest.mark.parametrize("failure", [SystemExit(3), ValueError("a bug")], ids=repr)
def test_refreshes_continue_after_a_plugin_has_failed_or_exited(
    writer: Engine, tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    with following(tier, tmp_path / "state") as (gateway, source), gateway.wire() as wire:
        refresh, failed = source.refresh, threading.Event()

        def fail() -> None:
            if failed.is_set():
                refresh()
            else:
                failed.set()
                raise failure

        monkeypatch.setattr(source, "refresh", fail)
        assert failed.wait(20)
        offloaded(writer, "orders", 3)
        assert fetched(wire, 5, wait_ms=20_000).high_watermark == 8


def test_a_consumer_group_reads_a_tier(writer: Engine, tier: str, tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    del writer
    with following(tier, tmp_path / "state") as (gateway, _):
        consumer = confluent.Consumer({
            "bootstrap.servers": gateway.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20, "enable.auto.commit": False,
        })  # fmt: skip
        consumer.subscribe(["orders"])
        values: list[bytes] = []
        for _ in range(300):
            message = consumer.poll(0.1)
            if message is not None:
                values.append(message.value())
            if len(values) == 5:
                break
        consumer.commit(asynchronous=False)
        consumer.close()
        assert values == [b"0", b"1", b"2", b"3", b"4"]
        assert gateway.engine.group_offsets("g")[TopicPartition("orders", 0)].offset == 5


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tier", "directory"])
def test_the_command_serves_a_tier_and_a_directory_of_a_running_writer(
    writer: Engine, tier: str, tmp_path: Path, kind: str
) -> None:
    writer.flush()
    place = [tier] if kind == "tier" else [str(tmp_path / "writer"), "--read-only"]
    command = [sys.executable, "-m", "stratalog", "serve", *place, "--listen", "127.0.0.1:0"]
    command += ["--state", str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:  # noqa: S603 - Python with arguments of this test
        assert running.stdout is not None
        with Wire(running.stdout.readline().strip()) as wire:
            assert "orders" in {topic.name for topic in wire.ask("Metadata", 1, topics=None).topics}
            assert fetched(wire, 0).high_watermark >= 0
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    assert json.loads((tmp_path / "state" / "stratalog-served-topics.json").read_bytes())["topics"].keys() >= {"orders"}
