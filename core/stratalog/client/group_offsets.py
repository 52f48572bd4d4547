"""Writes of committed offsets and of the states of groups, to ``__consumer_offsets``.

Source: apache/kafka OffsetMetadataManager, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from stratalog.client.committed_offsets import CommittedOffset, CommittedOffsets
from stratalog.client.log_access import Logs
from stratalog.client.sequences import ProducerId
from stratalog.client.statetopic import PARTITIONS, Compact
from stratalog.env.clock import Clock
from stratalog.errors import ConfigError, NotLeaderOrFollowerError, StorageError, UnknownTopicError
from stratalog.model.messages.offsets_topic import (
    CommitKey,
    GroupMetadata,
    OffsetCommit,
    OffsetsRecord,
    OffsetsType,
    offsets_key,
    offsets_value,
)
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record
from stratalog.spi.formats import BatchHeader

_MAGIC: Final = 2  # magic of transactional batches
VALUE_VERSION: Final = 3  # the version that brokers write; brokers from 2.1 on read it
_LOGGER: Final = logging.getLogger("stratalog.client")


class GroupOffsets(CommittedOffsets):
    """The committed offsets and the stored states of all groups, for reading and writing. Thread-safe.

    Args:
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
            must_exist: False to allow partitions that do not exist here. A partition with the value None need never
                exist.

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

        Raises the errors of ``committed``.
        """
        with self._lock:
            self._topic.refresh_for(group)
            return tuple(self._topic.states.get(group, {}).values())

    def groups_with_state(self) -> tuple[str, ...]:
        """Return the names of all groups that have a stored state, sorted. Raises the errors of ``groups``."""
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
        Raises the errors of ``committed`` and ``commit``.

        Source: apache/kafka OffsetMetadataManager.deleteAllOffsets.
        """
        offsets, states = {*self.committed(group), *self.pending(group)}, self.states(group)
        self.commit(group, dict.fromkeys(offsets), durability)
        self.store_states(group, _tombstones(states), durability)
        return bool(offsets or states)

    def expire(self, group: str, retention_ms: int) -> bool:
        """Delete the expired offsets of a group without members, and the group's stored state if no offset remains.

        An offset expires ``retention_ms`` after the group's last member left, or, if that time is not stored, after the
        commit of the offset. If an offset was stored with its own expiration time, it expires at that time. An offset
        that an open transaction would replace is kept. Raises the errors of ``delete``.

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

        If these offsets remained, groups would skip the first records of a new topic with the same name. A partition of
        the offsets topic that cannot be read is skipped, and its error is logged.

        Raises:
            StorageError: the offsets of a group could not be deleted. The first such error is raised after all groups
                have been processed.

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
        self, group: str, offsets: Mapping[TopicPartition, int | CommittedOffset | None], *, must_exist: bool = True
    ) -> tuple[TopicPartition, list[Record]]:
        """Return the partition of ``__consumer_offsets`` for a group, and the records that commit these offsets there.

        The topic is created if it does not exist. No offset is stored. ``commit`` describes the arguments and errors.
        """
        for name, offset in offsets.items():
            if offset is not None and must_exist:
                self._check_exists(TopicPartition(*name))
        partition, now = self.partition_of(group), self._clock.now_ms()
        return partition, [commit_record(group, TopicPartition(*name), offset, now) for name, offset in offsets.items()]

    def append_in_transaction(self, partition: TopicPartition, records: Sequence[Record], producer: ProducerId) -> None:
        """Append the result of ``records`` as a transactional batch. As in Kafka, the batch has no sequence number.

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

        Raises the errors of ``committed``.
        """
        with self._lock:
            self._topic.refresh_for(group)
            return frozenset(name for pending_group, name in self._topic.pending_names() if pending_group == group)

    def partition_of(self, group: str) -> TopicPartition:
        """Return the partition of ``__consumer_offsets`` for a group. Create the topic if it does not exist.

        Raises the errors of ``Engine.create_topic``.
        """
        return self._topic.created_partition(group, self._lock, self._logs, self._partitions)

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
        raise ConfigError(f"a committed offset must be at least 0, not {offset} (group={group} partition={name})")
    value = OffsetCommit(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp_ms=now_ms,
    )
    return Record(timestamp_ms=now_ms, key=key, value=offsets_value(kind, value, VALUE_VERSION))
