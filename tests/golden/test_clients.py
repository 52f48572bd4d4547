"""Consumers and producers of an engine continue groups and transactions that a broker stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from golden_data import Golden, plain_directories
from inside import clients
from stratalog import Engine, TopicPartition, open_engine
from stratalog.client.committed_offsets import CommittedOffset
from stratalog.client.sequences import ProducerId
from stratalog.client.transactions.transaction_states import partitions_in
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.model.messages.transactions_topic import TransactionState, TransactionStatus

DIRECTORIES = plain_directories()
EARLY_MS = 1_000  # earlier than the start of any transaction, so that none has expired
_RECORD = re.compile(r"\| offset: .*? key: (?P<key>\{.*?\}\}) payload: (?P<payload>.*)")


@pytest.fixture
def stored(golden: Callable[[str], Golden], request: pytest.FixtureRequest) -> Golden:
    return golden(request.param)


@pytest.fixture
def logs(stored: Golden, tmp_path: Path) -> Path:
    return stored.copy_logs(tmp_path / "logs")


def at(now_ms: int) -> Env:
    return Env(clock=ManualClock(now_ms))


def dumped_records(stored: Golden, topic: str) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield the key and the value of each record of a topic, as Kafka's dump tool printed them; None is a tombstone."""
    for path in sorted((stored.path / "dumps").glob(f"{topic}-*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            match = _RECORD.match(line)
            if match:
                payload = match["payload"]
                yield json.loads(match["key"]), None if payload == "<DELETE>" else json.loads(payload)["data"]


def dumped_offsets(stored: Golden) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    for key, value in dumped_records(stored, "__consumer_offsets"):
        if key["type"] not in {"0", "1"}:
            continue
        data = key["data"]
        name = TopicPartition(data["topic"], data["partition"])
        offsets = groups.setdefault(data["group"], {})
        if value is None:
            offsets.pop(name, None)
        else:
            offsets[name] = CommittedOffset(value["offset"], value.get("leaderEpoch", -1), value["metadata"])
    return {group: offsets for group, offsets in groups.items() if offsets}


def dumped_states(stored: Golden) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = {}
    for key, value in dumped_records(stored, "__transaction_state"):
        transactional_id = key["data"]["transactionalId"]
        if value is None:
            states.pop(transactional_id, None)
        else:
            states[transactional_id] = value
    return states


def known_states(engine: Engine) -> dict[str, TransactionState]:
    return clients(engine).coordinator.states()


@pytest.mark.parametrize("stored", DIRECTORIES, indirect=True)
def test_groups_continue_where_their_broker_left_them(stored: Golden, logs: Path) -> None:
    expected = dumped_offsets(stored)
    assert expected
    with open_engine(logs, env=at(EARLY_MS)) as engine:
        assert clients(engine).offsets.groups() == tuple(sorted(expected))
        for group, offsets in expected.items():
            topics = sorted({name.topic for name in offsets})
            with engine.consumer(group=group, topics=topics, auto_offset_reset="none") as consumer:
                assert consumer.committed() == offsets
                assert {name: consumer.position(name) for name in offsets} == {
                    name: committed.offset for name, committed in offsets.items()
                }


@pytest.mark.parametrize("stored", DIRECTORIES, indirect=True)
def test_a_group_reads_on_and_commits(stored: Golden, logs: Path) -> None:
    group, offsets = next(iter(dumped_offsets(stored).items()))
    topics = sorted({name.topic for name in offsets})
    for _ in range(2):
        with open_engine(logs, env=at(EARLY_MS)) as engine, engine.consumer(group=group, topics=topics) as consumer:
            consumer.seek_to_beginning()
            for name, record in consumer:
                assert consumer.position(name) == record.offset + 1
            consumer.commit()
            assert set(consumer.lag().values()) == {0}
            assert {name: committed.offset for name, committed in consumer.committed().items()} == {
                name: engine.log(*name).offsets().high_watermark for name in consumer.assignment
            }


@pytest.mark.parametrize("stored", DIRECTORIES, indirect=True)
def test_transactional_producers_continue_in_the_state_that_their_broker_stored(stored: Golden, logs: Path) -> None:
    expected = dumped_states(stored)
    assert expected
    with open_engine(logs, env=at(EARLY_MS)) as engine:
        states = known_states(engine)
    assert states.keys() == expected.keys()
    for transactional_id, state in states.items():
        dumped_state = expected[transactional_id]
        assert state.producer_id == dumped_state["producerId"]
        assert state.producer_epoch == dumped_state["producerEpoch"]
        assert state.timeout_ms == dumped_state["transactionTimeoutMs"]
        assert state.status == dumped_state["transactionStatus"]
        assert state.start_timestamp_ms == dumped_state["transactionStartTimestampMs"]
        assert partitions_in(state) == [
            TopicPartition(topic["topic"], partition)
            for topic in dumped_state["transactionPartitions"] or ()
            for partition in topic["partitionIds"]
        ]


@pytest.mark.parametrize("stored", DIRECTORIES, indirect=True)
def test_a_transaction_that_a_brokers_client_left_open_is_aborted_after_its_timeout(stored: Golden, logs: Path) -> None:
    states = dumped_states(stored)
    open_states = {
        transactional_id: state
        for transactional_id, state in states.items()
        if state["transactionStatus"] == TransactionStatus.ONGOING
    }
    with open_engine(logs, env=at(EARLY_MS)) as engine:
        clients(engine).coordinator.recover()
        assert {
            transactional_id
            for transactional_id, state in known_states(engine).items()
            if state.status == TransactionStatus.ONGOING
        } == set(open_states)
        waiting = unstable(engine)
    late = max(
        (state["transactionStartTimestampMs"] + state["transactionTimeoutMs"] for state in open_states.values()),
        default=0,
    )
    with open_engine(logs, env=at(late + 1)) as engine:
        clients(engine).coordinator.recover()
        engine_states = known_states(engine)
        assert all(
            engine_states[transactional_id].status == TransactionStatus.COMPLETE_ABORT
            for transactional_id in open_states
        )
        assert unstable(engine) == []
    assert bool(waiting) is bool(open_states)


@pytest.mark.parametrize("stored", DIRECTORIES, indirect=True)
@pytest.mark.parametrize("version", [0, 2])
def test_a_brokers_client_commits_the_transaction_that_it_left_open(stored: Golden, logs: Path, version: int) -> None:
    states = dumped_states(stored)
    open_states = {
        name: state for name, state in states.items() if state["transactionStatus"] == TransactionStatus.ONGOING
    }
    with open_engine(logs, env=at(EARLY_MS)) as engine:
        for transactional_id, state in open_states.items():
            producer = ProducerId(state["producerId"], state["producerEpoch"])
            following = engine.transactions.end_decided(transactional_id, producer, commit=True, version=version)
            assert following == (producer.producer_id, producer.epoch + version // 2)
            assert known_states(engine)[transactional_id].status == TransactionStatus.COMPLETE_COMMIT
        assert unstable(engine) == []
    assert len(open_states) < len(states)


def unstable(engine: Engine) -> list[TopicPartition]:
    """Return the logs whose last stable offset is below the log end offset."""
    bounds = {name: engine.log(*name).offsets() for name in engine.partitions()}
    return [name for name, offsets in bounds.items() if offsets.last_stable < offsets.log_end]


@pytest.mark.parametrize("stored", DIRECTORIES, indirect=True)
def test_a_transactional_id_continues_under_its_next_epoch(stored: Golden, logs: Path) -> None:
    states = dumped_states(stored)
    ended = {TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
    transactional_id, dumped_state = next(
        (name, dumped_state) for name, dumped_state in states.items() if dumped_state["transactionStatus"] in ended
    )
    topic = next(name.topic for name in stored.partitions() if not name.topic.startswith("__"))
    with open_engine(logs, env=at(EARLY_MS)) as engine:
        log_end = engine.log(topic, 0).offsets().log_end
        engine.create_topic("new")
        with engine.producer(transactional_id=transactional_id) as producer:
            state = known_states(engine)[transactional_id]
            identity = ProducerId(state.producer_id, state.producer_epoch)
            assert identity == (dumped_state["producerId"], dumped_state["producerEpoch"] + 1)
            for commit in (True, False):
                producer.begin_transaction()
                future = producer.send("new", value=b"committed" if commit else b"aborted")
                producer.flush()
                assert future.result(30).offset == (0 if commit else 2)
                (producer.commit_transaction if commit else producer.abort_transaction)()
        assert [record.value for record in engine.log("new", 0).records(isolation="read_committed")] == [b"committed"]
        assert engine.log(topic, 0).offsets().log_end == log_end
