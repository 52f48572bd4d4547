"""Producers of an engine: partitioning and batching of records, and the results of futures."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.client.clients import ProducerKeywords
from stratalog.client.partitioner import partition_of_key
from stratalog.client.pending import RecordMetadata
from stratalog.client.producer import Producer, ProducerOptions
from stratalog.client.sender import Sender
from stratalog.env.clock import ManualClock
from stratalog.env.threads import OwnThread
from stratalog.errors import (
    ClosedError,
    ConfigError,
    InvalidRecordError,
    InvalidTxnStateError,
    RecordTooLargeError,
    UnknownTopicError,
    UnsupportedCompressionError,
)
from stratalog.log.log import Log
from stratalog.model.batches import NO_PRODUCER, RecordBatch
from stratalog.segment.framing import scan

WAIT_S = 30
FOREVER_MS = 1 << 40


def batches(log: Log) -> list[RecordBatch]:
    log_batches: list[RecordBatch] = []
    position = 0
    while position < log.offsets().log_end:
        with log.fetch(position) as fetched:
            data = fetched.read()
            for table in scan(fetched.components.formats, data, 0, len(data), check_crc=True).tables:
                log_batches.extend(table)
            position = fetched.next_offset
    return log_batches


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


# --- partitions --------------------------------------------------------------------------------------------------


def test_a_record_arrives_in_every_field(engine: Engine) -> None:
    with engine.producer() as producer:
        future = producer.send("t", key=b"k", value=b"v", headers=[("h", b"x"), ("h", None)], timestamp_ms=77)
        metadata = future.result(WAIT_S)
    partition = partition_of_key(b"k", 3)
    assert metadata == RecordMetadata("t", partition, 0, 77)
    (record,) = engine.log("t", partition).records()
    assert record == Record(
        offset=0,
        timestamp_ms=77,
        key=b"k",
        value=b"v",
        headers=(("h", b"x"), ("h", None)),
        leader_epoch=0,
        partition=partition,
    )


def test_a_record_without_timestamp_gets_the_clocks(engine: Engine, clock: ManualClock) -> None:
    with engine.producer() as producer:
        assert producer.send("one", value=b"v").result(WAIT_S).timestamp_ms == clock.now_ms()


def test_the_result_has_the_append_time_if_the_log_sets_timestamps(engine: Engine, clock: ManualClock) -> None:
    engine.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    with engine.producer() as producer:
        assert producer.send("stamped", value=b"v", timestamp_ms=5).result(WAIT_S).timestamp_ms == clock.now_ms()


def test_keys_keep_to_their_partition_and_order(engine: Engine) -> None:
    with engine.producer(linger_ms=FOREVER_MS) as producer:
        for number in range(300):
            producer.send("t", key=b"%d" % (number % 10), value=b"%d" % number)
    assert sum(engine.log("t", partition).offsets().log_end for partition in range(3)) == 300
    for partition in range(3):
        for key in {record.key for record in engine.log("t", partition).records()}:
            assert key is not None
            assert partition_of_key(key, 3) == partition
            numbers = [int(r.value or b"") for r in engine.log("t", partition).records() if r.key == key]
            assert numbers == list(range(int(key), 300, 10))


def test_a_partition_that_is_named_wins_over_the_key(engine: Engine) -> None:
    partition = (partition_of_key(b"k", 3) + 1) % 3
    with engine.producer() as producer:
        assert producer.send("t", key=b"k", partition=partition).result(WAIT_S).partition == partition


def test_records_without_a_key_share_a_batch_and_reach_every_partition(engine: Engine) -> None:
    with engine.producer(batch_size_bytes=1000, linger_ms=FOREVER_MS) as producer:
        for _ in range(1000):
            producer.send("t", value=bytes(79))
    record_counts = [[batch.record_count for batch in batches(engine.log("t", partition))] for partition in range(3)]
    assert all(record_counts)
    assert sum(map(sum, record_counts)) == 1000
    assert Counter(count for counts in record_counts for count in counts).most_common(1)[0][0] == 10


def test_an_unknown_topic_or_partition_is_refused_at_once(engine: Engine) -> None:
    with engine.producer() as producer:
        with pytest.raises(UnknownTopicError, match="nowhere"):
            producer.send("nowhere", value=b"v")
        with pytest.raises(UnknownTopicError, match="t-3"):
            producer.send("t", partition=3)
        with pytest.raises(UnknownTopicError):
            producer.send("t", partition=-1)


def test_a_topic_that_is_deleted_and_made_again_is_found(engine: Engine) -> None:
    with engine.producer() as producer:
        assert producer.send("t", partition=2, value=b"old").result(WAIT_S).offset == 0
        engine.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            producer.send("t", partition=2, value=b"gone")
        engine.create_topic("t")
        for number in range(10):
            assert producer.send("t", key=b"%d" % number).result(WAIT_S).partition == 0


def test_a_key_goes_to_the_same_partition_from_a_producer_that_is_older_than_the_partition(engine: Engine) -> None:
    keys = [b"%d" % number for number in range(20)]

    def partitions(producer: Producer) -> list[int]:
        return [producer.send("t", key=key).result(WAIT_S).partition for key in keys]

    with engine.producer() as older:
        assert max(partitions(older)) == 2
        engine.create_partitions("t", 9)
        with engine.producer() as newer:
            assert partitions(older) == partitions(newer)


# --- batches -----------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_more_until_its_time(engine: Engine, clock: ManualClock) -> None:
    with engine.producer(linger_ms=FOREVER_MS) as producer:
        futures = [producer.send("one", value=b"%d" % number) for number in range(5)]
        assert not any(future.done() for future in futures)
        clock.advance_ms(FOREVER_MS)
        producer.send("t", value=b"other")  # a new batch: the producer reads the clock
        assert [future.result(WAIT_S).offset for future in futures] == list(range(5))
    assert [batch.record_count for batch in batches(engine.log("one", 0))] == [5]


def test_a_batch_may_wait_longer_than_a_thread_can(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, has_begun = list[float | None](), threading.Event()

    class Noted(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            has_begun.set()
            return super().wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    with monkeypatch.context() as patch:
        patch.setattr("stratalog.client.sender.threading.Condition", Noted)
        producer = engine.producer(linger_ms=(1 << 63) - 1)  # Kafka's largest
    with producer:
        producer.send("one", value=b"v")
        assert has_begun.wait(WAIT_S)
    assert threading.TIMEOUT_MAX in waits


def test_a_full_batch_does_not_wait(engine: Engine) -> None:
    with engine.producer(linger_ms=FOREVER_MS, batch_size_bytes=1000) as producer:
        futures = [producer.send("one", value=bytes(79)) for _ in range(11)]
        assert futures[9].result(WAIT_S).offset == 9
        assert not futures[10].done()


def test_flush_waits_for_everything_that_was_sent(engine: Engine) -> None:
    with engine.producer(linger_ms=FOREVER_MS) as producer:
        futures = [producer.send("t", partition=number % 3, value=b"v") for number in range(30)]
        producer.flush()
        assert all(future.done() for future in futures)
        producer.flush()
        assert [log.offsets().log_end for log in (engine.log("t", partition) for partition in range(3))] == [10] * 3


def test_sending_waits_while_the_buffer_is_full(engine: Engine) -> None:
    with engine.producer(linger_ms=FOREVER_MS, buffer_bytes=1000) as producer:
        futures = [producer.send("one", value=bytes(300)) for _ in range(50)]
        assert sum(not future.done() for future in futures) <= 4
    assert [future.result(WAIT_S).offset for future in futures] == list(range(50))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(engine: Engine, codec: str) -> None:
    with engine.producer(compression=codec, linger_ms=FOREVER_MS) as producer:
        for _ in range(100):
            producer.send("one", value=b"v" * 50)
    (batch,) = batches(engine.log("one", 0))
    assert batch.codec_id == {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec]
    assert values(engine.log("one", 0)) == [b"v" * 50] * 100


@pytest.mark.parametrize("magic", [0, 1])
def test_topics_of_older_formats_take_records_too(engine: Engine, magic: int) -> None:
    engine.create_topic("old", config={"record.version": magic})
    with engine.producer(linger_ms=FOREVER_MS) as producer:
        futures = [producer.send("old", key=b"k", value=b"%d" % number) for number in range(3)]
    assert [future.result(WAIT_S).offset for future in futures] == [0, 1, 2]
    assert values(engine.log("old", 0)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("failing", [1, 2])
def test_records_are_delivered_although_a_thread_could_not_be_started(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    start, calls = OwnThread.start, list[OwnThread]()

    def limited(thread: OwnThread) -> None:
        calls.append(thread)
        if len(calls) == failing:
            raise RuntimeError("can't start new thread")
        start(thread)

    with engine.producer(batch_size_bytes=1) as producer:
        monkeypatch.setattr(OwnThread, "start", limited)
        with pytest.raises(RuntimeError) if failing == 1 else contextlib.nullcontext():
            producer.send("t", partition=0, value=b"0")
        futures = [producer.send("t", partition=partition, value=b"1") for partition in (0, 1, 2) * 10]
        for future in futures:
            future.result(WAIT_S)


def test_threads_may_share_a_producer(engine: Engine) -> None:
    with engine.producer(batch_size_bytes=500) as producer:

        def send(thread: int) -> None:
            for number in range(200):
                producer.send("t", key=b"%d" % thread, value=b"%d" % number)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = [record for partition in range(3) for record in engine.log("t", partition).records()]
    for number in range(4):
        assert [int(r.value or b"") for r in records if r.key == b"%d" % number] == list(range(200))


# --- idempotence -------------------------------------------------------------------------------------------------


def test_batches_carry_an_id_and_sequences_of_their_partition(engine: Engine) -> None:
    with engine.producer() as producer:
        for number in range(6):
            producer.send("t", partition=number % 2, value=b"v")
            producer.flush()
    batches_of_logs = [batches(engine.log("t", partition)) for partition in range(2)]
    ids = {batch.producer_id for log_batches in batches_of_logs for batch in log_batches}
    assert len(ids) == 1
    assert ids.pop() > 0
    for log_batches in batches_of_logs:
        assert [(batch.producer_epoch, batch.base_sequence) for batch in log_batches] == [(0, 0), (0, 1), (0, 2)]


def test_two_producers_have_two_ids(engine: Engine) -> None:
    for _ in range(2):
        with engine.producer() as producer:
            producer.send("one", value=b"v")
    first, second = batches(engine.log("one", 0))
    assert first.producer_id != second.producer_id


def test_idempotence_can_be_left_out(engine: Engine) -> None:
    with engine.producer(idempotent=False) as producer:
        producer.send("one", value=b"v")
    (batch,) = batches(engine.log("one", 0))
    assert (batch.producer_id, batch.base_sequence) == (NO_PRODUCER, -1)


# --- errors ------------------------------------------------------------------------------------------------------


def test_a_bad_record_fails_alone(engine: Engine) -> None:
    engine.create_topic("keyed", config={"cleanup.policy": "compact"})
    with engine.producer(linger_ms=FOREVER_MS) as producer:
        futures = [producer.send("keyed", key=key, value=b"v") for key in (b"a", None, b"b", None, b"c")]
    assert [future.result(WAIT_S).offset for future in futures[::2]] == [0, 1, 2]
    for future in futures[1::2]:
        with pytest.raises(InvalidRecordError, match="needs a key"):
            future.result(WAIT_S)


def test_a_batch_above_the_topics_limit_is_sent_in_parts(engine: Engine) -> None:
    engine.create_topic("small", config={"max.message.bytes": 1000})
    with engine.producer(linger_ms=FOREVER_MS) as producer:
        futures = [producer.send("small", value=bytes(size)) for size in (300, 300, 2000, 300, 300)]
    assert [future.result(WAIT_S).offset for index, future in enumerate(futures) if index != 2] == [0, 1, 2, 3]
    with pytest.raises(RecordTooLargeError):
        futures[2].result(WAIT_S)
    sequences = [batch.base_sequence for batch in batches(engine.log("small", 0))]
    assert sequences == [batch.base_offset for batch in batches(engine.log("small", 0))]


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size_bytes": 0},
        {"linger_ms": -1},
        {"max_in_flight": 0},
        {"buffer_bytes": 0},
        {"delivery_timeout_ms": -1},
        {"transaction_timeout_ms": 0},
        {"transaction_timeout_ms": 1 << 31},
        {"durability": "fsync"},
    ],
)
def test_options_have_bounds(engine: Engine, options: ProducerKeywords) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        engine.producer(**options)


@pytest.mark.parametrize(("transactional_id", "options"), [("", {}), ("t", {"idempotent": False})])
def test_a_transactional_producer_has_a_name_and_is_idempotent(
    engine: Engine, transactional_id: str, options: ProducerKeywords
) -> None:
    with pytest.raises(ConfigError, match="transactional"):
        engine.producer(transactional_id=transactional_id, **options)


def test_a_missing_codec_is_refused(engine: Engine) -> None:
    with pytest.raises(UnsupportedCompressionError):
        engine.producer(compression="rar")


def test_options_by_keyword_are_those_of_the_class() -> None:
    assert ProducerKeywords.__annotations__.keys() == ProducerOptions.__dataclass_fields__.keys()


# --- end ---------------------------------------------------------------------------------------------------------


def test_after_close_nothing_is_sent(engine: Engine) -> None:
    producer = engine.producer()
    producer.send("one", value=b"v")
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("one", value=b"v")
    assert values(engine.log("one", 0)) == [b"v"]


def test_a_close_that_was_interrupted_continues_in_the_next_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the producer flushed once left its threads behind, and its futures without a result."""
    before = set(threading.enumerate())
    producer = engine.producer(linger_ms=FOREVER_MS)
    future = producer.send("t", value=b"x", partition=0)
    producer_threads = {thread for thread in set(threading.enumerate()) - before if "producer" in thread.name}

    def interrupt(_: Sender) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Sender, "flush", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    producer.close()
    assert future.done()
    assert producer_threads
    assert not producer_threads & set(threading.enumerate())


def test_an_engine_that_closes_sends_what_waits(tmp_path: Path) -> None:
    with open_engine(tmp_path / "own") as engine:
        engine.create_topic("t")
        producer = engine.producer(linger_ms=FOREVER_MS)
        future = producer.send("t", value=b"v")
    assert future.result(WAIT_S).offset == 0
    with pytest.raises(ClosedError):
        producer.send("t", value=b"v")
    with pytest.raises(ClosedError):
        engine.producer()


def test_a_callback_may_send_but_not_wait(engine: Engine) -> None:
    errors: list[object] = []
    answered = threading.Event()
    with engine.producer() as producer:

        def answer(_: object) -> None:
            try:
                producer.send("t", partition=1, value=b"answer")
                producer.flush()
            except ConfigError as error:
                errors.append(error)
            answered.set()

        producer.send("one", value=b"question").add_done_callback(answer)
        assert answered.wait(WAIT_S)
    assert len(errors) == 1
    assert values(engine.log("t", 1)) == [b"answer"]


def test_a_callback_that_raises_system_exit_stops_neither_the_results_nor_the_producer(engine: Engine) -> None:
    def leave(_: object) -> None:
        raise SystemExit

    with engine.producer(linger_ms=FOREVER_MS, batch_size_bytes=8 << 20, max_in_flight=1) as producer:
        futures = [producer.send("one", value=b"v") for _ in range(3)]
        futures[0].add_done_callback(leave)
        producer.flush()
        assert [future.result(WAIT_S).offset for future in futures] == [0, 1, 2]
        futures = [producer.send("one", value=b"v" * (2 << 20)) for _ in range(2)]
        futures[0].add_done_callback(leave)
        producer.flush()
        for future in futures:
            with pytest.raises(RecordTooLargeError):
                future.result(WAIT_S)
        last = producer.send("one", value=b"v")
        producer.flush()
        assert last.result(WAIT_S).offset == 3


def test_transactions_need_an_id(engine: Engine) -> None:
    with engine.producer() as producer:
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(InvalidTxnStateError, match="transactional_id"):
                call()
        with pytest.raises(InvalidTxnStateError, match="transactional_id"):
            producer.send_offsets("g", {})
