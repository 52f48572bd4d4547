"""Services and commands: what runs beside an engine, and what a plugin adds to the command line."""

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
    """Where records went: offsets [base_offset, last_offset], both inclusive; ``duplicate`` if a retry was recognised."""

    @property
    def base_offset(self) -> int:
        """Of the first one."""

    @property
    def last_offset(self) -> int:
        """Of the last one."""

    @property
    def duplicate(self) -> bool:
        """Whether nothing was written, as the same was written before."""


class OpenTransaction(Protocol):
    """A producer whose transaction has not ended in a log."""

    @property
    def producer_id(self) -> int:
        """Whose it is."""

    @property
    def producer_epoch(self) -> int:
        """Of the latest batch."""

    @property
    def coordinator_epoch(self) -> int:
        """Of the producer's last marker here, -1 if there was none; the next marker's must not be below it."""

    @property
    def last_timestamp_ms(self) -> int:
        """Of the latest batch."""

    @property
    def transaction_first_offset(self) -> int:
        """Where it began: nothing from there on is stable."""


class FoundBatches(Protocol):
    """Raw batches of a log, pinned until ``release``, which the end of a ``with`` block calls."""

    @property
    def size_bytes(self) -> int:
        """Of all batches."""

    @property
    def next_offset(self) -> int:
        """Where to fetch next."""

    @property
    def offsets(self) -> LogOffsets:
        """The bounds of the log at that moment."""

    @property
    def aborted_transactions(self) -> tuple[AbortedTransaction, ...]:
        """Those with data in the range, for read_committed."""

    @property
    def diverging(self) -> EpochEnd | None:
        """Where a replica that told its last epoch has to cut its log; there are no batches then."""

    def release(self) -> None:
        """Unpin. Twice is fine."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unpin."""


class FetchedBatches(FoundBatches, Protocol):
    """Batches to read."""

    def read(self) -> bytes:
        """All bytes, copied."""


class SentBatches(FoundBatches, Protocol):
    """Batches to send; ``left_bytes`` of them are still to go."""

    @property
    def left_bytes(self) -> int:
        """What is still to go."""

    def send(self, to: socket.socket) -> int:
        """Send what the socket takes; how many bytes have gone in this call."""


class LogHandle(Protocol):
    """What a service sees of one log: the methods of ``Log`` with these names, which say more about each."""

    @property
    def name(self) -> TopicPartition:
        """Topic and partition."""

    @property
    def topic_id(self) -> TopicId | None:
        """Of the topic, if it has one."""

    @property
    def is_leader(self) -> bool:
        """Whether it takes appends of producers."""

    @property
    def leader_epoch(self) -> int:
        """The epoch in which it leads or follows."""

    @property
    def latest_epoch(self) -> int:
        """The latest epoch of which it has records; -1 if none."""

    def offsets(self) -> LogOffsets:
        """All bounds, at one moment."""

    def records(self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted") -> Iterator[Record]:
        """Records [start, end) that the isolation shows."""

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
        """Raw batches from the one that holds ``offset``."""

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
        """The same, to be sent to a socket."""

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int | None = None) -> EpochEnd:
        """Where a leader epoch ends."""

    def offset_for_timestamp(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> int | None:
        """The first record at or after a time (ms)."""

    def append_as_leader(
        self, data: Buffer, durability: str | None = None, *, origin: str = "client"
    ) -> AppendedRecords:
        """Append batches that a producer encoded, or a coordinator (``origin="coordinator"``)."""

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
        """The producers with a transaction that has not ended in this log."""

    def append_as_follower(
        self, data: Buffer, leader_high_watermark: int, leader_log_start_offset: int, durability: str | None = None
    ) -> LogOffsets:
        """Append batches as they stand in the leader's log."""

    def lead(self, epoch: int) -> None:
        """Take appends of producers from now on, in this epoch."""

    def follow(self, epoch: int) -> None:
        """Take what a leader of this epoch sends."""

    def set_high_watermark(self, offset: int) -> int:
        """Say up to where records are replicated."""

    def truncate_to(self, offset: int) -> bool:
        """Drop what lies at or above an offset."""

    def truncate_fully_and_start_at(self, offset: int, log_start: int | None = None) -> None:
        """Drop everything and go on from an offset."""

    def delete_records(self, before: int) -> int:
        """Raise the log start."""

    def subscribe(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Be told whenever a bound has moved; what is returned ends it."""


class EngineHandle(Protocol):
    """What a service sees of its engine: the methods of ``Engine`` with these names."""

    def partitions(self) -> Sequence[TopicPartition]:
        """All logs, those that could not be opened included."""

    def log(self, topic: str, partition: int) -> LogHandle:
        """One log; UnknownTopicError, or what kept it from being opened."""

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> object:
        """Create a topic; errors as ``Engine.create_topic``."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records."""

    def metrics(self) -> Sequence[Sample]:
        """What the engine tells of itself, as of now."""


class Service(ABC):
    """Replication, a gateway, an exporter: started after the engine, stopped before it.

    ``services`` of the engine's settings names those to run. They are opened with the engine; a service that cannot even
    be opened keeps the engine from opening.
    """

    @abstractmethod
    def start(self, engine: EngineHandle) -> None:
        """Begin; must return soon and must not raise for what can be retried. Called once, by ``Engine.start``."""

    @abstractmethod
    def stop(self, deadline_ns: int) -> None:
        """End before the deadline, a moment of the monotonic clock. Also without a start, and again."""


@dataclass(frozen=True, slots=True)
class Command:
    """A further command: ``load()`` imports and returns a click command; nothing heavy is imported before."""

    name: str
    help: str
    load: Callable[[], object]
