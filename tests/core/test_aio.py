"""Coroutines that call the objects of an engine."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import stratalog
from stratalog import Log, Record, TopicPartition, open_engine
from stratalog.aio import AsyncConsumer, AsyncLog, AsyncProducer
from stratalog.errors import ClosedError, CorruptBatchError, UnknownTopicError

ONE = TopicPartition("one", 0)


def test_sent_records_are_consumed_and_committed(tmp_path: Path) -> None:
    async def work() -> list[bytes | None]:
        with open_engine(tmp_path) as engine:
            engine.create_topic("one")
            async with AsyncProducer(engine.producer(transactional_id="x")) as producer:
                await producer.begin_transaction()
                futures = [await producer.send("one", value=b"%d" % n) for n in range(3)]
                await producer.send_offsets("g", {ONE: 1})
                await producer.commit_transaction()
                assert [(await future).offset for future in futures] == [0, 1, 2]
                await producer.begin_transaction()
                await producer.abort_transaction()
                await producer.flush()
            consumer = engine.consumer(topics=["one"], group="g", isolation="read_committed")
            async with AsyncConsumer(consumer) as reading:
                values = [record.value async for _, record in reading.records(timeout_ms=10)]
                assert reading.positions()[ONE].offset >= 3
                await reading.commit()
                assert (await reading.committed())[ONE].offset >= 3
                await reading.seek(ONE, 0)
                assert await reading.beginning_offsets() == {ONE: 0}
                assert await reading.end_offsets() == {ONE: (await reading.committed())[ONE].offset}
                assert (await reading.lag())[ONE] >= 3
                assert await reading.offsets_for_times({ONE: 1}) == {ONE: 0}
                await reading.assign([ONE])
                assert len(await reading.poll(2)) == 1
            with pytest.raises(ClosedError):
                await reading.poll()
            return values

    assert asyncio.run(work()) == [b"1", b"2"]


def test_a_log_is_appended_and_read(tmp_path: Path) -> None:
    async def work() -> None:
        with open_engine(tmp_path) as engine:
            engine.create_topic("one")
            log = AsyncLog(engine.log("one"))
            results = await asyncio.gather(*(log.append([Record(timestamp_ms=n)] * 300) for n in range(4)))
            assert sorted(result.base_offset for result in results) == [0, 300, 600, 900]
            assert [record.offset async for record in log.records(10, 1190)] == list(range(10, 1190))
            assert (await log.fetch(0)).next_offset > 0
            assert await log.offset_for_timestamp(0) == 0
            assert log.offsets().log_end == 1200

    asyncio.run(work())


def test_records_before_a_damaged_batch_are_yielded(tmp_path: Path) -> None:
    async def work(log: Log) -> list[bytes | None]:
        values = list[bytes | None]()
        try:
            async for record in AsyncLog(log).records():
                values.append(record.value)
        except CorruptBatchError:
            return values
        raise AssertionError

    with open_engine(tmp_path) as engine:
        engine.create_topic("one")
        for number in range(3):
            engine.log("one").append([Record(value=b"%d" % number)])
        (path,) = tmp_path.glob("one-0/*.log")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        assert asyncio.run(work(engine.log("one"))) == [b"0", b"1"]


def test_the_event_loop_is_free_while_a_call_waits(tmp_path: Path) -> None:
    async def work() -> None:
        with open_engine(tmp_path) as engine:
            engine.create_topic("one")
            async with AsyncConsumer(engine.consumer(topics=["one"], auto_offset_reset="earliest")) as consumer:
                polling = asyncio.create_task(consumer.poll(timeout_ms=60_000))
                await asyncio.to_thread(engine.log("one").append, [Record(value=b"v")])
                assert [record.value for record in (await polling)[ONE]] == [b"v"]

    asyncio.run(work())


class Slow:
    """As much of a consumer as the tests call. A poll returns after ``may_end`` is set."""

    def __init__(self) -> None:
        self.started, self.may_end, self.seen = threading.Event(), threading.Event(), list[str]()

    def poll(self, max_records: int, timeout_ms: int) -> dict[TopicPartition, list[Record]]:
        del max_records, timeout_ms
        self.started.set()
        self.may_end.wait(30)
        self.seen.append("poll")
        return {}

    def close(self) -> None:
        self.seen.append("close")


@pytest.mark.parametrize("cancellations", [1, 2])
def test_a_cancelled_call_ends_before_the_next_one(cancellations: int) -> None:
    slow = Slow()

    async def work() -> None:
        consumer = AsyncConsumer(slow)  # type: ignore[arg-type] # has only the methods that are called
        polling = asyncio.create_task(consumer.poll())
        await asyncio.to_thread(slow.started.wait, 30)
        for _ in range(cancellations):
            polling.cancel()
            await asyncio.sleep(0)
        closing = asyncio.create_task(consumer.close())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not polling.done()
        slow.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await closing

    asyncio.run(work())
    assert slow.seen == ["poll", "close"]


def test_a_call_of_a_task_that_asyncio_run_cancels_ends_before_the_next_one() -> None:
    slow = Slow()

    async def poll() -> None:
        async with AsyncConsumer(slow) as consumer:  # type: ignore[arg-type] # has only the methods that are called
            await consumer.poll()

    async def work() -> None:
        polling = asyncio.create_task(poll())
        await asyncio.to_thread(slow.started.wait, 30)
        threading.Timer(0.1, slow.may_end.set).start()
        assert not polling.done()

    asyncio.run(work())
    assert slow.seen == ["poll", "close"]


def test_records_of_a_cancelled_poll_are_read_by_the_next_one(tmp_path: Path) -> None:
    async def work() -> None:
        with open_engine(tmp_path) as engine:
            engine.create_topic("one")
            log = engine.log("one")
            log.append([Record(value=b"%d" % number) for number in range(3)])
            async with AsyncConsumer(engine.consumer(topics=["one"], auto_offset_reset="earliest")) as consumer:
                seen_all = asyncio.Event()

                async def read() -> None:
                    async for _, record in consumer.records(timeout_ms=60_000):
                        if record.offset == 2:
                            seen_all.set()

                reading = asyncio.create_task(read())
                await seen_all.wait()
                reading.cancel()  # the poll for the next record continues on its thread
                await asyncio.to_thread(log.append, [Record(value=b"3"), Record(value=b"4")])
                with pytest.raises(asyncio.CancelledError):
                    await reading
                assert consumer.positions()[ONE].offset == 3
                assert [record.offset for record in (await consumer.poll())[ONE]] == [3, 4]

    asyncio.run(work())


def test_public_modules_need_no_import_of_their_own() -> None:
    assert stratalog.errors.UnknownTopicError is UnknownTopicError
    assert stratalog.aio.AsyncLog is AsyncLog
