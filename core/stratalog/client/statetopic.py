"""Compacted topics that store the state of clients: Kafka's ``__consumer_offsets`` and ``__transaction_state``.

The state in memory always comes from the log: each refresh reads the records after the end of the previous refresh. If
later records have replaced most records of a partition, the partition is compacted. The next engine then reads it
faster.

Source: apache/kafka GroupMetadataManager, CoordinatorLoaderImpl, TransactionStateManager.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final

from stratalog.client.log_access import Logs, ReadableLogs, raise_if_closed
from stratalog.client.partitioner import partition_of_name
from stratalog.errors import CorruptBatchError, InvalidRecordError, StorageError, TopicExistsError, UnknownTopicError
from stratalog.log.read.log_reader import LogReader
from stratalog.model.batches import CONTROL_BIT, NO_PRODUCER, TRANSACTIONAL_BIT, BatchTable, Buffer, ScanStop
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.names import TopicPartition, partitions_of
from stratalog.model.offsets import Isolation
from stratalog.model.records import Fields, Record
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control
from stratalog.segment.framing import scan

PARTITIONS: Final = 50
"""Kafka's default of ``offsets.topic.num.partitions`` and ``transaction.state.log.num.partitions``."""
READ_BYTES: Final = 1 << 20
COMPACT_RECORDS: Final = 4096  # reading fewer records takes less time than compacting them
_REPLACED: Final = 4  # a partition with at least this number of records per stored key is compacted
_LOGGER: Final = logging.getLogger("stratalog.client")
# Source: apache/kafka GroupCoordinatorConfig, TransactionLogConfig: the settings with which brokers create these
# topics.
CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": 100 << 20}


Compact = Callable[[TopicPartition], object]


@dataclass(slots=True)
class _Progress:
    """Progress of reading one partition.

    Attributes:
        pending: records of open transactions, by producer id.
        records: number of records that were read since the partition was last compacted.
        compacted_bytes: size of the partition on local disk after it was last compacted; 0 if it was not.
        keys: keys whose newest record is not a tombstone.
        gathered: committed records of one fetch, by key; only the newest valid record of each key is applied.
    """

    position: int = 0
    pending: dict[int, list[Record]] = field(default_factory=dict)
    records: int = 0
    compacted_bytes: int = 0
    keys: set[bytes | None] = field(default_factory=set)
    gathered: dict[bytes | None, list[Record]] = field(default_factory=dict)


class StateTopic(ABC):
    """Base class for the state in one state topic. Not thread-safe: the owner of the object protects it with a lock.

    Args:
        logs: logs of an engine or of a reader.
        compact: called with a partition of the topic to compact its log, including the active segment; None if this
            object must not compact.
    """

    def __init__(self, logs: ReadableLogs, topic: str, compact: Compact | None = None) -> None:
        self._logs, self._topic, self._compact = logs, topic, compact
        self._partition_count = 0
        self._progress: dict[int, _Progress] = {}

    @abstractmethod
    def apply(self, partition: int, record: Record) -> None:
        """Apply a record to the state. Earlier records with the same key may have been skipped.

        Records of a transaction are applied after its commit.

        Raises:
            InvalidRecordError: the record does not fit Kafka's schemas.
        """

    @abstractmethod
    def forget(self, partition: int) -> None:
        """Discard the state that was read from a partition.

        ``StateTopic`` calls this method before it reads the partition again from its start, and after the topic was
        deleted.
        """

    def exists(self) -> bool:
        """Return True if the topic exists. If the topic was deleted, discard the state."""
        if self._partition_count:
            self._forget_if_deleted()
        if not self._partition_count:
            with contextlib.suppress(UnknownTopicError):
                self._partition_count = self._partitions()[-1].partition + 1
        return self._partition_count > 0

    def _forget_if_deleted(self) -> None:
        """Discard the state if the topic was deleted."""
        try:
            self._logs.log(self._topic, self._partition_count - 1)
        except UnknownTopicError:
            for partition in self._progress:
                self.forget(partition)
            self._progress.clear()
            self._partition_count = 0
        except StorageError:
            return  # the log exists, but cannot be opened

    def refresh_for(self, name: str) -> None:
        """Refresh the partition of a group or transactional id if the topic exists. Raises errors of ``refresh``."""
        if self.exists():
            self.refresh(self.partition_number(name))

    def partition_number(self, name: str) -> int:
        """Return the number of the partition for a group or a transactional id. Call ``exists`` before."""
        return partition_of_name(name, self._partition_count)

    def created_partition(self, name: str, lock: threading.Lock, logs: Logs, partitions: int) -> TopicPartition:
        """Return the partition for a group or a transactional id. Create the topic with ``partitions`` if necessary.

        ``lock`` is the lock of this object's owner. The caller must not hold the lock, because a creation takes the
        lock of the engine. Raises the errors of ``Engine.create_topic``.
        """
        while True:
            with lock:
                if self.exists():
                    return self.name(self.partition_number(name))
            with contextlib.suppress(TopicExistsError):
                logs.create_topic(self._topic, partitions=partitions, config=CONFIG)

    def name(self, partition: int) -> TopicPartition:
        """Return the topic and the number of a partition as a ``TopicPartition``."""
        return TopicPartition(self._topic, partition)

    def names(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that exist here; () if the topic does not exist."""
        return self._partitions() if self.exists() else ()

    def _partitions(self) -> tuple[TopicPartition, ...]:
        return partitions_of(self._logs.partitions(), self._topic, "this engine")

    def refresh_all(self) -> None:
        """Refresh every partition that exists here. Raises the errors of ``refresh``."""
        for name in self.names():
            self.refresh(name.partition)

    def refresh_readable(self) -> bool:
        """Refresh every partition that exists here. Log the error of a partition that cannot be read, and continue.

        Return True if all partitions were read, False if a partition failed or does not exist here. Raise ClosedError
        if the engine is closed meanwhile.
        """
        names = self.names()
        is_complete = len(names) == self._partition_count
        for name in names:
            try:
                self.refresh(name.partition)
            except StorageError as error:
                raise_if_closed(error, self._logs)
                is_complete = False
                _LOGGER.exception("the stored state of clients cannot be read log=%s", name)
        return is_complete

    def pending(self) -> Iterator[Record]:
        """Iterate over the records of open transactions. Only records that were read already are included."""
        for progress in self._progress.values():
            for records in progress.pending.values():
                yield from records

    def refresh(self, partition: int) -> None:
        """Read the new records of a partition up to its log end, and apply the records.

        If the partition has at least 4096 new records, and four records for each key that is not deleted, compact the
        partition. A compaction keeps the tombstones for a day: the next one waits until the size has quadrupled.

        Raises:
            StorageError: the log cannot be read.
        """
        log, progress = self._logs.log(self._topic, partition), self._progress.setdefault(partition, _Progress())
        offsets = log.offsets()
        if progress.position > offsets.log_end:  # truncated
            self.forget(partition)
            progress = self._progress[partition] = _Progress()
        progress.position = max(progress.position, offsets.log_start)
        while progress.position < log.offsets().log_end:
            before = progress.position
            try:
                progress.position = self._step(log, partition, progress)
            except StorageError:
                raise
            except BaseException:  # Ctrl-C for instance: some of these records may be applied, others are lost
                self.forget(partition)
                del self._progress[partition]
                raise
            if progress.position == before:
                return
        if (
            self._compact is not None
            and progress.records >= max(COMPACT_RECORDS, _REPLACED * len(progress.keys))
            and _local_bytes(log) >= _REPLACED * progress.compacted_bytes
        ):
            progress.records = len(progress.keys)
            try:
                self._compact(log.name)
                progress.compacted_bytes = _local_bytes(log)
            except StorageError:
                _LOGGER.exception("the stored state of clients could not be compacted log=%s", log.name)

    def _step(self, log: LogReader, partition: int, progress: _Progress) -> int:
        """Read and apply some batches from the position on. Return the offset after these batches."""
        with log.fetch(progress.position, READ_BYTES, Isolation.LOG_END) as fetched:
            data, components = fetched.read(), fetched.components
            scanned = scan(components.formats, data, 0, len(data), check_crc=True)
            if scanned.stop is not ScanStop.END:
                raise CorruptBatchError(scanned.reason, str(log.name), scanned.stop_position)
            progress.gathered.clear()
            for table in scanned.tables:
                self._read_table(data, table, progress, components, partition)
            self._apply_gathered(partition, progress)
            return fetched.next_offset

    def _read_table(
        self, data: Buffer, table: BatchTable, progress: _Progress, components: Components, partition: int
    ) -> None:
        """Add the records of a table to ``progress``. If some batches belong to transactions, decode batch by batch."""
        form = components.formats.of(table.magic, str(self.name(partition)), 0)
        decode = partial(form.decode, data, fields=Fields.ALL, limit_bytes=components.limits.decompressed_bytes)
        if not any(map((CONTROL_BIT | TRANSACTIONAL_BIT).__and__, table.attributes)):
            for columns in decode(batches=table):
                self._add_records(progress, None, columns.iter_records(partition))
            return
        for row, batch in enumerate(table):
            marker = read_control(data, batch, components) if batch.is_control else None
            if isinstance(marker, EndMarker):
                self._end_transaction(progress, batch.producer_id, marker)
            elif not batch.is_control:
                is_open = batch.is_transactional and batch.producer_id != NO_PRODUCER
                for columns in decode(batches=table.take(row, row + 1)):
                    self._add_records(progress, batch.producer_id if is_open else None, columns.iter_records(partition))

    def _add_records(self, progress: _Progress, producer_id: int | None, records: Iterator[Record]) -> None:
        """Add records to ``progress.gathered``, or, with a ``producer_id``, to its open transaction in ``pending``.

        Outside of a transaction, a tombstone also removes pending records with the same key.
        """
        new_records = (record for record in records if record.offset >= progress.position)
        if producer_id is not None:
            progress.pending.setdefault(producer_id, []).extend(new_records)
            return
        for record in new_records:
            if record.value is None:  # source: OffsetMetadataManager.replay
                for open_records in progress.pending.values():
                    open_records[:] = [waiting for waiting in open_records if waiting.key != record.key]
            progress.gathered.setdefault(record.key, []).append(record)

    def _end_transaction(self, progress: _Progress, producer_id: int, marker: EndMarker) -> None:
        records = progress.pending.pop(producer_id, [])
        if marker.kind is ControlType.COMMIT:
            for record in records:
                progress.gathered.setdefault(record.key, []).append(record)

    def _apply_gathered(self, partition: int, progress: _Progress) -> None:
        """Apply the newest valid record of each gathered key. Records that do not fit Kafka's schemas are ignored."""
        for key, records in progress.gathered.items():
            progress.records += len(records)
            records.sort(key=attrgetter("offset"), reverse=True)
            (progress.keys.add if records[0].value is not None else progress.keys.discard)(key)
            any(self._try_apply(partition, record) for record in records)

    def _try_apply(self, partition: int, record: Record) -> bool:
        try:
            self.apply(partition, record)
        except InvalidRecordError:
            return False
        return True


def _local_bytes(log: LogReader) -> int:
    return sum(segment.size_bytes for segment in log.view().segments)
