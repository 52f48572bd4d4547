"""Server-side assignors of the consumer protocol (KIP-848): ``uniform`` and ``range``.

``uniform`` has the guarantee of Kafka's assignor: the balance of two subscribers cannot be improved if one partition is
moved from one subscriber to the other. Unlike Kafka's assignor, ``uniform`` uses one algorithm for equal and for
different subscriptions. It stops after 16 passes over all topics, even if the guarantee is not met.

Source: apache/kafka UniformAssignor, RangeAssignor.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Partition: TypeAlias = tuple[uuid.UUID, int]  # topic id, partition
Partitions: TypeAlias = frozenset[Partition]
NOTHING: Final[Partitions] = frozenset()
_MAX_ROUNDS: Final = 16  # maximum number of passes over all topics; only complex overlaps of subscriptions need so many


def group_by_topic(partitions: Partitions) -> dict[uuid.UUID, tuple[int, ...]]:
    """Return the numbers of partitions by topic id. Ids and numbers are in ascending order."""
    numbers_by_topic: dict[uuid.UUID, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers_by_topic.setdefault(topic, []).append(number)
    return {topic: tuple(numbers) for topic, numbers in numbers_by_topic.items()}


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member of a group, as input of an assignor.

    Attributes:
        instance_id: instance id of a static member; None for a dynamic member.
        topics: ids of the existing topics to which the member subscribes.
        before: partitions of the member in the previous target assignment.
    """

    instance_id: str | None
    topics: frozenset[uuid.UUID]
    before: Partitions


Subscribers: TypeAlias = Mapping[str, Subscriber]
Counts: TypeAlias = Mapping[uuid.UUID, int]
Assignor: TypeAlias = Callable[[Subscribers, Counts], dict[str, Partitions]]


def assign_ranges(members: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Return the partitions of each member, by member id. A member gets one range of each topic to which it subscribes.

    A range may be empty. The first ranges of a topic belong to static members, in the order of their instance ids. The
    next ranges belong to dynamic members, in the order of their member ids.
    """
    order = sorted(
        members,
        key=lambda member_id: (members[member_id].instance_id is None, members[member_id].instance_id or member_id),
    )
    assigned: dict[str, set[Partition]] = {member_id: set() for member_id in order}
    for topic, count in counts.items():
        subscribed = [member_id for member_id in order if topic in members[member_id].topics]
        if not subscribed:
            continue
        size, larger = divmod(count, len(subscribed))
        start = 0
        for number, member_id in enumerate(subscribed):
            end = start + size + (number < larger)
            assigned[member_id].update((topic, partition) for partition in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def assign_uniformly(members: Subscribers, counts: Counts) -> dict[str, Partitions]:
    """Return the partitions of each member, by member id, in nearly equal numbers.

    A member keeps its previous partitions (``Subscriber.before``) unless the balance requires a move.
    """
    balance = _Balance(members, counts)
    balance.keep()
    balance.fill()
    for _ in range(_MAX_ROUNDS):
        if not balance.move():
            break
    return {member_id: frozenset(partitions) for member_id, partitions in balance.assigned.items()}


class _Balance:
    """State of an assignment that is being computed.

    Members with equal counts are ordered by their ids, so equal input gives equal output.
    """

    def __init__(self, members: Subscribers, counts: Counts) -> None:
        self._members, self._counts = members, counts
        self.assigned: dict[str, set[Partition]] = {member_id: set() for member_id in sorted(members)}
        subscribers = {
            topic: [member_id for member_id in self.assigned if topic in members[member_id].topics] for topic in counts
        }
        self._subscribers = {topic: member_ids for topic, member_ids in subscribers.items() if member_ids}
        # topics with most partitions per subscriber first: later topics balance the numbers
        self._topics = sorted(
            self._subscribers, key=lambda topic: (-counts[topic] / len(self._subscribers[topic]), topic)
        )

    def keep(self) -> None:
        """Assign to each member its previous partitions.

        Partitions that no longer exist, and partitions of topics to which the member no longer subscribes, are skipped.
        """
        owned: set[Partition] = set()
        for member_id, partitions in self.assigned.items():
            member = self._members[member_id]
            previous = {
                (topic, number)
                for topic, number in member.before
                if topic in member.topics and number < self._counts.get(topic, 0)
            } - owned
            partitions.update(previous)
            owned |= previous

    def fill(self) -> None:
        """Assign each partition without an owner to the subscriber of its topic that has the fewest partitions."""
        owned = {partition for partitions in self.assigned.values() for partition in partitions}
        for topic in self._topics:
            for number in range(self._counts[topic]):
                if (topic, number) not in owned:
                    self.assigned[self._smallest(topic)].add((topic, number))

    def move(self) -> bool:
        """For each topic, move partitions from subscribers with many partitions to subscribers with few partitions.

        Return True if a partition was moved.
        """
        is_moved = False
        for topic in self._topics:
            owners = Counter(
                {
                    member_id: sum(topic_id == topic for topic_id, _ in self.assigned[member_id])
                    for member_id in self._subscribers[topic]
                }
            )
            while True:
                holders = [member_id for member_id, count in owners.items() if count]
                if not holders:
                    break
                largest = max(holders, key=lambda member_id: (len(self.assigned[member_id]), member_id))
                smallest = self._smallest(topic)
                if len(self.assigned[largest]) - len(self.assigned[smallest]) <= 1:
                    break
                partition = max(partition for partition in self.assigned[largest] if partition[0] == topic)
                self.assigned[largest].discard(partition)
                self.assigned[smallest].add(partition)
                owners[largest] -= 1
                owners[smallest] += 1
                is_moved = True
        return is_moved

    def _smallest(self, topic: uuid.UUID) -> str:
        """Return the id of the topic's subscriber that has the fewest partitions."""
        return min(self._subscribers[topic], key=lambda member_id: (len(self.assigned[member_id]), member_id))


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
