"""The partitions that a consumer reads, and the position at which each of them starts.

Source: apache/kafka SubscriptionState.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from stratalog.client.cursor import Cursor
from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.log_access import Logs
from stratalog.errors import ConfigError, NoOffsetError, OffsetOutOfRangeError, UnknownTopicError
from stratalog.model.names import INTERNAL_TOPICS, TopicPartition, partitions_of


class OffsetReset(StrEnum):
    """Start position in a partition if it has no committed offset, or if its log does not have that offset.

    EARLIEST is the log start, and LATEST is the end offset at the isolation level. With NONE, ``poll`` raises an error.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @classmethod
    def of(cls, value: str) -> OffsetReset:
        """Return the member with this value, such as ``earliest``. Raise ConfigError if there is none."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"auto_offset_reset {value!r} is not one of {', '.join(cls)}") from None


class AssignedPartitions:
    """Partitions of a consumer, each with a cursor. Not thread-safe.

    A cursor starts at the committed offset of the group, or according to ``reset``.

    Args:
        open_cursor: returns a cursor without a position for a partition.
        group: group whose committed offsets are used; None for no group.
        reset: start position without a committed offset.
        topics: names of topics, or a regular expression that matches whole names of topics.

    Raises:
        UnknownTopicError: a topic does not exist here.
        StorageError: a partition, or the group's committed offsets, cannot be read.
    """

    def __init__(
        self,
        logs: Logs,
        open_cursor: Callable[[TopicPartition], Cursor],
        offsets: GroupOffsets,
        group: str | None,
        reset: OffsetReset,
        topics: Iterable[str] | re.Pattern[str],
    ) -> None:
        self._logs, self._open_cursor, self._offsets, self._group = logs, open_cursor, offsets, group
        self._reset = reset
        self._pattern = topics if isinstance(topics, re.Pattern) else None
        self.cursors: dict[TopicPartition, Cursor] = {}
        if isinstance(topics, re.Pattern):
            names: Iterable[TopicPartition] = self._matching(topics)
        else:
            existing = logs.partitions()
            names = [name for topic in dict.fromkeys(topics) for name in partitions_of(existing, topic, "this engine")]
        self.cursors |= self._open_cursors(names)

    def replace(self, names: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; assigned partitions keep their cursors. Forget the regular expression.

        Raises the errors of the constructor. After an error, nothing has changed.
        """
        partitions = [TopicPartition(*name) for name in names]
        for name in partitions:
            self._logs.log(*name)
        new_cursors, old_cursors = self._open_cursors(partitions), self.cursors
        self._pattern = None
        self.cursors = {name: old_cursors[name] for name in partitions if name in old_cursors} | new_cursors

    def refresh(self) -> None:
        """Add partitions of topics that match the regular expression now. Remove partitions of deleted topics."""
        if self._pattern is not None:
            names = self._matching(self._pattern)
            for name in self.cursors.keys() - set(names):
                del self.cursors[name]
            self.cursors |= self._open_cursors(names)

    def cursor(self, name: TopicPartition) -> Cursor:
        """Return the cursor of a partition; raise UnknownTopicError if the partition is not assigned."""
        cursor = self.cursors.get(name)
        if cursor is None:
            raise UnknownTopicError(
                f"{name} is not one of the consumer's partitions: {', '.join(map(str, self.cursors))}"
            )
        return cursor

    def select_cursors(self, names: Iterable[TopicPartition]) -> list[Cursor]:
        """Return the cursors of these partitions; without names, all cursors. Raises the errors of ``cursor``."""
        return [self.cursor(name) for name in names] or list(self.cursors.values())

    def settle(self, cursor: Cursor) -> None:
        """Move the cursor to its truncation offset or according to ``reset`` if its log does not have its position.

        Raises:
            NoOffsetError: ``reset`` is NONE, and the cursor has no position.
            OffsetOutOfRangeError: ``reset`` is NONE, and the log does not have the cursor's position.
        """
        if cursor.truncation_offset is not None and self._reset is not OffsetReset.NONE:
            cursor.seek(cursor.truncation_offset)
        if cursor.truncation_offset is None and cursor.is_in_range():
            return
        if self._reset is OffsetReset.NONE:
            if cursor.position is None:
                raise NoOffsetError(f"group {self._group} has committed no offset of {cursor.name}")
            end = cursor.last() if cursor.truncation_offset is None else cursor.truncation_offset
            raise OffsetOutOfRangeError(str(cursor.name), cursor.position, cursor.first(), end)
        self._reset_position(cursor)

    def _matching(self, pattern: re.Pattern[str]) -> list[TopicPartition]:
        """Return the partitions of matching topics. Kafka's internal topics never match."""
        return [
            name
            for name in self._logs.partitions()
            if name.topic not in INTERNAL_TOPICS and pattern.fullmatch(name.topic)
        ]

    def _open_cursors(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Cursor]:
        """Return a new cursor, at its start position, for each partition that has no cursor yet."""
        new_cursors = {name: self._open_cursor(name) for name in names if name not in self.cursors}
        committed = self._offsets.committed(self._group) if self._group is not None and new_cursors else {}
        for cursor in new_cursors.values():
            offset = committed.get(cursor.name)
            if offset is not None:
                cursor.seek_after(offset.offset, offset.leader_epoch)
            elif self._reset is not OffsetReset.NONE:
                self._reset_position(cursor)
        return new_cursors

    def _reset_position(self, cursor: Cursor) -> None:
        cursor.seek(cursor.first() if self._reset is OffsetReset.EARLIEST else cursor.end())
