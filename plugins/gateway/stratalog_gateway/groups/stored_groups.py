"""The stored state of groups: records of ``__consumer_offsets`` as Kafka writes them.

A generation of a classic group is stored when the leader's assignment arrives, when a static member gets a new member
id, and when the last member has left. A group is therefore stable or empty when it is loaded.

Source: apache/kafka GroupCoordinatorRecordHelpers, ClassicGroup.
"""

from __future__ import annotations

from typing import Final

from stratalog.errors import StorageError
from stratalog.group_states import GroupKey, GroupMember, GroupMetadata, OffsetsRecord, OffsetsType
from stratalog_gateway.error_codes import Code, coordinator_code
from stratalog_gateway.groups.consumer_group import ConsumerGroup, MemberState, Records
from stratalog_gateway.groups.consumer_records import changes, restored
from stratalog_gateway.groups.group import Group, Member, State
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

    def load(self, group: Group) -> None:
        """Fill a new group with its stored state, if a state is stored. Restart the sessions of its members.

        Raises:
            StorageError: the state cannot be read.
        """
        records = self._node.engine.group_states().states(group.name)
        modern = restored(group.name, records)
        if modern is not None:
            modern.saved()
            ends_ns = self._node.now_ns() + self._node.settings.consumer_session_ms * _NS_PER_MS
            modern.session_ends_ns = dict.fromkeys(modern.members, ends_ns)
            modern.revoke_ends_ns = {
                member.id: self._node.now_ns() + member.rebalance_ms * _NS_PER_MS
                for member in modern.members.values()
                if member.state is MemberState.UNREVOKED_PARTITIONS
            }
            group.modern = modern
            return
        found = next(
            (record.value for record in records if isinstance(record.value, GroupMetadata)),
            None,
        )
        if found is None:
            return
        group.generation = group.stored_generation = found.generation
        group.protocol_type = found.protocol_type or None
        if not found.members:
            return
        group.protocol, group.state = found.protocol, State.STABLE
        now_ns = self._node.now_ns()
        for stored in found.members:
            member = _member(stored, found.protocol or "")
            group.add(member)
            member.seen(now_ns)
        group.leader = found.leader if found.leader in group.members else next(iter(group.members))

    def store_modern(self, group: ConsumerGroup, records: Records) -> None:
        """Store the changes from ``group.stored`` to ``records``, for a group of the consumer protocol.

        Raises:
            StorageError: the records could not be appended.
        """
        changed = changes(group.stored, records)
        if changed:
            self._node.engine.group_states().store_states(group.name, changed, "written")
        group.stored = records

    def store(self, group: Group, assignments: dict[str, bytes]) -> int:
        """Store the present generation of a classic group, with assignments by member id.

        Return ``Code.NONE``, or an error code.

        Source of the codes: apache/kafka GroupMetadataManager.appendGroupMetadataErrorToResponseError.
        """
        value = GroupMetadata(
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader or None,
            state_timestamp_ms=self._node.clock.now_ms(),
            members=tuple(
                _stored(member, group.protocol, assignments.get(member.id, b"")) for member in group.members.values()
            ),
        )
        key = GroupKey(group=group.name)
        try:
            self._node.engine.group_states().store_states(
                group.name, [OffsetsRecord(OffsetsType.GROUP_METADATA, key, value, _VERSION)], "written"
            )
        except StorageError as error:
            return coordinator_code(error)
        group.stored_generation = group.generation
        return Code.NONE


def _member(stored: GroupMember, protocol: str) -> Member:
    rebalance_ms = stored.rebalance_timeout_ms
    return Member(
        stored.member, stored.instance, stored.client_id, stored.client_host, stored.session_timeout_ms,
        stored.session_timeout_ms if rebalance_ms < 0 else rebalance_ms, ((protocol, stored.subscription),),
        assignment=stored.assignment,
    )  # fmt: skip


def _stored(member: Member, protocol: str | None, assignment: bytes) -> GroupMember:
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
