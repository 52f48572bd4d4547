"""State of clients in compacted topics: the number of bytes that an engine reads when it opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from inside import clients
from stratalog import Record, TopicPartition, open_engine
from stratalog.client import statetopic
from stratalog.client.committed_offsets import CommittedOffset, CommittedOffsets
from stratalog.client.group_offsets import commit_record
from stratalog.client.partitioner import partition_of_name
from stratalog.client.statetopic import PARTITIONS, StateTopic
from stratalog.env import Env
from stratalog.env.posix_vfs import PosixVfs
from stratalog.errors import LogDirError
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC
from stratalog.model.messages.transactions_topic import TRANSACTIONS_TOPIC, transaction_key

COMPACT_RECORDS = 300
RECORD_BYTES = 250  # size of the largest of these records, with its batch
MOST_BYTES = 3 * COMPACT_RECORDS * RECORD_BYTES  # reads of each byte: one by the engine, and two by the cleaner
ID = "tx"
ORDERS = TopicPartition("orders", 0)


class CountedVfs(PosixVfs):
    """File system that counts the bytes that are read from the topics with the state of clients."""

    def __init__(self) -> None:
        self.read_bytes = 0
        self._counted = set[int]()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        descriptor = super().open(path, write=write, create=create)
        (self._counted.add if "/__" in path and path.endswith(".log") else self._counted.discard)(descriptor)
        return descriptor

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        data = super().read(descriptor, position, size_bytes)
        self.read_bytes += len(data) if descriptor in self._counted else 0
        return data


def end_transactions(folder: Path, count: int) -> None:
    with open_engine(folder) as engine:
        engine.create_topic("orders")
        coordinator = clients(engine).coordinator
        identity = coordinator.open(ID, 60_000)
        for _ in range(count):
            coordinator.add_partitions(ID, identity, [ORDERS])
            coordinator.end(ID, identity, commit=True)


def commit_offsets(folder: Path, count: int) -> None:
    with open_engine(folder) as engine:
        engine.create_topic("orders")
        for offset in range(count):
            clients(engine).offsets.commit("g", {ORDERS: offset})
            clients(engine).offsets.committed("g")


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the threshold of records for a compaction to a number that a test can write."""
    monkeypatch.setattr(statetopic, "COMPACT_RECORDS", COMPACT_RECORDS)


@pytest.mark.parametrize("count", [10, 90, 900])
@pytest.mark.long
def test_opening_a_transactional_producer_reads_no_more_after_many_transactions(tmp_path: Path, count: int) -> None:
    end_transactions(tmp_path, count)
    files = CountedVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        files.read_bytes = 0
        engine.producer(transactional_id=ID).close()
        assert 0 < files.read_bytes <= MOST_BYTES
        files.read_bytes = 0
        engine.producer(transactional_id=ID).close()
        assert files.read_bytes <= 4 * RECORD_BYTES  # all else is known


@pytest.mark.parametrize("count", [10, 90, 1_600])
@pytest.mark.long
def test_reading_the_offsets_of_a_group_reads_no_more_after_many_commits(tmp_path: Path, count: int) -> None:
    commit_offsets(tmp_path, count)
    files = CountedVfs()
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        files.read_bytes = 0
        assert clients(engine).offsets.committed("g") == {ORDERS: CommittedOffset(count - 1)}
        assert 0 < files.read_bytes <= MOST_BYTES


def test_a_long_history_that_an_earlier_release_left_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statetopic, "COMPACT_RECORDS", 1 << 30)
    end_transactions(tmp_path, 400)
    monkeypatch.setattr(statetopic, "COMPACT_RECORDS", COMPACT_RECORDS)
    read = []
    for _ in range(2):
        files = CountedVfs()
        with open_engine(tmp_path, env=Env(files=files)) as engine:
            files.read_bytes = 0
            states = clients(engine).coordinator.states()
            read.append(files.read_bytes)
        assert list(states) == [ID]
    assert read[0] > 100_000
    assert 0 < read[1] < 10_000


def test_the_records_of_deleted_groups_are_compacted(tmp_path: Path) -> None:
    """Each group has another name. The keys of deleted groups do not delay a compaction, and are not kept in memory."""
    groups = 4 * COMPACT_RECORDS
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        offsets = clients(engine).offsets
        for number in range(groups):
            offsets.commit(f"g-{number}", {ORDERS: number})
            offsets.delete(f"g-{number}")
        logs = [engine.log(*name) for name in engine.partitions() if name.topic == OFFSETS_TOPIC]
        keys = [record.key for log in logs for record in log.records()]
    assert len(set(keys)) == groups  # the tombstones of a day stay
    assert len(keys) < 1.6 * groups


def test_a_compaction_that_failed_is_repeated_after_as_many_records(tmp_path: Path) -> None:
    failed = list[TopicPartition]()

    def compact(name: TopicPartition) -> None:
        failed.append(name)
        raise LogDirError("no space", str(name))

    with open_engine(tmp_path) as engine:
        engine.create_topic(OFFSETS_TOPIC, config=statetopic.CONFIG)
        log, offsets = engine.log(OFFSETS_TOPIC), CommittedOffsets(engine, compact)
        for _ in range(3):
            log.append([commit_record("g", ORDERS, offset, 0) for offset in range(COMPACT_RECORDS)])
            offsets.committed("g")
    assert failed == [TopicPartition(OFFSETS_TOPIC, 0)] * 3


def test_a_truncated_partition_loses_the_groups_that_it_had(tmp_path: Path) -> None:
    """A broker's directory may have only some partitions of the topic: the number of a group's partition is unknown."""
    groups = [next(name for name in map(str, range(9)) if partition_of_name(name, 2) == number) for number in (0, 1)]
    with open_engine(tmp_path) as engine:
        engine.create_topic(OFFSETS_TOPIC, partitions=2, config=statetopic.CONFIG)
        logs = [engine.log(OFFSETS_TOPIC, number) for number in (0, 1)]
        for log, group in zip(logs, reversed(groups), strict=True):
            log.append([commit_record(group, ORDERS, 5, 0)])
        offsets = CommittedOffsets(engine)
        assert offsets.groups() == tuple(groups)
        logs[0].truncate_to(0)
        assert offsets.groups() == (groups[0],)


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_many_producers_are_not_compacted_again_and_again(tmp_path: Path) -> None:
    """Each id needs its record. A compaction at each opening would rewrite the log and remove nothing."""
    rounds = []
    with open_engine(tmp_path) as engine:
        coordinator = clients(engine).coordinator
        for number in range(2 * COMPACT_RECORDS):
            coordinator.open(f"{ID}-{number}", 60_000)
        expected = coordinator.states()
    for _ in range(2):
        with open_engine(tmp_path) as engine:
            assert clients(engine).coordinator.states() == expected
            rounds.append(sum(len(engine.log(*name).segments()) for name in engine.partitions()))
    assert rounds == [PARTITIONS, PARTITIONS]


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_a_record_that_no_schema_explains_hides_none_before_it(tmp_path: Path) -> None:
    end_transactions(tmp_path, 1)
    with open_engine(tmp_path) as engine:
        states = clients(engine).coordinator.states()
        log = engine.log(TRANSACTIONS_TOPIC, partition_of_name(ID, PARTITIONS))
        log.append([Record(key=transaction_key(ID), value=b"\x00\x63nothing that is known")])
        assert clients(engine).coordinator.states() == states
    with open_engine(tmp_path) as engine:
        assert clients(engine).coordinator.states() == states
        assert OFFSETS_TOPIC not in engine.topics()


def test_an_interrupted_refresh_loses_no_committed_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("orders")
        with engine.producer(transactional_id=ID) as producer:
            producer.begin_transaction()
            producer.send_offsets("g", {ORDERS: 7})
            producer.flush()
            assert engine.group_offsets("g") == {}
            producer.commit_transaction()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(StateTopic, "_apply_gathered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.group_offsets("g")
        monkeypatch.undo()
        assert {name: committed.offset for name, committed in engine.group_offsets("g").items()} == {ORDERS: 7}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {OFFSETS_TOPIC: 50, TRANSACTIONS_TOPIC: 50}),
        (
            {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 2},
            {OFFSETS_TOPIC: 3, TRANSACTIONS_TOPIC: 2},
        ),
    ],
)
@pytest.mark.usefixtures("kafkas_state_partitions")
def test_the_topics_have_the_chosen_number_of_partitions(
    tmp_path: Path, config: dict[str, object], expected: dict[str, int]
) -> None:
    with open_engine(tmp_path, config=config) as engine:
        engine.create_topic("orders")
        with engine.producer(transactional_id=ID) as producer:
            producer.begin_transaction()
            producer.send_offsets("group", {ORDERS: 0})
            producer.commit_transaction()
        assert {name: len(engine.topics()[name].partitions) for name in expected} == expected
