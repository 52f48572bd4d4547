"""The stored state of groups: records of ``__consumer_offsets`` as Kafka writes them.

A generation of a classic group is stored in three cases: the leader's assignment arrives, a static member gets a new
member id, or the last member leaves. A loaded group is therefore stable or empty.

Source: apache/kafka GroupCoordinatorRecordHelpers, ClassicGroup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.group_states import GroupKey, GroupMember, GroupMetadata, OffsetsRecord, OffsetsType
from stratalog_gateway.groups.classic_group import ClassicGroup, Member, State
from stratalog_gateway.groups.consumer_group import ConsumerGroup, MemberState, Records
from stratalog_gateway.groups.consumer_records import changes, restore_group
from stratalog_gateway.node import Node

_NS_PER_MS: Final = 1_000_000
_VERSION: Final = 3  # the version that brokers write


class StoredGroups:
    """Storage of the state of groups. Thread-safe; the caller holds the lock of the group."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def names(self) -> tuple[str, ...]:
        """Return the names of all groups that have a stored state."""
        return self._node.engine.group_states().groups_with_state()

    def load(self, name: str) -> ClassicGroup | ConsumerGroup:
        """Return a group with its stored state.

        If no state is stored, return a new classic group. The sessions of members restart.
        """
        records, now_ns = self._node.engine.group_states().states(name), self._node.now_ns()
        group = restore_group(name, records)
        if group is not None:
            group.mark_saved()
            ends_ns = now_ns + self._node.settings.consumer_session_ms * _NS_PER_MS
            group.session_ends_ns = dict.fromkeys(group.members, ends_ns)
            group.revoke_ends_ns = {
                member.id: now_ns + member.rebalance_ms * _NS_PER_MS
                for member in group.members.values()
                if member.state is MemberState.UNREVOKED_PARTITIONS
            }
            return group
        metadata = next((record.value for record in records if isinstance(record.value, GroupMetadata)), None)
        return ClassicGroup(name) if metadata is None else _restore_classic(name, metadata, now_ns)

    def store_consumer(self, group: ConsumerGroup, records: Records) -> None:
        """Store the changes from ``group.stored_records`` to ``records``, for a group of the consumer protocol."""
        changed = changes(group.stored_records, records)
        if changed:
            self._node.engine.group_states().store_states(group.name, changed, "written")
        group.stored_records = records

    def store_classic(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        """Store the present generation of a classic group, with assignments by member id."""
        value = GroupMetadata(
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader or None,
            state_timestamp_ms=self._node.clock.now_ms(),
            members=tuple(
                _encode_member(member, group.protocol, assignments.get(member.id, b""))
                for member in group.members.values()
            ),
        )
        record = OffsetsRecord(OffsetsType.GROUP_METADATA, GroupKey(group=group.name), value, _VERSION)
        self._node.engine.group_states().store_states(group.name, [record], "written")
        group.stored_generation = group.generation


def _restore_classic(name: str, metadata: GroupMetadata, now_ns: int) -> ClassicGroup:
    group = ClassicGroup(name, generation=metadata.generation, stored_generation=metadata.generation)
    group.protocol_type = metadata.protocol_type or None
    for stored_member in metadata.members:
        member = _decode_member(stored_member, metadata.protocol or "")
        group.add(member)
        member.restart_session(now_ns)
    if metadata.members:
        group.protocol, group.state = metadata.protocol, State.STABLE
        group.leader = metadata.leader if metadata.leader in group.members else next(iter(group.members))
    return group


def _decode_member(value: GroupMember, protocol: str) -> Member:
    rebalance_ms = value.rebalance_timeout_ms
    return Member(
        value.member, value.instance, value.client_id, value.client_host, value.session_timeout_ms,
        value.session_timeout_ms if rebalance_ms < 0 else rebalance_ms, ((protocol, value.subscription),),
        assignment=value.assignment,
    )  # fmt: skip


def _encode_member(member: Member, protocol: str | None, assignment: bytes) -> GroupMember:
    return GroupMember(
        member=member.id,
        instance=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_ms,
        session_timeout_ms=member.session_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )
