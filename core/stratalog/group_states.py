"""Interface to the stored states of consumer groups, for group coordinators: ``Engine.group_states``.

As in Kafka, the state of a group is stored in ``__consumer_offsets``, as records of several types. A classic group has
one ``GroupMetadata`` record. A group with the protocol of KIP-848 has records of the group and of each member.

Source: apache/kafka GroupCoordinatorRecordHelpers, KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stratalog.model.messages.offsets_topic import (
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    CurrentMemberAssignment,
    GroupKey,
    GroupMember,
    GroupMetadata,
    MemberKey,
    OffsetsKey,
    OffsetsRecord,
    OffsetsType,
    RegularExpressionKey,
    ResolvedRegularExpression,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    TopicIdPartitions,
)

__all__ = [
    "ConsumerGroupMember", "ConsumerGroupMetadata", "CurrentMemberAssignment", "GroupKey", "GroupMember",
    "GroupMetadata", "GroupStates", "MemberKey", "OffsetsKey", "OffsetsRecord", "OffsetsType", "RegularExpressionKey",
    "ResolvedRegularExpression", "TargetAssignmentMember", "TargetAssignmentMetadata", "TopicIdPartitions",
]  # fmt: skip


class GroupStates(Protocol):
    """Stored states of all consumer groups. Thread-safe. Only the coordinator of a group may write its state."""

    def states(self, group: str) -> tuple[OffsetsRecord, ...]:
        """Return the latest record of each key of a group's state, without tombstones; () if no state is stored."""

    def groups_with_state(self) -> tuple[str, ...]:
        """Return the names of all groups that have a stored state, sorted."""

    def store_states(self, group: str, records: Iterable[OffsetsRecord], durability: str | None = None) -> None:
        """Store records of a group's state in one batch. A record without a value deletes the record with its key.

        Args:
            group: name of the group.
            records: the records, at most one for each key.
            durability: ``written`` or ``durable``; None means the engine's setting.

        Raises:
            InvalidRecordError: a record does not fit Kafka's schema.
            StorageError: the records could not be appended.
        """

    def expire(self, group: str, retention_ms: int) -> bool:
        """Delete the expired offsets of a group without members, and its stored state if no offset remains.

        An offset expires ``retention_ms`` after the group's last member left, or after its commit if the time of
        leaving is not stored. An offset with its own expiry time, which old clients store, expires at that time. An
        offset that an open transaction would replace is kept. The coordinator must not accept a commit of the group
        during the call: the call could delete the new offset.

        Return True if neither an offset nor the state of the group remains. Raise StorageError if the deletion could
        not be appended.
        """
