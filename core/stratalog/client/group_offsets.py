"""Committed offsets of groups, in ``__consumer_offsets``.

Source: apache/kafka OffsetMetadataManager, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from stratalog.client.log_access import Logs
from stratalog.client.statetopic import Compact, StateTopic
from stratalog.env.clock import Clock
from stratalog.errors import ConfigError, InvalidRecordError, StorageError, UnknownTopicError
from stratalog.model.arguments import CheckedArguments
from stratalog.model.batches import NO_EPOCH
from stratalog.model.messages.offsets_topic import (
    OFFSETS_TOPIC,
    CommitKey,
    OffsetCommit,
    OffsetsType,
    offsets_key,
    offsets_value,
    parse_offsets_record,
)
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record

VALUE_VERSION: Final = 3  # the version that brokers write; brokers from 2.1 on read it
_LOGGER: Final = logging.getLogger("stratalog.client")


class CommittedOffset(NamedTuple):
    """Committed position of a group: ``offset`` of the next record, ``leader_epoch`` of the record before it."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


Committable = Mapping[TopicPartition, int | CommittedOffset]


class _Found(NamedTuple):
    position: int  # offset in the offsets topic
    committed: CommittedOffset


class GroupOffsets(CheckedArguments):
    """The committed offsets of all groups. Thread-safe.

    Args:
        logs: logs of the engine.
        clock: clock for the timestamps of commits.
        compact: as in ``StateTopic``.
    """

    def __init__(self, logs: Logs, clock: Clock, compact: Compact | None = None) -> None:
        self._logs, self._topic, self._clock = logs, _OffsetsTopic(logs, compact), clock
        self._lock = threading.Lock()

    def committed(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, by partition. Offsets in open transactions are not included."""
        with self._lock:
            if not self._topic.exists():
                return {}
            self._topic.refresh(self._topic.place_of(group))
            return {name: found.committed for name, found in self._topic.groups.get(group, {}).items()}

    def groups(self) -> tuple[str, ...]:
        """Return all groups that have committed offsets, sorted."""
        with self._lock:
            self._topic.refresh_all()
            return tuple(sorted(self._topic.groups))

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset | None], durability: str | None = None
    ) -> None:
        """Store offsets in one batch; None deletes an offset.

        Raises:
            ConfigError: an offset is negative.
            UnknownTopicError: a partition does not exist here; nothing was stored.
            InvalidRecordError: a text does not fit Kafka's schema.
            StorageError: the offsets could not be appended.
        """
        if offsets:
            name, records = self.records(group, offsets)
            self._topic.append(name.partition, records, durability)

    def forget_topic(self, topic: str) -> None:
        """Delete durably the committed offsets of all groups for a topic that is deleted.

        Otherwise groups would skip the first records of a new topic with the same name. Errors are logged and not
        raised, because the deletion of a topic must succeed even on a full disk.

        Source: apache/kafka OffsetMetadataManager.onPartitionsDeleted.
        """
        with self._lock:
            self._topic.refresh_readable()
            gone = {
                group: dict.fromkeys(name for name in offsets if name.topic == topic)
                for group, offsets in self._topic.groups.items()
            }
            for group, name in self._topic.pending_names():
                if name.topic == topic:  # an open transaction may commit this offset later
                    gone.setdefault(group, {})[name] = None
        for group, offsets in gone.items():
            try:
                self.commit(group, offsets, "durable")
            except StorageError:
                _LOGGER.exception(
                    "committed offsets of a deleted topic could not be removed group=%s topic=%s", group, topic
                )

    def records(
        self, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset | None]
    ) -> tuple[TopicPartition, list[Record]]:
        """Return the partition to append to, and the records that commit offsets. Creates the topic if necessary."""
        for wanted, given in offsets.items():
            if given is not None:
                self._check_here(TopicPartition(*wanted))
        partition, now = self._partition_of(group), self._clock.now_ms()
        return self._topic.name(partition), [
            commit_record(group, TopicPartition(*name), given, now) for name, given in offsets.items()
        ]

    def _partition_of(self, group: str) -> int:
        """Return the partition of a group's offsets; create the topic if necessary.

        The lock is released before the topic is created, because the engine's lock must be taken before this lock.
        """
        while True:
            with self._lock:
                if self._topic.exists():
                    return self._topic.place_of(group)
            self._topic.create()

    def _check_here(self, name: TopicPartition) -> None:
        """Raise UnknownTopicError if the log does not exist. A log that cannot be opened exists."""
        try:
            self._logs.log(*name)
        except UnknownTopicError:
            raise
        except StorageError:
            return


def commit_record(group: str, name: TopicPartition, given: int | CommittedOffset | None, now_ms: int) -> Record:
    """Return the record that commits an offset, or deletes it if ``given`` is None; errors as ``GroupOffsets.commit``."""
    kind = OffsetsType.OFFSET_COMMIT
    key = offsets_key(kind, CommitKey(group=group, topic=name.topic, partition=name.partition))
    if given is None:
        return Record(timestamp_ms=now_ms, key=key)
    found = CommittedOffset(given) if isinstance(given, int) else given
    if found.offset < 0:
        raise ConfigError(f"a committed offset must be at least 0, not {found.offset} group={group} partition={name}")
    value = OffsetCommit(
        offset=found.offset, leader_epoch=found.leader_epoch, metadata=found.metadata, commit_timestamp_ms=now_ms
    )
    return Record(timestamp_ms=now_ms, key=key, value=offsets_value(kind, value, VALUE_VERSION))


class _OffsetsTopic(StateTopic):
    def __init__(self, logs: Logs, compact: Compact | None) -> None:
        super().__init__(logs, OFFSETS_TOPIC, compact)
        self.groups: dict[str, dict[TopicPartition, _Found]] = {}
        self._of_partition: dict[int, set[str]] = {}

    def apply(self, partition: int, record: Record) -> None:
        parsed = parse_offsets_record(record.key, record.value)
        if parsed is None or not isinstance(parsed.key, CommitKey):
            return
        group, name = parsed.key.group, TopicPartition(parsed.key.topic, parsed.key.partition)
        offsets = self.groups.setdefault(group, {})
        self._of_partition.setdefault(partition, set()).add(group)
        before = offsets.get(name)
        if before is not None and before.position > record.offset:
            return  # this record's transaction ended late; the offset that was committed after the record is newer
        if isinstance(parsed.value, OffsetCommit):
            found = parsed.value
            offsets[name] = _Found(record.offset, CommittedOffset(found.offset, found.leader_epoch, found.metadata))
        else:
            offsets.pop(name, None)
        if not offsets:
            del self.groups[group]

    def pending_names(self) -> Iterator[tuple[str, TopicPartition]]:
        """Iterate over the groups and partitions whose offsets open transactions would commit."""
        for record in self.pending():
            with contextlib.suppress(InvalidRecordError):
                parsed = parse_offsets_record(record.key, None)
                if parsed is not None and isinstance(parsed.key, CommitKey):
                    yield parsed.key.group, TopicPartition(parsed.key.topic, parsed.key.partition)

    def forget(self, partition: int) -> None:
        for group in self._of_partition.pop(partition, ()):
            self.groups.pop(group, None)
