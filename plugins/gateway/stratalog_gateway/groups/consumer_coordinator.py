"""The coordinator of groups of the consumer protocol (KIP-848), which handles heartbeats.

Source: apache/kafka GroupMetadataManager.consumerGroupHeartbeat; KIP-848.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import re2

from stratalog.group_states import GroupKey, OffsetsRecord, OffsetsType, ResolvedRegularExpression
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.assignors import ASSIGNORS, NOTHING, Partitions
from stratalog_gateway.groups.classic_group import ClassicGroup
from stratalog_gateway.groups.consumer_group import (
    LEAVE,
    LEAVE_FOR_A_TIME,
    ConsumerGroup,
    ConsumerMember,
    KnownTopic,
    MemberState,
)
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.node import Node

_MAX_PATTERN: Final = 1000  # characters of a regular expression
_MAX_MEMBERS: Final = 10_000
_RESOLVE_NS: Final = 600_000_000_000  # group.consumer.regex.refresh.interval.ms, because permissions may have changed
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat request.

    A value of None, or of -1 for ``rebalance_ms``, means that the value has not changed since the last request.
    ``epoch`` is 0 if the member joins, -1 if the member leaves, and -2 if a static member leaves temporarily. ``owned``
    contains the partitions that the member uses. ``has_own_id`` is True if a new member chooses its id, as it must from
    version 1 of the request on. ``pattern`` is a regular expression, which matches only topics for which ``may_see``
    returns True.
    """

    group: str
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    has_own_id: bool = False
    may_see: Callable[[str], bool] = lambda _: True

    @property
    def is_full(self) -> bool:
        """True if the member joins, or if the request contains all values.

        Kafka's clients send all values after an error.

        The response to a full heartbeat contains the assignment.
        """
        has_subscription = self.topics is not None or self.pattern is not None
        return self.epoch == 0 or (self.rebalance_ms != -1 and has_subscription and self.owned is not None)


@dataclass(frozen=True, slots=True)
class Progress:
    """Response to a heartbeat. ``assigned`` is None if the member already knows its assignment, or leaves."""

    member_id: str
    epoch: int
    assigned: Partitions | None = None


class ConsumerGroupCoordinator:
    """Coordinator of the groups of the consumer protocol. Thread-safe."""

    def __init__(self, node: Node, groups: GroupTable) -> None:
        self._node, self._groups = node, groups

    def heartbeat(self, request: Heartbeat) -> Progress:
        """Handle a heartbeat, with which a member joins, keeps its session, acknowledges an assignment, or leaves.

        The method does not wait for other members.

        Raises:
            RefusedError: the request is invalid, the group is full or classic, or an id or the epoch is wrong.
            StorageError: the group cannot be loaded, or the change cannot be stored. The group has not changed.
        """
        _check(request)
        match_topics(request.pattern or "", ())  # refuses an invalid expression before the group changes
        if request.epoch in {LEAVE, LEAVE_FOR_A_TIME}:
            return self._leave(request)
        now_ns, settings = self._node.now_ns(), self._node.settings
        with self._group(request.group, is_created=request.epoch == 0) as group:
            before = self._member(group, request)
            member = _update_member(before, request)
            is_new = before.id not in group.members
            if is_new and len(group.members) >= _MAX_MEMBERS:
                raise RefusedError(Code.GROUP_MAX_SIZE_REACHED, "the group has its maximum number of members")
            if member.pattern is not None and member.pattern not in group.patterns:
                group.patterns[member.pattern] = self._resolve(member.pattern, request.may_see)
            group.set_member(member)
            is_changed = is_new or (before.topics, before.pattern) != (member.topics, member.pattern)
            self._refresh(group, request.may_see, is_changed=is_changed)
            group.reconcile(member.id, request.owned, now_ns)
            group.session_ends_ns[member.id] = now_ns + settings.consumer_session_ms * _NS_PER_MS
            after = group.members[member.id]
        is_assignment_sent = request.is_full or after.assigned != before.assigned
        return Progress(after.id, after.epoch, after.assigned if is_assignment_sent else None)

    def _member(self, group: ConsumerGroup, request: Heartbeat) -> ConsumerMember:
        """Return the member that sent the request, with epoch 0 if the member joins.

        If the member joins for the first time, the result is not in the group yet.

        Raises:
            RefusedError: an id or the epoch of the request does not fit the group.
        """
        static_member = None if request.instance_id is None else _check_instance(group, request, request.instance_id)
        if static_member is not None:
            return static_member
        member = group.members.get(request.member_id)
        if request.epoch == 0:
            if member is None:
                return ConsumerMember(request.member_id or _new_id(), request.instance_id)
            if member.epoch == LEAVE_FOR_A_TIME:  # a static member that returns with its member id keeps its partitions
                return replace(member, epoch=0, previous_epoch=0)
            return replace(  # a member that rejoins owns nothing
                member, epoch=0, previous_epoch=0, state=MemberState.STABLE, assigned=NOTHING, revoking=NOTHING
            )
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member of {group.name}")
        is_late = (
            request.epoch == member.previous_epoch and request.owned is not None and request.owned <= member.assigned
        )
        if request.epoch != member.epoch and not (request.epoch < member.epoch and is_late):
            raise RefusedError(
                Code.FENCED_MEMBER_EPOCH,
                f"the member has epoch {request.epoch} and not {member.epoch}: "
                "it must give up its partitions and rejoin",
            )
        return member

    def _resolve(self, pattern: str, may_see: Callable[[str], bool]) -> ResolvedRegularExpression:
        """Return the topics that a regular expression matches now."""
        topics, version = self._node.topics(), self._node.source.topic_changes
        return ResolvedRegularExpression(
            topics=match_topics(pattern, filter(may_see, topics)),
            version=version,
            timestamp_ms=self._node.clock.now_ms(),
        )

    def _refresh(self, group: ConsumerGroup, may_see: Callable[[str], bool], *, is_changed: bool) -> None:
        """Start the next epoch if ``is_changed`` is True or the subscribed topics have changed.

        Compare regular expressions with the topics after a change of a topic, and at least every ten minutes. If the
        target assignment belongs to an earlier epoch, compute the target assignment of the current epoch.
        """
        version, now_ns = self._node.source.topic_changes, self._node.now_ns()
        is_outdated = group.topics_version != version or (
            bool(group.patterns) and now_ns - group.resolved_ns >= _RESOLVE_NS
        )
        if is_changed or is_outdated:
            if is_outdated:
                group.resolved_ns = now_ns
                for pattern, old in list(group.patterns.items()):
                    new = self._resolve(pattern, may_see)
                    group.patterns[pattern] = old if new.topics == old.topics else new
            topics = self._find_topics(group)
            group.epoch += is_changed or _has_other_topics(group, topics)
            group.topics, group.topics_version = topics, version
        if group.epoch > group.target_epoch:
            group.assign(group.topics or {})

    def _find_topics(self, group: ConsumerGroup) -> dict[str, KnownTopic]:
        """Return the subscribed topics that exist and have an id, by name."""
        topics, existing = self._node.topics(), {}
        for name in sorted(group.subscribed_topics()):
            info = topics.get(name)
            if info is not None and info.topic_id is not None:
                existing[name] = KnownTopic(info.topic_id.as_uuid, len(info.partitions))
        return existing

    def _leave(self, request: Heartbeat) -> Progress:
        with self._group(request.group, is_created=False) as group:
            if request.instance_id is not None:
                _check_instance(group, request, request.instance_id)
            member = group.members.get(request.member_id)
            if member is None:
                raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"{request.member_id} is not a member of {group.name}")
            if request.epoch == LEAVE_FOR_A_TIME:
                group.revoke_ends_ns.pop(member.id, None)
                group.members[member.id] = replace(member.with_epoch(LEAVE_FOR_A_TIME), revoking=NOTHING)
            else:
                group.remove(member.id)
        return Progress(request.member_id, request.epoch)

    @contextlib.contextmanager
    def _group(self, name: str, *, is_created: bool) -> Iterator[ConsumerGroup]:
        """Yield a group under its lock, and store its changes before the lock is released.

        If ``is_created`` is True, a group that does not exist is created. A classic group without members then becomes
        a group of the consumer protocol.

        Raises:
            RefusedError: the group does not exist, or uses the classic protocol.
            StorageError: the group cannot be loaded, or its changes cannot be stored.
        """
        with self._groups.lock_entry(name) as entry:
            group = entry.group
            if isinstance(group, ClassicGroup):
                if not group.is_unused:
                    raise RefusedError(Code.GROUP_ID_NOT_FOUND, f"Group {name} is not a consumer group.")
                if not is_created:
                    raise RefusedError(Code.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
                stored_generation = group.stored_generation
                entry.group = group = ConsumerGroup(name)
                if stored_generation:
                    record = OffsetsRecord(OffsetsType.GROUP_METADATA, GroupKey(group=name), None, None)
                    group.stored_records[record.kind, record.key] = record  # the first change deletes this record
            yield group

    # --- other requests ----------------------------------------------------------------------------------------------

    def check_fetch(self, name: str, member_id: str | None, epoch: int) -> None:
        """Raise RefusedError unless a client may read the offsets of a group.

        A client without a member id (None) and with a negative epoch may read the offsets. In a group of the consumer
        protocol, the epoch of any other client must be the current epoch of the member. Source: apache/kafka
        ConsumerGroup.validateOffsetFetch.
        """
        if member_id is None and epoch < 0:
            return
        with self._groups.lock_group(name) as group:
            if isinstance(group, ConsumerGroup):
                group.check_member(member_id or "", epoch)


def match_topics(pattern: str, topics: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted names of topics that a regular expression matches completely.

    As in Kafka, internal topics are included. Source: apache/kafka TopicRegexResolver.
    """
    expression = compile_pattern("SubscribedTopicRegex", pattern)
    return tuple(sorted(filter(expression.fullmatch, topics)))


def compile_pattern(field: str, pattern: str) -> Any:
    """Return the compiled regular expression of a request's field. The error contains the name of the field.

    Raises:
        RefusedError: the expression is not valid in RE2's syntax, which Kafka uses.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = f"{field} `{pattern}` is not a valid regular expression: {error}"
        raise RefusedError(Code.INVALID_REGULAR_EXPRESSION, reason) from error


def _new_id() -> str:
    return str(uuid.uuid4())


def _check_instance(group: ConsumerGroup, request: Heartbeat, instance_id: str) -> ConsumerMember | None:
    """Return a static member that rejoins after it has left temporarily.

    The member gets the member id of the request, or a new id if the request has none.

    Return None if the member with the instance id already has the member id of the request, or if the instance id is
    new.

    Raises:
        RefusedError: another member uses the instance id. Or no member has the instance id, and the request does not
            join the group.
    """
    member = group.static_member(instance_id)
    if member is None:
        if request.epoch:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
        return None
    if member.id == request.member_id:
        return None
    if request.epoch:
        raise RefusedError(Code.FENCED_INSTANCE_ID, f"the instance id {instance_id} has another member now")
    if member.epoch != LEAVE_FOR_A_TIME:
        raise RefusedError(Code.UNRELEASED_INSTANCE_ID, f"the instance id {instance_id} is used by another member")
    return group.replace_static(member, request.member_id or _new_id())


def _update_member(member: ConsumerMember, request: Heartbeat) -> ConsumerMember:
    """Return a member with the values of a request. An empty regular expression removes the member's expression."""
    return replace(
        member,
        instance_id=request.instance_id or member.instance_id,
        rack=request.rack or member.rack,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_ms=member.rebalance_ms if request.rebalance_ms == -1 else request.rebalance_ms,
        topics=member.topics if request.topics is None else tuple(sorted(set(request.topics))),
        pattern=member.pattern if request.pattern is None else request.pattern or None,
        assignor=request.assignor or member.assignor,
    )


def _has_other_topics(group: ConsumerGroup, topics: Mapping[str, KnownTopic]) -> bool:
    """Return True if ``topics`` differs from the topics of the group's epoch.

    After a restart, the topics of the epoch are unknown, and ``topics`` is compared with the partitions in the target
    assignment. The result is then also True if a member was removed after the assignment was computed.
    """
    if group.topics is not None:
        return topics != group.topics
    expected = {(topic.id, number) for topic in topics.values() for number in range(topic.partitions)}
    return expected != NOTHING.union(*group.target.values())


def _check(request: Heartbeat) -> None:
    """Raise RefusedError if a field of a request is missing or invalid, or if the assignor is unknown.

    Source: apache/kafka GroupMetadataManager.throwIfConsumerGroupHeartbeatRequestIsInvalid.
    """
    message = ""
    if not request.group:
        message = "GroupId can't be empty."
    elif request.instance_id == "" or request.rack == "":
        message = "InstanceId and RackId can't be empty."
    elif not request.member_id and (request.has_own_id or request.epoch != 0):
        message = "MemberId can't be empty."
    elif request.epoch == LEAVE_FOR_A_TIME and request.instance_id is None:
        message = "InstanceId can't be null."
    elif request.epoch < LEAVE_FOR_A_TIME:
        message = "MemberEpoch is invalid."
    elif len(request.pattern or "") > _MAX_PATTERN:
        message = f"SubscribedTopicRegex is longer than {_MAX_PATTERN} characters."
    elif request.epoch == 0:
        message = _join_error_text(request)
    if message:
        raise RefusedError(Code.INVALID_REQUEST, message)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        raise RefusedError(
            Code.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. Supported assignors: {names}.",
        )


def _join_error_text(request: Heartbeat) -> str:
    if request.rebalance_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.owned is None or request.owned:
        return "TopicPartitions must be empty when (re-)joining."
    if request.topics is None and request.pattern is None:  # a member may join without topics, and subscribe later
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return ""
