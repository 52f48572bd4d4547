"""Consumers of an engine: their records, their positions, and the committed offsets of groups."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from inside import clients
from stratalog import Engine, Record, TopicPartition, open_engine
from stratalog.client.committed_offsets import CommittedOffset
from stratalog.client.consumer import Consumer
from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.partitioner import partition_of_name
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    ClosedError,
    ConfigError,
    CorruptBatchError,
    DiskFullError,
    InvalidRecordError,
    NoOffsetError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicError,
    WrongTypeError,
)
from stratalog.log.log import Log
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC, OffsetCommit, parse_offsets_record
from stratalog.testing import faults

WAIT_S = 30
ONE = TopicPartition("one", 0)
T = [TopicPartition("t", partition) for partition in range(3)]


def fill(engine: Engine, name: TopicPartition, count: int) -> None:
    log = engine.log(*name)
    end = log.offsets().log_end
    log.append([Record(value=b"%d" % number, timestamp_ms=1000 + number) for number in range(end, end + count)])


def early(engine: Engine, *topics: str, group: str | None = None, isolation: str = "read_uncommitted") -> Consumer:
    return engine.consumer(topics=topics or ["one"], group=group, isolation=isolation, auto_offset_reset="earliest")


def offsets(fetched: dict[TopicPartition, list[Record]]) -> dict[TopicPartition, list[int]]:
    return {name: [record.offset for record in records] for name, records in fetched.items()}


def failing(group: str) -> dict[TopicPartition, CommittedOffset]:
    raise StorageError(f"no reply about {group}")


@pytest.fixture
def groups(engine: Engine) -> GroupOffsets:
    return clients(engine).offsets


# --- reading -----------------------------------------------------------------------------------------------------


def test_polls_continue_at_the_end_of_the_last_one(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine) as consumer:
        assert offsets(consumer.poll(max_records=2)) == {ONE: [0, 1]}
        assert consumer.position(ONE) == 2
        assert offsets(consumer.poll()) == {ONE: [2, 3, 4]}
        assert consumer.poll() == {}
        fill(engine, ONE, 1)
        assert offsets(consumer.poll()) == {ONE: [5]}


def test_all_partitions_of_all_topics_are_read(engine: Engine) -> None:
    for name in (ONE, *T):
        fill(engine, name, 4)
    with early(engine, "t", "one", "t") as consumer:
        assert consumer.assignment == (*T, ONE)
        assert offsets(consumer.poll()) == {name: [0, 1, 2, 3] for name in (*T, ONE)}


def test_partitions_take_turns(engine: Engine) -> None:
    for name in T:
        fill(engine, name, 100)
    with early(engine, "t") as consumer:
        served = [name for _ in range(6) for name in consumer.poll(max_records=10)]
        assert served == T * 2


def test_iteration_returns_the_existing_records_and_moves_the_position_past_them(engine: Engine) -> None:
    fill(engine, T[0], 3)
    fill(engine, T[2], 2)
    with early(engine, "t") as consumer:
        rows = []
        for name, record in consumer:
            assert consumer.position(name) == record.offset + 1
            rows.append((name, record.offset))
        assert rows == [(T[0], 0), (T[0], 1), (T[0], 2), (T[2], 0), (T[2], 1)]
        fill(engine, T[1], 1)
        assert [(name, record.offset) for name, record in consumer] == [(T[1], 0)]


def test_an_iteration_ends_for_partitions_that_are_no_longer_assigned(engine: Engine) -> None:
    for name in T:
        fill(engine, name, 2)
    rows = list[tuple[TopicPartition, int]]()
    with early(engine, "t") as consumer:
        for name, record in consumer:
            rows.append((name, record.offset))
            if len(rows) == 1:
                consumer.assign([T[1]])
        assert rows == [(T[0], 0), (T[1], 0), (T[1], 1)]


def test_a_poll_waits_for_a_record(engine: Engine, clock: ManualClock) -> None:
    with early(engine) as consumer:
        before = clock.now_ms()
        assert consumer.poll(timeout_ms=250) == {}
        assert clock.now_ms() - before == 250
        fill(engine, ONE, 1)
        assert offsets(consumer.poll(timeout_ms=250)) == {ONE: [0]}
        assert clock.now_ms() - before == 250


def test_a_poll_that_waits_is_woken_by_what_is_appended(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version checked for new records every 10 ms."""
    waits = []

    def wait(event: threading.Event, duration_ms: int) -> bool:
        waits.append(duration_ms)
        fill(engine, ONE, 1)
        return event.wait(30)

    monkeypatch.setattr(clock, "wait", wait)
    with early(engine) as consumer:
        before = clock.now_ms()
        assert offsets(consumer.poll(timeout_ms=60_000)) == {ONE: [0]}
        assert (len(waits), clock.now_ms()) == (1, before)


def test_committed_reading_leaves_out_what_was_aborted_or_is_open(engine: Engine) -> None:
    with engine.producer(transactional_id="tx") as producer:
        for value in (b"kept", b"gone"):
            producer.begin_transaction()
            producer.send("one", value=value)
            producer.flush()
            producer.commit_transaction() if value == b"kept" else producer.abort_transaction()
        producer.begin_transaction()
        producer.send("one", value=b"open")
        producer.flush()
        with early(engine, isolation="read_committed") as consumer:
            assert [record.value for record in consumer.poll()[ONE]] == [b"kept"]
            assert consumer.position(ONE) == 4  # after the marker of the aborted transaction
            assert consumer.lag() == {ONE: 0}
        with early(engine) as consumer:
            assert [record.value for record in consumer.poll()[ONE]] == [b"kept", b"gone", b"open"]
            assert consumer.position(ONE) == 5


def test_a_poll_returns_records_that_were_appended_after_the_last_poll_reached_the_end(engine: Engine) -> None:
    fill(engine, ONE, 3)
    with early(engine) as consumer:
        assert offsets(consumer.poll(max_records=3)) == {ONE: [0, 1, 2]}
        fill(engine, ONE, 2)
        assert offsets(consumer.poll()) == {ONE: [3, 4]}


def test_a_damaged_partition_is_reported_after_the_records_before_the_damage(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("one")
        for _ in range(2):
            fill(engine, ONE, 3)
    (path,) = (tmp_path / "one-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with open_engine(tmp_path) as engine, early(engine) as consumer:
        assert offsets(consumer.poll()) == {ONE: [0, 1, 2]}
        with pytest.raises(CorruptBatchError):
            consumer.poll()
        assert consumer.position(ONE) == 3


def test_records_of_one_partition_are_returned_before_the_error_of_another(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", partitions=2)
        fill(engine, T[0], 3)
        fill(engine, T[1], 3)
    (path,) = (tmp_path / "t-1").glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with open_engine(tmp_path) as engine, early(engine, "t") as consumer:
        assert offsets(consumer.poll()) == {T[0]: [0, 1, 2]}
        with pytest.raises(CorruptBatchError):
            consumer.poll()
        assert [consumer.position(T[0]), consumer.position(T[1])] == [3, 0]


# --- positions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted_at", [5, 15, 25])
def test_an_interrupted_poll_skips_no_record(engine: Engine, interrupted_at: int) -> None:
    """Ctrl-C may come while a later partition is read, and while the iterator of the records runs."""
    for name in T:
        fill(engine, name, 10)
    calls = iter(range(1, 1000))

    def interrupted(value: bytes) -> bytes:
        if next(calls) == interrupted_at:
            raise KeyboardInterrupt
        return value

    consumer = engine.consumer(topics=["t"], auto_offset_reset="earliest", value_deserializer=interrupted)
    with consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll()
        fetched = consumer.poll()
        assert {name: [record.offset for record in fetched[name]] for name in fetched} == {
            name: [*range(10)] for name in T
        }


def test_a_poll_that_is_interrupted_in_the_log_skips_no_record(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(engine, ONE, 10)
    log, records = engine.log("one"), Log.records

    def interrupted(*arguments: Any) -> Iterator[Record]:
        yield from islice(records(*arguments), 4)
        raise KeyboardInterrupt

    with early(engine) as consumer:
        monkeypatch.setattr(log, "records", partial(interrupted, log))
        assert offsets(consumer.poll(3)) == {ONE: [0, 1, 2]}
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(3)
        monkeypatch.undo()
        assert offsets(consumer.poll()) == {ONE: [3, 4, 5, 6, 7, 8, 9]}


def test_without_committed_offsets_reading_begins_at_the_given_position(engine: Engine) -> None:
    fill(engine, ONE, 3)
    engine.log(*ONE).delete_records(1)
    assert early(engine).position(ONE) == 1
    latest = engine.consumer(topics=["one"])
    assert latest.position(ONE) == 3
    fill(engine, ONE, 1)
    assert offsets(latest.poll()) == {ONE: [3]}
    neither = engine.consumer(topics=["one"], auto_offset_reset="none")
    assert neither.position(ONE) is None
    assert neither.lag() == {ONE: 3}
    with pytest.raises(NoOffsetError, match="one-0"):
        neither.poll()
    neither.seek(ONE, 2)
    assert offsets(neither.poll()) == {ONE: [2, 3]}


def test_a_seek_sets_the_position(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine) as consumer:
        consumer.poll()
        consumer.seek(ONE, 1)
        assert offsets(consumer.poll(max_records=2)) == {ONE: [1, 2]}
        consumer.seek_to_beginning()
        assert offsets(consumer.poll(max_records=1)) == {ONE: [0]}
        consumer.seek_to_end(ONE)
        assert (consumer.position(ONE), consumer.poll()) == (5, {})
        with pytest.raises(ConfigError):
            consumer.seek(ONE, -1)
        with pytest.raises(UnknownTopicError):
            consumer.seek(T[0], 0)


@pytest.mark.parametrize("offset", [0, 9])
def test_a_position_that_the_log_does_not_have(engine: Engine, offset: int) -> None:
    fill(engine, ONE, 5)
    engine.log(*ONE).delete_records(2)
    for reset, position in (("earliest", 2), ("latest", 5)):
        consumer = engine.consumer(topics=["one"], auto_offset_reset=reset)
        consumer.seek(ONE, offset)
        consumer.poll(max_records=1)
        assert consumer.position(ONE) == (position + 1 if reset == "earliest" else position)
    consumer = engine.consumer(topics=["one"], auto_offset_reset="none")
    consumer.seek(ONE, offset)
    with pytest.raises(OffsetOutOfRangeError):
        consumer.poll()


def test_records_that_are_deleted_while_they_are_read(engine: Engine) -> None:
    engine.create_topic("small", config={"segment.bytes": 200, "retention.ms": -1})
    name = TopicPartition("small", 0)
    for _ in range(20):
        fill(engine, name, 1)
    with early(engine, "small") as consumer:
        assert offsets(consumer.poll(max_records=1)) == {name: [0]}
        engine.log(*name).delete_records(10)
        engine.apply_retention()
        read_offsets = [record.offset for _, record in consumer]
        assert read_offsets[-10:] == list(range(10, 20))


def test_a_topic_that_is_deleted_and_made_again(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine) as consumer:
        consumer.poll(max_records=3)
        engine.delete_topic("one")
        with pytest.raises(UnknownTopicError):
            consumer.poll()
        engine.create_topic("one")
        fill(engine, ONE, 2)
        assert offsets(consumer.poll()) == {ONE: [0, 1]}  # the position is above the log end: auto_offset_reset applies


def test_records_of_a_deleted_topic_are_not_read_as_those_of_its_successor(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine) as consumer:
        consumer.poll(max_records=1)
        engine.delete_topic("one")
        engine.create_topic("one")
        engine.log(*ONE).append([Record(value=b"new")] * 5)
        assert [record.value for record in consumer.poll()[ONE]] == [b"new"] * 4


def test_a_group_starts_over_in_a_topic_that_is_deleted_and_created_again(engine: Engine, tmp_path: Path) -> None:
    """Otherwise the group would skip the first records of the new topic, up to its committed offset in the old one."""
    fill(engine, ONE, 5)
    fill(engine, T[0], 2)
    for group in ("g", "h"):
        with early(engine, "one", "t", group=group) as consumer:
            consumer.poll()
            consumer.commit()
    engine.delete_topic("one")
    engine.create_topic("one")
    fill(engine, ONE, 8)
    for group in ("g", "h"):
        with early(engine, "one", "t", group=group) as consumer:
            assert consumer.committed().keys() == set(T)
            assert offsets(consumer.poll()) == {ONE: list(range(8))}
    engine.close()
    with open_engine(tmp_path / "engine") as reopened, early(reopened, group="g") as consumer:
        assert consumer.committed() == {}


def test_a_group_starts_over_even_if_the_disk_was_full_when_its_topic_was_deleted(tmp_path: Path) -> None:
    files = faults.FaultyVfs()
    with open_engine(tmp_path, env=Env(files=files), config={"offsets.topic.num.partitions": 1}) as engine:
        engine.create_topic("one")
        fill(engine, ONE, 5)
        engine.alter_group_offsets("g", {ONE: 5})
        files.rule = faults.failing("write", errno.ENOSPC, path=".log", times=2)
        with pytest.raises(DiskFullError):
            engine.delete_topic("one")
        assert "one" not in engine.topics()
        for call in (lambda: engine.topic_settings("one"), lambda: engine.alter_topic("one", {"retention.ms": 5})):
            with pytest.raises(UnknownTopicError):
                call()
        with pytest.raises(DiskFullError):
            engine.create_topic("one")
        assert "one" not in engine.topics()
        engine.create_topic("one")
        assert engine.group_offsets("g") == {}


def test_committed_offsets_are_deleted_after_a_crash_during_the_deletion_of_a_topic(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine, ONE, 5)
    with early(engine, group="g") as consumer:
        consumer.poll()
        consumer.commit()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(GroupOffsets, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            engine.delete_topic("one")
    engine.create_topic("one")
    fill(engine, ONE, 8)
    with early(engine, group="g") as consumer:
        assert offsets(consumer.poll()) == {ONE: list(range(8))}


def test_a_topic_can_be_deleted_while_the_first_commit_makes_the_offsets_topic(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletion acquires the lock of the group offsets; topic creation acquires the engine's lock.

    These threads must never wait for each other.
    """
    create = engine.create_topic

    def meanwhile(*arguments: Any, **options: Any) -> object:
        deleting = threading.Thread(target=engine.delete_topic, args=("t",), daemon=True)
        deleting.start()
        deleting.join(WAIT_S)
        assert not deleting.is_alive()
        return create(*arguments, **options)

    with early(engine, group="g") as consumer, monkeypatch.context() as patched:
        patched.setattr(engine, "create_topic", meanwhile)
        consumer.commit({ONE: 3})
        assert consumer.committed() == {ONE: CommittedOffset(3)}
    assert "t" not in engine.topics()


def test_the_offsets_topic_itself_may_be_deleted(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine, group="g") as consumer:
        consumer.poll()
        consumer.commit()
        engine.delete_topic(OFFSETS_TOPIC)
        assert consumer.committed() == {}
        engine.delete_topic("t")
        consumer.commit()
        assert consumer.committed()[ONE].offset == 5


def test_only_offsets_that_a_log_may_have_are_committed(engine: Engine) -> None:
    with early(engine, group="g") as consumer:
        consumer.commit({ONE: 3})
        for invalid_offsets, error in (
            ({ONE: -1}, ConfigError),
            ({TopicPartition("nope", 0): 0}, UnknownTopicError),
            ({ONE: 1, TopicPartition("one", 1): 0}, UnknownTopicError),
        ):
            with pytest.raises(error):
                consumer.commit(invalid_offsets)
            with engine.producer(transactional_id="x") as producer:
                producer.begin_transaction()
                with pytest.raises(error):
                    producer.send_offsets("g", invalid_offsets)
        assert consumer.committed() == {ONE: CommittedOffset(3)}


def test_a_group_with_a_negative_offset_starts_according_to_its_setting(engine: Engine) -> None:
    engine.alter_group_offsets("g", {ONE: CommittedOffset(-2)})
    with early(engine, group="g") as consumer:
        assert consumer.committed() == {ONE: CommittedOffset(-2)}
        consumer.poll()
        assert consumer.position(ONE) == 0


def test_no_name_is_no_group(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="group must not be empty"):
        early(engine, group="")


def test_offsets_by_time(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine, "one", "t") as consumer:
        assert consumer.offsets_for_times({ONE: 1003, T[0]: 0}) == {ONE: 3, T[0]: None}
        assert consumer.offsets_for_times({ONE: 1005}) == {ONE: None}


def test_lag_is_what_is_left_to_read(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine) as consumer:
        assert consumer.lag() == {ONE: 5}
        consumer.poll(max_records=2)
        assert consumer.lag() == {ONE: 3}


def test_paused_partitions_are_passed_over(engine: Engine) -> None:
    for name in T:
        fill(engine, name, 2)
    with early(engine, "t") as consumer:
        consumer.pause(T[0], T[2])
        assert consumer.paused == (T[0], T[2])
        assert list(consumer.poll()) == [T[1]]
        consumer.resume(T[2])
        assert [name for name, _ in consumer] == [T[2], T[2]]
        consumer.resume()
        assert list(consumer.poll()) == [T[0]]


# --- committed offsets -------------------------------------------------------------------------------------------


def test_a_group_continues_at_its_committed_offset(engine: Engine) -> None:
    for name in T:
        fill(engine, name, 5)
    with early(engine, "t", group="g") as consumer:
        assert consumer.committed() == {}
        consumer.poll(max_records=7)
        consumer.commit()
        consumer.poll()
        assert consumer.committed() == {
            T[0]: CommittedOffset(5, 0),
            T[1]: CommittedOffset(2, 0),
            T[2]: CommittedOffset(0, -1),
        }
    with early(engine, "t", group="g") as consumer:
        assert [consumer.position(name) for name in T] == [5, 2, 0]
    with early(engine, "t", group="other") as consumer:
        assert [consumer.position(name) for name in T] == [0, 0, 0]


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.long
def test_a_group_misses_nothing_of_a_log_that_was_cut_below_what_it_committed(
    engine: Engine, reset: str, count: int
) -> None:
    """A new leader wrote other records above the truncation; the log end may be below or above the committed offset."""
    for _ in range(5):
        fill(engine, ONE, 1)
    with early(engine, "one", group="g") as consumer:
        consumer.poll()
        consumer.commit()
    log = engine.log(*ONE)
    log.truncate_to(3)
    log.lead(1)
    for _ in range(count):
        fill(engine, ONE, 1)
    with engine.consumer(topics=["one"], group="g", auto_offset_reset=reset) as consumer:
        if reset == "none":
            with pytest.raises(OffsetOutOfRangeError, match="offset=5 log_start=0 log_end=3"):
                consumer.poll()
            consumer.seek(ONE, 3)
        assert offsets(consumer.poll()) == ({ONE: list(range(3, 3 + count))} if count else {})
        assert consumer.position(ONE) == 3 + count


def test_a_group_at_the_log_end_is_not_treated_as_truncated(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine, "one", group="g") as consumer:
        consumer.poll()
        consumer.commit()
    with engine.consumer(topics=["one"], group="g", auto_offset_reset="none") as consumer:
        assert consumer.poll() == {}
        fill(engine, ONE, 1)
        assert offsets(consumer.poll()) == {ONE: [5]}


def test_a_group_of_an_engine_without_epochs_in_its_commits_is_where_it_was(engine: Engine) -> None:
    fill(engine, ONE, 5)
    with early(engine, "one", group="g") as consumer:
        consumer.commit({ONE: 2})
    with early(engine, "one", group="g") as consumer:
        assert offsets(consumer.poll()) == {ONE: [2, 3, 4]}


def test_offsets_may_be_named(engine: Engine) -> None:
    with early(engine, "t", group="g") as consumer:
        consumer.commit({T[0]: 3, T[1]: CommittedOffset(4, 7, "why")})
        consumer.commit({})
        assert consumer.committed() == {T[0]: CommittedOffset(3), T[1]: CommittedOffset(4, 7, "why")}


@pytest.mark.usefixtures("kafkas_state_partitions")
def test_commits_survive_the_engine_in_kafkas_schema(tmp_path: Path, clock: ManualClock) -> None:
    del clock
    with open_engine(tmp_path) as engine:
        engine.create_topic("one")
        with early(engine, group="g") as consumer:
            for offset in (1, 2, 3):
                consumer.commit({ONE: CommittedOffset(offset, 5, f"m{offset}")})
    with open_engine(tmp_path) as engine:
        with early(engine, group="g") as consumer:
            assert consumer.committed() == {ONE: CommittedOffset(3, 5, "m3")}
        names = [name for name in engine.partitions() if name.topic == OFFSETS_TOPIC]
        assert len(names) == 50
        assert engine.topics()[OFFSETS_TOPIC].config.cleanup_policy == ("compact",)
        assert [name.partition for name in names if engine.log(*name).offsets().log_end] == [partition_of_name("g", 50)]
        for record in engine.log(OFFSETS_TOPIC, partition_of_name("g", 50)).records():
            parsed = parse_offsets_record(record.key, record.value)
            assert parsed is not None
            assert parsed.value_version == 3
            assert isinstance(parsed.value, OffsetCommit)
            assert parsed.value.commit_timestamp_ms == record.timestamp_ms


def test_a_tombstone_takes_an_offset_away(engine: Engine, groups: GroupOffsets) -> None:
    groups.commit("g", {T[0]: 1, T[1]: 2})
    groups.commit("g", {T[0]: None})
    assert groups.committed("g") == {T[1]: CommittedOffset(2)}
    assert groups.groups() == ("g",)
    groups.commit("g", {T[1]: None})
    assert groups.committed("g") == {}
    assert groups.groups() == ()
    assert early(engine, "t", group="g").position(T[1]) == 0


def test_unknown_records_are_skipped(engine: Engine, groups: GroupOffsets) -> None:
    groups.commit("g", {T[0]: 1})
    log = engine.log(OFFSETS_TOPIC, partition_of_name("g", 50))
    log.append([Record(key=b"\x00\x63junk", value=b"x"), Record(key=b"", value=b"x"), Record(key=b"\x00\x01")])
    groups.commit("g", {T[1]: 2})
    assert groups.committed("g") == {T[0]: CommittedOffset(1), T[1]: CommittedOffset(2)}


def test_a_text_that_does_not_fit_is_refused(groups: GroupOffsets) -> None:
    with pytest.raises(InvalidRecordError):
        groups.commit("g", {T[0]: CommittedOffset(1, 0, "x" * 40_000)})
    assert groups.committed("g") == {}


def test_asking_for_offsets_creates_nothing(engine: Engine, groups: GroupOffsets) -> None:
    assert groups.committed("g") == {}
    assert groups.groups() == ()
    assert OFFSETS_TOPIC not in engine.topics()


def test_without_a_group_nothing_is_committed(engine: Engine) -> None:
    with early(engine) as consumer:
        for call in (consumer.commit, consumer.committed):
            with pytest.raises(ConfigError, match="no group"):
                call()


# --- arguments ---------------------------------------------------------------------------------------------------


def test_arguments_are_checked(engine: Engine) -> None:
    with pytest.raises(UnknownTopicError):
        early(engine, "nowhere")
    with pytest.raises(ConfigError, match="must be a list in which each item is text"):
        engine.consumer(topics="one")
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        engine.consumer(topics=["one"], auto_offset_reset="newest")
    with pytest.raises(ConfigError, match="isolation"):
        engine.consumer(topics=["one"], isolation="serializable")
    with pytest.raises(ConfigError, match="max_records"):
        early(engine).poll(max_records=0)


def test_after_close_nothing_is_read(engine: Engine) -> None:
    consumer = early(engine, group="g")
    consumer.close()
    consumer.close()
    for call in (consumer.poll, consumer.commit):
        with pytest.raises(ClosedError):
            call()


# --- assignment, patterns, waiting ---------------------------------------------------------------------------------


def test_assigned_partitions_are_read_and_others_are_not(engine: Engine) -> None:
    for name in (*T, ONE):
        fill(engine, name, 3)
    with engine.consumer(auto_offset_reset="earliest") as consumer:
        assert consumer.poll() == {}
        consumer.assign([TopicPartition("t", 1)])
        (name, _), *_ = list(consumer)
        assert name == TopicPartition("t", 1)
        position = consumer.position(name)
        consumer.assign([TopicPartition("t", 1), TopicPartition("one", 0)])
        assert consumer.position(name) == position
        assert consumer.position(TopicPartition("one", 0)) == 0
        with pytest.raises(UnknownTopicError):
            consumer.assign([TopicPartition("t", 9)])
        assert consumer.assignment == (TopicPartition("t", 1), TopicPartition("one", 0))
        assert repr(consumer) == "Consumer(group=None, partitions=2)"


def test_a_pattern_reads_topics_that_match_later(engine: Engine) -> None:
    with engine.consumer(topics=re.compile("logs-.*"), group="g", auto_offset_reset="earliest") as consumer:
        assert not consumer.assignment
        engine.create_topic("logs-a")
        engine.create_topic("other-logs-a")
        engine.log("logs-a").append([Record(value=b"a")])
        assert [record.value for records in consumer.poll().values() for record in records] == [b"a"]
        consumer.commit()
        engine.delete_topic("logs-a")
        engine.create_topic("logs-b")
        engine.log("logs-b").append([Record(value=b"b")])
        assert [record.value for _, record in consumer.records()] == [b"b"]
        assert list(consumer.assignment) == [TopicPartition("logs-b", 0)]
    with engine.consumer(topics=re.compile(".*")) as consumer:
        assert not any(name.topic.startswith("__") for name in consumer.assignment)


def test_a_topic_that_matches_later_starts_at_the_committed_offset_also_after_a_failed_poll(
    engine: Engine, groups: GroupOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.consumer(topics=re.compile("new"), group="g") as consumer:
        engine.create_topic("new")
        fill(engine, TopicPartition("new", 0), 5)
        groups.commit("g", {TopicPartition("new", 0): 3})
        monkeypatch.setattr(groups, "committed", failing)
        with pytest.raises(StorageError, match="no reply"):
            consumer.poll()
        monkeypatch.undo()
        assert offsets(consumer.poll()) == {TopicPartition("new", 0): [3, 4]}


def test_a_failed_assignment_changes_nothing(
    engine: Engine, groups: GroupOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ONE, *T):
        fill(engine, name, 5)
    groups.commit("g", {T[1]: 3})
    with early(engine, group="g") as consumer:
        consumer.poll(2)
        monkeypatch.setattr(groups, "committed", failing)
        with pytest.raises(StorageError, match="no reply"):
            consumer.assign([T[1]])
        assert (consumer.assignment, consumer.position(ONE)) == ((ONE,), 2)
        monkeypatch.undo()
        consumer.assign([T[1], ONE])
        assert {name: position.offset for name, position in consumer.positions().items()} == {ONE: 2, T[1]: 3}


def test_one_name_is_no_list_of_topics(engine: Engine) -> None:
    with pytest.raises(WrongTypeError, match="topics of consumer"):
        engine.consumer(topics="one")


def test_bounds_of_partitions(engine: Engine) -> None:
    log = engine.log("one")
    log.append([Record(value=b"v")] * 5)
    log.delete_records(2)
    with engine.consumer(topics=["one"]) as consumer:
        name = TopicPartition("one", 0)
        assert (consumer.beginning_offsets(), consumer.end_offsets(name)) == ({name: 2}, {name: 5})


def test_records_wait_for_more(engine: Engine) -> None:
    engine.log("one").append([Record(value=b"0")])
    with engine.consumer(topics=["one"], auto_offset_reset="earliest") as consumer:
        records = consumer.records(timeout_ms=200)
        assert next(records)[1].value == b"0"
        engine.log("one").append([Record(value=b"1")])
        assert [record.value for _, record in records] == [b"1"]
        assert consumer.position(TopicPartition("one", 0)) == 2


def test_groups_are_administered(engine: Engine) -> None:
    engine.log("one").append([Record(value=b"v")] * 5)
    name = TopicPartition("one", 0)
    engine.alter_group_offsets("g", {name: 3})
    assert engine.groups() == ("g",)
    assert engine.group_offsets("g")[name].offset == 3
    with engine.consumer(topics=["one"], group="g") as consumer:
        assert len(list(consumer)) == 2
    with pytest.raises(UnknownTopicError):
        engine.alter_group_offsets("g", {TopicPartition("nothing", 0): 1})
    engine.alter_group_offsets("", {name: 1})
    assert engine.group_offsets("")[name].offset == 1
    assert engine.delete_group("")
    assert engine.delete_group("g")
    assert not engine.delete_group("g")
    assert (engine.groups(), engine.group_offsets("g")) == ((), {})


def test_the_commit_of_an_open_transaction_does_not_restore_an_offset_of_a_deleted_group(engine: Engine) -> None:
    name = TopicPartition("one", 0)
    with engine.producer(transactional_id="tx") as producer:
        producer.begin_transaction()
        producer.send_offsets("g", {name: 3})
        producer.flush()
        assert engine.delete_group("g")
        producer.commit_transaction()
    assert (engine.groups(), engine.group_offsets("g")) == ((), {})


def test_a_group_may_have_offsets_of_partitions_that_another_engine_has(engine: Engine) -> None:
    name = TopicPartition("elsewhere", 3)
    engine.alter_group_offsets("g", {name: 7}, must_exist=False)
    assert engine.group_offsets("g")[name].offset == 7
    assert "elsewhere" not in engine.topics()
