"""Committed offsets and stored states of groups, read from ``__consumer_offsets``.

Source: apache/kafka OffsetMetadataManager, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stratalog.client.log_access import ReadableLogs
from stratalog.client.statetopic import Compact, StateTopic
from stratalog.errors import InvalidRecordError
from stratalog.model.arguments import CheckedArguments
from stratalog.model.batches import NO_EPOCH
from stratalog.model.messages.offsets_topic import (
    OFFSETS_TOPIC,
    CommitKey,
    OffsetCommit,
    OffsetsKey,
    OffsetsRecord,
    OffsetsType,
    parse_offsets_record,
)
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import Record


class CommittedOffset(NamedTuple):
    """Committed position of a group in one partition.

    Attributes:
        offset: offset of the next record to read. Clients of a broker or of the gateway can also commit negative
            offsets: kafkajs commits -2 for the start and -1 for the end of the log. A consumer then starts according to
            its ``auto_offset_reset``. A call that commits offsets refuses a negative integer. It stores a negative
            offset of a ``CommittedOffset`` unchanged, because a copy of another group's offsets may contain it.
        leader_epoch: leader epoch of the record before ``offset``; -1 if unknown.
        metadata: text that the consumer has stored with the offset.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


Committable = Mapping[TopicPartition, int | CommittedOffset]


class _StoredOffset(NamedTuple):
    position: int  # offset in the offsets topic
    committed: CommittedOffset
    commit_ms: int
    expire_ms: int  # -1 unless the client of an old release chose a time

    def is_expired(self, since_ms: int, retention_ms: int, now_ms: int) -> bool:
        """Return True if the offset has expired, as in Kafka (OffsetExpirationConditionImpl).

        ``since_ms`` is the time when the group's last member left; -1 uses the time of the commit.
        """
        if self.expire_ms >= 0:
            return now_ms >= self.expire_ms
        return now_ms - (self.commit_ms if since_ms < 0 else since_ms) >= retention_ms


def lag(offsets: LogOffsets, committed: int) -> int:
    """Return the number of offsets from ``committed`` to the high watermark, without offsets below the log start.

    If ``committed`` is above the high watermark, return 0.
    """
    return max(offsets.high_watermark - max(committed, offsets.log_start), 0)


class _OffsetsTopic(StateTopic):
    def __init__(self, logs: ReadableLogs, compact: Compact | None) -> None:
        super().__init__(logs, OFFSETS_TOPIC, compact)
        self.groups: dict[str, dict[TopicPartition, _StoredOffset]] = {}
        self.states: dict[str, dict[tuple[OffsetsType, OffsetsKey], OffsetsRecord]] = {}
        # Groups with offsets or states. With another number of partitions, a group may be in any partition.
        self._groups_by_partition: dict[int, set[str]] = {}

    def apply(self, partition: int, record: Record) -> None:
        parsed = parse_offsets_record(record.key, record.value)
        if parsed is None:
            return
        group, names = parsed.key.group, self._groups_by_partition.setdefault(partition, set())
        if isinstance(parsed.key, CommitKey):
            self._apply_commit(parsed.key, record.offset, parsed.value)
        else:
            self._apply_state(group, parsed)
        (names.add if group in self.groups or group in self.states else names.discard)(group)

    def _apply_commit(self, key: CommitKey, position: int, value: object) -> None:
        name, offsets = TopicPartition(key.topic, key.partition), self.groups.setdefault(key.group, {})
        before = offsets.get(name)
        if before is not None and before.position > position:
            return  # this record's transaction ended late; the offset that was committed after the record is newer
        if isinstance(value, OffsetCommit):
            committed = CommittedOffset(value.offset, value.leader_epoch, value.metadata)
            offsets[name] = _StoredOffset(position, committed, value.commit_timestamp_ms, value.expire_timestamp_ms)
        else:
            offsets.pop(name, None)
        if not offsets:
            del self.groups[key.group]

    def _apply_state(self, group: str, state: OffsetsRecord) -> None:
        states = self.states.setdefault(group, {})
        if state.value is None:
            states.pop((state.kind, state.key), None)
        else:
            states[state.kind, state.key] = state
        if not states:
            del self.states[group]

    def pending_names(self) -> Iterator[tuple[str, TopicPartition]]:
        """Iterate over the (group, partition) pairs for which open transactions have written an offset."""
        for record in self.pending():
            with contextlib.suppress(InvalidRecordError):
                parsed = parse_offsets_record(record.key, None)
                if parsed is not None and isinstance(parsed.key, CommitKey):
                    yield parsed.key.group, TopicPartition(parsed.key.topic, parsed.key.partition)

    def forget(self, partition: int) -> None:
        for group in self._groups_by_partition.pop(partition, ()):
            self.groups.pop(group, None)
            self.states.pop(group, None)


class CommittedOffsets(CheckedArguments):
    """The committed offsets of all groups, for reading only. Thread-safe.

    Args:
        compact: compacts a log of ``__consumer_offsets``; see ``StateTopic``.
    """

    def __init__(self, logs: ReadableLogs, compact: Compact | None = None) -> None:
        self._topic, self._lock = _OffsetsTopic(logs, compact), threading.Lock()

    def committed(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, by partition; {} for an unknown group.

        Offsets in open transactions are not included.

        Raises:
            StorageError: the partition with the group's offsets cannot be read.
        """
        with self._lock:
            self._topic.refresh_for(group)
            return {name: stored.committed for name, stored in self._topic.groups.get(group, {}).items()}

    def groups(self) -> tuple[str, ...]:
        """Return the names of all groups that have committed offsets, sorted.

        Raises:
            StorageError: a partition of ``__consumer_offsets`` cannot be read.
        """
        with self._lock:
            self._topic.refresh_all()
            return tuple(sorted(self._topic.groups))
