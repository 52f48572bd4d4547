"""Interface to the stored states of consumer groups, for group coordinators. ``Engine.group_states`` returns it.

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
    "ConsumerGroupMember",
    "ConsumerGroupMetadata",
    "CurrentMemberAssignment",
    "GroupKey",
    "GroupMember",
    "GroupMetadata",
    "GroupStates",
    "MemberKey",
    "OffsetsKey",
    "OffsetsRecord",
    "OffsetsType",
    "RegularExpressionKey",
    "ResolvedRegularExpression",
    "TargetAssignmentMember",
    "TargetAssignmentMetadata",
    "TopicIdPartitions",
]


class GroupStates(Protocol):
    """Store of the states of all groups. Thread-safe. Only the coordinator of a group writes its state."""

    def states(self, group: str) -> tuple[OffsetsRecord, ...]:
        """Return the latest record of each key of a group's state, without tombstones; () for an unknown group."""

    def groups_with_state(self) -> tuple[str, ...]:
        """Return the names of all groups that have a stored state, sorted."""

    def store_states(self, group: str, records: Iterable[OffsetsRecord], durability: str | None = None) -> None:
        """Store records of a group's state in one batch. A record without a value deletes the record with the same key.

        Args:
            group: name of the group.
            records: at most one for each key.
            durability: ``written`` or ``durable``; None is the engine's setting.

        Raises:
            InvalidRecordError: a record does not fit Kafka's schema.
            StorageError: the records could not be appended.
        """

    def expire(self, group: str, retention_ms: int) -> bool:
        """Delete the expired offsets of a group, and its stored state if no offset remains.

        The caller makes sure that the group has no members.

        An offset expires ``retention_ms`` after the group's last member left, or after its commit if the time of
        leaving is not stored. An offset with an expiry time of its own, as old clients store it, expires at that time. An
        offset that an open transaction would replace is kept.

        Returns:
            True if neither an offset nor the state of the group remains.
        """
