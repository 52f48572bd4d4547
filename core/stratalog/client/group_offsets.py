"""Committed offsets and stored states of groups, in ``__consumer_offsets``.

Source: apache/kafka OffsetMetadataManager, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from stratalog.client.log_access import Logs, ReadableLogs
from stratalog.client.sequences import ProducerId
from stratalog.client.statetopic import PARTITIONS, Compact, StateTopic, create_state_topic
from stratalog.env.clock import Clock
from stratalog.errors import (
    ConfigError,
    InvalidRecordError,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownTopicError,
)
from stratalog.model.arguments import CheckedArguments
from stratalog.model.batches import NO_EPOCH
from stratalog.model.messages.offsets_topic import (
    OFFSETS_TOPIC,
    CommitKey,
    GroupMetadata,
    OffsetCommit,
    OffsetsKey,
    OffsetsRecord,
    OffsetsType,
    offsets_key,
    offsets_value,
    parse_offsets_record,
)
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import Record
from stratalog.spi.formats import BatchHeader

_MAGIC: Final = 2  # of batches of transactions
VALUE_VERSION: Final = 3  # the version that brokers write; brokers from 2.1 on read it
_LOGGER: Final = logging.getLogger("stratalog.client")


class CommittedOffset(NamedTuple):
    """Committed position of a group in one partition.

    Attributes:
        offset: offset of the next record to read. Clients of a broker or of the gateway can also commit negative offsets:
            kafkajs commits -2 for the start and -1 for the end of the log. A consumer then starts according to its
            ``auto_offset_reset``. A call that commits refuses a negative integer, and stores a negative
            offset in a ``CommittedOffset`` unchanged, because a copy of the offsets of another group may contain it.
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


class CommittedOffsets(CheckedArguments):
    """The committed offsets of all groups, for reading only. Thread-safe.

    Args:
        logs: logs of an engine or of a reader.
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


class GroupOffsets(CommittedOffsets):
    """The committed offsets and the stored states of all groups, for reading and writing. Thread-safe.

    Args:
        logs: logs of the engine.
        clock: clock for the timestamps of commits.
        compact: compacts a log of ``__consumer_offsets``; see ``StateTopic``.
        partitions: number of partitions of ``__consumer_offsets`` if the topic must be created.
    """

    def __init__(self, logs: Logs, clock: Clock, compact: Compact | None = None, partitions: int = PARTITIONS) -> None:
        super().__init__(logs, compact)
        self._logs, self._clock, self._partitions = logs, clock, partitions

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | CommittedOffset | None],
        durability: str | None = None,
        *,
        must_exist: bool = True,
    ) -> None:
        """Commit offsets of a group in one batch. The value None deletes the committed offset of a partition.

        Args:
            group: name of the group.
            offsets: offset of the next record to read, by partition, or None.
            durability: ``written`` or ``durable``; None is the engine's setting.
            must_exist: False to allow partitions that do not exist here. They are always allowed with the value None.

        Raises:
            ConfigError: an offset that is given as an integer is negative, or ``durability`` is not one of these words.
            UnknownTopicError: ``must_exist`` is True, and a partition with an offset does not exist here; nothing was
                stored.
            InvalidRecordError: the group's name or the metadata does not fit Kafka's schema.
            StorageError: the offsets could not be appended.
        """
        if offsets:
            name, records = self.records(group, offsets, must_exist=must_exist)
            self._logs.log(*name).append(records, durability)

    def states(self, group: str) -> tuple[OffsetsRecord, ...]:
        """Return the latest record of each key of a group's state, without committed offsets; () for no state.

        Errors are those of ``committed``.
        """
        with self._lock:
            self._topic.refresh_for(group)
            return tuple(self._topic.states.get(group, {}).values())

    def groups_with_state(self) -> tuple[str, ...]:
        """Return the names of all groups that have a stored state, sorted; errors as for ``groups``."""
        with self._lock:
            self._topic.refresh_all()
            return tuple(sorted(self._topic.states))

    def store_states(self, group: str, records: Iterable[OffsetsRecord], durability: str | None = None) -> None:
        """Store records of a group's state in one batch. A record without a value deletes the state with the same key.

        Raises:
            InvalidRecordError: a record does not fit Kafka's schema.
            StorageError: the records could not be appended.
        """
        now = self._clock.now_ms()
        batch = [
            Record(
                timestamp_ms=now,
                key=offsets_key(state.kind, state.key),
                value=state.value
                if state.value is None or isinstance(state.value, bytes)
                else offsets_value(state.kind, state.value, state.value_version or 0),
            )
            for state in records
        ]
        if batch:
            self._logs.log(*self.partition_of(group)).append(batch, durability)

    def delete(self, group: str, durability: str | None = None) -> bool:
        """Delete all committed offsets and the stored state of a group. Return False if the group has neither.

        The commit of an open transaction does not restore an offset that the transaction has written before this call.
        Errors are those of ``committed`` and ``commit``.

        Source: apache/kafka OffsetMetadataManager.deleteAllOffsets.
        """
        offsets, states = {*self.committed(group), *self.pending(group)}, self.states(group)
        self.commit(group, dict.fromkeys(offsets), durability)
        self.store_states(group, _tombstones(states), durability)
        return bool(offsets or states)

    def expire(self, group: str, retention_ms: int) -> bool:
        """Delete the expired offsets of a group without members, and the group's stored state if no offset remains.

        An offset expires ``retention_ms`` after the group's last member left, or, if that time is not stored, after the
        commit of the offset. An offset that was stored with an expiration time of its own expires at that time. An
        offset that an open transaction would replace is kept. Errors are those of ``delete``.

        Returns:
            True if neither an offset nor the state of the group remains.

        Source: apache/kafka OffsetMetadataManager.cleanupExpiredOffsets, ClassicGroup.offsetExpirationCondition.
        """
        states, now = self.states(group), self._clock.now_ms()
        since_ms = max(
            (state.value.state_timestamp_ms for state in states if isinstance(state.value, GroupMetadata)), default=-1
        )
        with self._lock:
            offsets = dict(self._topic.groups.get(group, {}))
            pending = {name for pending_group, name in self._topic.pending_names() if pending_group == group}
        expired = [
            name
            for name, stored in offsets.items()
            if name not in pending and stored.is_expired(since_ms, retention_ms, now)
        ]
        self.commit(group, dict.fromkeys(expired))
        if len(expired) < len(offsets) or pending:
            return False
        self.store_states(group, _tombstones(states))
        return True

    def forget_topic(self, topic: str) -> None:
        """Delete the committed offsets of all groups for a deleted topic, durably.

        Otherwise groups would skip the first records of a new topic with the same name. A partition of the offsets topic
        that cannot be read is skipped, and its error is logged.

        Raises:
            StorageError: error of the first group whose offsets could not be deleted, after the other groups.

        Source: apache/kafka OffsetMetadataManager.onPartitionsDeleted.
        """
        with self._lock:
            self._topic.refresh_readable()
            deletions = {
                group: dict.fromkeys(name for name in offsets if name.topic == topic)
                for group, offsets in self._topic.groups.items()
            }
            for group, name in self._topic.pending_names():
                if name.topic == topic:  # an open transaction may commit this offset later
                    deletions.setdefault(group, {})[name] = None
        first_error: StorageError | None = None
        for group, offsets in deletions.items():
            try:
                self.commit(group, offsets, "durable")
            except NotLeaderOrFollowerError:  # the engine with the leader deletes them
                _LOGGER.info(
                    "committed offsets of a deleted topic remain in a follower group=%s topic=%s", group, topic
                )
            except StorageError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def records(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | CommittedOffset | None],
        *,
        must_exist: bool = True,
    ) -> tuple[TopicPartition, list[Record]]:
        """Return the partition of ``__consumer_offsets`` for a group, and the records that commit these offsets there.

        The topic is created if it does not exist. Arguments and errors are those of ``commit``, but nothing is stored.
        """
        for name, offset in offsets.items():
            if offset is not None and must_exist:
                self._check_exists(TopicPartition(*name))
        partition, now = self.partition_of(group), self._clock.now_ms()
        return partition, [commit_record(group, TopicPartition(*name), offset, now) for name, offset in offsets.items()]

    def append_in_transaction(self, partition: TopicPartition, records: Sequence[Record], producer: ProducerId) -> None:
        """Append the result of ``records`` as a transactional batch, which, as in Kafka, has no sequence number.

        Raises:
            InvalidProducerEpochError: a newer epoch of the producer has already written.
            StorageError: the offsets could not be appended.
        """
        log = self._logs.log(*partition)
        header = BatchHeader(producer_id=producer.producer_id, producer_epoch=producer.epoch, transactional=True)
        data = log.components.formats.of(_MAGIC, str(partition), 0).encode(records, header, None, None)
        log.append_as_leader(data, origin="coordinator")

    def pending(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions for which an open transaction has written an offset of the group.

        Errors are those of ``committed``.
        """
        with self._lock:
            self._topic.refresh_for(group)
            return frozenset(name for pending_group, name in self._topic.pending_names() if pending_group == group)

    def partition_of(self, group: str) -> TopicPartition:
        """Return the partition of ``__consumer_offsets`` for a group. Create the topic if it does not exist.

        Errors are those of ``Engine.create_topic``.
        """
        while True:
            with self._lock:  # not held while the topic is created: the engine's lock must be taken first
                if self._topic.exists():
                    return self._topic.name(self._topic.partition_number(group))
            create_state_topic(self._logs, OFFSETS_TOPIC, self._partitions)

    def _check_exists(self, name: TopicPartition) -> None:
        """Raise UnknownTopicError if the log does not exist. Do nothing if the log exists but cannot be opened."""
        try:
            self._logs.log(*name)
        except UnknownTopicError:
            raise
        except StorageError:
            return


def _tombstones(states: Iterable[OffsetsRecord]) -> list[OffsetsRecord]:
    """Return tombstones for a group's state, in the order that brokers require: members before the group."""
    return [state.tombstone() for state in sorted(states, key=lambda state: -state.kind)]


def commit_record(group: str, name: TopicPartition, offset: int | CommittedOffset | None, now_ms: int) -> Record:
    """Return the record that commits an offset of a group in partition ``name``; a tombstone if ``offset`` is None.

    The partition need not exist.

    Raises:
        ConfigError: ``offset`` is a negative integer.
        InvalidRecordError: the group's name or the metadata does not fit Kafka's schema.
    """
    kind = OffsetsType.OFFSET_COMMIT
    key = offsets_key(kind, CommitKey(group=group, topic=name.topic, partition=name.partition))
    if offset is None:
        return Record(timestamp_ms=now_ms, key=key)
    committed = CommittedOffset(offset) if isinstance(offset, int) else offset
    if isinstance(offset, int) and offset < 0:
        raise ConfigError(f"a committed offset must be at least 0, not {offset} group={group} partition={name}")
    value = OffsetCommit(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp_ms=now_ms,
    )
    return Record(timestamp_ms=now_ms, key=key, value=offsets_value(kind, value, VALUE_VERSION))


class _OffsetsTopic(StateTopic):
    def __init__(self, logs: ReadableLogs, compact: Compact | None) -> None:
        super().__init__(logs, OFFSETS_TOPIC, compact)
        self.groups: dict[str, dict[TopicPartition, _StoredOffset]] = {}
        self.states: dict[str, dict[tuple[OffsetsType, OffsetsKey], OffsetsRecord]] = {}
        self._groups_by_partition: dict[int, set[str]] = {}

    def apply(self, partition: int, record: Record) -> None:
        parsed = parse_offsets_record(record.key, record.value)
        if parsed is None:
            return
        group = parsed.key.group
        self._groups_by_partition.setdefault(partition, set()).add(group)
        if not isinstance(parsed.key, CommitKey):
            self._apply_state(group, parsed)
            return
        name = TopicPartition(parsed.key.topic, parsed.key.partition)
        offsets = self.groups.setdefault(group, {})
        before = offsets.get(name)
        if before is not None and before.position > record.offset:
            return  # this record's transaction ended late; the offset that was committed after the record is newer
        if isinstance(parsed.value, OffsetCommit):
            commit = parsed.value
            committed = CommittedOffset(commit.offset, commit.leader_epoch, commit.metadata)
            offsets[name] = _StoredOffset(
                record.offset, committed, commit.commit_timestamp_ms, commit.expire_timestamp_ms
            )
        else:
            offsets.pop(name, None)
        if not offsets:
            del self.groups[group]

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
