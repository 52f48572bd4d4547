"""A broker starts on a directory that was restored from a tier: records, transactions and offsets of groups.

The lost broker had later leader epochs than the new broker, and had assigned the producer ids that the new broker
assigns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import corpus
import stratalog
from kafka_broker import CLIENT_SECONDS, KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Record
from stratalog.engine.restore.restore import RestoredLog, RestoreRequest, restore
from stratalog.env.clock import SystemClock

SOME = [record._replace(partition=0) for record in corpus.some_records("kafka", 5)]
BATCHES = 4
INTERNAL = {"__consumer_offsets": 1}
# Now, because brokers expire the state of producers after a day.
FRESH = SOME[0]._replace(value=b"first", timestamp_ms=SystemClock().now_ms())
EPOCH = 37


@dataclass(frozen=True)
class Results:
    """Results of the lost broker, the restore, and the new broker.

    Attributes:
        had: committed records of the lost broker.
        copied: the restored logs.
        read: committed records that clients read from the new broker, by topic.
        committed: committed offset and metadata of a group at the new broker.
        remarks: warnings of the new broker.
        complaints: what Kafka's dump tool reported about the restored files.
        after: records after the new broker had appended.
        fresh: records of a topic to which both brokers appended a producer's first batch, with the same producer id.
        polled: output of a consumer whose group had read all records of the lost broker.
    """

    had: list[Record]
    copied: tuple[RestoredLog, ...]
    read: dict[str, list[Record]]
    committed: tuple[int, str | None]
    remarks: list[str]
    complaints: list[str]
    after: list[Record]
    fresh: list[Record]
    polled: str


@pytest.fixture(scope="module")
def results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    bucket = tmp_path_factory.mktemp("bucket")
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("lost")) as lost:
        lost.create_topics({"orders": 1, "fresh": 1}, {"orders": {"segment.bytes": 1 << 20}})
        lost.produce(["fresh"], [FRESH])
        for _ in range(BATCHES):
            lost.produce(["orders"], SOME)
        lost.produce_transactions("orders", [(SOME[:2], True), (SOME[2:], False)])
        lost.commit("group", "orders", 7)
        had = lost.read(["orders"], isolation="read_committed")["orders"]
        lost.stop()
        _move_all(lost.log_dir, bucket.as_uri())
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("new")) as broker:
        compacted = {"__consumer_offsets": {"cleanup.policy": "compact"}}
        broker.create_topics({"orders": 1, "cut": 1, "fresh": 1, **INTERNAL}, compacted)
        broker.stop()
        copied = (
            *restore(bucket.as_uri(), broker.log_dir, RestoreRequest(topics=["orders", "fresh", *INTERNAL])),
            *restore(
                bucket.as_uri(),
                broker.log_dir,
                RestoreRequest(
                    topics=["orders"], rename={"orders": "cut"}, to_offsets={stratalog.TopicPartition("orders", 0): 7}
                ),
            ),
        )
        complaints = broker.tools.complaints(broker.log_dir)
        broker.start()
        broker.produce(["fresh"], [FRESH._replace(value=b"second")])
        read = broker.read(["orders", "cut"], isolation="read_committed")
        committed = broker.committed("group", "orders")
        broker.produce(["orders"], SOME[:1])
        after = broker.read(["orders"], isolation="read_committed")["orders"]
        fresh = broker.read(["fresh"])["fresh"]
        polled = _polled(broker, tmp_path_factory.mktemp("java"))
        broker.stop()
        return Results(had, copied, read, committed, broker.remarks(), complaints, after, fresh, polled)


def _polled(broker: KafkaBroker, folder: Path) -> str:
    """Return the output of Kafka's console consumer for one record, for a group that had read all earlier records."""
    main, wait_ms = "org.apache.kafka.tools.consumer.ConsoleConsumer", 1000 * CLIENT_SECONDS
    consumer_options = (
        "--property",
        "print.offset=true",
        "--property",
        "print.value=false",
        "--max-messages",
        "1",
        "--timeout-ms",
        str(wait_ms),
    )
    server = ("--bootstrap-server", broker.address, "--topic", "orders", "--group", "at the end")
    return broker.tools.run(main, *server, *consumer_options, folder=folder).stdout


def _move_all(log_dir: Path, uri: str) -> None:
    """Append a record in a later epoch, commit the end offset for a group, and offload all segments."""
    with stratalog.open_engine(log_dir, tier=uri) as engine:
        log = engine.log("orders", 0)
        log.lead(EPOCH)
        log.append([FRESH])
        with engine.consumer(group="at the end", topics=["orders"]) as consumer:
            consumer.commit({log.name: stratalog.CommittedOffset(log.offsets().log_end, EPOCH)})
        for name in engine.partitions():
            engine.log(*name).roll()
        engine.offload()


def test_a_client_reads_every_record(results: Results) -> None:
    assert results.read["orders"][:-1] == results.had
    assert results.read["orders"][-1].value == FRESH.value
    assert len(results.had) == BATCHES * len(SOME) + 2


def test_a_client_reads_what_is_below_the_cut(results: Results) -> None:
    cut = next(log for log in results.copied if log.log.topic == "cut")
    assert 0 < cut.log_end <= 7
    assert results.read["cut"] == results.had[: cut.log_end]


def test_the_offsets_of_the_group_are_there(results: Results) -> None:
    assert results.committed in {(7, None), (7, "")}


def test_the_broker_appends_behind_it(results: Results) -> None:
    assert results.after[:-1] == results.read["orders"]
    end = next(log.log_end for log in results.copied if log.log.topic == "orders")
    assert results.after[-1].offset == end


def test_a_consumer_whose_group_had_read_all_gets_what_comes_next(results: Results) -> None:
    """If the committed offset kept its unknown epoch, the consumer would never find a leader of that epoch."""
    assert f"Offset:{results.after[-1].offset}" in results.polled


def test_the_first_batch_of_a_producer_is_not_treated_as_a_retry(results: Results) -> None:
    assert [record.value for record in results.fresh] == [FRESH.value, b"second"]


def test_the_broker_logs_no_complaint(results: Results) -> None:
    assert results.remarks == []
    assert results.complaints == []
