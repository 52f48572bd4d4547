"""The records of a group of the consumer protocol, as Kafka stores them in ``__consumer_offsets``.

All records are computed from the state of the group. Only records that differ from the stored records are written.
Kafka's broker accepts the tombstones of a member only in descending order of the record type: current assignment,
target assignment, member.

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
from stratalog_gateway.groups.assignors import Partitions, by_topic
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
    """Return all records that describe a group, by type and key; none if the epoch of the group is 0."""
    found: list[OffsetsRecord] = []
    if not group.epoch:
        return {}
    whole = GroupKey(group=group.name)
    for member in group.members.values():
        key = MemberKey(group=group.name, member=member.id)
        found.append(OffsetsRecord(_MEMBER, key, _metadata(member), 0))
        if member.epoch:
            found.append(OffsetsRecord(_CURRENT, key, _current(member), 0))
    for pattern, resolved in group.patterns.items():
        found.append(
            OffsetsRecord(_PATTERN, RegularExpressionKey(group=group.name, regular_expression=pattern), resolved, 0)
        )
    found.append(OffsetsRecord(_METADATA, whole, _group(group, whole), 0))
    for member_id, partitions in group.target.items():
        target = TargetAssignmentMember(partitions=_grouped(partitions))
        found.append(OffsetsRecord(_TARGET, MemberKey(group=group.name, member=member_id), target, 0))
    if group.target_epoch:
        epoch = TargetAssignmentMetadata(assignment_epoch=group.target_epoch)
        found.append(OffsetsRecord(_TARGET_EPOCH, whole, epoch, 0))
    return {(record.kind, record.key): record for record in found}


def changes(before: Records, after: Records) -> list[OffsetsRecord]:
    """Return the tombstones and the records that change ``before`` to ``after``, in an order that Kafka accepts."""
    gone = [record.tombstone() for key, record in before.items() if key not in after]
    new = [record for key, record in after.items() if before.get(key) != record]
    return [
        *sorted(gone, key=lambda record: -record.kind),
        *sorted(new, key=lambda record: _WRITES.index(record.kind)),
    ]


def restored(name: str, records: Iterable[OffsetsRecord]) -> ConsumerGroup | None:
    """Return the group that stored records describe; None if the records are not of the consumer protocol.

    Members that use the classic protocol are omitted.
    """
    group, current = ConsumerGroup(name), dict[str, CurrentMemberAssignment]()
    for record in records:
        if record.kind in _OWN:
            group.stored[record.kind, record.key] = record
        if isinstance(record.key, MemberKey):
            _restore_member(group, record.key.member, record, current)
        elif isinstance(record.value, ConsumerGroupMetadata):
            group.epoch = record.value.epoch
        elif isinstance(record.value, TargetAssignmentMetadata):
            group.target_epoch = record.value.assignment_epoch
        elif isinstance(record.key, RegularExpressionKey) and isinstance(record.value, ResolvedRegularExpression):
            group.patterns[record.key.regular_expression] = record.value
    for member_id, found in current.items():
        if member_id in group.members:
            group.members[member_id] = _with_current(group.members[member_id], found)
    return group if group.epoch else None


def _restore_member(
    group: ConsumerGroup, member_id: str, record: OffsetsRecord, current: dict[str, CurrentMemberAssignment]
) -> None:
    """Add the contents of one record about a member to ``group``, or a current assignment to ``current``.

    The member's own record may follow the current assignment. Tombstones, and members that use the classic protocol,
    are ignored.
    """
    found = record.value
    if isinstance(found, TargetAssignmentMember):
        group.target[member_id] = _flat(found.partitions)
    elif isinstance(found, CurrentMemberAssignment):
        current[member_id] = found
    elif isinstance(found, ConsumerGroupMember) and found.classic is None:
        group.members[member_id] = _member(member_id, found)


def _group(group: ConsumerGroup, key: GroupKey) -> ConsumerGroupMetadata:
    """Return the metadata of a group; if the epoch has not changed, return the stored metadata.

    Stored metadata may contain a hash of the topics from a Kafka broker. Without the hash, a broker that takes over the
    group would start the next epoch at the first heartbeat.
    """
    stored = group.stored.get((_METADATA, key))
    known = None if stored is None else stored.value
    if isinstance(known, ConsumerGroupMetadata) and known.epoch == group.epoch:
        return known
    return ConsumerGroupMetadata(epoch=group.epoch)


def _metadata(member: ConsumerMember) -> ConsumerGroupMember:
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


def _member(member_id: str, stored: ConsumerGroupMember) -> ConsumerMember:
    return ConsumerMember(
        member_id, stored.instance, stored.rack, stored.client_id, stored.client_host, tuple(stored.topics),
        stored.regular_expression or None, stored.rebalance_timeout_ms, stored.assignor,
    )  # fmt: skip


def _current(member: ConsumerMember) -> CurrentMemberAssignment:
    return CurrentMemberAssignment(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned=_grouped(member.assigned),
        pending_revocation=_grouped(member.revoking),
    )


def _with_current(member: ConsumerMember, stored: CurrentMemberAssignment) -> ConsumerMember:
    """Return a member with its stored assignment.

    If the stored state is unknown, such as a state of a later release, the member has no partitions and must rejoin.
    """
    state = _NUMBER.get(stored.state)
    if state is None:
        return member
    return dataclasses.replace(
        member,
        epoch=stored.member_epoch,
        previous_epoch=stored.previous_member_epoch,
        state=state,
        assigned=_flat(stored.assigned),
        revoking=_flat(stored.pending_revocation),
    )


def _grouped(partitions: Partitions) -> tuple[TopicIdPartitions, ...]:
    return tuple(
        TopicIdPartitions(topic_id=topic, partitions=numbers) for topic, numbers in by_topic(partitions).items()
    )


def _flat(stored: Iterable[TopicIdPartitions]) -> Partitions:
    return frozenset((found.topic_id, number) for found in stored for number in found.partitions)
