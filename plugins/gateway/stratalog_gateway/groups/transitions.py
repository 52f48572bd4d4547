"""Checks and transitions of a classic group that several requests use. The caller holds the lock of the group.

``advance`` and ``next_deadline_ns`` also accept a group of the consumer protocol.

Source: apache/kafka GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stratalog_gateway.error_codes import Code
from stratalog_gateway.groups.group import Group, Joined, Member, Protocols, State

MAX_PENDING: Final = 1_000  # clients of one group that got a member id and have not joined


def check_member(group: Group, member_id: str, generation: int, instance_id: str | None) -> int:
    """Return ``Code.NONE`` if the group has this member in this generation, otherwise an error code."""
    known = member_id if instance_id is None else group.instances.get(instance_id)
    if known is not None and known != member_id:
        return Code.FENCED_INSTANCE_ID
    if known is None or member_id not in group.members:
        return Code.UNKNOWN_MEMBER_ID
    return Code.NONE if generation == group.generation else Code.ILLEGAL_GENERATION


def promise(group: Group, member_id: str, deadline_ns: int) -> Joined:
    """Assign a member id to a client, which must send JoinGroup again with this id (KIP-394).

    A rebalance waits for the client until the monotonic time ``deadline_ns``. The result has the code
    MEMBER_ID_REQUIRED, or COORDINATOR_NOT_AVAILABLE if 1,000 such clients have not joined yet.
    """
    if len(group.pending) >= MAX_PENDING:
        return Joined(Code.COORDINATOR_NOT_AVAILABLE, "")
    group.pending[member_id] = deadline_ns
    return Joined(Code.MEMBER_ID_REQUIRED, member_id)


def is_retry(group: Group, member: Member, member_id: str, protocols: Protocols) -> bool:
    """Return True if a JoinGroup request only repeats an earlier request, whose response the member has not received.

    The protocols of such a request are unchanged. In a stable group, a JoinGroup request of the leader is no retry: the
    request begins a rebalance.
    """
    if not member_id or list(member.protocols) != list(protocols):
        return False
    return group.state is State.COMPLETING or (group.state is State.STABLE and member_id != group.leader)


def remove(group: Group, ids: Iterable[str], now_ns: int) -> None:
    """Remove members, and begin a rebalance of the remaining members. If no member remains, the group becomes EMPTY."""
    gone = list(ids)
    for member_id in gone:
        group.drop(member_id, Code.UNKNOWN_MEMBER_ID)
    if not gone:
        return
    if not group.members:
        group.state, group.leader, group.protocol = State.EMPTY, "", None
        group.generation += 1
        return
    group.prepare(now_ns, Code.REBALANCE_IN_PROGRESS)
    _complete(group, now_ns)


def advance(group: Group, now_ns: int) -> None:
    """Remove members, and end phases of a rebalance, whose deadline is at or before the monotonic time ``now_ns``."""
    if group.modern is not None:
        group.modern.advance(now_ns)
    for member_id in [found for found, deadline_ns in group.pending.items() if deadline_ns <= now_ns]:
        del group.pending[member_id]
    remove(group, [found.id for found in _idle(group) if found.deadline_ns <= now_ns], now_ns)
    if group.state is State.COMPLETING and group.deadline_ns <= now_ns:
        remove(group, [found.id for found in group.members.values() if found.syncing is None], now_ns)
    _complete(group, now_ns)


def next_deadline_ns(group: Group) -> int:
    """Return the monotonic time at which ``advance`` must be called; 2^63 - 1 if the group has no deadline."""
    deadlines = [] if group.modern is None else [group.modern.next_deadline_ns()]
    deadlines += [*group.pending.values(), *(found.deadline_ns for found in _idle(group))]
    if group.state in {State.PREPARING, State.COMPLETING}:
        deadlines.append(group.deadline_ns)
    return min(deadlines, default=(1 << 63) - 1)


def _idle(group: Group) -> list[Member]:
    """Return the members without a waiting request. Only the sessions of such members can end."""
    return [found for found in list(group.members.values()) if found.joining is None and found.syncing is None]


def _complete(group: Group, now_ns: int) -> None:
    """End the join phase if all members have joined, or if the deadline of the phase has passed.

    Remove dynamic members that have not joined. If no member has joined, restart the phase.
    """
    if group.state is not State.PREPARING:
        return
    missing = [found for found in group.members.values() if found.joining is None]
    if (missing or group.pending) and now_ns < group.deadline_ns:
        return
    for member in missing:
        if member.instance_id is None:
            group.drop(member.id, Code.UNKNOWN_MEMBER_ID)
    joined = [found for found in group.members.values() if found.joining is not None]
    if group.members and not joined:
        group.extend(now_ns)
        return
    if joined and group.members[group.leader].joining is None:
        group.leader = joined[0].id
    group.complete_join(now_ns)
