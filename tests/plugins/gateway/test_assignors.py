"""The assignors of the consumer protocol, tested with random groups."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from stratalog_gateway.groups.assignors import (
    NOTHING,
    Counts,
    Partitions,
    Subscriber,
    Subscribers,
    assign_ranges,
    assign_uniformly,
)

TOPICS = [uuid.UUID(int=number) for number in range(1, 6)]
A, B = TOPICS[:2]


def member(*topics: uuid.UUID, instance: str | None = None, before: Partitions = NOTHING) -> Subscriber:
    return Subscriber(instance, frozenset(topics), before)


def drawn(chance: Random, *, is_equal: bool) -> tuple[Subscribers, Counts]:
    counts = {topic: chance.randint(0, 9) for topic in TOPICS}
    # One partition of each topic does not exist.
    every = [(topic, number) for topic, count in counts.items() for number in range(count + 1)]
    chance.shuffle(every)
    members = {}
    for number in range(chance.randint(1, 7)):
        topics = TOPICS if is_equal else chance.sample(TOPICS, chance.randint(0, len(TOPICS)))
        before, every = every[: chance.randint(0, 6)], every[6:]
        members[f"m{number}"] = Subscriber(None, frozenset(topics), frozenset(before))
    return members, counts


def wanted(members: Subscribers, counts: Counts) -> set[tuple[uuid.UUID, int]]:
    topics = set[uuid.UUID]().union(*(subscriber.topics for subscriber in members.values()))
    return {(topic, number) for topic in topics for number in range(counts[topic])}


@pytest.mark.parametrize("assign", [assign_uniformly, assign_ranges])
@pytest.mark.parametrize("is_equal", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_each_partition_has_one_subscriber(assign: object, seed: int, *, is_equal: bool) -> None:
    assert callable(assign)
    members, counts = drawn(Random(seed), is_equal=is_equal)  # noqa: S311 - the same groups in each run
    assignment = assign(members, counts)
    assigned_partitions = [partition for partitions in assignment.values() for partition in partitions]
    assert sorted(assigned_partitions) == sorted(wanted(members, counts))
    assert all(topic in members[name].topics for name, partitions in assignment.items() for topic, _ in partitions)
    assert assignment == assign(members, counts)


@pytest.mark.parametrize("seed", range(20))
def test_uniform_loads_differ_by_one_at_most_if_subscriptions_are_equal(seed: int) -> None:
    members, counts = drawn(Random(seed), is_equal=True)  # noqa: S311 - the same groups in each run
    loads = [len(partitions) for partitions in assign_uniformly(members, counts).values()]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_no_single_move_improves_a_uniform_assignment(seed: int) -> None:
    members, counts = drawn(Random(seed), is_equal=False)  # noqa: S311 - the same groups in each run
    assignment = assign_uniformly(members, counts)
    for partitions in assignment.values():
        for topic, _ in partitions:
            loads = [len(assignment[name]) for name in members if topic in members[name].topics]
            assert len(partitions) - min(loads) <= 1


def test_a_uniform_assignment_that_is_balanced_stays() -> None:
    first_members = {"m0": member(A), "m1": member(A)}
    first = assign_uniformly(first_members, {A: 7})
    members = {name: member(A, before=partitions) for name, partitions in first.items()}
    assert assign_uniformly(members, {A: 7}) == first


def test_a_new_member_gets_only_the_partitions_that_balance() -> None:
    first = assign_uniformly({"m0": member(A), "m1": member(A)}, {A: 9})
    members = {name: member(A, before=partitions) for name, partitions in first.items()}
    second = assign_uniformly({**members, "m2": member(A)}, {A: 9})
    assert all(second[name] < first[name] for name in first)
    assert [len(second[name]) for name in sorted(second)] == [3, 3, 3]


def test_ranges_give_static_members_the_first_partitions_of_each_topic() -> None:
    members = {"a": member(A, B), "z": member(A, B, instance="1")}
    assignment = assign_ranges(members, {A: 3, B: 2})
    assert assignment["z"] == {(A, 0), (A, 1), (B, 0)}
    assert assignment["a"] == {(A, 2), (B, 1)}
