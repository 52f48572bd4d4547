"""What users do with a log that is open for writing. State, lock and delegation; no algorithm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Literal, overload

from stratalog.config.topic import TopicConfig
from stratalog.errors import OutOfResourcesError, StorageError
from stratalog.log.append.append import append_batches, append_records
from stratalog.log.append.commit import AppendResult
from stratalog.log.append.follower import append_as_follower
from stratalog.log.append.marker import append_marker
from stratalog.log.change.delete import check_may_delete, raise_log_start
from stratalog.log.change.truncate import truncate_fully, truncate_to
from stratalog.log.durability.subscribers import Background, Subscribers
from stratalog.log.durability.sync import flush
from stratalog.log.load.loaded_log import LoadedLog
from stratalog.log.open_log import begin, close_segments
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.tier_view import RemoteLog
from stratalog.log.read.view import LogView
from stratalog.log.state.leadership import follow, lead
from stratalog.log.state.roll import roll
from stratalog.log.state.watermarks import set_high_watermark
from stratalog.model.argument_rules import wrong_type
from stratalog.model.arguments import checks_itself
from stratalog.model.batches import Buffer
from stratalog.model.events import Event
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import AppendOrigin, Durability, LogOffsets, Watermark
from stratalog.model.records import Record
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles

_CLIENT: Final = AppendOrigin.CLIENT  # looked up at each append


class LogWriter(LogReader):
    """A log that takes records, as leader or as follower.

    Made by an engine, as a ``Log``, which adds what the engine does to keep it. Any number of threads may read and append;
    appends are serialised by one lock.
    """

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        files: LogFiles,
        parts: Components,
        config: TopicConfig,
        loaded: LoadedLog,
        *,
        remote: RemoteLog | None,
        notify: Callable[[Event], None],
        durability: Durability,
        watermark: Watermark = Watermark.WRITTEN,
        high_watermark: int | None = None,
        on_offline: Callable[[StorageError], None] | None = None,
        store_bounds: Callable[[], None] | None = None,
        background: Background | None = None,
        refusal: StorageError | None = None,
    ) -> None:
        super().__init__(name, topic_id, parts)
        self._durability = durability
        self._subscribers: Subscribers | None = None  # under the log's lock
        self._background = background or Background()  # its threads would start when needed
        try:
            may_lag = watermark is Watermark.EXTERNAL
            self._state = begin(
                name, topic_id, files, parts, config, loaded, remote, notify, may_lag=may_lag, refusal=refusal
            )
            self._state.watermark, self._state.on_offline = watermark, on_offline
            self._state.store_bounds = store_bounds
            self._state.given_watermark = loaded.log_end if high_watermark is None else high_watermark
            self._state.publish()
        except BaseException:
            close_segments(loaded.segments)
            raise

    @property
    def config(self) -> TopicConfig:
        """The topic's settings as the log has them now."""
        return self._state.config

    @property
    def leader_epoch(self) -> int:
        """The epoch that the log leads or follows; batches appended as leader carry it."""
        return self._state.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether the log takes appends of its own: as opened, and after ``lead``."""
        return self._state.is_leader

    @property
    def has_producers(self) -> bool:
        """Whether an idempotent or transactional producer has written to the log, as far as is known."""
        return bool(self._state.producers.producers)

    @property
    def healthy(self) -> bool:
        """Whether the log can be written to and closed cleanly."""
        return self._state.healthy

    def notify(self, event: Event) -> None:
        """Tell listeners of an event of this log."""
        self._state.notify(event)

    def view(self) -> LogView:
        """The state as of now: one immutable value."""
        return self._state.view

    @overload
    def append(self, records: Sequence[Record], durability: str | None = None) -> AppendResult: ...

    @overload
    def append(
        self, records: Sequence[Record], durability: str | None = None, *, wait: Literal[False]
    ) -> Future[AppendResult]: ...

    @checks_itself
    def append(
        self, records: Sequence[Record], durability: str | None = None, *, wait: bool = True
    ) -> AppendResult | Future[AppendResult]:
        """Append records as leader, in batches of at most ``max.message.bytes``: all of them, or none.

        They stand in one segment. If the process, or the power, ends in the midst of an append, the log may hold whole
        batches from the front of it when it is opened again, never others.

        Args:
            records: offsets, epochs and partition are ignored; a timestamp of -1 becomes the clock's time.
            durability: ``"written"`` or ``"durable"``; None is the engine's setting.
            wait: False writes, and returns a future that is done when the records are as durable as asked, or with what
                kept them from it. It is done by another thread, cannot be cancelled, and ends before the engine closes.

        Raises:
            NotLeaderOrFollowerError: the log follows a leader.
            InvalidRecordError, InvalidTimestampError: a record breaks a rule of the topic; nothing was written.
            RecordTooLargeError: one record is above ``max.message.bytes``; nothing was written.
            RecordBatchTooLargeError: all together are above ``segment.bytes``; nothing was written.
            DiskFullError: no space; the log goes on reading.
        """
        if type(records) is not list and type(records) is not tuple:
            _check_sequence(records)
        wanted, ends = self._durability_of(durability), list[int]()
        if wait is True:
            return append_records(self._state, records, wanted)
        if wait is not False:
            raise wrong_type("wait of append()", "True or False", wait)
        result = append_records(self._state, records, wanted, lambda _, end: ends.append(end))
        return self._background.when_durable(self._state, ends[0] if ends else 0, result)

    @checks_itself
    def append_as_leader(self, data: Buffer, durability: str | None = None, *, origin: str = "client") -> AppendResult:
        """Append batches that a producer encoded: checked, offsets and leader epoch assigned; all of them, or none.

        A retry of what an idempotent producer has just written is answered with the earlier offsets. Batches that do not
        fit the topic's ``record.version`` or ``compression.type`` are encoded again.

        ``origin="coordinator"`` is for a group's or a transaction's: control batches are taken, sequences not looked at.

        Raises:
            CorruptBatchError: framing or CRC is wrong.
            OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError: see the idempotent producer.
            OffsetsExhaustedError: the log has no offsets left.
            Others as ``append``.
        """
        if type(data) is not bytes and not isinstance(data, bytearray | memoryview | bytes):
            raise wrong_type("data of append_as_leader()", "bytes", data)
        wanted = self._durability if durability is None else Durability.of(durability)
        who = _CLIENT if origin == "client" else AppendOrigin.of(origin)  # a look-up of its name costs each append
        return append_batches(self._state, data, wanted, who)

    def append_as_follower(
        self, data: Buffer, leader_high_watermark: int, leader_log_start_offset: int, durability: str | None = None
    ) -> LogOffsets:
        """Append what was fetched from the leader as it stands there; take over the leader's bounds.

        Args:
            data: batches, from the log end on; gaps are fine, a partial batch at the end is left out.
            leader_high_watermark: this log's becomes that, or its log end if that is lower.
            leader_log_start_offset: this log's rises to it, but not above the high watermark.
            durability: ``"written"`` or ``"durable"``; None is the engine's setting.

        Returns:
            All bounds after it; ``log_end`` is where to fetch next.

        Raises:
            NotLeaderOrFollowerError: the log leads.
            CorruptBatchError, OffsetsOutOfOrderError, UnexpectedAppendOffsetError: nothing was written.
            DiskFullError: no space; what went to segments that are full now stays.
        """
        wanted = self._durability_of(durability)
        return append_as_follower(self._state, data, leader_high_watermark, leader_log_start_offset, wanted)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        durability: str | None = None,
    ) -> AppendResult:
        """Append the marker that commits or aborts a producer's transaction; for whoever coordinates it.

        A producer without an open transaction gets its marker too: its epoch fences older ones.

        Raises:
            ConfigError: a number does not fit Kafka's fields; nothing was written.
            InvalidProducerEpochError: a newer epoch of the producer has written already.
            TransactionCoordinatorFencedError: a coordinator of a newer epoch has written a marker for it already.
            DiskFullError: no space; the log goes on reading.
        """
        marker = EndMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
        return append_marker(self._state, producer_id, producer_epoch, marker, self._durability_of(durability))

    def open_transactions(self) -> list[ProducerEntry]:
        """The producers with a transaction that has not ended in this log."""
        with self._state.lock:
            return [found for found in self._state.producers.entries() if found.transaction_first_offset >= 0]

    def producers(self) -> list[ProducerEntry]:
        """The producers that are known, as a snapshot holds them."""
        with self._state.lock:
            return self._state.producers.entries()

    def lead(self, epoch: int) -> None:
        """Lead in ``epoch`` from now on: it begins at the log end, durably. Epochs never go back.

        Raises:
            StaleLeaderEpochError: the log has seen a later epoch, or follows another leader in this one.
        """
        lead(self._state, epoch)

    def follow(self, epoch: int) -> None:
        """Follow the leader of ``epoch`` from now on: appends are refused, but for ``append_as_follower``.

        Raises:
            StaleLeaderEpochError: the log has seen a later epoch.
        """
        follow(self._state, epoch)

    def truncate_to(self, offset: int) -> bool:
        """Drop the records from ``offset`` on, durably; whether the log went further. The log ends at ``offset`` then.

        A batch that holds ``offset`` goes as a whole: give the first offset of one.

        Raises:
            OffsetInTierError: the tier has committed more than would be left.
            StorageError: the disk failed; the log is out of service until it is opened again.
        """
        return truncate_to(self._state, offset)

    def truncate_fully_and_start_at(self, offset: int, log_start: int | None = None) -> None:
        """Drop all records here, durably, and go on at ``offset``, wherever that is.

        Args:
            offset: of the next record.
            log_start: where readers may begin, if a tier has what is below ``offset``; None is ``offset``.

        Raises:
            OffsetInTierError: the log leads, and the tier has committed records above ``offset``.
            StorageError: as ``truncate_to``.
        """
        truncate_fully(self._state, offset, log_start)

    def set_high_watermark(self, offset: int) -> int:
        """Move the high watermark, where ``watermark`` is ``external``; it stays between log start and end.

        A leader's never falls, a follower's may.

        Returns:
            The high watermark after it.

        Raises:
            ConfigError: the log leads, and the engine moves it itself.
        """
        return set_high_watermark(self._state, offset)

    def flush(self) -> int:
        """Make everything written so far durable; the new recovery point (offset)."""
        return flush(self._state)

    def roll(self) -> int:
        """Close the active segment and begin one at the log end; its base offset."""
        with self._state.lock:
            self._state.check_writable()
            return roll(self._state)

    def delete_records(self, before: int) -> int:
        """Hide the records below offset ``before``; files go when retention finds whole segments below it.

        -1 is the high watermark. Returns the log start after it. It is durable on return, where Kafka's is with the next
        checkpoint; on a full disk, which deleting is to help, ours is with that one, too.

        Source: apache/kafka Partition.deleteRecordsOnLeader.

        Raises:
            NotLeaderOrFollowerError: the log follows a leader, which tells it.
            PolicyViolationError: ``cleanup.policy`` is compact without delete: the newest record of each key is to stay.
            InvalidTopicError: the topic is one of Kafka's own.
            OffsetOutOfRangeError: above the high watermark.
            LogDirOfflineError: the log start could not be stored.
        """
        self._state.check_leads()
        check_may_delete(self.name.topic, self.config)
        earlier = self.offsets().log_start
        start = self.raise_log_start(before)
        if start > earlier and self._state.store_bounds is not None:
            with contextlib.suppress(OutOfResourcesError):
                self._state.store_bounds()
        return start

    def raise_log_start(self, before: int) -> int:
        """As ``delete_records``, in either role and under any policy: for retention."""
        return raise_log_start(self._state, self.offsets().high_watermark if before == -1 else before)

    def subscribe(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Have ``callback`` told the bounds whenever they have moved; what is returned ends that.

        It is called on a thread of the engine, after the fact and with no lock held, once for moves that lie close
        together. What it raises is logged. One that takes long keeps the other subscribers waiting, no append.
        """
        with self._state.lock:
            if self._subscribers is None:
                self._subscribers = Subscribers(self.name, self.offsets, self._background)
                self._state.on_moved = self._subscribers.moved
        return self._subscribers.add(callback)

    def _durability_of(self, durability: str | None) -> Durability:
        return self._durability if durability is None else Durability.of(durability)


def _check_sequence(records: object) -> None:
    if not isinstance(records, Sequence) or isinstance(records, str | bytes | bytearray | memoryview):
        raise wrong_type("records of append()", "a list of records", records)
