"""A consumer of an engine's topics: it reads all partitions of the topics, or the partitions that ``assign`` names.

Unlike in Kafka, the consumers of a group do not share the partitions: two consumers of a group read the same records.

Source: apache/kafka KafkaConsumer, OffsetsInitializer.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic

from stratalog.client.assigned_partitions import AssignedPartitions, OffsetReset
from stratalog.client.committed_offsets import Committable, CommittedOffset
from stratalog.client.cursor import Cursor
from stratalog.client.delivery import NS_IN_MS
from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.log_access import Logs
from stratalog.client.serializers import Deserializers
from stratalog.env.clock import Clock
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ClosedError, ConfigError, StorageError
from stratalog.model.arguments import CheckedArguments, NotNegative, Positive
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    RecordType = TypeVar("RecordType", default=Record)
else:
    from typing import TypeVar

    RecordType = TypeVar("RecordType")  # its default is for type checkers, and needs Python 3.13

MAX_POLL_RECORDS: Final = 500
LOOK_AGAIN_MS: Final = 100  # a log notifies of new records, but not of its replacement by another log


class Consumer(CheckedArguments, Closeable, Generic[RecordType]):
    """A reader of an engine's topics. A context manager; for one thread at a time. Created by ``Engine.consumer``.

    The constructor sets the positions to the group's committed offsets. A partition without a committed offset starts
    according to ``auto_offset_reset``. The consumer commits offsets only in ``commit``. If ``topics`` is not a regular
    expression, partitions that are added to a topic later are not read.

    Methods with names of partitions raise UnknownTopicError for a partition that is not in ``assignment``; only
    ``assign`` and ``commit`` accept other partitions. Methods that need the log of a partition raise StorageError if
    the log cannot be read.

    Args:
        topics: topics to read, or a regular expression that matches whole names of topics. With an expression, each
            poll adds the topics that match at that time, except internal topics. Use () if ``assign`` is called later.
        group: group whose offsets are used and committed; None for no group.
        isolation: ``read_uncommitted`` or ``read_committed``.
        auto_offset_reset: ``earliest``, ``latest`` or ``none``.
        deserializers: convert keys and values; the records are then of the type ``DeserializedRecord``. With None, the
            records are of the type ``Record`` and have bytes.

    Raises:
        UnknownTopicError: a topic does not exist here.
        ConfigError: ``isolation`` or ``auto_offset_reset`` is not one of these words, or ``group`` is empty.
        StorageError: a partition, or the group's committed offsets, cannot be read.
    """

    def __init__(
        self,
        logs: Logs,
        clock: Clock,
        offsets: GroupOffsets,
        *,
        topics: Iterable[str] | re.Pattern[str],
        group: str | None,
        isolation: str,
        auto_offset_reset: str,
        deserializers: Deserializers | None = None,
    ) -> None:
        if group == "":
            raise ConfigError("group must not be empty: use None for a consumer without a group")
        self._clock, self._offsets, self._group = clock, offsets, group
        reset, level = OffsetReset.of(auto_offset_reset), Isolation.of(isolation)
        self._next_cursor = 0
        self._closed = False
        ends_with_fork(self)
        self._assigned = AssignedPartitions(
            logs, lambda name: Cursor(logs, name, level, deserializers), offsets, group, reset, topics
        )

    def __repr__(self) -> str:
        return f"Consumer(group={self._group!r}, partitions={len(self._assigned.cursors)})"

    def assign(self, names: Iterable[TopicPartition]) -> None:
        """Read only these partitions from now on. Partitions that are assigned already keep their positions.

        Other partitions start at the group's committed offset, or according to ``auto_offset_reset``. Topics that match
        a regular expression are no longer added.

        Raises:
            UnknownTopicError: a partition does not exist; nothing has changed.
            StorageError: a partition, or the group's committed offsets, cannot be read; nothing has changed.
            ClosedError: after ``close``.
        """
        self._check_open()
        self._assigned.replace(names)
        self._next_cursor = 0

    # --- reading -----------------------------------------------------------------------------------------------------

    def poll(
        self, max_records: Positive = MAX_POLL_RECORDS, timeout_ms: int = 0
    ) -> dict[TopicPartition, list[RecordType]]:
        """Return the next records, by partition and in the order of offsets.

        If ``max_records`` is reached, the next poll begins with the following partition. If a partition fails after
        records were read, these records are returned, and the next call raises the error.

        Args:
            max_records: maximum number of records of all partitions together.
            timeout_ms: how long to wait for a first record; 0 does not wait.

        Returns:
            Records by partition, without partitions that have no new records; {} if there are no records. The positions
            are advanced past the records.

        Raises:
            NoOffsetError: ``auto_offset_reset`` is none, and a partition has no position, because there is no group or
                no committed offset.
            OffsetOutOfRangeError: ``auto_offset_reset`` is none, and a log does not have the position, or was truncated
                below the committed offset.
            UnknownTopicError: a topic was deleted, and ``topics`` is not a regular expression.
            CorruptBatchError: a partition is damaged at its position.
            SerializationError: a deserializer failed for the record at the position.
            StorageError: a partition cannot be read for another reason.
            ClosedError: after ``close``.
        """
        self._check_open()
        self._assigned.refresh()
        records = self._read_or_rewind(max_records)
        return records if records or timeout_ms <= 0 else self._wait(max_records, timeout_ms)

    def _wait(self, max_records: int, timeout_ms: int) -> dict[TopicPartition, list[RecordType]]:
        """Wait until a partition has records, and return them; return {} after ``timeout_ms``."""
        end_ns = self._clock.monotonic_ns() + timeout_ms * NS_IN_MS
        event = threading.Event()
        with contextlib.ExitStack() as subscriptions:
            for cursor in list(self._assigned.cursors.values()):
                if not cursor.paused:
                    subscriptions.callback(cursor.subscribe(event.set))
            while not (records := self._read_or_rewind(max_records)):
                remaining_ns = end_ns - self._clock.monotonic_ns()
                if remaining_ns <= 0:
                    break
                self._clock.wait(event, min(LOOK_AGAIN_MS, -(-remaining_ns // NS_IN_MS)))
                event.clear()
        return records

    def _read_or_rewind(self, max_records: int) -> dict[TopicPartition, list[RecordType]]:
        positions: list[tuple[Cursor, int | None, int]] = []
        try:
            return self._read(max_records, positions)
        except StorageError:
            raise
        except BaseException:  # Ctrl-C for instance: the next call returns the records that were read
            for cursor, position, leader_epoch in positions:
                cursor.rewind(position, leader_epoch)
            raise

    def _read(
        self, max_records: int, positions: list[tuple[Cursor, int | None, int]]
    ) -> dict[TopicPartition, list[RecordType]]:
        """Read from the cursors in turn. Before each read, add cursor, position and leader epoch to ``positions``."""
        records_by_partition: dict[TopicPartition, list[RecordType]] = {}
        cursors = list(self._assigned.cursors.values())
        first, remaining = self._next_cursor, max_records
        for number in range(len(cursors)):
            self._next_cursor = (first + number) % len(cursors)
            cursor = cursors[self._next_cursor]
            if cursor.paused:
                continue
            try:
                self._assigned.settle(cursor)
                positions.append((cursor, cursor.position, cursor.leader_epoch))
                records = cursor.read(remaining)
            except StorageError:
                if not records_by_partition:
                    raise
                break  # the next call begins with this partition, and raises the error
            if records:
                records_by_partition[cursor.name] = records
                remaining -= len(records)
            if not remaining:
                self._next_cursor = (self._next_cursor + 1) % len(cursors)
                break
        return records_by_partition

    def __iter__(self) -> Iterator[tuple[TopicPartition, RecordType]]:
        """Iterate over all available records, each with its partition; end when ``poll`` would return {}.

        After each record, the position of its partition is the offset after the record. Raises the errors of ``poll``.
        """
        has_records, assigned = True, self._assigned
        while has_records:
            has_records = False
            assigned.refresh()
            for cursor in list(assigned.cursors.values()):
                while not cursor.paused and assigned.cursors.get(cursor.name) is cursor:  # the caller may call assign
                    self._check_open()
                    assigned.settle(cursor)
                    records = cursor.read(1)
                    if not records:
                        break
                    has_records = True
                    yield cursor.name, records[0]

    def records(self, timeout_ms: int = 0) -> Iterator[tuple[TopicPartition, RecordType]]:
        """Iterate over the records, each with its partition, and wait for further records.

        The iteration ends if no record arrives for ``timeout_ms``. With 0, it ends when no record is available. Raises
        the errors of ``poll``.
        """
        while True:
            yield from self
            records_by_partition = self.poll(1, timeout_ms)
            if not records_by_partition:
                return
            for name, records in records_by_partition.items():
                yield name, records[0]

    # --- positions ---------------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """Names of the partitions that the consumer reads, including paused partitions."""
        return tuple(self._assigned.cursors)

    def position(self, name: TopicPartition) -> int | None:
        """Return the offset of a partition's next record; None without a position (``auto_offset_reset`` is none)."""
        return self._assigned.cursor(name).position

    def seek(self, name: TopicPartition, offset: NotNegative) -> None:
        """Set the position of a partition. If the log lacks it, the next poll applies ``auto_offset_reset``."""
        self._assigned.cursor(name).seek(offset)

    def seek_to_beginning(self, *names: TopicPartition) -> None:
        """Set the positions of ``names`` to their log starts; without arguments, of all assigned partitions."""
        for cursor in self._assigned.select_cursors(names):
            cursor.seek(cursor.first())

    def seek_to_end(self, *names: TopicPartition) -> None:
        """Set the positions of ``names`` to their end offsets; without arguments, of all assigned partitions.

        ``end_offsets`` defines the end offset.
        """
        for cursor in self._assigned.select_cursors(names):
            cursor.seek(cursor.end())

    def beginning_offsets(self, *names: TopicPartition) -> dict[TopicPartition, int]:
        """Return the log start offsets of ``names``; without arguments, of all assigned partitions."""
        return {cursor.name: cursor.first() for cursor in self._assigned.select_cursors(names)}

    def end_offsets(self, *names: TopicPartition) -> dict[TopicPartition, int]:
        """Return the end offsets of ``names``; without arguments, of all assigned partitions.

        The end offset is the last stable offset for ``read_committed``, and the high watermark for
        ``read_uncommitted``.
        """
        return {cursor.name: cursor.end() for cursor in self._assigned.select_cursors(names)}

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record with the given timestamp or a later one.

        The value is None if there is no such record below the end offset (see ``end_offsets``).
        """
        return {name: self._assigned.cursor(name).offset_for_timestamp(stamp) for name, stamp in timestamps_ms.items()}

    def lag(self) -> dict[TopicPartition, int]:
        """Return for each partition the number of offsets from its position to its end offset (see ``end_offsets``).

        If a partition has no position, the lag counts from the log start.
        """
        return {
            cursor.name: max(cursor.end() - (cursor.first() if cursor.position is None else cursor.position), 0)
            for cursor in self._assigned.cursors.values()
        }

    def pause(self, *names: TopicPartition) -> None:
        """Stop reading ``names`` until ``resume``; without arguments, stop reading all assigned partitions."""
        for cursor in self._assigned.select_cursors(names):
            cursor.paused = True

    def resume(self, *names: TopicPartition) -> None:
        """Resume reading ``names`` after ``pause``; without arguments, resume reading all assigned partitions."""
        for cursor in self._assigned.select_cursors(names):
            cursor.paused = False

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """Names of the paused partitions."""
        return tuple(cursor.name for cursor in self._assigned.cursors.values() if cursor.paused)

    # --- committed offsets -------------------------------------------------------------------------------------------

    def commit(self, offsets: Committable | None = None, durability: str | None = None) -> None:
        """Commit offsets for the group: the current positions, or the given ``offsets``.

        Args:
            offsets: offset of the next record to read, by partition; None for the current positions. Partitions that
                are not in ``assignment`` are allowed.
            durability: ``written`` or ``durable``; None is the engine's setting.

        Raises:
            ConfigError: the consumer has no group, an offset that is given as an integer is negative, or
                ``durability`` is not one of these words.
            UnknownTopicError: a partition does not exist here; nothing was committed.
            StorageError: the offsets could not be appended.
            ClosedError: after ``close``.
        """
        self._check_open()
        self._offsets.commit(self._require_group(), self.positions() if offsets is None else offsets, durability)

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the current positions with their leader epochs, for a call of ``Producer.send_offsets``.

        Partitions without a position are omitted.
        """
        return {
            cursor.name: CommittedOffset(cursor.position, cursor.leader_epoch)
            for cursor in self._assigned.cursors.values()
            if cursor.position is not None
        }

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offset of each assigned partition that has one.

        Raises:
            ConfigError: the consumer has no group.
            StorageError: the committed offsets cannot be read.
        """
        offsets = self._offsets.committed(self._require_group())
        return {name: offset for name, offset in offsets.items() if name in self._assigned.cursors}

    # --- inside ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the consumer without a commit. Idempotent."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")

    def _require_group(self) -> str:
        if self._group is None:
            raise ConfigError("the consumer has no group: create it with group=NAME")
        return self._group
