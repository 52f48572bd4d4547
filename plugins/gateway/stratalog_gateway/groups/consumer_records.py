"""The records of a group of the consumer protocol, as Kafka stores them in ``__consumer_offsets``.

All records are computed from the state of the group. Only records that differ from the stored records are written.
Kafka's broker accepts the tombstones of a member only in this order: current assignment, target assignment, member.

Source: apache/kafka GroupCoordinatorRecordHelpers, GroupMetadataManager.replay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from stratalog.group_states import (
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    CurrentMemberAssignment,
    GroupKey,
    MemberKey,
    OffsetsRecord,
    OffsetsType,
    RegularExpressionKey,
    ResolvedRegularExpression,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    TopicIdPartitions,
)
from stratalog_gateway.groups.assignors import Partitions, group_by_topic
from stratalog_gateway.groups.consumer_group import ConsumerGroup, ConsumerMember, MemberState, Records

_METADATA: Final = OffsetsType.CONSUMER_GROUP_METADATA
_TOPICS: Final = OffsetsType.CONSUMER_GROUP_PARTITION_METADATA
_MEMBER: Final = OffsetsType.CONSUMER_GROUP_MEMBER_METADATA
_TARGET_EPOCH: Final = OffsetsType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA
_TARGET: Final = OffsetsType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER
_CURRENT: Final = OffsetsType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT
_PATTERN: Final = OffsetsType.CONSUMER_GROUP_REGULAR_EXPRESSION
_WRITES: Final = (_MEMBER, _PATTERN, _METADATA, _TARGET, _TARGET_EPOCH, _CURRENT)
_OWN: Final = frozenset({*_WRITES, _TOPICS})
_NUMBER: Final = {state.value: state for state in MemberState}


def records_of(group: ConsumerGroup) -> Records:
    """Return all records that describe a group, by type and key. If the epoch of the group is 0, return no records."""
    records: list[OffsetsRecord] = []
    if not group.epoch:
        return {}
    group_key = GroupKey(group=group.name)
    for member in group.members.values():
        key = MemberKey(group=group.name, member=member.id)
        records.append(OffsetsRecord(_MEMBER, key, _encode_member(member), 0))
        if member.epoch:
            records.append(OffsetsRecord(_CURRENT, key, _current_assignment(member), 0))
    for pattern, resolved in group.patterns.items():
        records.append(
            OffsetsRecord(_PATTERN, RegularExpressionKey(group=group.name, regular_expression=pattern), resolved, 0)
        )
    records.append(OffsetsRecord(_METADATA, group_key, _group_metadata(group, group_key), 0))
    for member_id, partitions in group.target.items():
        target = TargetAssignmentMember(partitions=_encode_partitions(partitions))
        records.append(OffsetsRecord(_TARGET, MemberKey(group=group.name, member=member_id), target, 0))
    if group.target_epoch:
        epoch = TargetAssignmentMetadata(assignment_epoch=group.target_epoch)
        records.append(OffsetsRecord(_TARGET_EPOCH, group_key, epoch, 0))
    return {(record.kind, record.key): record for record in records}


def changes(before: Records, after: Records) -> list[OffsetsRecord]:
    """Return the tombstones and the records that change ``before`` to ``after``, in an order that Kafka accepts."""
    tombstones = [record.tombstone() for key, record in before.items() if key not in after]
    new = [record for key, record in after.items() if before.get(key) != record]
    return [
        *sorted(tombstones, key=lambda record: -record.kind),
        *sorted(new, key=lambda record: _WRITES.index(record.kind)),
    ]


def restore_group(name: str, records: Iterable[OffsetsRecord]) -> ConsumerGroup | None:
    """Return the group that stored records describe; None if the records are not of the consumer protocol.

    Members that use the classic protocol are omitted.
    """
    group, current = ConsumerGroup(name), dict[str, CurrentMemberAssignment]()
    for record in records:
        if record.kind in _OWN:
            group.stored_records[record.kind, record.key] = record
        if isinstance(record.key, MemberKey):
            _restore_member(group, record.key.member, record, current)
        elif isinstance(record.value, ConsumerGroupMetadata):
            group.epoch = record.value.epoch
        elif isinstance(record.value, TargetAssignmentMetadata):
            group.target_epoch = record.value.assignment_epoch
        elif isinstance(record.key, RegularExpressionKey) and isinstance(record.value, ResolvedRegularExpression):
            group.patterns[record.key.regular_expression] = record.value
    for member_id, assignment in current.items():
        if member_id in group.members:
            group.members[member_id] = _restore_assignment(group.members[member_id], assignment)
    return group if group.epoch else None


def _restore_member(
    group: ConsumerGroup, member_id: str, record: OffsetsRecord, current: dict[str, CurrentMemberAssignment]
) -> None:
    """Add the contents of one record about a member to ``group``. If it is a current assignment, add it to ``current``.

    A current assignment may precede the record of its member. Tombstones, and members that use the classic protocol,
    are ignored.
    """
    value = record.value
    if isinstance(value, TargetAssignmentMember):
        group.target[member_id] = _decode_partitions(value.partitions)
    elif isinstance(value, CurrentMemberAssignment):
        current[member_id] = value
    elif isinstance(value, ConsumerGroupMember) and value.classic is None:
        group.members[member_id] = _decode_member(member_id, value)


def _group_metadata(group: ConsumerGroup, key: GroupKey) -> ConsumerGroupMetadata:
    """Return the metadata of a group. If the epoch has not changed, return the stored metadata.

    Stored metadata may contain a hash of the topics from a Kafka broker. Without the hash, a broker that takes over the
    group would start the next epoch at the first heartbeat.
    """
    record = group.stored_records.get((_METADATA, key))
    metadata = None if record is None else record.value
    if isinstance(metadata, ConsumerGroupMetadata) and metadata.epoch == group.epoch:
        return metadata
    return ConsumerGroupMetadata(epoch=group.epoch)


def _encode_member(member: ConsumerMember) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        instance=member.instance_id,
        rack=member.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(member.topics)),
        regular_expression=member.pattern,
        rebalance_timeout_ms=member.rebalance_ms,
        assignor=member.assignor,
    )


def _decode_member(member_id: str, value: ConsumerGroupMember) -> ConsumerMember:
    return ConsumerMember(
        member_id, value.instance, value.rack, value.client_id, value.client_host, tuple(value.topics),
        value.regular_expression or None, value.rebalance_timeout_ms, value.assignor,
    )  # fmt: skip


def _current_assignment(member: ConsumerMember) -> CurrentMemberAssignment:
    return CurrentMemberAssignment(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned=_encode_partitions(member.assigned),
        pending_revocation=_encode_partitions(member.revoking),
    )


def _restore_assignment(member: ConsumerMember, assignment: CurrentMemberAssignment) -> ConsumerMember:
    """Return a member with its stored assignment.

    If the stored state is unknown, for example a state of a later release, the member has no partitions, and must
    rejoin.
    """
    state = _NUMBER.get(assignment.state)
    if state is None:
        return member
    return dataclasses.replace(
        member,
        epoch=assignment.member_epoch,
        previous_epoch=assignment.previous_member_epoch,
        state=state,
        assigned=_decode_partitions(assignment.assigned),
        revoking=_decode_partitions(assignment.pending_revocation),
    )


def _encode_partitions(partitions: Partitions) -> tuple[TopicIdPartitions, ...]:
    return tuple(
        TopicIdPartitions(topic_id=topic, partitions=numbers) for topic, numbers in group_by_topic(partitions).items()
    )


def _decode_partitions(topics: Iterable[TopicIdPartitions]) -> Partitions:
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)
