"""The operations of an engine for clients: producers, consumers and consumer groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Unpack, overload

from stratalog.client.clients import Clients, ProducerKeywords
from stratalog.client.committed_offsets import CommittedOffset
from stratalog.client.consumer import Consumer
from stratalog.client.group_offsets import GroupOffsets
from stratalog.client.producer import Producer
from stratalog.client.sequences import new_producer_id
from stratalog.client.serializers import DeserializedRecord, Deserializer, Deserializers
from stratalog.client.transactions.coordinator import TransactionCoordinator
from stratalog.engine.engine_duties import EngineDuties
from stratalog.group_states import GroupStates
from stratalog.model.names import TopicPartition


class EngineClients(EngineDuties):
    """Base class of ``Engine`` with its operations for clients: producers, consumers and groups.

    ``Engine`` sets ``_clients``, which creates the clients and has their shared state.
    """

    _clients: Clients

    def producer(self, *, transactional_id: str | None = None, **options: Unpack[ProducerKeywords]) -> Producer:
        """Create a producer.

        Args:
            transactional_id: id of a transactional producer, which fences older producers with the same id; None for a
                producer without transactions.
            options: fields of ``ProducerOptions``.

        Raises:
            ConfigError, UnsupportedCompressionError: an option is wrong.
            StorageError: the state of the transactional id cannot be read or stored, or the open transaction of an
                older producer cannot be aborted.
        """
        self._logs.check_open()
        return self._clients.producer(transactional_id=transactional_id, **options)

    def new_producer_id(self) -> int:
        """Return a new producer id for a client that encodes its batches itself. The first epoch of the id is 0.

        The id is a random number from 2^62 to 2^63 - 1. Kafka assigns ids from 0 upwards.
        """
        self._logs.check_open()
        return new_producer_id(self._logs.env.chance).producer_id

    @property
    def transactions(self) -> TransactionCoordinator:
        """Transaction coordinator of all transactional producers, including clients of a gateway."""
        self._logs.check_open()
        return self._clients.coordinator

    @overload
    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = ...,
        group: str | None = ...,
        isolation: str = ...,
        auto_offset_reset: str = ...,
    ) -> Consumer: ...

    @overload
    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = ...,
        group: str | None = ...,
        isolation: str = ...,
        auto_offset_reset: str = ...,
        key_deserializer: Deserializer | None = ...,
        value_deserializer: Deserializer | None = ...,
    ) -> Consumer[DeserializedRecord]: ...

    def consumer(
        self,
        *,
        topics: Iterable[str] | re.Pattern[str] = (),
        group: str | None = None,
        isolation: str = "read_uncommitted",
        auto_offset_reset: str = "latest",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> Consumer[Any]:
        """Create a consumer of all partitions of ``topics``. ``Consumer`` describes the arguments and the errors.

        With a deserializer, the consumer returns records of the type ``DeserializedRecord``.
        """
        has_deserializers = key_deserializer is not None or value_deserializer is not None
        return Consumer(
            self._clients.logs,
            self._logs.env.clock,
            self._group_offsets(),
            topics=topics,
            group=group,
            isolation=isolation,
            auto_offset_reset=auto_offset_reset,
            deserializers=Deserializers(key_deserializer, value_deserializer) if has_deserializers else None,
        )

    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups with committed offsets, sorted. Raises the errors of ``group_offsets``."""
        return self._group_offsets().groups()

    def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, by partition; {} for an unknown group.

        Raises:
            StorageError: the stored offsets cannot be read.
        """
        return self._group_offsets().committed(group)

    def pending_group_offsets(self, group: str) -> frozenset[TopicPartition]:
        """Return the partitions for which an open transaction has written an offset of the group.

        Raises the errors of ``group_offsets``.
        """
        return self._group_offsets().pending(group)

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | CommittedOffset | None],
        durability: str | None = None,
        *,
        must_exist: bool = True,
    ) -> None:
        """Commit offsets of a group without a consumer. Call this method only while no consumer of the group runs.

        Args:
            group: name of the group. As in Kafka, it may be empty.
            offsets: offset of the next record to read, by partition; None deletes the committed offset.
            durability: ``written`` or ``durable``; None is the engine's setting.
            must_exist: False to allow partitions that this engine does not have, for a group that reads them from
                another engine. A partition with the value None need never exist.

        Raises:
            ConfigError: an offset that is given as an integer is negative, or ``durability`` is not one of these words.
            UnknownTopicError: ``must_exist`` is True, and a partition with an offset does not exist here; nothing was
                stored.
            StorageError: the offsets could not be stored.
        """
        self._group_offsets().commit(group, offsets, durability, must_exist=must_exist)

    def delete_group(self, group: str, durability: str | None = None) -> bool:
        """Delete all committed offsets and the stored state of a group. Return False if the group has neither.

        Call this method only while no consumer of the group runs. ``durability`` is ``written`` or ``durable``; None is
        the engine's setting.

        Raises:
            ConfigError: ``durability`` is not one of these words.
            StorageError: the stored offsets cannot be read, or the deletion cannot be stored.
        """
        return self._group_offsets().delete(group, durability)

    def group_states(self) -> GroupStates:
        """Return the store of group states (members, generations, assignments), for a group coordinator."""
        return self._group_offsets()

    def _group_offsets(self) -> GroupOffsets:
        self._logs.check_open()
        self._clients.coordinator.recover()  # ends the transactions that may commit offsets
        return self._clients.offsets
