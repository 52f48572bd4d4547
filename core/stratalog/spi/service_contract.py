"""Services that run beside an engine, and commands that a plugin adds to the command line."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from stratalog.model.batches import Buffer
from stratalog.model.metrics import Sample
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEnd, LogOffsets
from stratalog.model.records import Record
from stratalog.model.segment_info import AbortedTransaction


class AppendedRecords(Protocol):
    """The result of an append: the offsets [base_offset, last_offset] of the records, both inclusive."""

    @property
    def base_offset(self) -> int:
        """The offset of the first record."""

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""

    @property
    def duplicate(self) -> bool:
        """True if the batch is a producer's retry: it was written before, and this append wrote nothing."""


class OpenTransaction(Protocol):
    """A producer's transaction that has not ended in a log."""

    @property
    def producer_id(self) -> int:
        """The producer's id."""

    @property
    def producer_epoch(self) -> int:
        """The producer epoch of the latest batch."""

    @property
    def coordinator_epoch(self) -> int:
        """The coordinator epoch of the producer's last marker in this log, -1 without one.

        The coordinator epoch of the next marker must not be lower.
        """

    @property
    def last_timestamp_ms(self) -> int:
        """The timestamp of the latest batch."""

    @property
    def transaction_first_offset(self) -> int:
        """The first offset of the transaction. The last stable offset is not above it."""


class FoundBatches(Protocol):
    """Raw batches of a log, pinned until ``release`` or the end of a ``with`` block."""

    @property
    def size_bytes(self) -> int:
        """The size of all batches."""

    @property
    def next_offset(self) -> int:
        """The offset for the next fetch."""

    @property
    def offsets(self) -> LogOffsets:
        """The log's offsets at the time of the fetch."""

    @property
    def aborted_transactions(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions with data in the range, for read_committed."""

    @property
    def diverging(self) -> EpochEnd | None:
        """The epoch and end offset to which a diverging replica must truncate its log, else None.

        Only for a fetch with ``last_fetched_epoch``. If it is not None, there are no batches.
        """

    def release(self) -> None:
        """Unpin the batches. May be called twice."""

    def __enter__(self) -> Self:
        """Return ``self``."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unpin the batches."""


class FetchedBatches(FoundBatches, Protocol):
    """Batches to read."""

    def read(self) -> bytes:
        """Return a copy of all bytes."""


class SentBatches(FoundBatches, Protocol):
    """Batches to send to a socket."""

    @property
    def left_bytes(self) -> int:
        """The number of bytes not sent yet."""

    def send(self, to: socket.socket) -> int:
        """Send as many bytes as the socket accepts now, and return their number."""


class LogHandle(Protocol):
    """A service's interface to one log: a part of the methods of ``Log``, which documents each in detail."""

    @property
    def name(self) -> TopicPartition:
        """Topic and partition."""

    @property
    def topic_id(self) -> TopicId | None:
        """The topic's id, or None without one."""

    @property
    def is_leader(self) -> bool:
        """True if this log accepts appends of producers."""

    @property
    def leader_epoch(self) -> int:
        """The epoch in which this log leads or follows."""

    @property
    def latest_epoch(self) -> int:
        """The latest epoch of the log's records; -1 without records."""

    def offsets(self) -> LogOffsets:
        """Return a consistent snapshot of the log's offsets."""

    def records(self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted") -> Iterator[Record]:
        """Yield the records in [start, end) that are visible at this isolation."""

    def fetch(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        *,
        min_one_batch: bool = True,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> FetchedBatches:
        """Return raw batches, from the batch that holds ``offset``."""

    def transfer(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        *,
        min_one_batch: bool = True,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> SentBatches:
        """Return raw batches as ``fetch``, to send to a socket."""

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int | None = None) -> EpochEnd:
        """Return the end offset of a leader epoch."""

    def offset_for_timestamp(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> int | None:
        """Return the offset of the first record at or after a timestamp (ms); None if no record is that late."""

    def append_as_leader(
        self, data: Buffer, durability: str | None = None, *, origin: str = "client"
    ) -> AppendedRecords:
        """Append batches encoded by a producer or, with ``origin="coordinator"``, by a coordinator."""

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        durability: str | None = None,
    ) -> AppendedRecords:
        """Append the marker that ends a producer's transaction."""

    def open_transactions(self) -> Sequence[OpenTransaction]:
        """Return the transactions that have not ended in this log."""

    def append_as_follower(
        self, data: Buffer, leader_high_watermark: int, leader_log_start_offset: int, durability: str | None = None
    ) -> LogOffsets:
        """Append batches exactly as they are in the leader's log."""

    def lead(self, epoch: int) -> None:
        """Become the leader of this epoch: accept appends of producers."""

    def follow(self, epoch: int) -> None:
        """Become a follower in this epoch: accept the batches of its leader."""

    def set_high_watermark(self, offset: int) -> int:
        """Set the offset below which all records are replicated."""

    def truncate_to(self, offset: int) -> bool:
        """Delete all records at or above an offset."""

    def truncate_fully_and_start_at(self, offset: int, log_start: int | None = None) -> None:
        """Delete all records, and continue at an offset."""

    def delete_records(self, before: int) -> int:
        """Raise the log start offset."""

    def subscribe(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Call ``callback`` whenever an offset in ``LogOffsets`` changes; return a function that ends that."""


class EngineHandle(Protocol):
    """A service's interface to its engine: a part of the methods of ``Engine``."""

    def partitions(self) -> Sequence[TopicPartition]:
        """Return the names of all logs, including those that could not be opened."""

    def log(self, topic: str, partition: int) -> LogHandle:
        """Return one log. Raise UnknownTopicError, or the error with which the log failed to open."""

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> object:
        """Create a topic; errors as ``Engine.create_topic``."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""

    def metrics(self) -> Sequence[Sample]:
        """Return the current values of the engine's metrics."""


class Service(ABC):
    """A service, such as replication, a gateway or an exporter: started after the engine, stopped before it.

    ``services`` of the engine's settings lists the services to run. They are opened with the engine. If a service
    cannot be opened, the engine does not open.
    """

    @abstractmethod
    def start(self, engine: EngineHandle) -> None:
        """Start the service. ``Engine.start`` calls this once.

        The method must return soon. It must not raise if it can retry later.
        """

    @abstractmethod
    def stop(self, deadline_ns: int) -> None:
        """Stop the service before the deadline, a time of the monotonic clock in nanoseconds.

        May be called without a start, and more than once.
        """


@dataclass(frozen=True, slots=True)
class Command:
    """A further command of the command line.

    ``load()`` imports and returns a click command. Nothing heavy is imported before that call.
    """

    name: str
    help: str
    load: Callable[[], object]
