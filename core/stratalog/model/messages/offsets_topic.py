"""Records of ``__consumer_offsets``: committed offsets, and the state of groups.

A record without a value is a tombstone. The version number at the start of a key is the type of the record.

Source: apache/kafka GroupCoordinatorRecordSerde; the schemas in group-coordinator's ``common/message`` folder.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, TypeAlias

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.schema import SchemaReader
from stratalog.model.messages.structures import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Schema,
    array_of,
    nested,
    nullable_nested,
    stored,
    structure,
)

OFFSETS_TOPIC: Final = "__consumer_offsets"


class OffsetsType(IntEnum):
    """The type of a record. Kafka defines the numbers, and keys contain them: never change them."""

    OLD_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    GROUP_METADATA = 2
    CONSUMER_GROUP_METADATA = 3
    CONSUMER_GROUP_PARTITION_METADATA = 4
    CONSUMER_GROUP_MEMBER_METADATA = 5
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
    SHARE_GROUP_PARTITION_METADATA = 9
    SHARE_GROUP_MEMBER_METADATA = 10
    SHARE_GROUP_METADATA = 11
    SHARE_GROUP_TARGET_ASSIGNMENT_METADATA = 12
    SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER = 13
    SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT = 14
    SHARE_GROUP_STATE_PARTITION_METADATA = 15
    CONSUMER_GROUP_REGULAR_EXPRESSION = 16


# --- keys --------------------------------------------------------------------------------------------------------


@structure
class CommitKey:
    """The key of a committed offset: group, topic and partition."""

    group: str = stored(STRING)
    topic: str = stored(STRING)
    partition: int = stored(INT32)


@structure
class GroupKey:
    """The key of a record about a group."""

    group: str = stored(STRING)


@structure
class MemberKey:
    """The key of a record about a member of a group."""

    group: str = stored(STRING)
    member: str = stored(STRING)


@structure
class RegularExpressionKey:
    """The key of the record about a regular expression with which members of a group subscribe to topics."""

    group: str = stored(STRING)
    regular_expression: str = stored(STRING)


# --- values ------------------------------------------------------------------------------------------------------


@structure
class OffsetCommit:
    """A committed offset: the next offset that the group reads. Fields that a version does not store are -1."""

    offset: int = stored(INT64)
    leader_epoch: int = stored(INT32, since=3, default=-1)
    metadata: str = stored(STRING)
    commit_timestamp_ms: int = stored(INT64)
    expire_timestamp_ms: int = stored(INT64, since=1, until=1, default=-1)


@structure
class GroupMember:
    """A member of a classic group. The group's protocol type defines the format of ``subscription`` and ``assignment``.

    In version 0 of the group metadata, ``rebalance_timeout_ms`` is -1; then ``session_timeout_ms`` applies.
    """

    member: str = stored(STRING)
    instance: str | None = stored(NULLABLE_STRING, since=3, default=None)
    client_id: str = stored(STRING)
    client_host: str = stored(STRING)
    rebalance_timeout_ms: int = stored(INT32, since=1, default=-1)
    session_timeout_ms: int = stored(INT32)
    subscription: bytes = stored(BYTES)
    assignment: bytes = stored(BYTES)


@structure
class GroupMetadata:
    """The state of a classic group. A group without ``members`` is in Kafka's state Empty."""

    protocol_type: str = stored(STRING)
    generation: int = stored(INT32)
    protocol: str | None = stored(NULLABLE_STRING)
    leader: str | None = stored(NULLABLE_STRING)
    state_timestamp_ms: int = stored(INT64, since=2, default=-1)
    members: tuple[GroupMember, ...] = stored(array_of(nested(GroupMember)))


@structure
class ConsumerGroupMetadata:
    """The epoch of a group of the consumer protocol (KIP-848), and a hash of its topics (0 before Kafka 4.1)."""

    epoch: int = stored(INT32)
    metadata_hash: int = stored(INT64, tag=0, default=0)


@structure
class PartitionRacks:
    """The racks that have a replica of a partition."""

    partition: int = stored(INT32)
    racks: tuple[str, ...] = stored(array_of(STRING))


@structure
class SubscribedTopic:
    """A topic that a group subscribes to."""

    topic_id: uuid.UUID = stored(UUID)
    topic: str = stored(STRING)
    partition_count: int = stored(INT32)
    partitions: tuple[PartitionRacks, ...] = stored(array_of(nested(PartitionRacks)))


@structure
class SubscribedTopics:
    """The topics that a group subscribes to."""

    topics: tuple[SubscribedTopic, ...] = stored(array_of(nested(SubscribedTopic)))


@structure
class ClassicProtocol:
    """An assignment protocol that a member supports. The protocol defines the format of ``metadata``."""

    name: str = stored(STRING)
    metadata: bytes = stored(BYTES)


@structure
class ClassicMember:
    """A member that uses the classic protocol in a group of the consumer protocol (KIP-848)."""

    session_timeout_ms: int = stored(INT32)
    protocols: tuple[ClassicProtocol, ...] = stored(array_of(nested(ClassicProtocol)))


@structure
class ConsumerGroupMember:
    """A member of a group of the consumer protocol (KIP-848)."""

    instance: str | None = stored(NULLABLE_STRING)
    rack: str | None = stored(NULLABLE_STRING)
    client_id: str = stored(STRING)
    client_host: str = stored(STRING)
    topics: tuple[str, ...] = stored(array_of(STRING))
    regular_expression: str | None = stored(NULLABLE_STRING)
    rebalance_timeout_ms: int = stored(INT32)
    assignor: str | None = stored(NULLABLE_STRING)
    classic: ClassicMember | None = stored(nullable_nested(ClassicMember), tag=0, default=None)


@structure
class TargetAssignmentMetadata:
    """The epoch of a group's target assignment."""

    assignment_epoch: int = stored(INT32)


@structure
class TopicIdPartitions:
    """Some partitions of a topic."""

    topic_id: uuid.UUID = stored(UUID)
    partitions: tuple[int, ...] = stored(array_of(INT32))


@structure
class TargetAssignmentMember:
    """The partitions that the target assignment gives to a member."""

    partitions: tuple[TopicIdPartitions, ...] = stored(array_of(nested(TopicIdPartitions)))


@structure
class CurrentMemberAssignment:
    """A member's current partitions; ``state`` is the number of Kafka's MemberState."""

    member_epoch: int = stored(INT32)
    previous_member_epoch: int = stored(INT32)
    state: int = stored(INT8)
    assigned: tuple[TopicIdPartitions, ...] = stored(array_of(nested(TopicIdPartitions)))
    pending_revocation: tuple[TopicIdPartitions, ...] = stored(array_of(nested(TopicIdPartitions)))


@structure
class ResolvedRegularExpression:
    """The topics that a regular expression matched in the cluster metadata of ``version`` at ``timestamp_ms``."""

    topics: tuple[str, ...] = stored(array_of(STRING))
    version: int = stored(INT64)
    timestamp_ms: int = stored(INT64)


OFFSET_COMMIT: Final = Schema(OffsetCommit, "an offset commit", range(5), 4)
GROUP_METADATA: Final = Schema(GroupMetadata, "a group's metadata", range(5), 4)

OffsetsKey: TypeAlias = CommitKey | GroupKey | MemberKey | RegularExpressionKey
OffsetsValue: TypeAlias = (
    OffsetCommit | GroupMetadata | ConsumerGroupMetadata | SubscribedTopics | ConsumerGroupMember |
    TargetAssignmentMetadata | TargetAssignmentMember | CurrentMemberAssignment | ResolvedRegularExpression
)  # fmt: skip


def _value(declared: type[Any], name: str) -> Schema[Any]:
    """Return the schema of a value of the consumer protocol (KIP-848); all these schemas have only version 0."""
    return Schema(declared, name, range(1), 0)


# The key's structure, and the value's schema; None if Kafka changed the schema without a new version.
_TYPES: Final[dict[OffsetsType, tuple[type[Any], Schema[Any] | None]]] = {
    OffsetsType.OLD_OFFSET_COMMIT: (CommitKey, OFFSET_COMMIT),
    OffsetsType.OFFSET_COMMIT: (CommitKey, OFFSET_COMMIT),
    OffsetsType.GROUP_METADATA: (GroupKey, GROUP_METADATA),
    OffsetsType.CONSUMER_GROUP_METADATA: (GroupKey, _value(ConsumerGroupMetadata, "a consumer group's metadata")),
    OffsetsType.CONSUMER_GROUP_PARTITION_METADATA: (GroupKey, _value(SubscribedTopics, "a group's topics")),
    OffsetsType.CONSUMER_GROUP_MEMBER_METADATA: (MemberKey, _value(ConsumerGroupMember, "a group's member")),
    OffsetsType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: (
        GroupKey,
        _value(TargetAssignmentMetadata, "a target assignment's epoch"),
    ),
    OffsetsType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: (
        MemberKey,
        _value(TargetAssignmentMember, "a member's target assignment"),
    ),
    OffsetsType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: (
        MemberKey,
        _value(CurrentMemberAssignment, "a member's assignment"),
    ),
    OffsetsType.SHARE_GROUP_PARTITION_METADATA: (GroupKey, None),
    OffsetsType.SHARE_GROUP_MEMBER_METADATA: (MemberKey, None),
    OffsetsType.SHARE_GROUP_METADATA: (GroupKey, None),
    OffsetsType.SHARE_GROUP_TARGET_ASSIGNMENT_METADATA: (GroupKey, None),
    OffsetsType.SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER: (MemberKey, None),
    OffsetsType.SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT: (MemberKey, None),
    OffsetsType.SHARE_GROUP_STATE_PARTITION_METADATA: (GroupKey, None),
    OffsetsType.CONSUMER_GROUP_REGULAR_EXPRESSION: (
        RegularExpressionKey,
        _value(ResolvedRegularExpression, "a group's regular expression"),
    ),
}
_KEYS: Final = {
    kind: Schema[Any](declared, f"a key of {OFFSETS_TOPIC}", range(kind, kind + 1), kind + 1)
    for kind, (declared, _) in _TYPES.items()
}


@dataclass(frozen=True, slots=True)
class OffsetsRecord:
    """One record of ``__consumer_offsets``.

    Attributes:
        kind: type of the record.
        key: the key; ``kind`` decides its class.
        value: the value; None for a tombstone. For share groups, the value is not parsed, because its schema may still
            change: it is bytes that start with the version.
        value_version: version of the value's schema; None for a tombstone.
    """

    kind: OffsetsType
    key: OffsetsKey
    value: OffsetsValue | bytes | None
    value_version: int | None

    def tombstone(self) -> OffsetsRecord:
        """Return a record with this key and without a value, which deletes this record."""
        return replace(self, value=None, value_version=None)


def parse_offsets_record(key: bytes | None, value: bytes | None) -> OffsetsRecord | None:
    """Return the record with this key and value; None if the key's type is unknown, because readers skip it.

    Raises:
        InvalidRecordError: the key is null, the value's version is unknown, or key or value do not match their schema.
    """
    if key is None:
        raise InvalidRecordError(f"a record of {OFFSETS_TOPIC} has no key")
    number = SchemaReader(key, f"a key of {OFFSETS_TOPIC}").version()
    if number not in _TYPES:
        return None
    kind = OffsetsType(number)
    parsed_key, _ = _KEYS[kind].parse(key)
    if value is None:
        return OffsetsRecord(kind, parsed_key, None, None)
    schema = _TYPES[kind][1]
    if schema is None:
        version = SchemaReader(value, f"a value of {OFFSETS_TOPIC}").version()
        return OffsetsRecord(kind, parsed_key, value, version)
    parsed, version = schema.parse(value)
    return OffsetsRecord(kind, parsed_key, parsed, version)


def offsets_key(kind: OffsetsType, key: OffsetsKey) -> bytes:
    """Return the encoded key of a record.

    Raises:
        InvalidRecordError: ``key`` is of a wrong class for ``kind``, or a number or text does not fit its field.
    """
    if not isinstance(key, _TYPES[kind][0]):
        raise InvalidRecordError(f"{kind.name} has no key of type {type(key).__name__}")
    return _KEYS[kind].encode(key, kind)


def offsets_value(kind: OffsetsType, value: OffsetsValue, version: int) -> bytes:
    """Return the encoded value of a record, in this version of its schema.

    Raises:
        InvalidRecordError: ``value`` is of a wrong class for ``kind``, a number or text does not fit its field, or the
            version is unknown. The error is always raised for share groups, whose values this module cannot encode.
    """
    schema = _TYPES[kind][1]
    if schema is None or not isinstance(value, schema.declared):
        raise InvalidRecordError(f"{kind.name} has no value of type {type(value).__name__}")
    return schema.encode(value, version)
