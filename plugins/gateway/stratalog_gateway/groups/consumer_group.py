"""The state of one group of the consumer protocol (KIP-848), and the reconciliation of its members.

Each change of members, subscriptions or topics increases the epoch of the group. A target assignment is computed for an
epoch. A member first revokes those of its partitions that are not in its target. Then the member receives the
partitions of its target that no other member owns.

Source: apache/kafka ConsumerGroup, CurrentAssignmentBuilder; KIP-848.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, Final, TypeAlias

from stratalog.group_states import OffsetsKey, OffsetsRecord, OffsetsType, ResolvedRegularExpression
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.assignors import ASSIGNORS, NOTHING, Partitions, Subscriber

LEAVE: Final = -1  # epochs in the heartbeat of a member that leaves: permanently, or temporarily as a static member
LEAVE_FOR_A_TIME: Final = -2
Records: TypeAlias = dict[tuple[OffsetsType, OffsetsKey], OffsetsRecord]
NEVER_NS: Final = (1 << 63) - 1
_NS_PER_MS: Final = 1_000_000


class MemberState(IntEnum):
    """Progress of a member towards the target assignment, with the numbers that Kafka stores.

    UNREVOKED_PARTITIONS: the member must revoke partitions. UNRELEASED_PARTITIONS: other members still own partitions
    of the member's target.
    """

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member of a group.

    Attributes:
        topics: names of topics to which the member subscribes.
        pattern: regular expression to which the member subscribes, or None.
        epoch: epoch of the group that the member has reached; -2 if a static member has left temporarily.
        previous_epoch: epoch before ``epoch``. A member that has not received the latest response still sends this
            epoch.
        assigned: partitions that the member may use.
        revoking: partitions that the member must revoke.
    """

    id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    rebalance_ms: int = -1
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING

    def with_epoch(self, epoch: int) -> ConsumerMember:
        """Return a copy of the member with the epoch ``epoch``.

        The ``previous_epoch`` of the copy is the member's ``epoch``.
        """
        return replace(self, epoch=epoch, previous_epoch=self.epoch)


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """Id and number of partitions of a topic to which a group subscribes."""

    id: uuid.UUID
    partitions: int


@dataclass(slots=True)
class ConsumerGroup:
    """State of one group of the consumer protocol. The caller holds the lock of the group.

    Attributes:
        target_epoch: epoch of the group to which ``target`` belongs.
        target: target assignment, by member id.
        patterns: topics that a regular expression matches, by expression.
        session_ends_ns: monotonic time at which a session ends, by member id.
        revoke_ends_ns: monotonic time until which a member must revoke partitions, by member id.
        topics: the subscribed topics of the current epoch, by name. None after the group was loaded, until the topics
            are computed.
        topics_version: value of ``LogSource.topic_changes`` when ``topics`` was computed.
        resolved_ns: monotonic time at which all regular expressions in ``patterns`` were compared with the topics.
        stored_records: the stored records of the group.
        saved_state: epochs and members at the last call of ``mark_saved``.
    """

    kind: ClassVar = "consumer"  # Kafka's name of the type of the group
    protocol_type: ClassVar = "consumer"

    name: str
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    patterns: dict[str, ResolvedRegularExpression] = field(default_factory=dict)
    session_ends_ns: dict[str, int] = field(default_factory=dict)
    revoke_ends_ns: dict[str, int] = field(default_factory=dict)
    topics: dict[str, KnownTopic] | None = None
    topics_version: int = -1
    resolved_ns: int = 0
    stored_records: Records = field(default_factory=dict)
    saved_state: tuple[int, int, dict[str, ConsumerMember]] = (0, 0, {})

    def is_changed(self) -> bool:
        """Return True if the epochs or the members have changed since the last call of ``mark_saved``."""
        return (self.epoch, self.target_epoch, self.members) != self.saved_state

    def mark_saved(self) -> None:
        """Record that the current state is stored. ``is_changed`` is False until the next change."""
        self.saved_state = (self.epoch, self.target_epoch, dict(self.members))

    @property
    def is_unused(self) -> bool:
        """True if the group has no members."""
        return not self.members

    @property
    def is_new(self) -> bool:
        """True if the group never had members."""
        return self.epoch == 0

    def check_commit(self, member_id: str, epoch: int, *, knows_epochs: bool) -> None:
        """Raise RefusedError unless a commit with this member id and epoch is allowed.

        If the group has no members, a commit with a negative epoch is allowed. ``knows_epochs`` is False if the version
        of the request has no member epochs. Source: apache/kafka ConsumerGroup.validateOffsetCommit.
        """
        if epoch < 0 and not self.members:
            return
        if member_id in self.members and not knows_epochs:
            raise RefusedError(Code.UNSUPPORTED_VERSION)
        self.check_member(member_id, epoch)

    def check_member(self, member_id: str, epoch: int) -> None:
        """Raise RefusedError unless the group has this member in this epoch."""
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise RefusedError(Code.STALE_MEMBER_EPOCH)

    @property
    def state(self) -> str:
        """Kafka's name of the group's state: ``Empty``, ``Assigning``, ``Reconciling`` or ``Stable``."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        is_stable = all(self.is_reconciled(member) for member in self.members.values())
        return "Stable" if is_stable else "Reconciling"

    def is_reconciled(self, member: ConsumerMember) -> bool:
        """Return True if a member has reached the target assignment."""
        return member.state is MemberState.STABLE and member.epoch == self.target_epoch

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the static member with an instance id; None if no member has it."""
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def id_of(self, instance_id: str) -> str:
        """Return the member id of the static member with an instance id; "" if no member has it."""
        member = self.static_member(instance_id)
        return "" if member is None else member.id

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; ``uniform`` if the votes are equal, or if there are no votes."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(votes, key=lambda name: (votes[name], name == "uniform")) if votes else next(iter(ASSIGNORS))

    def topic_names_of(self, member: ConsumerMember) -> set[str]:
        """Return the names of the topics to which a member subscribes, by name or by regular expression."""
        resolved = None if member.pattern is None else self.patterns.get(member.pattern)
        return {*member.topics, *(() if resolved is None else resolved.topics)}

    def subscribed_topics(self) -> set[str]:
        """Return the names of all topics to which members subscribe."""
        return set[str]().union(*(self.topic_names_of(member) for member in self.members.values()))

    def assign(self, topics: Mapping[str, KnownTopic]) -> None:
        """Compute the target assignment of the current epoch. ``topics`` contains the existing topics by name."""
        members = {
            member.id: Subscriber(
                member.instance_id,
                frozenset(topics[name].id for name in self.topic_names_of(member) if name in topics),
                self.target.get(member.id, NOTHING),
            )
            for member in self.members.values()
        }
        counts = {topic.id: topic.partitions for topic in topics.values()}
        self.target = ASSIGNORS[self.assignor](members, counts)
        self.target_epoch = self.epoch

    def remove(self, member_id: str) -> None:
        """Remove a member, and start the next epoch. The next heartbeat of a member computes the target assignment."""
        del self.members[member_id]
        for table in (self.target, self.session_ends_ns, self.revoke_ends_ns):
            table.pop(member_id, None)
        self._drop_patterns()
        self.epoch += 1

    def _drop_patterns(self) -> None:
        member_patterns = {member.pattern for member in self.members.values()}
        self.patterns = {pattern: resolved for pattern, resolved in self.patterns.items() if pattern in member_patterns}

    def set_member(self, member: ConsumerMember) -> None:
        """Add or replace a member. Remove regular expressions that no member uses from ``patterns``."""
        self.members[member.id] = member
        self._drop_patterns()

    def replace_static(self, before: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace the member id of a static member that has left temporarily. Return the member, with epoch 0.

        The member keeps its partitions and its target assignment.
        """
        member = replace(before, id=member_id, epoch=0, previous_epoch=0)
        target = self.target.get(before.id, NOTHING)
        del self.members[before.id]
        for table in (self.target, self.session_ends_ns, self.revoke_ends_ns):
            table.pop(before.id, None)
        self.target[member_id] = target
        self.members[member_id] = member
        return member

    def advance(self, now_ns: int) -> None:
        """Remove members whose session, or time to revoke partitions, has ended by the monotonic time ``now_ns``."""
        for member_id in list(self.members):
            ends_ns = min(self.session_ends_ns.get(member_id, NEVER_NS), self.revoke_ends_ns.get(member_id, NEVER_NS))
            if ends_ns <= now_ns:
                self.remove(member_id)

    def next_deadline_ns(self) -> int:
        """Return the monotonic time at which ``advance`` must be called; ``NEVER_NS`` if there is no deadline."""
        return min((*self.session_ends_ns.values(), *self.revoke_ends_ns.values()), default=NEVER_NS)

    def reconcile(self, member_id: str, owned: Partitions | None, now_ns: int) -> None:
        """Move a member one step towards the target assignment, if possible.

        Args:
            member_id: id of a member of the group.
            owned: partitions that the member uses; None if the heartbeat does not contain them.
            now_ns: monotonic time. From this time on, a member has ``rebalance_ms`` to revoke partitions.
        """
        before = self.members[member_id]
        if self.is_reconciled(before):
            return
        if before.state is MemberState.UNREVOKED_PARTITIONS:
            if owned is None or owned & before.revoking:
                return
            member = self._next(before, before.epoch + 1, owned)
        else:
            member = self._next(before, before.epoch, owned)
        self.members[member_id] = member
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self.revoke_ends_ns.pop(member_id, None)
        elif member != before:
            self.revoke_ends_ns[member_id] = now_ns + member.rebalance_ms * _NS_PER_MS

    def _next(self, before: ConsumerMember, epoch: int, owned: Partitions | None) -> ConsumerMember:
        """Return the member after one step towards the target assignment.

        If the member must first revoke partitions, its epoch becomes ``epoch``. Otherwise its epoch becomes
        ``target_epoch``.
        """
        target = self.target.get(before.id, NOTHING)
        retained, revoking = before.assigned & target, before.assigned - target
        if revoking and (owned is None or owned & revoking):
            return replace(
                before.with_epoch(epoch), state=MemberState.UNREVOKED_PARTITIONS, assigned=retained, revoking=revoking
            )
        owned_by_others = NOTHING.union(
            *(other.assigned | other.revoking for other in self.members.values() if other.id != before.id)
        )
        additional = target - retained
        return replace(
            before.with_epoch(self.target_epoch),
            state=MemberState.UNRELEASED_PARTITIONS if additional & owned_by_others else MemberState.STABLE,
            assigned=retained | (additional - owned_by_others),
            revoking=NOTHING,
        )
