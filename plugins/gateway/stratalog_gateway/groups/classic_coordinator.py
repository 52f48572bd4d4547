"""The coordinator of groups of the classic protocol, which handles the requests of their members.

Source: apache/kafka GroupMetadataManager.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code, RefusedError, coordinator_code
from stratalog_gateway.groups.classic_group import Answer, ClassicGroup, Joined, Member, Protocols, State, Synced
from stratalog_gateway.groups.consumer_group import ConsumerGroup
from stratalog_gateway.groups.group_table import GroupEntry, GroupTable
from stratalog_gateway.node import Node

T = TypeVar("T")
_NS_PER_MS: Final = 1_000_000
_STEP_NS: Final = 1_000_000_000  # maximum time between two checks of the deadlines during a wait


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request.

    ``needs_id`` is True if the response to a client without a member id contains only an id, with which the client must
    join again (KIP-394). ``can_skip_assignment`` is True if the client supports responses after which the leader skips
    the assignment (KIP-814).
    """

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_ms: int
    rebalance_ms: int
    needs_id: bool
    can_skip_assignment: bool

    def new_member(self, member_id: str, assignment: bytes = b"") -> Member:
        """Return the member that joins with this request under a new member id."""
        return Member(
            member_id, self.instance_id, self.client_id, self.client_host, self.session_ms, self.rebalance_ms,
            self.protocols, assignment=assignment,
        )  # fmt: skip


class ClassicGroupCoordinator:
    """Coordinator of the groups of the classic protocol. Thread-safe.

    Methods raise StorageError if a group cannot be loaded, or if its change cannot be stored. Methods with the id of a
    member, except ``join``, raise RefusedError if the group or the member is unknown, or if the generation or the
    instance id is wrong.
    """

    def __init__(self, node: Node, groups: GroupTable) -> None:
        self._node, self._groups, self._storage = node, groups, groups.storage

    def join(self, request: JoinRequest) -> Joined:
        """Join a group, and wait until the join phase of its rebalance ends. The result may have an error code."""
        settings = self._node.settings
        if not settings.min_session_ms <= request.session_ms <= settings.max_session_ms:
            return Joined(Code.INVALID_SESSION_TIMEOUT, request.member_id)
        with self._groups.lock_entry(request.group) as entry:
            group = self._classic_group(entry)
            if group is None:
                return Joined(Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
            outcome = self._join(group, request)
        if isinstance(outcome, Joined):
            return outcome
        return self._wait(entry, group, outcome, Joined(Code.COORDINATOR_NOT_AVAILABLE, ""))

    def _classic_group(self, entry: GroupEntry) -> ClassicGroup | None:
        """Return the classic group of an entry, or None if a group of the consumer protocol has members.

        A group of the consumer protocol without members becomes a classic group.
        """
        group = entry.group
        if isinstance(group, ClassicGroup):
            return group
        if group.members:
            return None
        self._storage.store_consumer(group, {})
        entry.group = classic = ClassicGroup(group.name)
        return classic

    def _join(self, group: ClassicGroup, request: JoinRequest) -> Joined | Answer[Joined]:
        now_ns = self._node.now_ns()
        if not group.supports(request.protocol_type, request.protocols):
            return Joined(Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if request.instance_id is not None:
            result = self._replace_static(group, request, now_ns)
            if result is not None:
                return result
        member_id = request.member_id
        if request.instance_id is not None and not member_id:
            member_id = group.instances.get(request.instance_id, "")
        if not member_id:
            member_id = f"{request.instance_id or request.client_id}-{uuid.uuid4()}"
            if request.needs_id and request.instance_id is None:
                return group.reserve_id(member_id, now_ns + request.session_ms * _NS_PER_MS)
        elif member_id not in group.members and group.pending.pop(member_id, None) is None:
            return Joined(Code.UNKNOWN_MEMBER_ID, member_id)
        member = group.members.get(member_id)
        if member is not None and group.is_retry(member, request.member_id, request.protocols):
            member.restart_session(now_ns)
            return group.join_result(member)
        if member is None:
            member = request.new_member(member_id)
            group.add(member)
        member.end_join(Joined(Code.REBALANCE_IN_PROGRESS, member_id))  # answers an earlier request of this member
        member.protocols = request.protocols
        member.session_ms, member.rebalance_ms = request.session_ms, request.rebalance_ms
        member.restart_session(now_ns)
        member.joining = answer = Answer[Joined]()
        group.protocol_type = request.protocol_type
        group.prepare(now_ns, Code.REBALANCE_IN_PROGRESS)
        group.advance(now_ns)
        return answer

    def _replace_static(self, group: ClassicGroup, request: JoinRequest, now_ns: int) -> Joined | None:
        """Replace the member id of a static member that joins without a member id. The old member id is fenced.

        Return the result of the request; None if the member must join like other members. A stable group rebalances
        only if the request changes the protocol that the group would choose. As in Kafka, the metadata of the member is
        not compared, because it differs after each restart: the metadata of Java clients contains the last generation
        and the owned partitions.
        """
        assert request.instance_id is not None
        old_id = group.instances.get(request.instance_id)
        if old_id is None:
            return None if not request.member_id else Joined(Code.UNKNOWN_MEMBER_ID, request.member_id)
        if request.member_id:
            return None if old_id == request.member_id else Joined(Code.FENCED_INSTANCE_ID, request.member_id)
        old, was_leader = group.members[old_id], group.leader
        member_id = f"{request.instance_id}-{uuid.uuid4()}"
        member = request.new_member(member_id, old.assignment)
        group.drop(old_id, Code.FENCED_INSTANCE_ID)
        group.add(member)
        if was_leader == old_id:
            group.leader = member_id
        if group.state is not State.STABLE or group.choose_protocol() != group.protocol:
            return None
        member.restart_session(now_ns)
        try:
            self._storage.store_classic(group, {other.id: other.assignment for other in group.members.values()})
        except StorageError as error:  # the client that has the old member id stays in the group
            group.drop(member_id, coordinator_code(error))
            group.add(old)
            group.leader = was_leader
            raise
        result = group.join_result(member)
        if group.leader != member_id:
            return result
        if request.can_skip_assignment:
            return Joined(
                0, member_id, result.generation, result.protocol_type, result.protocol, member_id, result.members,
                skip_assignment=True,
            )  # fmt: skip
        # with its own id as the leader's id, the client would compute the assignment
        return Joined(0, member_id, result.generation, result.protocol_type, result.protocol, old_id)

    def sync(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> Synced:
        """Return a member's assignment. Raise RefusedError if the group rebalances before the assignment is known.

        The leader's request stores the ``assignments`` of all members, by member id. The requests of other members wait
        for the leader's request. ``protocol_type`` and ``protocol`` are the member's values in the request; None if the
        version of the request lacks these fields.
        """
        with self._groups.lock_entry(name) as entry:
            group, now_ns = entry.group, self._node.now_ns()
            if not isinstance(group, ClassicGroup):
                raise RefusedError(Code.UNKNOWN_MEMBER_ID)
            member = group.member(member_id, generation, instance_id)
            if _differ(protocol_type, group.protocol_type) or _differ(protocol, group.protocol):
                raise RefusedError(Code.INCONSISTENT_GROUP_PROTOCOL)
            if group.state is State.PREPARING:
                raise RefusedError(Code.REBALANCE_IN_PROGRESS)
            member.restart_session(now_ns)
            if group.state is State.COMPLETING and member_id == group.leader:
                try:
                    self._storage.store_classic(group, assignments)
                except StorageError as error:
                    group.prepare(now_ns, coordinator_code(error))
                    raise
                group.assign(assignments, now_ns)
            if group.state is State.STABLE:
                return group.sync_result(member)
            member.end_sync(Synced(Code.REBALANCE_IN_PROGRESS))  # answers an earlier request of this member
            member.syncing = answer = Answer[Synced]()
        result = self._wait(entry, group, answer, Synced(Code.COORDINATOR_NOT_AVAILABLE))
        if result.error:
            raise RefusedError(Code(result.error))
        return result

    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> None:
        """Extend a member's session.

        The error REBALANCE_IN_PROGRESS requests the member to rejoin. With this error, too, the session is extended.
        """
        with self._groups.lock_group(name) as group:
            if not isinstance(group, ClassicGroup):
                raise RefusedError(Code.UNKNOWN_MEMBER_ID)
            group.member(member_id, generation, instance_id).restart_session(self._node.now_ns())
            if group.state is State.PREPARING:
                raise RefusedError(Code.REBALANCE_IN_PROGRESS)

    def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        """Remove a member, by its id or its instance id, and begin a rebalance of the other members.

        Administrators use this method, too. They may remove static members of groups of the consumer protocol.
        """
        with self._groups.lock_group(name) as group:
            if group is None:
                raise RefusedError(Code.UNKNOWN_MEMBER_ID)
            if instance_id is not None:
                current_id = group.id_of(instance_id)
                if current_id and member_id not in {"", current_id}:
                    raise RefusedError(Code.FENCED_INSTANCE_ID)
                member_id = current_id
            if isinstance(group, ClassicGroup) and group.pending.pop(member_id, None) is not None:
                group.advance(self._node.now_ns())
            elif member_id not in group.members:
                raise RefusedError(Code.UNKNOWN_MEMBER_ID)
            elif isinstance(group, ConsumerGroup):
                group.remove(member_id)
            else:
                group.remove([member_id], self._node.now_ns())

    def _wait(self, entry: GroupEntry, group: ClassicGroup, answer: Answer[T], result_at_stop: T) -> T:
        """Wait for the result of ``answer``, and return it. If the gateway stops before, return ``result_at_stop``.

        During the wait, remove members whose deadlines pass.
        """
        while answer.result is None:
            if self._node.is_closed:
                return result_at_stop
            now_ns = self._node.now_ns()
            self._node.wait(answer.event, min(group.next_deadline_ns(), now_ns + _STEP_NS))
            if answer.result is None:
                with entry.lock:
                    group.advance(self._node.now_ns())
        return answer.result


def _differ(sent: str | None, group_value: str | None) -> bool:
    """Return True if a member has sent a value that differs from the group's value.

    None means that a value is not known.
    """
    return sent is not None and group_value is not None and sent != group_value
