"""The coordinator of classic consumer groups, which handles the requests of their members.

Source: apache/kafka GroupMetadataManager.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from stratalog_gateway.error_codes import Code
from stratalog_gateway.groups.group import Answer, Group, Joined, Member, Protocols, State, Synced
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.groups.stored_groups import StoredGroups
from stratalog_gateway.node import Node

T = TypeVar("T")
_NS_PER_MS: Final = 1_000_000
_STEP_NS: Final = 1_000_000_000  # maximum time between two checks of the deadlines during a wait


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request.

    ``needs_id`` is True if a client without a member id only gets an id, and must join again with it (KIP-394).
    ``can_skip_assignment`` is True if the client knows responses in which the leader skips the assignment (KIP-814).
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


class GroupCoordinator:
    """Requests of members of classic groups, and checks of the members that commit or read offsets. Thread-safe.

    Methods raise StorageError if a group cannot be loaded, or if a change of a group of the consumer protocol cannot be
    stored.

    Args:
        node: provides the engine, the settings and the clock.
        groups: all groups.
    """

    def __init__(self, node: Node, groups: GroupTable) -> None:
        self._node, self._groups, self._stored = node, groups, StoredGroups(node)

    def join(self, asked: JoinRequest) -> Joined:
        """Join a group, and wait until the join phase of its rebalance ends. The result may have an error code."""
        settings = self._node.settings
        if not settings.min_session_ms <= asked.session_ms <= settings.max_session_ms:
            return Joined(Code.INVALID_SESSION_TIMEOUT, asked.member_id)
        with self._groups.opened(asked.group) as group:
            found = self._join(group, asked) if self._is_classic(group) else None
        if found is None:
            return Joined(Code.INCONSISTENT_GROUP_PROTOCOL, asked.member_id)
        return (
            found if isinstance(found, Joined) else self._wait(group, found, Joined(Code.COORDINATOR_NOT_AVAILABLE, ""))
        )

    def _is_classic(self, group: Group) -> bool:
        """Return True if the group is classic. A group of the consumer protocol without members becomes classic."""
        if group.modern is None:
            return True
        if group.modern.members:
            return False
        self._stored.store_modern(group.modern, {})
        group.end_modern()
        return True

    def _join(self, group: Group, asked: JoinRequest) -> Joined | Answer[Joined]:
        now_ns = self._node.now_ns()
        if not group.supports(asked.protocol_type, asked.protocols):
            return Joined(Code.INCONSISTENT_GROUP_PROTOCOL, asked.member_id)
        if asked.instance_id is not None:
            refused = self._replace_static(group, asked, now_ns)
            if refused is not None:
                return refused
        member_id = asked.member_id
        if asked.instance_id is not None and not member_id:
            member_id = group.instances.get(asked.instance_id, "")
        if not member_id:
            member_id = f"{asked.instance_id or asked.client_id}-{uuid.uuid4()}"
            if asked.needs_id and asked.instance_id is None:
                return group.reserve_id(member_id, now_ns + asked.session_ms * _NS_PER_MS)
        elif member_id not in group.members and group.pending.pop(member_id, None) is None:
            return Joined(Code.UNKNOWN_MEMBER_ID, member_id)
        member = group.members.get(member_id)
        if member is not None and group.is_retry(member, asked.member_id, asked.protocols):
            member.seen(now_ns)
            return group.joined(member)
        if member is None:
            member = Member(
                member_id, asked.instance_id, asked.client_id, asked.client_host, asked.session_ms, asked.rebalance_ms,
                asked.protocols,
            )  # fmt: skip
            group.add(member)
        member.end_join(Joined(Code.REBALANCE_IN_PROGRESS, member_id))  # an earlier request of the same member
        member.protocols, member.session_ms, member.rebalance_ms = asked.protocols, asked.session_ms, asked.rebalance_ms
        member.seen(now_ns)
        member.joining = answer = Answer[Joined]()
        group.protocol_type = asked.protocol_type
        group.prepare(now_ns, Code.REBALANCE_IN_PROGRESS)
        group.advance(now_ns)
        return answer

    def _replace_static(self, group: Group, asked: JoinRequest, now_ns: int) -> Joined | None:
        """Replace the member id of a static member that joins without a member id. The old member id is fenced.

        Return the result of the request; None if the member must join like other members. A stable group does not
        rebalance unless the request changes the protocol that the group would choose. As in Kafka, the metadata of the
        member is not compared: metadata of Java clients contains the last generation and the owned partitions, and
        differs after each restart.
        """
        assert asked.instance_id is not None
        known = group.instances.get(asked.instance_id)
        if known is None:
            return None if not asked.member_id else Joined(Code.UNKNOWN_MEMBER_ID, asked.member_id)
        if asked.member_id:
            return None if known == asked.member_id else Joined(Code.FENCED_INSTANCE_ID, asked.member_id)
        before, was_leader = group.members[known], group.leader
        member_id = f"{asked.instance_id}-{uuid.uuid4()}"
        member = Member(
            member_id, asked.instance_id, asked.client_id, asked.client_host, asked.session_ms, asked.rebalance_ms,
            asked.protocols, assignment=before.assignment,
        )  # fmt: skip
        group.drop(known, Code.FENCED_INSTANCE_ID)
        group.add(member)
        if was_leader == known:
            group.leader = member_id
        if group.state is not State.STABLE or group.chosen_protocol() != group.protocol:
            return None
        member.seen(now_ns)
        error = self._stored.store(group, {found.id: found.assignment for found in group.members.values()})
        if error:  # the client that has the old member id stays in the group
            group.drop(member_id, error)
            group.add(before)
            group.leader = was_leader
            return Joined(error, "")
        found = group.joined(member)
        if group.leader != member_id:
            return found
        if asked.can_skip_assignment:
            return Joined(
                0, member_id, found.generation, found.protocol_type, found.protocol, member_id, found.members,
                skip_assignment=True,
            )  # fmt: skip
        # a client that reads its own id as the leader's would compute the assignment
        return Joined(0, member_id, found.generation, found.protocol_type, found.protocol, known)

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
        """Return a member's assignment, or a result with an error code.

        The leader's request stores the ``assignments`` of all members, by member id. The requests of other members wait
        for the leader's request. ``protocol_type`` and ``protocol`` are those that the member knows; None if the
        version of the request lacks them.
        """
        with self._groups.found(name) as group:
            if group is None:
                return Synced(Code.UNKNOWN_MEMBER_ID)
            error = group.check_member(member_id, generation, instance_id)
            if not error and (_differ(protocol_type, group.protocol_type) or _differ(protocol, group.protocol)):
                error = Code.INCONSISTENT_GROUP_PROTOCOL
            if not error and group.state is State.PREPARING:
                error = Code.REBALANCE_IN_PROGRESS
            if error:
                return Synced(error)
            now_ns, member = self._node.now_ns(), group.members[member_id]
            member.seen(now_ns)
            if group.state is State.COMPLETING and member_id == group.leader:
                error = self._stored.store(group, dict(assignments))
                if error:
                    group.prepare(now_ns, error)
                    return Synced(error)
                group.assign(dict(assignments), now_ns)
            if group.state is State.STABLE:
                return group.synced(member)
            member.end_sync(Synced(Code.REBALANCE_IN_PROGRESS))  # an earlier request of the same member
            member.syncing = answer = Answer[Synced]()
        return self._wait(group, answer, Synced(Code.COORDINATOR_NOT_AVAILABLE))

    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> int:
        """Extend a member's session. Return ``Code.NONE``, or an error code.

        The session is also extended if the code is REBALANCE_IN_PROGRESS, which requests the member to rejoin.
        """
        with self._groups.found(name) as group:
            if group is None:
                return Code.UNKNOWN_MEMBER_ID
            error = group.check_member(member_id, generation, instance_id)
            if error:
                return error
            group.members[member_id].seen(self._node.now_ns())
            return Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else Code.NONE

    def leave(self, name: str, member_id: str, instance_id: str | None) -> int:
        """Remove a member, by its id or its instance id, and begin a rebalance of the other members.

        Administrators also remove static members of groups of the consumer protocol. Return ``Code.NONE``, or an error
        code.
        """
        with self._groups.found(name) as group:
            if group is None:
                return Code.UNKNOWN_MEMBER_ID
            modern = group.modern
            if instance_id is not None:
                static = None if modern is None else modern.with_instance(instance_id)
                known = group.instances.get(instance_id) if static is None else static.id
                if known is not None and member_id not in {"", known}:
                    return Code.FENCED_INSTANCE_ID
                member_id = known or ""
            if modern is not None and member_id in modern.members:
                modern.remove(member_id)
                return Code.NONE
            if group.pending.pop(member_id, None) is not None:
                group.advance(self._node.now_ns())
                return Code.NONE
            if member_id not in group.members:
                return Code.UNKNOWN_MEMBER_ID
            group.remove([member_id], self._node.now_ns())
            return Code.NONE

    @contextlib.contextmanager
    def committing(
        self, name: str, member_id: str, generation: int, instance_id: str | None, *, knows_epochs: bool = True
    ) -> Iterator[int]:
        """Yield ``Code.NONE`` if a commit is allowed, otherwise an error code. Append the offsets in the context.

        Until the context ends, the group does not change: a commit of an earlier generation is never appended after a
        commit of a later one. A member may commit with the present generation, unless the group waits for the leader's
        assignment. The commit extends the session of a member of a classic group. If the group has no members, a client
        may commit with a negative generation.

        Args:
            name: name of the group.
            member_id: id of the member.
            generation: generation of the member, or its epoch in a group of the consumer protocol.
            instance_id: instance id of a static member; None for a dynamic member.
            knows_epochs: False if the version of the request has no member epochs.
        """
        with self._groups.found(name) as group:
            if group is not None and group.modern is not None:
                yield group.modern.check_commit(member_id, generation, knows_epochs=knows_epochs)
            elif generation < 0 and (group is None or not group.members):
                yield Code.NONE
            elif group is None:
                yield self._missing(name, knows_epochs=knows_epochs)
            else:
                yield self._check_classic_commit(group, member_id, generation, instance_id)

    def _missing(self, name: str, *, knows_epochs: bool) -> int:
        """Return the error code for a commit of a member in a group that never had members.

        As in Kafka, the group exists if it has committed offsets.
        """
        if self._node.engine.group_offsets(name):
            return Code.UNKNOWN_MEMBER_ID
        return Code.GROUP_ID_NOT_FOUND if knows_epochs else Code.ILLEGAL_GENERATION

    def _check_classic_commit(self, group: Group, member_id: str, generation: int, instance_id: str | None) -> int:
        error = group.check_member(member_id, generation, instance_id)
        if not error:
            group.members[member_id].seen(self._node.now_ns())
            error = Code.REBALANCE_IN_PROGRESS if group.state is State.COMPLETING else Code.NONE
        return error

    def check_fetch(self, name: str, member_id: str | None, epoch: int) -> int:
        """Return ``Code.NONE`` if a client may read the offsets of a group, otherwise an error code.

        A client may omit both the member id (None) and the epoch (negative). Otherwise, in a group of the consumer
        protocol, the epoch must be the present epoch of the member. Source: apache/kafka ConsumerGroup.validateOffsetFetch.
        """
        if member_id is None and epoch < 0:
            return Code.NONE
        with self._groups.found(name) as group:
            if group is None or group.modern is None:
                return Code.NONE
            return group.modern.check_member(member_id or "", epoch)

    def _wait(self, group: Group, answer: Answer[T], closed: T) -> T:
        """Wait for the result of ``answer``, and return it; return ``closed`` if the gateway stops before.

        During the wait, remove members whose deadlines pass.
        """
        while answer.result is None:
            if self._node.is_closed:
                return closed
            now_ns = self._node.now_ns()
            self._node.wait(answer.event, min(group.next_deadline_ns(), now_ns + _STEP_NS))
            if answer.result is None:
                with group.lock:
                    group.advance(self._node.now_ns())
        return answer.result


def _differ(sent: str | None, known: str | None) -> bool:
    """Return True if a member has sent another value than that of the group. None means that a value is not known."""
    return sent is not None and known is not None and sent != known
