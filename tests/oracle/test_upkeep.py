"""A broker continues after every maintenance of its logs by stratalog, and its clients notice nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pytest

import corpus
import stratalog
from kafka_broker import CLIENT_SECONDS, KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Engine, Record, TopicPartition
from stratalog.model.events import LogRecovered
from stratalog.model.offsets import EpochEntry
from stratalog.spi import hookimpl
from stratalog.spi.formats import BatchHeader

ROLLED, SHORTENED, TRUNCATED, REFILLED, FOLLOWER = "rolled", "shortened", "truncated", "refilled", "follower"
IDEMPOTENT, BEGUN, OURS = "idempotent", "begun", "ours"
TOPICS: Final = (ROLLED, SHORTENED, TRUNCATED, REFILLED, FOLLOWER, IDEMPOTENT, BEGUN, OURS)
SOME: Final = [record._replace(partition=0) for record in corpus.some_records("upkeep", 40)]
AFTER: Final = [record._replace(partition=0) for record in corpus.some_records("afterwards", 5)]
REFILLED_FROM: Final = 1000
Logs = dict[str, list[Record]]


@dataclass(frozen=True)
class Results:
    """Records that each side read, by topic, and the state between the runs of the broker.

    Attributes:
        by_us: records that stratalog read after its maintenance.
        by_broker: records that clients of the broker read after that.
        at_the_end: records that they read after more appends.
        again: records that stratalog read after that.
        committed: what read_committed shows at the end, by the broker and by stratalog.
        epochs: leader epochs that stratalog knew before and after the broker's second run.
        left_in: topics with an open transaction before the broker's second run.
        recovered: logs that stratalog had to recover.
        remarks: warnings of the broker.
    """

    by_us: Logs
    by_broker: Logs
    at_the_end: Logs
    again: Logs
    committed: tuple[Logs, Logs]
    epochs: tuple[Mapping[str, list[EpochEntry]], Mapping[str, list[EpochEntry]]]
    left_in: set[str]
    recovered: list[TopicPartition]
    remarks: list[str]


class _Listener:
    def __init__(self) -> None:
        self.recovered: list[TopicPartition] = []

    @hookimpl
    def stratalog_on_log_recovered(self, event: LogRecovered) -> None:
        self.recovered.append(event.log)


@pytest.fixture(scope="module")
def results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    listener = _Listener()
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("upkeep")) as broker:
        broker.create_topics(dict.fromkeys(TOPICS, 1))
        broker.produce([name for name in TOPICS if name != FOLLOWER], SOME)
        idempotent = broker.producer(**{"enable.idempotence": True})
        broker.send(idempotent, IDEMPOTENT, AFTER)
        transactional_producer = broker.begin(BEGUN, AFTER, "begun by a client of the broker")
        broker.stop()
        with stratalog.open_engine(broker.log_dir, plugins=[listener]) as engine:
            _keep_up(engine)
            _begin_here(engine)
            by_us, epochs = _read(engine), _epochs(engine)
            left_in = {name for name in TOPICS if engine.log(name, 0).open_transactions()}
        remarks = kafka_tools.complaints(broker.log_dir)
        broker.start()
        by_broker = broker.read(TOPICS)
        broker.send(idempotent, IDEMPOTENT, AFTER)
        broker.send(transactional_producer, BEGUN, AFTER)
        transactional_producer.commit_transaction(CLIENT_SECONDS)
        broker.produce_transactions(OURS, [(AFTER, True)], OURS)
        broker.produce([ROLLED, SHORTENED, TRUNCATED, REFILLED, FOLLOWER], AFTER)
        at_the_end, committed = broker.read(TOPICS), broker.read(TOPICS, isolation="read_committed")
        broker.stop()
        with stratalog.open_engine(broker.log_dir, plugins=[listener]) as engine:
            final_records, final_epochs = _read(engine), _epochs(engine)
            our_committed = _read(engine, "read_committed")
        return Results(
            by_us,
            by_broker,
            at_the_end,
            final_records,
            (committed, our_committed),
            (epochs, final_epochs),
            left_in,
            listener.recovered,
            [*remarks, *broker.remarks()],
        )


def _keep_up(engine: Engine) -> None:
    for name in (ROLLED, SHORTENED, TRUNCATED):
        log = engine.log(name, 0)
        for _ in range(3):
            log.roll()
            log.append(SOME)
    engine.log(SHORTENED, 0).delete_records(before=95)
    engine.apply_retention()
    truncated = engine.log(TRUNCATED, 0)
    truncated.truncate_to(80)
    truncated.append(AFTER)
    refilled = engine.log(REFILLED, 0)
    refilled.truncate_fully_and_start_at(REFILLED_FROM)
    refilled.append(SOME)
    leader, follower = engine.log(ROLLED, 0), engine.log(FOLLOWER, 0)
    follower.follow(leader.leader_epoch)
    offset = 0
    while offset < leader.offsets().log_end:
        with leader.fetch(offset, 1 << 20) as fetched:
            offset = follower.append_as_follower(fetched.read(), leader.offsets().high_watermark, 0).log_end
    for name in (IDEMPOTENT, BEGUN):
        engine.log(name, 0).append(SOME)


def _begin_here(engine: Engine) -> None:
    """Leave a transaction open, as the engine does when it stops while the coordinator is another broker."""
    identity = engine.transactions.open(OURS, timeout_ms=60_000)
    engine.transactions.add_partitions(OURS, identity, [TopicPartition(OURS, 0)])
    log = engine.log(OURS, 0)
    header = BatchHeader(
        producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=0, transactional=True
    )
    log.append_as_leader(log.components.formats.of(2, OURS, 0).encode(SOME, header, None, None))


def _read(engine: Engine, isolation: str = "read_uncommitted") -> Logs:
    return {name: corpus.without_epochs(engine.log(name, 0).records(isolation=isolation)) for name in TOPICS}


def _epochs(engine: Engine) -> dict[str, list[EpochEntry]]:
    return {name: list(engine.log(name, 0).view().epochs.entries) for name in TOPICS}


@pytest.mark.parametrize("name", TOPICS)
def test_the_broker_reads_what_is_left(results: Results, name: str) -> None:
    assert results.by_us[name]
    assert results.by_broker[name] == results.by_us[name]


@pytest.mark.parametrize("name", TOPICS)
def test_stratalog_reads_what_the_broker_then_had(results: Results, name: str) -> None:
    assert len(results.at_the_end[name]) == len(results.by_broker[name]) + len(AFTER)
    assert results.again[name] == results.at_the_end[name]


def test_logs_begin_and_continue_where_they_should(results: Results) -> None:
    bounds = {name: (records[0].offset, records[-1].offset) for name, records in results.by_us.items()}
    assert bounds[ROLLED] == bounds[FOLLOWER] == (0, 159)
    assert bounds[SHORTENED] == (95, 159)
    assert bounds[TRUNCATED] == (0, 84)
    assert bounds[REFILLED] == (REFILLED_FROM, REFILLED_FROM + 39)


def test_both_show_the_same_committed_records(results: Results) -> None:
    broker_records, our_records = results.committed
    assert broker_records == our_records


def test_a_transaction_continues_while_the_owner_changes_twice(results: Results) -> None:
    assert BEGUN in results.left_in
    assert [record.value for record in results.committed[0][BEGUN]] == [r.value for r in [*SOME, *AFTER, *SOME, *AFTER]]


def test_a_transaction_that_was_begun_here_is_aborted_by_the_brokers_coordinator(results: Results) -> None:
    assert OURS in results.left_in
    assert [record.value for record in results.committed[0][OURS]] == [r.value for r in [*SOME, *AFTER]]


def test_an_idempotent_client_continues(results: Results) -> None:
    values = [record.value for record in results.at_the_end[IDEMPOTENT]]
    assert values == [r.value for r in [*SOME, *AFTER, *SOME, *AFTER]]


@pytest.mark.parametrize("name", TOPICS)
def test_leader_epochs_continue(results: Results, name: str) -> None:
    before, after = (epochs[name] for epochs in results.epochs)
    assert after[: len(before)] == before
    assert [entry.epoch for entry in after] == sorted({entry.epoch for entry in after})
    assert after[-1].start_offset == results.by_us[name][-1].offset + 1


def test_no_log_needed_recovery(results: Results) -> None:
    assert results.recovered == []
    assert results.remarks == []
