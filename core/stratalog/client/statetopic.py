"""Compacted topics that hold somebody's state: Kafka's ``__consumer_offsets`` and ``__transaction_state``.

The log is the only truth: what is known of a partition is read from it, from where the last reading ended. A partition in
which most records were replaced by later ones is compacted, so that the next engine does not read all that ever was.

Source: apache/kafka GroupMetadataManager, CoordinatorLoaderImpl, TransactionStateManager.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final

from stratalog.client.log_access import Logs, partitions_of
from stratalog.client.partitioner import partition_of_name
from stratalog.errors import CorruptBatchError, InvalidRecordError, StorageError, TopicExistsError, UnknownTopicError
from stratalog.log.append.commit import AppendResult
from stratalog.log.log import Log
from stratalog.log.read.log_reader import LogReader
from stratalog.model.batches import CONTROL_BIT, NO_PRODUCER, TRANSACTIONAL_BIT, BatchTable, Buffer, ScanStop
from stratalog.model.messages.control import ControlType, EndMarker
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.records import Fields, Record
from stratalog.segment.components import Components
from stratalog.segment.control_batches import read_control
from stratalog.segment.framing import scan

PARTITIONS: Final = 50
READ_BYTES: Final = 1 << 20
COMPACT_RECORDS: Final = 4096  # fewer are read in less time than compacting them takes
_REPLACED: Final = 4  # records a key: then most of them are of no use
_LOGGER: Final = logging.getLogger("stratalog.client")
# Source: apache/kafka GroupCoordinatorConfig, TransactionLogConfig: what brokers create these topics with.
CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": 100 << 20}


Compact = Callable[[Log], object]


@dataclass(slots=True)
class _Read:
    """How far a partition was read, and what its open transactions hold, by producer id.

    ``records`` were read since the partition was last compacted, of so many ``keys``. ``gathered`` are those of one step, by
    key: of each only the newest is parsed.
    """

    position: int = 0
    pending: dict[int, list[Record]] = field(default_factory=dict)
    records: int = 0
    keys: set[bytes | None] = field(default_factory=set)
    gathered: dict[bytes | None, list[Record]] = field(default_factory=dict)


class StateTopic(ABC):
    """One such topic. Not thread-safe: its owner has a lock.

    Args:
        logs: of the engine.
        topic: its name.
        compact: compacts one of its logs, its active segment included; None: it is never compacted from here.
    """

    def __init__(self, logs: Logs, topic: str, compact: Compact | None = None) -> None:
        self._logs, self._topic, self._compact = logs, topic, compact
        self._count = 0
        self._read: dict[int, _Read] = {}

    @abstractmethod
    def apply(self, partition: int, record: Record) -> None:
        """Take note of a record that counts, perhaps not of all that came before it with the same key.

        Those of transactions count when they are committed. Raises InvalidRecordError if Kafka's schemas do not explain it.
        """

    @abstractmethod
    def forget(self, partition: int) -> None:
        """Give up all that is known of a partition: it is read from its start again."""

    def exists(self) -> bool:
        """Whether the topic is there."""
        if self._count:
            self._check_still_there()
        if not self._count:
            with contextlib.suppress(UnknownTopicError):
                self._count = partitions_of(self._logs, self._topic)[-1].partition + 1
        return self._count > 0

    def _check_still_there(self) -> None:
        """Give up all that is known of a topic that was deleted."""
        try:
            self._logs.log(self._topic, self._count - 1)
        except UnknownTopicError:
            for partition in self._read:
                self.forget(partition)
            self._read.clear()
            self._count = 0
        except StorageError:
            return  # it is there, and cannot be opened

    def partition_of(self, name: str) -> int:
        """Where the state of a group, or of a transactional id, stands; the topic is created if it is missing."""
        if not self.exists():
            self.create()
        assert self.exists()
        return self.place_of(name)

    def place_of(self, name: str) -> int:
        """As ``partition_of``, of a topic that is there."""
        return partition_of_name(name, self._count)

    def create(self) -> None:
        """Create the topic, unless somebody has. Takes the engine's lock, which whoever deletes a topic holds."""
        with contextlib.suppress(TopicExistsError):
            self._logs.create_topic(self._topic, partitions=PARTITIONS, config=CONFIG)

    def append(self, partition: int, records: Sequence[Record], durability: str | None) -> AppendResult:
        """Append records to a partition."""
        return self.log(partition).append(records, durability)

    def log(self, partition: int) -> Log:
        """The log of a partition."""
        return self._logs.log(self._topic, partition)

    def name(self, partition: int) -> TopicPartition:
        """The name of a partition."""
        return TopicPartition(self._topic, partition)

    def names(self) -> tuple[TopicPartition, ...]:
        """The partitions that are here; none before the topic is."""
        return partitions_of(self._logs, self._topic) if self.exists() else ()

    def refresh_all(self) -> None:
        """Read on in every partition that is here; errors as ``refresh``."""
        for name in self.names():
            self.refresh(name.partition)

    def refresh_readable(self) -> None:
        """As ``refresh_all``; a partition that cannot be read keeps nobody from the others."""
        for name in self.names():
            try:
                self.refresh(name.partition)
            except StorageError:
                _LOGGER.exception("what clients have stored cannot be read log=%s", name)

    def pending(self) -> Iterator[Record]:
        """What open transactions hold, as far as was read."""
        for read in self._read.values():
            for records in read.pending.values():
                yield from records

    def refresh(self, partition: int) -> None:
        """Read on in a partition, up to its end.

        Raises:
            StorageError: the log cannot be read.
        """
        log, read = self.log(partition), self._read.setdefault(partition, _Read())
        offsets = log.offsets()
        if read.position > offsets.log_end:  # truncated
            self.forget(partition)
            read = self._read[partition] = _Read()
        read.position = max(read.position, offsets.log_start)
        while read.position < log.offsets().log_end:
            before = read.position
            read.position = self._step(log, partition, read)
            if read.position == before:
                return
        if read.records >= max(COMPACT_RECORDS, _REPLACED * len(read.keys)):
            read.records = len(read.keys)
            self._compact_unless_it_fails(log)

    def _compact_unless_it_fails(self, log: Log) -> None:
        try:
            if self._compact is not None:
                self._compact(log)
        except StorageError:
            _LOGGER.exception("what clients have stored could not be compacted log=%s", log.name)

    def _step(self, log: LogReader, partition: int, read: _Read) -> int:
        """Read some batches; where to go on."""
        with log.fetch(read.position, READ_BYTES, Isolation.LOG_END) as fetched:
            data, parts = fetched.read(), fetched.parts
            found = scan(parts.formats, data, 0, len(data), check_crc=True)
            if found.stop is not ScanStop.END:
                raise CorruptBatchError(found.reason, str(log.name), found.stop_position)
            read.gathered.clear()
            for table in found.tables:
                self._read_table(data, table, read, parts, partition)
            self._apply_gathered(partition, read)
            return fetched.next_offset

    def _read_table(self, data: Buffer, table: BatchTable, read: _Read, parts: Components, partition: int) -> None:
        """Gather the records that count, of all batches at once unless some of them belong to transactions."""
        form = parts.formats.of(table.magic, str(self.name(partition)), 0)
        decode = partial(form.decode, data, fields=Fields.ALL, limit_bytes=parts.limits.decompressed_bytes)
        if not any(map((CONTROL_BIT | TRANSACTIONAL_BIT).__and__, table.attributes)):
            for columns in decode(batches=table):
                self._take(read, None, columns.iter_records(partition))
            return
        for row, batch in enumerate(table):
            marker = read_control(data, batch, parts) if batch.is_control else None
            if isinstance(marker, EndMarker):
                self._end(read, batch.producer_id, marker)
            elif not batch.is_control:
                is_open = batch.is_transactional and batch.producer_id != NO_PRODUCER
                for columns in decode(batches=table.take(row, row + 1)):
                    self._take(read, batch.producer_id if is_open else None, columns.iter_records(partition))

    def _take(self, read: _Read, producer_id: int | None, records: Iterator[Record]) -> None:
        """Take note of records; those of a transaction, whose producer is told, wait for its end."""
        wanted = (record for record in records if record.offset >= read.position)
        if producer_id is not None:
            read.pending.setdefault(producer_id, []).extend(wanted)
            return
        for record in wanted:
            if record.value is None:  # source: OffsetMetadataManager.replay
                for left in read.pending.values():
                    left[:] = [waiting for waiting in left if waiting.key != record.key]
            read.gathered.setdefault(record.key, []).append(record)

    def _end(self, read: _Read, producer_id: int, marker: EndMarker) -> None:
        records = read.pending.pop(producer_id, [])
        if marker.kind is ControlType.COMMIT:
            for record in records:
                read.gathered.setdefault(record.key, []).append(record)

    def _apply_gathered(self, partition: int, read: _Read) -> None:
        """Of each key apply the newest record that can be parsed: what Kafka's schemas do not explain is no state of ours."""
        for key, records in read.gathered.items():
            read.records += len(records)
            read.keys.add(key)
            records.sort(key=attrgetter("offset"), reverse=True)
            any(self._is_applied(partition, record) for record in records)

    def _is_applied(self, partition: int, record: Record) -> bool:
        try:
            self.apply(partition, record)
        except InvalidRecordError:
            return False
        return True
