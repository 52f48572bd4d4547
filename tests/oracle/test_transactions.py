"""Open and prepared transactions continue after a directory moves between a real broker and the gateway.

Both servers have the same address, so clients notice only a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

pytest.importorskip("kio", reason="the extra gateway is not installed")

import corpus
from gateway_bed import served
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Engine, ProducerId, Record, TopicPartition, open_engine
from stratalog.model.messages.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TransactionStatus,
    transaction_key,
    transaction_value,
)
from stratalog.spi import BatchHeader

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 0)
SOME = [record._replace(partition=0) for record in corpus.some_records("kafka", 3)]
BEGUN_THERE, BEGUN_HERE, PREPARED = "begun-there", "begun-here", "prepared"
WAIT_S = 60


@dataclass(frozen=True)
class Results:
    """Results of each side.

    Attributes:
        here: values that the gateway showed of the transaction that began at the broker.
        states: states of transactions that the broker listed after the gateway.
        there: committed records of the broker at the end, by topic.
        last: status and producer epoch of each transaction that an engine found after the broker.
        is_stable: True if no transaction was open then.
        complaints: what Kafka's dump tool reported about the gateway's files.
    """

    here: list[bytes | None]
    states: str
    there: dict[str, list[Record]]
    last: dict[str, tuple[int, int]]
    is_stable: bool
    complaints: list[str]


def _prepare(engine: Engine) -> None:
    """Write a transaction in the state PREPARE_COMMIT, as after a crash; its end increases the producer epoch."""
    producer = engine.transactions.init_producer(PREPARED, 60_000)
    engine.transactions.add_partitions(PREPARED, producer, [BILLS], version=2)
    log = engine.log(*BILLS)
    header = BatchHeader(
        producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=0, transactional=True
    )
    log.append_as_leader(log.components.formats.of(2, "bills", 0).encode(SOME, header, None, None))
    state = engine.transactions.state(PREPARED)
    assert state is not None
    prepared = replace(state, status=TransactionStatus.PREPARE_COMMIT, producer_epoch=1, client_transaction_version=2)
    record = Record(timestamp_ms=1, key=transaction_key(PREPARED), value=transaction_value(prepared, 1))
    engine.log(TRANSACTIONS_TOPIC).append([record])


@pytest.fixture(scope="module")
def results(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Results:
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("broker")) as broker:
        broker.create_topics({"orders": 1, "bills": 1})
        client = broker.begin("orders", SOME, BEGUN_THERE)
        broker.stop()
        with served(broker.log_dir, port=int(broker.address.rpartition(":")[2])) as gateway:
            broker.send(client, "orders", SOME)
            client.commit_transaction(WAIT_S)
            gateway_values = [
                record.value for record in gateway.engine.log(*ORDERS).records(isolation="read_committed")
            ]
            second_client = broker.begin("orders", SOME, BEGUN_HERE)
            _prepare(gateway.engine)
        complaints = broker.tools.complaints(broker.log_dir)
        broker.start()
        broker.send(second_client, "orders", SOME)
        second_client.commit_transaction(WAIT_S)
        client.begin_transaction()  # its id and epoch come from the broker, its last state comes from the gateway
        broker.send(client, "orders", SOME[:1])
        client.commit_transaction(WAIT_S)
        states = broker.tools.run(
            "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.address, "list",
            folder=broker.log_dir.parent,
        ).stdout  # fmt: skip
        broker_records = broker.read(["orders", "bills"], isolation="read_committed")
        broker.stop()
        with open_engine(broker.log_dir) as engine:
            states_by_id = engine.transactions.states()
            is_stable = not engine.log(*ORDERS).open_transactions() + engine.log(*BILLS).open_transactions()
            last = {name: (state.status, state.producer_epoch) for name, state in states_by_id.items()}
            following = engine.transactions.end(PREPARED, _identity(engine), commit=False, version=2)
            assert following.epoch == last[PREPARED][1] + 1
    return Results(gateway_values, states, broker_records, last, is_stable, complaints)


def _identity(engine: Engine) -> ProducerId:
    state = engine.transactions.state(PREPARED)
    assert state is not None
    return ProducerId(state.producer_id, state.producer_epoch)


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_the_client_of_a_broker_commits_at_the_gateway_what_it_began_at_the_broker(results: Results) -> None:
    assert results.here == values(SOME) * 2


def test_the_client_of_the_gateway_commits_at_the_broker_what_it_began_at_the_gateway(results: Results) -> None:
    assert values(results.there["orders"]) == values(SOME) * 4 + values(SOME[:1])


def test_the_broker_completes_what_was_prepared_here(results: Results) -> None:
    assert values(results.there["bills"]) == values(SOME)


def test_both_have_the_same_states(results: Results) -> None:
    completed_states = {line.split()[0]: line.split()[-1] for line in results.states.splitlines() if "Complete" in line}
    assert completed_states == dict.fromkeys((BEGUN_THERE, BEGUN_HERE, PREPARED), "CompleteCommit")
    assert {name: status for name, (status, _) in results.last.items()} == dict.fromkeys(
        completed_states, TransactionStatus.COMPLETE_COMMIT
    )
    assert results.last[PREPARED] == (TransactionStatus.COMPLETE_COMMIT, 1)
    assert results.is_stable


def test_kafkas_tool_finds_nothing_wrong(results: Results) -> None:
    assert results.complaints == []
