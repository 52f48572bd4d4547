from __future__ import annotations

from stratalog import Record, TopicPartition
from stratalog.client.pending import Accumulator, PendingBatch

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
LINGER = 1000


def filled(*sizes: int, name: TopicPartition = ONE) -> Accumulator:
    waiting = Accumulator(100, LINGER)
    for number, size in enumerate(sizes):
        waiting.add(name, Record(value=b"%d" % number), size, now_ns=0)
    return waiting


def values(batch: PendingBatch | None) -> list[bytes | None]:
    assert batch is not None
    assert len(batch.records) == len(batch.futures)
    return [record.value for record in batch.records]


def test_a_batch_that_is_not_full_waits_for_its_time() -> None:
    waiting = filled(10, 10)
    assert waiting.due_in_ns(400) == 600
    assert waiting.take(LINGER - 1) is None
    assert values(waiting.take(LINGER)) == [b"0", b"1"]
    assert waiting.due_in_ns(LINGER) is None


def test_a_full_batch_is_due_at_once_and_the_next_record_begins_another() -> None:
    waiting = filled(60, 40, 10)
    assert waiting.due_in_ns(0) == 0
    assert values(waiting.take(0)) == [b"0", b"1"]
    assert waiting.take(0) is None


def test_a_record_that_does_not_fit_closes_the_batch_before_it() -> None:
    waiting = filled(60, 60)
    assert values(waiting.take(0)) == [b"0"]


def test_a_record_larger_than_a_batch_has_one_for_itself() -> None:
    waiting = filled(10, 500, 10)
    first = waiting.take(0)
    assert values(first) == [b"0"]
    assert first is not None
    waiting.finish(first)
    assert values(waiting.take(0)) == [b"1"]


def test_one_batch_of_a_partition_is_out_at_a_time() -> None:
    waiting = filled(100, 100)
    first = waiting.take(0)
    assert first is not None
    assert waiting.take(0, everything=True) is None
    assert waiting.due_in_ns(0) is None
    waiting.finish(first)
    assert values(waiting.take(0)) == [b"1"]


def test_while_a_batch_is_out_others_gather_in_one() -> None:
    waiting = filled(10)
    first = waiting.take(0, everything=True)
    assert first is not None
    for value in (b"a", b"b"):
        waiting.add(ONE, Record(value=value), 10, now_ns=0)
        assert waiting.take(10 * LINGER) is None
    waiting.finish(first)
    assert values(waiting.take(10 * LINGER)) == [b"a", b"b"]


def test_an_open_batch_does_not_pass_a_full_one_of_its_partition() -> None:
    waiting = filled(100, 10)
    order = []
    while (batch := waiting.take(10 * LINGER)) is not None:
        order.extend(values(batch))
        waiting.finish(batch)
    assert order == [b"0", b"1"]


def test_a_steady_flow_of_full_batches_does_not_starve_another_partition() -> None:
    waiting = Accumulator(100, LINGER)
    waiting.add(TWO, Record(value=b"two"), 10, now_ns=0)
    for _ in range(5):
        waiting.add(ONE, Record(value=b"one"), 100, now_ns=500)
    assert values(waiting.take(LINGER)) == [b"two"]
    assert values(waiting.take(LINGER)) == [b"one"]


def test_everything_is_due_when_asked_for() -> None:
    waiting = filled(10)
    waiting.add(TWO, Record(value=b"two"), 10, now_ns=0)
    assert waiting.due_in_ns(0, everything=True) == 0
    assert values(waiting.take(0, everything=True)) == [b"0"]
    assert values(waiting.take(0, everything=True)) == [b"two"]


def test_bytes_are_counted_until_a_batch_is_finished() -> None:
    waiting = filled(100, 30)
    assert waiting.size_bytes == 130
    first = waiting.take(0)
    assert first is not None
    assert waiting.size_bytes == 130
    waiting.finish(first)
    assert first.finished
    assert waiting.size_bytes == 30


def test_waiting_records_can_be_abandoned_but_not_sent_ones() -> None:
    waiting = filled(100, 100, 10)
    sent_batch = waiting.take(0)
    assert sent_batch is not None
    assert [batch.records[0].value for batch in waiting.unfinished_batches()] == [b"0", b"1", b"2"]
    assert [batch.records[0].value for batch in waiting.drop_waiting()] == [b"1", b"2"]
    assert [*waiting.unfinished_batches()] == [sent_batch]
    waiting.finish(sent_batch)
    assert waiting.size_bytes == 0
    assert waiting.take(0, everything=True) is None


def test_a_future_cannot_be_cancelled_once_its_record_is_in() -> None:
    future, _ = Accumulator(100, 0).add(ONE, Record(), 1, now_ns=0)
    assert not future.cancel()


def test_the_result_shows_if_more_work_may_be_due() -> None:
    waiting = Accumulator(100, LINGER)
    due_flags = [waiting.add(ONE, Record(), size, now_ns=0)[1] for size in (10, 10, 80, 60, 60, 10)]
    assert due_flags == [True, False, True, True, True, False]
