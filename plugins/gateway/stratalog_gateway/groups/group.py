"""State of one consumer group, and the transitions of a classic group. The caller holds the lock of the group.

Source: apache/kafka ClassicGroup, GroupMetadataManager.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, Generic, TypeVar

from stratalog.group_states import GroupKey, OffsetsRecord, OffsetsType
from stratalog_gateway.groups.consumer_group import ConsumerGroup

T = TypeVar("T")
_NS_PER_MS: Final = 1_000_000
Protocols = Sequence[tuple[str, bytes]]


class State(StrEnum):
    """States of a classic group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Presence(Enum):
    """Presence of a group's state in memory: not loaded yet, loaded, or removed."""

    NEW = 0
    LOADED = 1
    REMOVED = 2


class Answer(Generic[T]):
    """Result of a request that waits. ``event`` is set when ``result`` is known; before, ``result`` is None."""

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
    """Result of JoinGroup. ``members`` are id, instance id and metadata of all members; empty unless for the leader."""

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

    ``deadline_ns`` is the monotonic time at which the session ends. ``joining`` and ``syncing`` are the member's
    waiting JoinGroup and SyncGroup requests; None if no such request waits.
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

    def seen(self, now_ns: int) -> None:
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


@dataclass(frozen=True, slots=True)
class GroupView:
    """Snapshot of a group.

    ``members`` are the members of a classic group. ``topics`` are the subscribed topics of a group of the consumer
    protocol. ``kind`` is ``classic`` or ``consumer``.
    """

    state: str
    protocol_type: str
    protocol: str
    members: tuple[Member, ...]
    kind: str = "classic"
    topics: frozenset[str] = frozenset()


@dataclass(slots=True)
class Group:
    """State of one group, classic or of the consumer protocol.

    Attributes:
        deadline_ns: monotonic end of the present phase of a rebalance.
        pending: monotonic deadlines of clients that got a member id and have not joined with it yet, by member id.
        instances: member ids of static members, by instance id.
        stored_generation: the generation that was stored last.
        modern: state of a group of the consumer protocol, which does not use the other attributes; otherwise None.
    """

    name: str
    lock: threading.Lock = field(default_factory=threading.Lock)
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
    modern: ConsumerGroup | None = None
    presence: Presence = Presence.NEW

    @property
    def is_empty_and_not_stored(self) -> bool:
        """True if the group has no members, and its present generation was not stored."""
        return self.state is State.EMPTY and self.stored_generation < self.generation

    @property
    def is_unused(self) -> bool:
        """True if the group has no members, and no client has got a member id to join with."""
        return not self.members and not self.pending and (self.modern is None or not self.modern.members)

    @property
    def is_new(self) -> bool:
        """True if the group never had members, and no client has got a member id to join with."""
        return self.generation == 0 and not self.pending and self.modern is None

    def begin_modern(self) -> ConsumerGroup:
        """Change a group without members to the consumer protocol. Return its new, empty state."""
        self.modern = ConsumerGroup(self.name)
        if self.stored_generation:
            classic = OffsetsRecord(OffsetsType.GROUP_METADATA, GroupKey(group=self.name), None, None)
            self.modern.stored[classic.kind, classic.key] = classic  # the first change deletes it
        self.generation = self.stored_generation = 0
        self.protocol_type = self.protocol = None
        return self.modern

    def end_modern(self) -> None:
        """Change a group without members to the classic protocol."""
        self.modern = None

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return True if a member can join: the type is that of the group, and all members share one of ``protocols``.

        To join a group without members, a member needs a protocol type and at least one protocol.
        """
        if not self.members:
            return bool(protocols) and bool(protocol_type)
        return protocol_type == self.protocol_type and bool(self._common({name for name, _ in protocols}))

    def _common(self, names: set[str]) -> set[str]:
        return names.intersection(*({name for name, _ in member.protocols} for member in self.members.values()))

    def chosen_protocol(self) -> str:
        """Return the protocol that most members prefer, among the protocols that all members support.

        The group must have members.
        """
        members = list(self.members.values())
        common = self._common({name for name, _ in members[0].protocols})
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

    def prepare(self, now_ns: int, error: int) -> None:
        """Begin a rebalance, unless the join phase is in progress. Answer waiting SyncGroup requests with ``error``.

        The sessions of the members whose requests waited restart at ``now_ns``: they could not send heartbeats.
        """
        if self.state is State.PREPARING:
            return
        for member in self.members.values():
            if member.syncing is not None:
                member.seen(now_ns)
            member.end_sync(Synced(error))
        self.state = State.PREPARING
        self.extend(now_ns)

    def extend(self, now_ns: int) -> None:
        """Restart the join phase at ``now_ns``. The phase lasts for the longest rebalance timeout of a member."""
        self.deadline_ns = now_ns + self._rebalance_ns()

    def _rebalance_ns(self) -> int:
        return max((member.rebalance_ms for member in self.members.values()), default=0) * _NS_PER_MS

    def joined(self, member: Member) -> Joined:
        """Return the result of a member's JoinGroup in the present generation."""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.id == self.leader:
            members = tuple(
                (found.id, found.instance_id, found.metadata(self.protocol)) for found in self.members.values()
            )
        return Joined(0, member.id, self.generation, self.protocol_type, self.protocol, self.leader, members)

    def complete_join(self, now_ns: int) -> None:
        """Begin the next generation with the present members, and answer their JoinGroup requests.

        A group without members becomes EMPTY.
        """
        self.generation += 1
        if not self.members:
            self.state, self.leader, self.protocol = State.EMPTY, "", None
            return
        self.protocol, self.state = self.chosen_protocol(), State.COMPLETING
        self.deadline_ns = now_ns + self._rebalance_ns()
        for member in self.members.values():
            member.assignment = b""
            member.seen(now_ns)
            member.end_join(self.joined(member))

    def assign(self, assignments: dict[str, bytes], now_ns: int) -> None:
        """Set the assignments that the leader sent, by member id, and answer the waiting SyncGroup requests.

        The group becomes STABLE. A member without an assignment gets empty bytes.
        """
        self.state = State.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            member.seen(now_ns)
            member.end_sync(self.synced(member))

    def synced(self, member: Member) -> Synced:
        """Return the result of a member's SyncGroup in the present generation."""
        return Synced(0, member.assignment, self.protocol_type, self.protocol)
