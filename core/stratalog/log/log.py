"""A log that is open for writing, with the operations that users call.

The state and the lock are in ``LogState``. This module delegates to other modules. It contains no algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Literal, overload

from stratalog.config.topic import TopicConfig
from stratalog.log.append.append import AppendResult, append, append_marker
from stratalog.log.append.follower import append_as_follower
from stratalog.log.change.delete import delete_records
from stratalog.log.change.truncate import truncate_fully, truncate_to
from stratalog.log.durability.subscribers import Background, Subscribers
from stratalog.log.durability.sync import flush
from stratalog.log.maintenance import LogMaintenance
from stratalog.log.open_log import LogEnvironment, OpenRequest, close_segments, close_state, open_state
from stratalog.log.read.log_reader import LogReader
from stratalog.log.state.leadership import follow, lead, set_high_watermark
from stratalog.log.state.log_settings import LogSettings
from stratalog.log.state.roll import roll
from stratalog.model.argument_rules import wrong_type
from stratalog.model.arguments import checks_itself
from stratalog.model.batches import Buffer
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.offsets import AppendOrigin, Durability, LogOffsets
from stratalog.model.records import Record
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.components import Components

_CLIENT: Final = AppendOrigin.CLIENT  # looked up at each append


class Log(LogReader):
    """One log of an engine, which accepts records as leader or as follower.

    Any number of threads may read and append; one lock serialises appends. ``LogReader`` documents reads.

    Attributes:
        maintenance: the engine's operations on the log.
    """

    def __init__(self, request: OpenRequest, settings: LogSettings, environment: LogEnvironment) -> None:
        self._durability = environment.durability
        self._subscribers: Subscribers | None = None  # under the log's lock
        self._background = environment.background or Background()  # its threads start on first use
        try:
            self._state = open_state(request, settings, environment)
        except BaseException:
            close_segments(request.loaded.segments)
            raise
        super().__init__(request.name, request.topic_id, self._state.published.view, settings.components.env.watch)
        self.maintenance = LogMaintenance(self._state)

    @property
    def components(self) -> Components:
        """The formats, codecs, indexes, limits and caches that the log uses now."""
        return self._state.settings.components

    @property
    def config(self) -> TopicConfig:
        """The topic's settings that the log uses now."""
        return self._state.settings.config

    @property
    def leader_epoch(self) -> int:
        """The epoch that the log leads or follows; batches appended as leader carry it."""
        return self._state.role.leader_epoch

    @property
    def durability(self) -> Durability:
        """Default durability of appends: the engine's setting."""
        return self._durability

    @property
    def is_leader(self) -> bool:
        """True if the log accepts leader appends."""
        return self._state.role.is_leader

    @property
    def healthy(self) -> bool:
        """True if no error took the log out of service, and no damage is known. A closed log can be healthy."""
        return self._state.health.is_good

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

        One append writes into one segment. If the process or the power fails during an append, the log may keep the
        first batches of the append when it is opened again. It never keeps a batch of the append without the batches
        before it.

        Args:
            records: at least one record. Offsets, epochs and partition are ignored; a timestamp of -1 becomes the
                clock's time.
            durability: ``"written"`` or ``"durable"``; None means the engine's setting.
            wait: if False, write the records and return a future. The future is done when the records are as durable as
                requested, or holds the error of the sync; other errors are raised by this call. The future cannot be
                cancelled, and is done before the engine closes.

        Raises:
            NotLeaderOrFollowerError: the log follows a leader.
            InvalidRecordError, InvalidTimestampError: a record breaks a rule of the topic; nothing was written.
            RecordTooLargeError: one record is above ``max.message.bytes``; nothing was written.
            RecordBatchTooLargeError: all records together are above ``segment.bytes``; nothing was written.
            UnsupportedCompressionError: the topic's codec is not installed, or ``record.version`` does not support it;
                nothing was written.
            OffsetsExhaustedError: the log has no offsets left; nothing was written.
            DiskFullError: no space; nothing was written, and the log can still be read.
            LocalLimitError: the append exceeds ``local.hard.limit.bytes``, and ``tier.outage.policy`` is ``reject``, or
                is ``block`` and no room became free in time; nothing was written.
            StorageError: the log is closed, damaged or out of service, or a write or sync failed. After a failed sync,
                the log may contain the records.
        """
        if type(records) is not list and type(records) is not tuple:
            _check_sequence(records)
        durability_level = self._durability if durability is None else Durability.of(durability)
        if wait is True:
            if (latencies := self._watch.latencies) is None:
                return append(self._state, self._state.settings.preparer.records(records), durability_level)
            began_ns = latencies.append.now_ns()
            result = append(self._state, self._state.settings.preparer.records(records), durability_level)
            latencies.append.count_since(began_ns)
            return result
        if wait is not False:
            raise wrong_type("wait of append()", "True or False", wait)
        batches, ends = self._state.settings.preparer.records(records), list[int]()
        result = append(self._state, batches, durability_level, sync=lambda _, end: ends.append(end))
        return self._background.when_durable(self._state, ends[0] if ends else 0, result)

    @checks_itself
    def append_as_leader(self, data: Buffer, durability: str | None = None, *, origin: str = "client") -> AppendResult:
        """Append batches that a producer encoded: all of them, or none.

        The batches are checked, and get their offsets and the leader epoch. A partial batch at the end of ``data`` is
        ignored. A retry of an idempotent producer's recent append returns the earlier offsets. Batches that do not fit
        the topic's ``record.version`` or ``compression.type`` are encoded again.

        ``origin="coordinator"`` is for a group or transaction coordinator: control batches are accepted, and sequence
        numbers are not checked.

        Raises:
            CorruptBatchError: framing or a CRC is wrong; nothing was written.
            DecompressedSizeError: a batch decompresses past ``limits.decompressed.bytes``; nothing was written.
            InvalidRecordError: ``data`` has no whole batch, a batch cannot be decoded, or a batch or record breaks a
                rule of the topic; nothing was written.
            RecordTooLargeError: a batch is above ``max.message.bytes``; nothing was written.
            OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError, TransactionCoordinatorFencedError:
                a batch breaks the rules of idempotent producers or of transactions; nothing was written.
            StorageError: any other error of ``append``.
        """
        if type(data) is not bytes and not isinstance(data, bytearray | memoryview | bytes):
            raise wrong_type("data of append_as_leader()", "bytes", data)
        durability_level = self._durability if durability is None else Durability.of(durability)
        append_origin = (
            _CLIENT if origin == "client" else AppendOrigin.of(origin)
        )  # avoids a look-up by name at each append
        if (latencies := self._watch.latencies) is None:
            return append(
                self._state, self._state.settings.preparer.batches(data, append_origin), durability_level, append_origin
            )
        began_ns = latencies.append.now_ns()
        result = append(
            self._state, self._state.settings.preparer.batches(data, append_origin), durability_level, append_origin
        )
        latencies.append.count_since(began_ns)
        return result

    def append_as_follower(
        self, data: Buffer, leader_high_watermark: int, leader_log_start_offset: int, durability: str | None = None
    ) -> LogOffsets:
        """Append batches fetched from the leader without changing them; adopt the leader's bounds.

        Args:
            data: batches, from the log end on. Gaps are allowed. A partial batch at the end is ignored. If a batch has
                a later leader epoch than the log follows, that batch and all batches after it are ignored.
            leader_high_watermark: this log's high watermark becomes the lower of this value and the log end.
            leader_log_start_offset: this log's start offset rises to this value, but not above the high watermark.
            durability: ``"written"`` or ``"durable"``; None means the engine's setting.

        Returns:
            All bounds after the append. ``log_end`` is the next offset to fetch.

        Raises:
            NotLeaderOrFollowerError: the log leads.
            CorruptBatchError, OffsetsOutOfOrderError, OffsetsExhaustedError, UnexpectedAppendOffsetError: nothing was
                written.
            DiskFullError: no space; the batches in segments that were filled before stay written.
            StorageError: the log is closed, damaged or out of service, or writing failed.
        """
        durability_level = self._durability_of(durability)
        return append_as_follower(self._state, data, leader_high_watermark, leader_log_start_offset, durability_level)

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        durability: str | None = None,
    ) -> AppendResult:
        """Append the marker that commits or aborts a producer's transaction.

        A transaction coordinator calls this method. The marker is written even if the producer has no open transaction:
        the marker's producer epoch fences older epochs.

        Raises:
            NotLeaderOrFollowerError: the log follows a leader.
            ConfigError: the producer id or an epoch is negative, or too large for Kafka's field; nothing was written.
            InvalidProducerEpochError: a newer epoch of the producer has already written.
            TransactionCoordinatorFencedError: a coordinator of a newer epoch has already written a marker for the
                producer.
            DiskFullError: no space; the log can still be read.
            StorageError: the log is closed, damaged or out of service, or writing failed.
        """
        marker = EndMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
        return append_marker(self._state, producer_id, producer_epoch, marker, self._durability_of(durability))

    def open_transactions(self) -> list[ProducerEntry]:
        """Return the producers with an open transaction in this log, in the form of snapshot entries."""
        with self._state.lock:
            return [entry for entry in self._state.writes.producers.entries() if entry.transaction_first_offset >= 0]

    def producers(self) -> list[ProducerEntry]:
        """Return all known producers, in the form of snapshot entries."""
        with self._state.lock:
            return self._state.writes.producers.entries()

    def lead(self, epoch: int) -> None:
        """Become leader in ``epoch``. The epoch begins at the log end and is stored durably. Epochs never decrease.

        Raises:
            StaleLeaderEpochError: the epoch is below the log's epoch, or the log follows another leader in this epoch.
            ConfigError: the epoch is above 2147483647.
            StorageError: the log is not writable, or the epoch cannot be stored. The role does not change. If the disk
                failed, the log is out of service.
        """
        lead(self._state, epoch)

    def follow(self, epoch: int) -> None:
        """Become follower of the leader of ``epoch``. Only ``append_as_follower`` is then allowed; other appends fail.

        Raises:
            StaleLeaderEpochError: the epoch is below the log's epoch.
            ConfigError: the epoch is above 2147483647.
            StorageError: the log is closed, damaged or out of service.
        """
        follow(self._state, epoch)

    def truncate_to(self, offset: int) -> bool:
        """Drop the local records from ``offset`` on, durably. Return True if the log end was above ``offset``.

        Records in the tier stay. If the log end is at or below ``offset``, no record is dropped. If the log end is
        above ``offset``, the log ends at ``offset`` afterwards. A high watermark or log start above the new log end is
        lowered to the log end. A batch that contains ``offset`` is dropped as a whole, so pass the first offset of a
        batch. If a follower has ``offset`` only in the tier, its log ends at a segment boundary of the tier at or below
        ``offset``.

        Raises:
            ConfigError: ``offset`` is negative or above 2^63 - 1.
            OffsetInTierError: the log leads, and the tier has committed records at or above ``offset``.
            StoreError, CorruptionError: the tier cannot be read; nothing was truncated.
            StorageError: the log is not writable, or the disk failed; after a failure of the disk, the log is out of
                service until it is opened again.
        """
        return truncate_to(self._state, offset)

    def truncate_fully_and_start_at(self, offset: int, log_start: int | None = None) -> None:
        """Drop all local records, durably, and continue at ``offset``, which may be any offset.

        Records in the tier stay. A follower that is too far behind its leader restarts this way.

        Args:
            offset: offset of the next record.
            log_start: first offset for readers, if a tier has the records below ``offset``. None means ``offset``.

        Raises:
            ConfigError: ``offset`` is negative or above 2^63 - 1, or ``log_start`` is not in [0, ``offset``].
            OffsetInTierError: the log leads, and the tier has committed records at or above ``offset``.
            StorageError: any other error of ``truncate_to``.
        """
        truncate_fully(self._state, offset, log_start)

    def set_high_watermark(self, offset: int) -> int:
        """Set the high watermark of a follower, or of a leader if ``watermark`` is ``external``; return the new value.

        A value below the log start or above the log end is limited to that bound. A leader ignores a value that is
        below its current high watermark. The high watermark of a follower may fall.

        Raises:
            ConfigError: the log is a leader, and ``watermark`` is not ``external``: then only the engine moves the high
                watermark.
        """
        return set_high_watermark(self._state, offset)

    def flush(self) -> int:
        """Make everything written so far durable; return the new recovery point (offset).

        Raises:
            SystemLimitError: the process has too many open files; the recovery point is unchanged, and the log stays in
                service.
            FileReplacedError: another process removed, replaced or truncated a ``.log`` file.
            StorageError: the log is closed or out of service, or the sync failed. A failed sync takes the log out of
                service.
        """
        return flush(self._state)

    def roll(self) -> int:
        """Close the active segment and begin a new one at the log end; return the base offset of the new segment.

        If the active segment has no records, it stays, and its base offset is returned.

        Raises:
            OutOfResourcesError: no space or no descriptors for the new segment. The log is unchanged. If the new files
                cannot be deleted, the log is out of service.
            StorageError: the log is not writable, or the disk failed.
        """
        with self._state.lock:
            self._state.health.check_writable()
            return roll(self._state)

    def delete_records(self, before: int) -> int:
        """Hide the records below offset ``before``, and return the new log start offset.

        ``before=-1`` means the high watermark. If ``before`` is at or below the log start, nothing changes. Retention
        deletes files later, when whole segments are below the log start. The new log start is durable on return. On a
        full disk, as in Kafka, it is durable only after the engine writes its next checkpoint.

        Source: apache/kafka Partition.deleteRecordsOnLeader.

        Raises:
            NotLeaderOrFollowerError: the log follows a leader, which sends its log start.
            PolicyViolationError: ``cleanup.policy`` is compact without delete: the newest record of each key must stay.
            InvalidTopicError: the topic is one of Kafka's internal topics.
            OffsetOutOfRangeError: ``before`` is above the high watermark or below -1.
            StorageError: the log is not writable, or the disk failed.
        """
        return delete_records(self._state, before)

    def subscribe(self, callback: Callable[[LogOffsets], object]) -> Callable[[], None]:
        """Call ``callback`` with the log's offsets after they have changed; return a function that unsubscribes it.

        A thread of the engine calls ``callback`` later, with no lock held. Changes in quick succession cause one call.
        An exception of the callback is logged. A slow callback delays the subscribers of all logs of the engine, but no
        append. Unsubscribing does not wait for a call in progress.
        """
        with self._state.lock:
            if self._subscribers is None:
                self._subscribers = Subscribers(self.name, self.offsets, self._background)
                self._state.published.subscribe(self._subscribers.schedule)
        return self._subscribers.add(callback)

    def close(self) -> bool:
        """Flush, write the closing snapshot and index entries, and close the files. May be called twice.

        Returns:
            True if this call or an earlier call closed the log cleanly. False if the log was damaged or out of service;
            the files are closed, and nothing was written. The result is also False if an earlier call failed.

        Raises:
            StorageError: a write or a sync failed; the files are closed.
        """
        state = self._state
        with state.durability.syncing, state.lock:
            if state.health.closed:
                return state.health.closed_cleanly
            return close_state(state)

    def _durability_of(self, durability: str | None) -> Durability:
        return self._durability if durability is None else Durability.of(durability)


def _check_sequence(records: object) -> None:
    if isinstance(records, Record):
        raise wrong_type("records of append()", "a list of records: append([record])", records)
    if not isinstance(records, Sequence) or isinstance(records, str | bytes | bytearray | memoryview):
        raise wrong_type("records of append()", "a list of records", records)
