"""State and transitions of one group of the classic protocol. The caller holds the lock of the group.

Source: apache/kafka ClassicGroup, GroupMetadataManager.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Generic, TypeVar

from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.consumer_group import NEVER_NS

T = TypeVar("T")
_NS_PER_MS: Final = 1_000_000
_FIRST_JOIN_NS: Final = 3_000_000_000  # Kafka's default of group.initial.rebalance.delay.ms
_MAX_PENDING: Final = 1_000  # maximum number of clients of one group that got a member id and have not joined
Protocols = Sequence[tuple[str, bytes]]


class State(StrEnum):
    """States of a classic group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Answer(Generic[T]):
    """Result of a request that waits. ``result`` is None until the result is known. Then ``event`` is set."""

    __slots__ = ("event", "result")

    def __init__(self) -> None:
        self.event = threading.Event()
        self.result: T | None = None

    def give(self, result: T) -> None:
        """Set the result and the event. Do nothing if the result is already known."""
        if self.result is None:
            self.result = result
            self.event.set()


@dataclass(frozen=True, slots=True)
class Joined:
    """Result of JoinGroup. For the leader, ``members`` contains id, instance id and metadata of all members."""

    error: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Synced:
    """Result of SyncGroup. ``assignment`` is the assignment that the leader sent for the member."""

    error: int
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(slots=True)
class Member:
    """One member of a classic group.

    ``deadline_ns`` is the monotonic time at which the session ends. ``joining`` is the member's waiting JoinGroup
    request, and ``syncing`` its waiting SyncGroup request. They are None if no such request waits.
    """

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: Protocols
    deadline_ns: int = 0
    assignment: bytes = b""
    joining: Answer[Joined] | None = None
    syncing: Answer[Synced] | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if the member does not support the protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def restart_session(self, now_ns: int) -> None:
        """Restart the session timeout at the monotonic time ``now_ns``."""
        self.deadline_ns = now_ns + self.session_ms * _NS_PER_MS

    def end_join(self, result: Joined) -> None:
        """Answer the waiting JoinGroup request, if there is one."""
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.give(result)

    def end_sync(self, result: Synced) -> None:
        """Answer the waiting SyncGroup request, if there is one."""
        syncing, self.syncing = self.syncing, None
        if syncing is not None:
            syncing.give(result)


@dataclass(slots=True)
class ClassicGroup:
    """State of one group of the classic protocol, or of a group without members that has only committed offsets.

    Attributes:
        deadline_ns: monotonic time at which the current phase of a rebalance ends.
        pending: monotonic deadlines of clients that got a member id and have not joined with it yet, by member id.
        instances: member ids of static members, by instance id.
        stored_generation: the last generation that was stored.
    """

    kind: ClassVar = "classic"  # Kafka's name of the type of the group

    name: str
    state: State = State.EMPTY
    generation: int = 0
    stored_generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    deadline_ns: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty_and_not_stored(self) -> bool:
        """True if the group has no members, and its present generation was not stored."""
        return self.state is State.EMPTY and self.stored_generation < self.generation

    @property
    def is_unused(self) -> bool:
        """True if the group has no members, and no client has a reserved member id (see ``reserve_id``)."""
        return not self.members and not self.pending

    @property
    def is_new(self) -> bool:
        """True if the group never had members, and no client has a reserved member id (see ``reserve_id``)."""
        return self.generation == 0 and not self.pending

    def id_of(self, instance_id: str) -> str:
        """Return the member id of the static member with an instance id; "" if no member has it."""
        return self.instances.get(instance_id, "")

    def member(self, member_id: str, generation: int, instance_id: str | None) -> Member:
        """Return a member; raise RefusedError unless the group has this member in this generation."""
        current_id = member_id if instance_id is None else self.instances.get(instance_id)
        if current_id is not None and current_id != member_id:
            raise RefusedError(Code.FENCED_INSTANCE_ID)
        if current_id is None or member_id not in self.members:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        if generation != self.generation:
            raise RefusedError(Code.ILLEGAL_GENERATION)
        return self.members[member_id]

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, now_ns: int, *, is_transactional: bool
    ) -> None:
        """Raise RefusedError unless a commit is allowed. Extend the session of the member that commits.

        A member may commit with the current generation. While the group waits for the leader's assignment, a member may
        commit only as part of a transaction. If the group has no members, a client may commit with a negative
        generation.

        Source: apache/kafka ClassicGroup.validateOffsetCommit.
        """
        if generation < 0 and not self.members:
            return
        self.member(member_id, generation, instance_id).restart_session(now_ns)
        if self.state is State.COMPLETING and not is_transactional:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return True if a member can join: it has the group's type, and all members support one of its ``protocols``.

        To join a group without members, a member needs a protocol type and at least one protocol.
        """
        if not self.members:
            return bool(protocols) and bool(protocol_type)
        return protocol_type == self.protocol_type and bool(self._common_protocols({name for name, _ in protocols}))

    def _common_protocols(self, names: set[str]) -> set[str]:
        return names.intersection(*({name for name, _ in member.protocols} for member in self.members.values()))

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer, among the protocols that all members support.

        The group must have members.
        """
        members = list(self.members.values())
        common = self._common_protocols({name for name, _ in members[0].protocols})
        votes: dict[str, int] = {}
        for member in members:
            vote = next(name for name, _ in member.protocols if name in common)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def add(self, member: Member) -> None:
        """Add a member. The first member becomes the leader."""
        self.members[member.id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def drop(self, member_id: str, error: int) -> None:
        """Remove a member, and answer its waiting requests with an error code.

        If the member was the leader, the first remaining member becomes the leader.
        """
        member = self.members.pop(member_id)
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        member.end_join(Joined(error, member_id))
        member.end_sync(Synced(error))
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")

    def reserve_id(self, member_id: str, deadline_ns: int) -> Joined:
        """Assign a member id to a client, which must send JoinGroup again with this id (KIP-394).

        A rebalance waits for the client until the monotonic time ``deadline_ns``. The result has the code
        MEMBER_ID_REQUIRED, or COORDINATOR_NOT_AVAILABLE if 1,000 such clients have not joined yet.
        """
        if len(self.pending) >= _MAX_PENDING:
            return Joined(Code.COORDINATOR_NOT_AVAILABLE, "")
        self.pending[member_id] = deadline_ns
        return Joined(Code.MEMBER_ID_REQUIRED, member_id)

    def is_retry(self, member: Member, member_id: str, protocols: Protocols) -> bool:
        """Return True if a JoinGroup request is a retry, because the member has not received the response.

        A retry has the same protocols as the first request. In a stable group, a JoinGroup request of the leader is not
        a retry, because it begins a rebalance.
        """
        if not member_id or list(member.protocols) != list(protocols):
            return False
        return self.state is State.COMPLETING or (self.state is State.STABLE and member_id != self.leader)

    def prepare(self, now_ns: int, error: int) -> None:
        """Begin a rebalance, unless the join phase is in progress. Answer waiting SyncGroup requests with ``error``.

        The sessions of members with waiting requests restart at ``now_ns``, because these members could not send
        heartbeats. The first rebalance waits at most ``_FIRST_JOIN_NS`` for clients with a reserved member id.
        """
        if self.state is State.PREPARING:
            return
        wait_ns = self._rebalance_ns()
        if self.state is State.EMPTY:
            wait_ns = min(wait_ns, _FIRST_JOIN_NS)
        for member in self.members.values():
            if member.syncing is not None:
                member.restart_session(now_ns)
            member.end_sync(Synced(error))
            if self.state is State.COMPLETING:
                member.assignment = b""
        self.state = State.PREPARING
        self.deadline_ns = now_ns + wait_ns

    def _rebalance_ns(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0) * _NS_PER_MS

    def remove(self, ids: Iterable[str], now_ns: int) -> None:
        """Remove members, and begin a rebalance of the other members. If no member remains, the group becomes EMPTY."""
        member_ids = list(ids)
        for member_id in member_ids:
            self.drop(member_id, Code.UNKNOWN_MEMBER_ID)
        if not member_ids:
            return
        if not self.members:
            self._begin_generation(now_ns)
            return
        self.prepare(now_ns, Code.REBALANCE_IN_PROGRESS)
        self._end_join_phase(now_ns)

    def advance(self, now_ns: int) -> None:
        """Process deadlines up to the monotonic time ``now_ns``: remove members, and end phases of a rebalance."""
        for member_id in [pending_id for pending_id, deadline_ns in self.pending.items() if deadline_ns <= now_ns]:
            del self.pending[member_id]
        self.remove([member.id for member in self._idle_members() if member.deadline_ns <= now_ns], now_ns)
        if self.state is State.COMPLETING and self.deadline_ns <= now_ns:
            self.remove([member.id for member in self.members.values() if member.syncing is None], now_ns)
        self._end_join_phase(now_ns)

    def next_deadline_ns(self) -> int:
        """Return the monotonic time at which ``advance`` must be called; ``NEVER_NS`` if there is no deadline."""
        deadlines = [*self.pending.values(), *(member.deadline_ns for member in self._idle_members())]
        if self.state in {State.PREPARING, State.COMPLETING}:
            deadlines.append(self.deadline_ns)
        return min(deadlines, default=NEVER_NS)

    def _idle_members(self) -> list[Member]:
        """Return the members without a waiting request. Only the sessions of such members can end."""
        return [member for member in list(self.members.values()) if member.joining is None and member.syncing is None]

    def _end_join_phase(self, now_ns: int) -> None:
        """End the join phase if all members have joined, or if the deadline of the phase has passed.

        Remove dynamic members that have not joined. If no member has joined, restart the phase.
        """
        if self.state is not State.PREPARING:
            return
        missing = [member for member in self.members.values() if member.joining is None]
        if (missing or self.pending) and now_ns < self.deadline_ns:
            return
        for member in missing:
            if member.instance_id is None:
                self.drop(member.id, Code.UNKNOWN_MEMBER_ID)
        joined_members = [member for member in self.members.values() if member.joining is not None]
        if self.members and not joined_members:
            self.deadline_ns = now_ns + self._rebalance_ns()
            return
        if joined_members and self.members[self.leader].joining is None:
            self.leader = joined_members[0].id
        self._begin_generation(now_ns)

    def _begin_generation(self, now_ns: int) -> None:
        """Begin the next generation with the present members, and answer their JoinGroup requests.

        A group without members becomes EMPTY.
        """
        self.generation += 1
        if not self.members:
            self.state, self.leader, self.protocol = State.EMPTY, "", None
            return
        self.protocol, self.state = self.choose_protocol(), State.COMPLETING
        self.deadline_ns = now_ns + self._rebalance_ns()
        for member in self.members.values():
            member.restart_session(now_ns)
            member.end_join(self.join_result(member))

    def join_result(self, member: Member) -> Joined:
        """Return the result of a member's JoinGroup in the present generation."""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.id == self.leader:
            members = tuple(
                (other.id, other.instance_id, other.metadata(self.protocol)) for other in self.members.values()
            )
        return Joined(0, member.id, self.generation, self.protocol_type, self.protocol, self.leader, members)

    def assign(self, assignments: Mapping[str, bytes], now_ns: int) -> None:
        """Set the assignments that the leader sent, by member id, and answer the waiting SyncGroup requests.

        The group becomes STABLE. A member without an assignment gets empty bytes.
        """
        self.state = State.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            member.restart_session(now_ns)
            member.end_sync(self.sync_result(member))

    def sync_result(self, member: Member) -> Synced:
        """Return the result of a member's SyncGroup in the present generation."""
        return Synced(0, member.assignment, self.protocol_type, self.protocol)
