"""A reader of a tier without a log directory sees what the tier's writer commits."""

from __future__ import annotations

import pickle
import threading
from datetime import datetime
from pathlib import Path

import pytest

from stratalog import Engine, Reader, Record, open_engine, open_reader
from stratalog.errors import ClosedError, ConfigError, StoreTimeoutError, UnknownTopicError
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.names import TopicPartition
from stratalog.reading import ReadSource
from stratalog.tier.manifest.head import ClockReading
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog

T0 = TopicPartition("t", 0)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return (tmp_path / "bucket").as_uri()


def add(engine: Engine, value: bytes, topic: str = "t") -> None:
    engine.log(topic, 0).append([Record(value=value)])
    engine.log(topic, 0).roll()
    engine.offload()


def test_a_replica_shows_what_was_committed_since(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t")
        add(engine, b"0")
        with open_reader(uri) as reader:
            log = reader.log("t", 0)
            reading = log.records()
            assert next(reading).value == b"0"
            add(engine, b"1")
            engine.create_topic("u")
            add(engine, b"u", "u")
            assert [record.value for record in log.records()] == [b"0"]
            assert reader.refresh() == (T0,)
            assert list(reading) == []  # the reader continues with its earlier state
            assert [record.value for record in log.records()] == [b"0", b"1"]
            assert [record.value for record in reader.log("u", 0).records()] == [b"u"]
            assert reader.refresh() == ()
        for call in (reader.refresh, reader.topics, reader.partitions):
            with pytest.raises(ClosedError):
                call()


def test_an_unknown_topic_of_a_tier_has_no_settings(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders")
        add(engine, b"0", "orders")
    with open_reader(uri) as reader, pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
        reader.topic_config(TopicPartition("order", 0))


def test_a_topic_that_is_created_again_is_a_new_topic(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine, open_reader(uri) as reader:
        engine.create_topic("t")
        add(engine, b"old")
        reader.refresh()
        old = reader.log("t", 0)
        engine.delete_topic("t")
        engine.create_topic("t")
        add(engine, b"new")
        assert reader.refresh() == (T0,)
        with pytest.raises(ClosedError):
            old.view()
        assert [record.value for record in reader.log("t", 0).records()] == [b"new"]


def test_all_partitions_are_of_the_topic_that_was_written_last(tmp_path: Path, uri: str) -> None:
    """The bucket has two topics of the same name, an old one and a new one. Records of the old one are never shown."""
    with open_engine(tmp_path / "old", tier=uri) as old, open_engine(tmp_path / "new", tier=uri) as new:
        for engine in (old, new):
            engine.create_topic("t", partitions=2)
        old.log("t", 1).append([Record(value=b"old")])
        old.log("t", 1).roll()
        add(old, b"old")
        add(new, b"new")
        old.log("t", 1).delete_records(before=1)
        old.apply_retention()  # these operations commit roots, but write no segment
        with open_reader(uri) as reader:
            assert reader.partitions() == (T0, T0._replace(partition=1))
            assert [record.value for record in reader.log("t", 0).records()] == [b"new"]
            assert list(reader.log("t", 1).records()) == []


def test_a_refresh_finds_that_the_newer_of_two_topics_with_one_name_was_deleted(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "old", tier=uri) as old, open_engine(tmp_path / "new", tier=uri) as new:
        for engine, value in ((old, b"old"), (new, b"new")):
            engine.create_topic("t")
            add(engine, value)
        with open_reader(uri) as reader:
            assert reader.partitions() == (T0,)
            new.delete_topic("t")
            reader.refresh()
            assert [record.value for record in reader.log("t", 0).records()] == [b"old"]


def test_the_roots_of_topics_with_one_name_are_read_in_parallel(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh reads the changed roots of all partitions, also of logs that are not open."""
    real, both_read = TierLog.refresh_listed, threading.Barrier(2)

    def refresh_listed(self: TierLog, version: int, began: ClockReading) -> RemoteView:
        both_read.wait(60)
        return real(self, version, began)

    with open_engine(tmp_path / "old", tier=uri) as old, open_engine(tmp_path / "new", tier=uri) as new:
        for engine in (old, new):
            engine.create_topic("t")
    monkeypatch.setattr(TierLog, "refresh_listed", refresh_listed)
    with open_reader(uri) as reader:
        assert reader.partitions() == (T0,)


def test_a_replica_follows_a_take_over(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t")
        add(engine, b"0")
    with open_reader(uri) as reader, open_engine(tmp_path / "new", tier=uri, attach=True) as engine:
        log = reader.log("t", 0)
        add(engine, b"1")
        reader.refresh()
        assert [(record.value, record.leader_epoch) for record in log.records()] == [(b"0", 0), (b"1", 1)]


def test_an_earlier_state_of_a_tier_is_not_followed(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t")
        add(engine, b"0")
    with open_reader(uri, as_of=1) as reader, pytest.raises(ConfigError, match="without as_of"):
        reader.refresh()


def test_the_time_of_an_earlier_state_needs_a_time_zone(uri: str) -> None:
    with pytest.raises(ConfigError, match="has no time zone: add tzinfo="):
        open_reader(uri, as_of=datetime(2024, 1, 1))  # noqa: DTZ001 - the mistake
    with pytest.raises(ConfigError, match="has no time zone: add tzinfo="):
        ReadSource(uri, as_of=datetime(2024, 1, 1)).open()  # noqa: DTZ001 - the mistake


def requests(reader: Reader) -> int:
    """Return the number of read and list requests of the tier so far."""
    assert reader.tier is not None
    store = reader.tier.metrics().store
    return store.reads.requests + store.lists.requests


def test_a_refresh_requests_only_logs_that_have_changed(tmp_path: Path, uri: str) -> None:
    count = 20
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t", partitions=count)
        engine.create_topic("other", partitions=count)
        for name in engine.partitions():
            engine.log(*name).append([Record(value=b"0")])
            engine.log(*name).roll()
        engine.offload()
        with ReadSource(uri).open(topics=["t"]) as reader:
            before = requests(reader)
            assert reader.partitions() == tuple(TopicPartition("t", partition) for partition in range(count))
            list_requests = requests(reader) - before
            reader.open_logs(reader.partitions())
            open_requests = requests(reader) - before - list_requests
            assert list_requests == 1
            assert (
                open_requests <= 2 * count
            )  # one request for a root, and one for the producer snapshot of the last segment
            before = requests(reader)
            assert reader.refresh() == ()
            assert requests(reader) - before == 1
            add(engine, b"1")
            add(engine, b"1", "other")
            before = requests(reader)
            assert reader.refresh() == (T0,)
            assert requests(reader) - before <= 1 + 2
            assert [record.value for record in reader.log("t", 0).records()] == [b"0", b"1"]


def test_a_tier_whose_listing_failed_is_not_shown_as_empty(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tier may have segments of a Kafka broker, which are listed if stratalog has no logs in the tier."""

    def foreign(self: Tier, layout: str) -> None:
        del self, layout
        raise StoreTimeoutError("no reply", "")

    monkeypatch.setattr(Tier, "foreign", foreign)
    with open_reader(uri) as reader:
        for _ in range(2):
            with pytest.raises(StoreTimeoutError):
                reader.partitions()


def test_logs_that_cannot_be_opened_are_named(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t")
        add(engine, b"0")
    with ReadSource(uri).open(topics=["other"]) as reader, pytest.raises(UnknownTopicError, match="no t-0"):
        reader.open_logs([T0])
    with open_reader(uri) as reader:
        reader.close()
        with pytest.raises(ClosedError):
            reader.open_logs([T0])


def test_a_topic_of_a_tier_has_the_settings_that_its_writer_stored(tmp_path: Path, uri: str) -> None:
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("t", config={"max.message.bytes": 2345, "retention.ms": 12345})
        add(engine, b"0")
        with open_reader(uri) as reader:
            topic = reader.topics()["t"]
            unpickled = pickle.loads(pickle.dumps(topic))  # noqa: S301 - our own bytes
            before = engine.topics()["t"]
            assert topic == unpickled
            assert hash(topic) == hash(unpickled)
            engine.alter_topic("t", {"retention.ms": 54321})
            assert engine.topics()["t"] != before
    assert (unpickled.config.max_message_bytes, unpickled.config.retention_ms) == (
        2345,
        12345,
    )  # after the reader is closed
