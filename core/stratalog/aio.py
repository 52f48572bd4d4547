"""Producers, consumers and logs as coroutines, for programs with an event loop.

``AsyncProducer``, ``AsyncConsumer`` and ``AsyncLog`` wrap a ``Producer``, a ``Consumer`` and a ``Log``. Each coroutine
calls the method of the same name on a thread, with the same arguments, result and errors. If a coroutine of a producer
or consumer is cancelled during the call, the thread finishes the call, and the result is discarded. The coroutine and
the next call of the object wait until the thread has finished. If the cancelled call is a ``poll``, the next ``poll``
returns the same records.

::

    async with AsyncConsumer(engine.consumer(topics=["orders"], group="billing")) as consumer:
        async for partition, record in consumer.records(timeout_ms=1000):
            ...
        await consumer.commit()
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from stratalog.client.committed_offsets import Committable, CommittedOffset
from stratalog.client.consumer import Consumer, RecordType
from stratalog.client.pending import RecordMetadata
from stratalog.client.producer import Producer
from stratalog.env.closing import Closeable
from stratalog.errors import StorageError
from stratalog.log.append.append import AppendResult
from stratalog.log.log import Log
from stratalog.log.read.fetch import Fetched
from stratalog.model.batches import NO_TIMESTAMP
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import Record

__all__ = ["AsyncConsumer", "AsyncLog", "AsyncProducer"]

P = ParamSpec("P")
R = TypeVar("R")
_CHUNK_RECORDS: Final = 500


class _Calls:
    """Base class of wrappers: calls the methods of one object on threads, one call at a time, in order."""

    def __init__(self, target: Closeable) -> None:
        self._target, self._turn = target, asyncio.Lock()

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._turn:
            call = partial(contextvars.copy_context().run, function, *args, **kwargs)
            # a future, not a task: when asyncio.run ends, it cancels all tasks, even if their threads still run
            work = asyncio.get_running_loop().run_in_executor(None, call)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                # wait for the thread, even after a further cancellation: only one thread at a time may use the object
                while not work.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.wait([work])
                raise

    async def close(self) -> None:
        """Close the wrapped object. A second call has no effect."""
        await self._call(self._target.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncProducer(_Calls):
    """A ``Producer`` for coroutines.

    Args:
        producer: the producer. ``close`` of this object closes the producer.
    """

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._producer = producer

    async def send(
        self,
        topic: str,
        *,
        key: Any = None,
        value: Any = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = NO_TIMESTAMP,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Call ``Producer.send`` on a thread, which waits while the buffer is full. Return a future of the event loop.

        Await the future to wait for the write: it returns the record's ``RecordMetadata``, or raises the error of the
        write.
        """
        queued = await self._call(
            self._producer.send,
            topic,
            key=key,
            value=value,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
        )
        return asyncio.wrap_future(queued)

    async def flush(self) -> None:
        """Call ``Producer.flush`` on a thread, and wait until it returns."""
        await self._call(self._producer.flush)

    async def begin_transaction(self) -> None:
        """Call ``Producer.begin_transaction`` on a thread, and wait until it returns."""
        await self._call(self._producer.begin_transaction)

    async def send_offsets(self, group: str, offsets: Committable) -> None:
        """Call ``Producer.send_offsets`` on a thread, and wait until it returns."""
        await self._call(self._producer.send_offsets, group, offsets)

    async def commit_transaction(self) -> None:
        """Call ``Producer.commit_transaction`` on a thread, and wait until it returns."""
        await self._call(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """Call ``Producer.abort_transaction`` on a thread, and wait until it returns."""
        await self._call(self._producer.abort_transaction)


class AsyncConsumer(_Calls, Generic[RecordType]):
    """A ``Consumer`` for coroutines.

    Args:
        consumer: the consumer. ``close`` of this object closes the consumer.
    """

    def __init__(self, consumer: Consumer[RecordType]) -> None:
        super().__init__(consumer)
        self._consumer = consumer

    async def poll(
        self, max_records: int = _CHUNK_RECORDS, timeout_ms: int = 0
    ) -> dict[TopicPartition, list[RecordType]]:
        """Call ``Consumer.poll`` on a thread, and return its result."""
        records_by_partition = dict[TopicPartition, list[RecordType]]()

        def poll() -> None:
            records_by_partition.update(self._consumer.poll(max_records, timeout_ms))

        try:
            await self._call(poll)
        except asyncio.CancelledError:  # the caller does not get these records: reset the position to the first one
            for name, records in records_by_partition.items():
                first: Any = records[0]  # a Record or a DeserializedRecord
                self._consumer.seek(name, first.offset)
            raise
        return records_by_partition

    async def records(self, timeout_ms: int = 0) -> AsyncIterator[tuple[TopicPartition, RecordType]]:
        """Yield each record with its partition. The iteration ends if no record arrives for ``timeout_ms``.

        With the default 0, the iteration ends when no record is available. Records are polled one by one. Therefore the
        consumer's position is after the last record that was yielded.
        """
        while records_by_partition := await self.poll(1, timeout_ms):
            for name, records in records_by_partition.items():
                for record in records:
                    yield name, record

    async def commit(self, offsets: Committable | None = None, durability: str | None = None) -> None:
        """Call ``Consumer.commit`` on a thread, and wait until it returns."""
        await self._call(self._consumer.commit, offsets, durability)

    async def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Call ``Consumer.committed`` on a thread, and return its result."""
        return await self._call(self._consumer.committed)

    async def assign(self, names: Iterable[TopicPartition]) -> None:
        """Call ``Consumer.assign`` on a thread, and wait until it returns."""
        await self._call(self._consumer.assign, names)

    async def seek(self, name: TopicPartition, offset: int) -> None:
        """Call ``Consumer.seek`` on a thread, and wait until it returns."""
        await self._call(self._consumer.seek, name, offset)

    async def beginning_offsets(self, *names: TopicPartition) -> dict[TopicPartition, int]:
        """Return the result of ``Consumer.beginning_offsets``, called on a thread."""
        return await self._call(self._consumer.beginning_offsets, *names)

    async def end_offsets(self, *names: TopicPartition) -> dict[TopicPartition, int]:
        """Return the result of ``Consumer.end_offsets``, called on a thread."""
        return await self._call(self._consumer.end_offsets, *names)

    async def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the result of ``Consumer.offsets_for_times``, called on a thread."""
        return await self._call(self._consumer.offsets_for_times, timestamps_ms)

    async def lag(self) -> dict[TopicPartition, int]:
        """Call ``Consumer.lag`` on a thread, and return its result."""
        return await self._call(self._consumer.lag)

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return ``Consumer.positions()``. This method is not a coroutine, because it does not wait.

        Do not call this method while a coroutine of this object runs.
        """
        return self._consumer.positions()


class AsyncLog:
    """A ``Log`` of an engine for coroutines. Several calls may run at the same time, on different threads.

    A cancelled coroutine ends at once, but its thread finishes the call: a cancelled ``append`` may still write its
    records.

    Args:
        log: the log. The engine closes the log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    async def append(self, records: Sequence[Record], durability: str | None = None) -> AppendResult:
        """Call ``Log.append`` on a thread, and return its result."""
        return await asyncio.to_thread(self._log.append, records, durability)

    async def fetch(self, offset: int, max_bytes: int = 1 << 20, isolation: str = "read_uncommitted") -> Fetched:
        """Call ``LogReader.fetch`` on a thread, and return its result."""
        return await asyncio.to_thread(self._log.fetch, offset, max_bytes, isolation)

    async def records(
        self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted"
    ) -> AsyncIterator[Record]:
        """Yield the records of ``LogReader.records``. Each call on a thread reads up to 500 records."""
        records = self._log.records(start, end, isolation)
        error: StorageError | None = None
        while error is None:
            group, error = await asyncio.to_thread(_next_group, records)
            for record in group:
                yield record
            if error is None and not group:
                return
        raise error

    async def offset_for_timestamp(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> int | None:
        """Return the result of ``LogReader.offset_for_timestamp``, called on a thread."""
        return await asyncio.to_thread(self._log.offset_for_timestamp, timestamp_ms, isolation)

    def offsets(self) -> LogOffsets:
        """Return ``LogReader.offsets()``. This method is not a coroutine, because it does not wait."""
        return self._log.offsets()


def _next_group(records: Iterator[Record]) -> tuple[list[Record], StorageError | None]:
    """Return the next records (up to 500), and the error that the iterator raised after these records, or None."""
    group = list[Record]()
    try:
        for record in islice(records, _CHUNK_RECORDS):
            group.append(record)
    except StorageError as error:
        return group, error
    return group, None
