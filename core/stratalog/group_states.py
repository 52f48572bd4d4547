"""Stored states of consumer groups, for coordinators of groups: what ``Engine.group_states`` returns, and its records.

Kafka stores the state of a group in ``__consumer_offsets``, as records of several types: for a classic group one
``GroupMetadata``, for a group of the protocol of KIP-848 records of the group and of each member.

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
    """The stored states of all groups. Thread-safe. The coordinator of a group is the only writer of its state."""

    def states(self, group: str) -> tuple[OffsetsRecord, ...]:
        """Return the latest records of a group's state; none for an unknown group. None of them is a tombstone."""

    def groups_with_state(self) -> tuple[str, ...]:
        """Return all groups that have a stored state, sorted."""

    def store_states(self, group: str, records: Iterable[OffsetsRecord], durability: str | None = None) -> None:
        """Store records of a group's state in one batch. A record without a value deletes the one with its key.

        Args:
            group: name of the group.
            records: at most one for each key.
            durability: ``written`` or ``durable``; None is the engine's setting.

        Raises:
            InvalidRecordError: a record does not fit Kafka's schema.
            StorageError: the records could not be appended.
        """

    def expire(self, group: str, retention_ms: int) -> bool:
        """Delete the expired offsets of a group without members, and its state if no offset is left.

        An offset expires ``retention_ms`` after the last member left, or after its commit if that is not stored. An
        offset that an open transaction would replace is kept.

        Returns:
            True if nothing of the group is left.
        """
