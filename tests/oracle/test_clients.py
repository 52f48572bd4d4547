"""Groups and transactional producers continue while a directory moves from a real broker to stratalog and back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import corpus
import stratalog
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Record, TopicPartition
from stratalog.client.committed_offsets import CommittedOffset

ORDERS = TopicPartition("orders", 0)
THEIRS, OURS, BOTH = "theirs", "ours", "both"  # groups, named after the side that commits their offsets
GOES_ON, IS_LEFT = "goes-on", "is-left"  # transactional ids: one continues with stratalog, one has an open transaction
SOME = [record._replace(partition=0) for record in corpus.some_records("kafka", 5)]


@dataclass(frozen=True)
class Results:
    """Results of each side.

    Attributes:
        groups: committed offsets of the broker's groups, as stratalog found them.
        judged_groups: committed offset and metadata of the groups, as the broker found them after stratalog.
        is_stable: True if stratalog aborted the transaction that a client of the broker had left open.
        values: values that read_committed shows of stratalog, before it closed.
        judged: values that read_committed shows to librdkafka of the broker after that.
        last: values that read_committed shows of stratalog at the end, after the broker had appended.
        last_groups: committed offsets that stratalog found at the end.
        complaints: what Kafka's dump tool reported.
    """

    groups: dict[str, dict[TopicPartition, CommittedOffset]]
    judged_groups: dict[str, tuple[int, str | None]]
    is_stable: bool
    values: list[bytes | None]
    judged: list[bytes | None]
    last: list[bytes | None]
    last_groups: dict[str, dict[TopicPartition, CommittedOffset]]
    complaints: list[str]


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def committed(engine: stratalog.Engine) -> list[bytes | None]:
    return values(list(engine.log(*ORDERS).records(isolation="read_committed")))


def found_groups(engine: stratalog.Engine) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    groups = {}
    for group in (THEIRS, OURS, BOTH):
        with engine.consumer(group=group, topics=["orders"]) as consumer:
            groups[group] = consumer.committed()
    return groups


@pytest.fixture(scope="module")
def results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("broker")) as broker:
        broker.create_topics({"orders": 1})
        broker.produce(["orders"], SOME)
        broker.produce_transactions("orders", [(SOME[:2], True), (SOME[2:], False)], GOES_ON)
        broker.commit(THEIRS, "orders", 3)
        broker.commit(BOTH, "orders", 1)
        broker.begin("orders", SOME[:1], IS_LEFT)
        broker.stop()
        with stratalog.open_engine(broker.log_dir) as engine:
            groups = found_groups(engine)
            with engine.producer(transactional_id=IS_LEFT) as producer:
                is_stable = not engine.log(*ORDERS).open_transactions()
                producer.begin_transaction()
                producer.send("orders", value=b"after what was left")
                producer.commit_transaction()
            with engine.producer(transactional_id=GOES_ON) as producer:
                for commit in (True, False):
                    producer.begin_transaction()
                    producer.send("orders", value=b"committed here" if commit else b"aborted here")
                    producer.send_offsets(OURS, {ORDERS: CommittedOffset(7 if commit else 9, 0, "in a transaction")})
                    producer.flush()
                    (producer.commit_transaction if commit else producer.abort_transaction)()
            with engine.producer(compression="zstd") as producer:
                producer.send("orders", key=b"k", value=b"plain")
            with engine.consumer(group=BOTH, topics=["orders"], isolation="read_committed") as consumer:
                list(consumer)
                consumer.commit()
            engine_values = committed(engine)
            last_stable_offsets = {BOTH: engine.log(*ORDERS).offsets().last_stable}
        complaints = broker.tools.complaints(broker.log_dir)
        broker.start()
        judged_groups = {group: broker.committed(group, "orders") for group in (THEIRS, OURS, BOTH)}
        assert judged_groups[BOTH][0] == last_stable_offsets[BOTH]
        judged = values(broker.read(["orders"], isolation="read_committed")["orders"])
        broker.produce_transactions("orders", [(SOME[:1], True), (SOME[1:], False)], GOES_ON)
        broker.commit(OURS, "orders", 11)
        broker.stop()
        with stratalog.open_engine(broker.log_dir) as engine:
            last, last_groups = committed(engine), found_groups(engine)
    return Results(groups, judged_groups, is_stable, engine_values, judged, last, last_groups, complaints)


def test_groups_of_a_broker_are_known(results: Results) -> None:
    assert results.groups[THEIRS] == {ORDERS: CommittedOffset(3)}
    assert results.groups[BOTH] == {ORDERS: CommittedOffset(1)}
    assert results.groups[OURS] == {}


def test_a_broker_knows_what_was_committed_here(results: Results) -> None:
    assert results.judged_groups[THEIRS][0] == 3
    offset, metadata = results.judged_groups[OURS]
    assert offset == 7
    # librdkafka may append bytes that follow the metadata in its memory
    assert (metadata or "").startswith("in a transaction")


def test_a_transaction_that_a_brokers_client_left_open_is_aborted_by_its_successor(results: Results) -> None:
    assert results.is_stable


def test_both_show_the_same_committed_records(results: Results) -> None:
    broker_values = values(SOME) + values(SOME[:2])
    assert results.values == [*broker_values, b"after what was left", b"committed here", b"plain"]
    assert results.judged == results.values


def test_the_broker_continues_with_both(results: Results) -> None:
    assert results.last == results.judged + values(SOME[:1])
    assert results.last_groups[OURS] == {ORDERS: CommittedOffset(11)}


def test_the_dump_tool_reports_no_error(results: Results) -> None:
    assert results.complaints == []
