"""Producers, consumers and logs as coroutines, for programs with an event loop.

Each class wraps the object of the same name without ``Async``: its coroutines call the methods of that object on a thread, with
the same arguments, results and errors. The object is closed with the wrapper. If a coroutine is cancelled, a call that has begun
continues on its thread; the next call of the same object waits for it.

::

    async with AsyncConsumer(engine.consumer(topics=["orders"], group="billing")) as consumer:
        async for partition, record in consumer.records(timeout_ms=1000):
            ...
        await consumer.commit()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from stratalog.client.consumer import Consumer, RecordType
from stratalog.client.group_offsets import Committable, CommittedOffset
from stratalog.client.pending import RecordMetadata
from stratalog.client.producer import Producer
from stratalog.log.append.commit import AppendResult
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


class _Closing(Protocol):
    def close(self) -> object:
        """Close the object."""


class _Calls:
    """Calls of one object on threads, one at a time and in order."""

    def __init__(self, target: _Closing) -> None:
        self._target, self._turn = target, asyncio.Lock()

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._turn:
            work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if not work.done():  # the object is for one thread at a time
                    await asyncio.wait([work])
                raise

    async def close(self) -> None:
        """Close the wrapped object. Idempotent."""
        await self._call(self._target.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncProducer(_Calls):
    """A producer for coroutines.

    Args:
        producer: closed with this object.
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
        """Queue a record as ``Producer.send``; wait while the buffer is full. The result is a future of the event loop."""
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
        """See ``Producer.flush``."""
        await self._call(self._producer.flush)

    async def begin_transaction(self) -> None:
        """See ``Producer.begin_transaction``."""
        await self._call(self._producer.begin_transaction)

    async def send_offsets(self, group: str, offsets: Committable) -> None:
        """See ``Producer.send_offsets``."""
        await self._call(self._producer.send_offsets, group, offsets)

    async def commit_transaction(self) -> None:
        """See ``Producer.commit_transaction``."""
        await self._call(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """See ``Producer.abort_transaction``."""
        await self._call(self._producer.abort_transaction)


class AsyncConsumer(_Calls, Generic[RecordType]):
    """A consumer for coroutines.

    Args:
        consumer: closed with this object.
    """

    def __init__(self, consumer: Consumer[RecordType]) -> None:
        super().__init__(consumer)
        self._consumer = consumer

    async def poll(
        self, max_records: int = _CHUNK_RECORDS, timeout_ms: int = 0
    ) -> dict[TopicPartition, list[RecordType]]:
        """See ``Consumer.poll``."""
        return await self._call(self._consumer.poll, max_records, timeout_ms)

    async def records(self, timeout_ms: int = 0) -> AsyncIterator[tuple[TopicPartition, RecordType]]:
        """Iterate over records, each with its partition; end if there is none for ``timeout_ms``.

        Records are polled one by one: the positions are those of ``Consumer.records``.
        """
        while found := await self._call(self._consumer.poll, 1, timeout_ms):
            for name, records in found.items():
                for record in records:
                    yield name, record

    async def commit(self, offsets: Committable | None = None, durability: str | None = None) -> None:
        """See ``Consumer.commit``."""
        await self._call(self._consumer.commit, offsets, durability)

    async def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """See ``Consumer.committed``."""
        return await self._call(self._consumer.committed)

    async def assign(self, names: Iterable[TopicPartition]) -> None:
        """See ``Consumer.assign``."""
        await self._call(self._consumer.assign, names)

    async def seek(self, name: TopicPartition, offset: int) -> None:
        """See ``Consumer.seek``."""
        await self._call(self._consumer.seek, name, offset)

    async def beginning_offsets(self, *names: TopicPartition) -> dict[TopicPartition, int]:
        """See ``Consumer.beginning_offsets``."""
        return await self._call(self._consumer.beginning_offsets, *names)

    async def end_offsets(self, *names: TopicPartition) -> dict[TopicPartition, int]:
        """See ``Consumer.end_offsets``."""
        return await self._call(self._consumer.end_offsets, *names)

    async def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See ``Consumer.offsets_for_times``."""
        return await self._call(self._consumer.offsets_for_times, timestamps_ms)

    async def lag(self) -> dict[TopicPartition, int]:
        """See ``Consumer.lag``."""
        return await self._call(self._consumer.lag)

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """See ``Consumer.positions``; no call waits."""
        return self._consumer.positions()


class AsyncLog:
    """A log of an engine for coroutines. Calls may run at the same time. The engine closes the log.

    Args:
        log: the log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    async def append(self, records: Sequence[Record], durability: str | None = None) -> AppendResult:
        """See ``Log.append``."""
        return await asyncio.to_thread(self._log.append, records, durability)

    async def fetch(self, offset: int, max_bytes: int = 1 << 20, isolation: str = "read_uncommitted") -> Fetched:
        """See ``LogReader.fetch``."""
        return await asyncio.to_thread(self._log.fetch, offset, max_bytes, isolation)

    async def records(
        self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted"
    ) -> AsyncIterator[Record]:
        """See ``LogReader.records``; records are read in groups of 500."""
        records = self._log.records(start, end, isolation)
        while group := await asyncio.to_thread(lambda: list(islice(records, _CHUNK_RECORDS))):
            for record in group:
                yield record

    async def offset_for_timestamp(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> int | None:
        """See ``LogReader.offset_for_timestamp``."""
        return await asyncio.to_thread(self._log.offset_for_timestamp, timestamp_ms, isolation)

    def offsets(self) -> LogOffsets:
        """See ``LogReader.offsets``; no call waits."""
        return self._log.offsets()
