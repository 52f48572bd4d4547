"""A consumer: all partitions of some topics, from where a group has got to.

Source: apache/kafka KafkaConsumer, OffsetsInitializer; there is one reader of a group, and so no rebalancing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from stratalog.client.cursor import Cursor
from stratalog.client.delivery import NS_IN_MS
from stratalog.client.group_offsets import Committable, CommittedOffset, GroupOffsets
from stratalog.client.log_access import Logs, partitions_of
from stratalog.env.clock import Clock
from stratalog.env.closing import Closeable
from stratalog.env.forks import ends_with_fork
from stratalog.errors import ClosedError, ConfigError, NoOffsetError, OffsetOutOfRangeError, UnknownTopicError
from stratalog.model.arguments import CheckedArguments, NotNegative, Positive
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation
from stratalog.model.records import Record

MAX_POLL_RECORDS: Final = 500
LOOK_AGAIN_MS: Final = 100  # logs tell of what they get, but not of another one that has taken their place


class OffsetReset(StrEnum):
    """Where reading begins without a committed offset, or where the log no longer has it."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @classmethod
    def of(cls, value: str) -> OffsetReset:
        """The choice named ``value``; ConfigError names all."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"auto_offset_reset {value!r} is none of {', '.join(cls)}") from None


class Consumer(CheckedArguments, Closeable):
    """Reads topics of an engine. A context manager; for one thread at a time. Made by ``Engine.consumer``.

    Positions are chosen when it is made: the group's committed offsets, else by ``auto_offset_reset``. Nothing is
    committed but by ``commit``. Partitions that a topic gets later are seen by the next consumer.

    Args:
        logs: of the engine.
        clock: of the engine.
        offsets: where groups' offsets stand.
        topics: what is read.
        group: whose offsets are committed; None commits nothing.
        isolation: ``read_uncommitted`` or ``read_committed``.
        auto_offset_reset: ``earliest``, ``latest`` or ``none``.

    Raises:
        UnknownTopicError: one of the topics is not here.
        ConfigError: another word is given.
    """

    def __init__(
        self,
        logs: Logs,
        clock: Clock,
        offsets: GroupOffsets,
        *,
        topics: Iterable[str],
        group: str | None,
        isolation: str,
        auto_offset_reset: str,
    ) -> None:
        if group == "":
            raise ConfigError("group is a name, not ''; None is no group")
        self._clock, self._offsets, self._group = clock, offsets, group
        self._reset = OffsetReset.of(auto_offset_reset)
        seen = Isolation.of(isolation)
        names = [name for topic in dict.fromkeys(topics) for name in partitions_of(logs, topic)]
        self._cursors = {name: Cursor(logs, name, seen) for name in names}
        self._turn = 0
        self._closed = False
        ends_with_fork(self)
        committed = self.committed() if group is not None else {}
        for cursor in self._cursors.values():
            found = committed.get(cursor.name)
            if found is not None:
                cursor.seek_behind(found.offset, found.leader_epoch)
            elif self._reset is not OffsetReset.NONE:
                self._reset_position(cursor)

    # --- reading -----------------------------------------------------------------------------------------------------

    def poll(self, max_records: Positive = MAX_POLL_RECORDS, timeout_ms: int = 0) -> dict[TopicPartition, list[Record]]:
        """The next records by partition, in order within each; partitions take turns.

        Args:
            max_records: of all partitions together.
            timeout_ms: how long to wait for a first record.

        Returns:
            Only partitions with records; positions are behind them.

        Raises:
            NoOffsetError: ``auto_offset_reset`` is none, and the group has committed no offset of a partition.
            OffsetOutOfRangeError: the same, and the log no longer has a position, or was cut below what was committed.
            UnknownTopicError: a topic was deleted.
            CorruptBatchError: a partition is damaged at its position; all good records before it have been returned.
        """
        self._check_open()
        found = self._take(max_records)
        return found if found or timeout_ms <= 0 else self._wait(max_records, timeout_ms)

    def _wait(self, max_records: int, timeout_ms: int) -> dict[TopicPartition, list[Record]]:
        """The next records, as soon as a log tells of some; nothing when the time is over."""
        end_ns = self._clock.monotonic_ns() + timeout_ms * NS_IN_MS
        moved = threading.Event()
        with contextlib.ExitStack() as subscribed:
            for cursor in list(self._cursors.values()):
                if not cursor.paused:
                    subscribed.callback(cursor.subscribe(moved.set))
            while not (found := self._take(max_records)):
                left_ns = end_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    break
                self._clock.wait(moved, min(LOOK_AGAIN_MS, -(-left_ns // NS_IN_MS)))
                moved.clear()
        return found

    def _take(self, max_records: int) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        cursors = list(self._cursors.values())
        first, left = self._turn, max_records
        for number in range(len(cursors)):
            self._turn = (first + number) % len(cursors)
            cursor = cursors[self._turn]
            if cursor.paused:
                continue
            self._settle(cursor)
            records = cursor.read(left)
            if records:
                found[cursor.name] = records
                left -= len(records)
            if not left:
                self._turn = (self._turn + 1) % len(cursors)
                break
        return found

    def __iter__(self) -> Iterator[tuple[TopicPartition, Record]]:
        """All records that there are now, each with its partition; ends where ``poll`` would return nothing.

        ``position`` is always behind the record that was given last.
        """
        found = True
        while found:
            found = False
            for cursor in list(self._cursors.values()):
                while not cursor.paused:
                    self._check_open()
                    self._settle(cursor)
                    records = cursor.read(1)
                    if not records:
                        break
                    found = True
                    yield cursor.name, records[0]

    def _settle(self, cursor: Cursor) -> None:
        """Give a cursor a position that its log has: if that was cut below it, the cut, from where other records follow."""
        if cursor.cut_at is not None and self._reset is not OffsetReset.NONE:
            cursor.seek(cursor.cut_at)
        if cursor.cut_at is None and cursor.is_in_range():
            return
        if self._reset is OffsetReset.NONE:
            if cursor.position is None:
                raise NoOffsetError(f"group {self._group} has committed no offset of {cursor.name}")
            end = cursor.last() if cursor.cut_at is None else cursor.cut_at
            raise OffsetOutOfRangeError(str(cursor.name), cursor.position, cursor.first(), end)
        self._reset_position(cursor)

    def _reset_position(self, cursor: Cursor) -> None:
        cursor.seek(cursor.first() if self._reset is OffsetReset.EARLIEST else cursor.end())

    # --- positions ---------------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read."""
        return tuple(self._cursors)

    def position(self, name: TopicPartition) -> int | None:
        """The offset of the next record of a partition; None if ``auto_offset_reset`` is none and nothing was chosen."""
        return self._cursor(name).position

    def seek(self, name: TopicPartition, offset: NotNegative) -> None:
        """Go on at an offset; one that the log does not have is treated by ``auto_offset_reset`` at the next poll."""
        self._cursor(name).seek(offset)

    def seek_to_beginning(self, *names: TopicPartition) -> None:
        """Go on at the log start, in these partitions or all."""
        for cursor in self._chosen(names):
            cursor.seek(cursor.first())

    def seek_to_end(self, *names: TopicPartition) -> None:
        """Go on at the end of what the isolation shows, in these partitions or all."""
        for cursor in self._chosen(names):
            cursor.seek(cursor.end())

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """For each partition the offset of the first record at or above a timestamp; None if there is none."""
        return {name: self._cursor(name).offset_for_timestamp(stamp) for name, stamp in timestamps_ms.items()}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each partition has up to what the isolation shows; from its start without a position."""
        return {
            cursor.name: max(cursor.end() - (cursor.first() if cursor.position is None else cursor.position), 0)
            for cursor in self._cursors.values()
        }

    def pause(self, *names: TopicPartition) -> None:
        """Pass partitions over, these or all, until ``resume``."""
        for cursor in self._chosen(names):
            cursor.paused = True

    def resume(self, *names: TopicPartition) -> None:
        """Read partitions again, these or all."""
        for cursor in self._chosen(names):
            cursor.paused = False

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are passed over."""
        return tuple(cursor.name for cursor in self._cursors.values() if cursor.paused)

    # --- committed offsets -------------------------------------------------------------------------------------------

    def commit(self, offsets: Committable | None = None, durability: str | None = None) -> None:
        """Store how far the group has got: everything that was returned so far, or what ``offsets`` says.

        Args:
            offsets: of each partition the next one to read.
            durability: ``written`` or ``durable``; None is the engine's setting.

        Raises:
            ConfigError: the consumer has no group, or an offset is negative.
            UnknownTopicError: a partition is not here.
        """
        self._check_open()
        self._offsets.commit(self._named_group(), self.positions() if offsets is None else offsets, durability)

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """What ``commit`` stores, and ``Producer.send_offsets`` takes."""
        return {
            cursor.name: CommittedOffset(cursor.position, cursor.leader_epoch)
            for cursor in self._cursors.values()
            if cursor.position is not None
        }

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed of the partitions that are read; those without are left out.

        Raises:
            ConfigError: the consumer has no group.
        """
        found = self._offsets.committed(self._named_group())
        return {name: offset for name, offset in found.items() if name in self._cursors}

    # --- inside ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop reading; nothing is committed. Twice is fine."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")

    def _named_group(self) -> str:
        if self._group is None:
            raise ConfigError("the consumer has no group: engine.consumer(group=NAME, ...)")
        return self._group

    def _cursor(self, name: TopicPartition) -> Cursor:
        found = self._cursors.get(name)
        if found is None:
            raise UnknownTopicError(
                f"{name} is not among what the consumer reads: {', '.join(map(str, self._cursors))}"
            )
        return found

    def _chosen(self, names: Iterable[TopicPartition]) -> list[Cursor]:
        return [self._cursor(name) for name in names] or list(self._cursors.values())
