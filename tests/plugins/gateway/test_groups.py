"""The coordinator of classic groups.

The clock of the tests is the system's clock, to which a test can add time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway_bed import refusal
from stratalog import TopicPartition, open_engine
from stratalog.env.clock import ManualClock, SystemClock
from stratalog_gateway.groups.classic_coordinator import ClassicGroupCoordinator, JoinRequest
from stratalog_gateway.groups.classic_group import ClassicGroup, Joined, State
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.node import Node
from stratalog_gateway.settings import GatewaySection

RANGE = (("range", b"r"), ("sticky", b"s"))


class Clock(SystemClock):
    """The system's clock, plus a time that tests add."""

    def __init__(self) -> None:
        self.added_ns = 0

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.added_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def node(tmp_path: Path, clock: Clock) -> Iterator[Node]:
    with open_engine(tmp_path) as engine:
        # Otherwise the first SyncGroup creates this topic, and takes time from the sessions.
        engine.create_topic("__consumer_offsets", partitions=1)
        yield Node(engine, GatewaySection(), clock)


@pytest.fixture
def table(node: Node, pool: ThreadPoolExecutor) -> Iterator[GroupTable]:
    del pool  # requested so that the pool is closed last; closing the table ends the waits of the pool's threads
    group_table = GroupTable(node)
    yield group_table
    node.close()
    group_table.close()


@pytest.fixture
def groups(node: Node, table: GroupTable) -> ClassicGroupCoordinator:
    return ClassicGroupCoordinator(node, table)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def asked(
    member_id: str = "",
    *,
    instance: str | None = None,
    needs_id: bool = False,
    protocols: tuple[tuple[str, bytes], ...] = RANGE,
) -> JoinRequest:
    return JoinRequest(
        "g",
        member_id,
        instance,
        "client",
        "",
        "consumer",
        protocols,
        10_000,
        60_000,
        needs_id,
        can_skip_assignment=True,
    )


def joined(groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor, count: int) -> list[Joined]:
    """Return the results of ``count`` members that join together, the leader first."""
    ids = [groups.join(asked(needs_id=True)).member_id for _ in range(count)]
    members = [future.result(20) for future in [pool.submit(groups.join, asked(member_id)) for member_id in ids]]
    return sorted(members, key=lambda item: item.member_id != item.leader)


def until(condition: Callable[[], bool]) -> None:
    """Wait until another thread has made the condition true."""
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("this never happens")


def waiting(table: GroupTable) -> int:
    with table.lock_group("g") as group:
        if not isinstance(group, ClassicGroup):
            return 0
        return sum(member.joining is not None or member.syncing is not None for member in group.members.values())


def stable(groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor, count: int = 2) -> list[Joined]:
    members = joined(groups, pool, count)
    parts = {item.member_id: item.member_id.encode() for item in members}
    followers = [pool.submit(groups.sync, "g", item.member_id, item.generation, None, {}) for item in members[1:]]
    leader = members[0]
    assert groups.sync("g", leader.member_id, leader.generation, None, parts).assignment == leader.member_id.encode()
    assert {future.result(20).assignment for future in followers} == {item.member_id.encode() for item in members[1:]}
    return members


def test_members_that_were_promised_an_id_join_one_generation(
    groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    members = joined(groups, pool, 3)
    assert {(item.error, item.generation, item.protocol) for item in members} == {(0, 1, "range")}
    assert [len(item.members) for item in members] == [3, 0, 0]


def test_the_first_rebalance_does_not_wait_long_for_a_client_that_has_only_an_id(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor, clock: Clock
) -> None:
    groups.join(asked(needs_id=True))  # this client ends before it joins
    member_id = groups.join(asked(needs_id=True)).member_id
    join = pool.submit(groups.join, asked(member_id))
    until(lambda: waiting(table) == 1)
    clock.added_ns += 3_000_000_000  # less than the session timeout
    assert join.result(20).generation == 1


def test_the_assignments_reach_all_members(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    stable(groups, pool, 3)
    with table.lock_group("g") as group:
        assert isinstance(group, ClassicGroup)
        assert (group.state, group.protocol) == (State.STABLE, "range")


def test_a_new_member_makes_the_others_join_again(groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor) -> None:
    first, second = stable(groups, pool)
    new = groups.join(asked(needs_id=True)).member_id
    third = pool.submit(groups.join, asked(new))
    until(lambda: refusal(groups.heartbeat, "g", first.member_id, 1, None) == 27)
    assert refusal(groups.sync, "g", first.member_id, 1, None, {}) == 27
    rejoins = [pool.submit(groups.join, asked(item.member_id)) for item in (first, second)]
    assert {future.result(20).generation for future in (third, *rejoins)} == {2}


def test_a_member_that_waits_for_its_assignment_is_notified_of_a_rebalance(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    _, follower = joined(groups, pool, 2)
    sync = pool.submit(groups.sync, "g", follower.member_id, 1, None, {})
    until(lambda: waiting(table) == 1)
    new = groups.join(asked(needs_id=True)).member_id
    pool.submit(groups.join, asked(new))
    assert refusal(sync.result, 20) == 27


def test_a_member_that_waited_for_a_leader_that_died_can_join_the_next_generation(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor, clock: Clock
) -> None:
    leader, follower = joined(groups, pool, 2)
    syncing = pool.submit(groups.sync, "g", follower.member_id, follower.generation, None, {})
    until(lambda: waiting(table) == 1)
    clock.added_ns = 11_000_000_000  # the sessions of both would be over
    assert refusal(syncing.result, 20) == 27  # REBALANCE_IN_PROGRESS
    rejoin = groups.join(asked(follower.member_id))
    assert (rejoin.error, rejoin.leader, rejoin.generation) == (0, follower.member_id, 2)
    assert refusal(groups.heartbeat, "g", leader.member_id, 1, None) == 25  # UNKNOWN_MEMBER_ID


def test_a_silent_member_is_removed(groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor, clock: Clock) -> None:
    first, second = stable(groups, pool)
    clock.added_ns += 9_000_000_000
    assert refusal(groups.heartbeat, "g", first.member_id, 1, None) == 0
    clock.added_ns += 2_000_000_000
    assert refusal(groups.heartbeat, "g", first.member_id, 1, None) == 27
    assert refusal(groups.heartbeat, "g", second.member_id, 1, None) == 25
    assert groups.join(asked(first.member_id)).generation == 2


def test_a_rebalance_does_not_wait_longer_than_its_time(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor, clock: Clock
) -> None:
    first, second = stable(groups, pool)
    rejoin: Future[Joined] = pool.submit(groups.join, asked(first.member_id))
    until(lambda: waiting(table) == 1)
    for _ in range(7):
        clock.added_ns += 9_000_000_000
        refusal(groups.heartbeat, "g", second.member_id, 1, None)  # sends heartbeats, but does not join
    assert rejoin.result(20).generation == 2
    assert refusal(groups.heartbeat, "g", second.member_id, 1, None) == 25


def test_a_member_that_leaves_starts_a_rebalance(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    first, second = stable(groups, pool)
    assert refusal(groups.leave, "g", first.member_id, None) == 0
    assert refusal(groups.leave, "g", first.member_id, None) == 25
    assert refusal(groups.heartbeat, "g", second.member_id, 1, None) == 27
    rejoin = groups.join(asked(second.member_id))
    assert (rejoin.generation, rejoin.leader) == (2, second.member_id)
    assert refusal(groups.leave, "g", second.member_id, None) == 0
    with table.lock_group("g") as group:
        assert isinstance(group, ClassicGroup)
        assert (group.state, group.members) == (State.EMPTY, {})
    assert (refusal(table.delete, "g"), refusal(table.delete, "g")) == (0, 69)


def test_wrong_members_generations_and_protocols_are_refused(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    first, _ = stable(groups, pool)
    assert refusal(groups.heartbeat, "g", first.member_id, 9, None) == 22
    assert refusal(groups.heartbeat, "h", first.member_id, 1, None) == 25
    assert groups.join(asked("stranger")).error == 25
    assert groups.join(asked(protocols=(("other", b""),))).error == 23
    for name, member_id, generation, expected in (("g", "", -1, 25), ("g", first.member_id, 1, 0), ("h", "", -1, 0)):
        with contextlib.ExitStack() as stack:
            assert refusal(stack.enter_context, table.committing(name, member_id, generation, None)) == expected


def test_a_commit_with_a_generation_is_refused_if_the_group_has_no_members(
    node: Node, table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    def code(name: str, *, knows_epochs: bool = True) -> int:
        with contextlib.ExitStack() as stack:
            return refusal(stack.enter_context, table.committing(name, "m", 2, None, knows_epochs=knows_epochs))

    groups.leave("g", stable(groups, pool, 1)[0].member_id, None)
    node.engine.alter_group_offsets("simple", {TopicPartition("orders", 0): 3}, must_exist=False)
    assert [code("g"), code("simple"), code("new"), code("new", knows_epochs=False)] == [25, 25, 69, 22]


def test_a_group_does_not_change_during_a_commit(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    """Otherwise the offsets of a removed member could be appended after those of the partition's next owner."""
    first, _ = stable(groups, pool)
    with table.lock_entry("g") as group:
        lock = group.lock
    with table.committing("g", first.member_id, 1, None):
        assert lock.locked()
        leaving = pool.submit(groups.leave, "g", first.member_id, None)
    leaving.result(20)


def test_the_same_join_twice_gives_the_same_result(groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor) -> None:
    leader, follower = joined(groups, pool, 2)
    assert groups.join(asked(leader.member_id)) == leader
    assert groups.join(asked(follower.member_id)) == follower


def test_a_member_that_syncs_before_the_group_has_a_protocol_must_join_the_rebalance(
    table: GroupTable, groups: ClassicGroupCoordinator, pool: ThreadPoolExecutor
) -> None:
    """The group was empty, and waits for a client that has got a member id."""
    groups.leave("g", stable(groups, pool, 1)[0].member_id, None)
    late, member = (groups.join(asked(needs_id=True)).member_id for _ in range(2))
    future = pool.submit(groups.join, asked(member))
    until(lambda: waiting(table) == 1)
    assert refusal(groups.sync, "g", member, 2, None, {}, "consumer", "range") == 27
    assert refusal(groups.sync, "g", member, 2, None, {}, "other", "range") == 23
    assert refusal(groups.leave, "g", late, None) == 0
    assert future.result(20).generation == 3


def test_a_static_member_rejoins_without_a_rebalance(groups: ClassicGroupCoordinator) -> None:
    first = groups.join(asked(instance="one"))
    groups.sync("g", first.member_id, 1, "one", {first.member_id: b"all"})
    back = groups.join(asked(instance="one"))
    assert (back.error, back.generation, back.skip_assignment) == (0, 1, True)
    assert back.member_id != first.member_id
    assert groups.sync("g", back.member_id, 1, "one", {}).assignment == b"all"
    assert refusal(groups.heartbeat, "g", first.member_id, 1, "one") == 82
    assert groups.join(asked(first.member_id, instance="one")).error == 82
    assert refusal(groups.leave, "g", "", "one") == 0


def test_a_member_that_names_an_unknown_instance_is_refused(groups: ClassicGroupCoordinator) -> None:
    member_id = groups.join(asked(instance="one")).member_id
    assert refusal(groups.sync, "g", member_id, 1, "two", {member_id: b"all"}) == 25
    assert refusal(groups.sync, "g", member_id, 1, "one", {member_id: b"all"}) == 0
    assert [refusal(groups.heartbeat, "g", member_id, 1, instance) for instance in ("one", "two", None)] == [0, 25, 0]


def test_a_static_member_rejoins_without_a_rebalance_although_its_metadata_differs(
    groups: ClassicGroupCoordinator,
) -> None:
    """Metadata of Java clients contains the last generation, which a restarted client does not know."""
    first = groups.join(asked(instance="one", protocols=(("range", b"generation 4"), ("sticky", b""))))
    groups.sync("g", first.member_id, 1, "one", {first.member_id: b"all"})
    back = groups.join(asked(instance="one", protocols=(("range", b"generation -1"), ("sticky", b""))))
    assert (back.error, back.generation, back.members) == (0, 1, ((back.member_id, "one", b"generation -1"),))
    reordered_join = groups.join(asked(instance="one", protocols=(("sticky", b""), ("range", b""))))
    assert (reordered_join.error, reordered_join.generation, reordered_join.protocol) == (0, 2, "sticky")


def test_the_end_of_the_gateway_ends_all_waits(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with open_engine(tmp_path / "other") as engine:
        node = Node(engine, GatewaySection(), SystemClock())
        table = GroupTable(node)
        groups = ClassicGroupCoordinator(node, table)
        joined(groups, pool, 2)
        new = groups.join(asked(needs_id=True)).member_id
        join = pool.submit(groups.join, asked(new))
        until(lambda: waiting(table) == 1)
        node.close()
        table.close()
        assert join.result(20).error == 15


def test_a_rebalance_ends_after_its_wait(tmp_path: Path) -> None:
    with open_engine(tmp_path / "other") as engine:
        node = Node(engine, GatewaySection(), ManualClock())
        groups = ClassicGroupCoordinator(node, GroupTable(node))
        groups.join(asked(needs_id=True))  # gets an id, but does not join with it
        assert groups.join(asked(groups.join(asked(needs_id=True)).member_id)).generation == 1
