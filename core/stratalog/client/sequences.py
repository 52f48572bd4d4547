"""Ids and sequence numbers of an idempotent producer.

Source: apache/kafka TransactionManager.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from stratalog.model.names import TopicPartition

LAST_EPOCH: Final = (1 << 15) - 1
_SEQUENCES: Final = 1 << 31
_FIRST_ID: Final = 1 << 62


class ProducerId(NamedTuple):
    """Who writes: a higher epoch fences the lower ones."""

    producer_id: int
    epoch: int


def new_producer_id(chance: random.Random) -> ProducerId:
    """An id that nobody has: by chance, from the upper half of what there is.

    Kafka counts its ids up from 0, so that none of them is met, and nothing has to be stored to know which were given.
    """
    return ProducerId(_FIRST_ID | chance.getrandbits(62), 0)


def is_ours(producer_id: int) -> bool:
    """Whether ``new_producer_id`` made it, and not a broker."""
    return producer_id >= _FIRST_ID


@dataclass(slots=True)
class _Numbers:
    identity: ProducerId
    sequence: int = 0


class Sequences:
    """The next sequence number of each partition.

    A partition's numbers are asked for and changed by whoever has its batch; different partitions at once are fine.

    Args:
        identity: under which every partition begins.
        chance: for another id, when the epochs of one are used up.
    """

    def __init__(self, identity: ProducerId, chance: random.Random) -> None:
        self._identity, self._chance = identity, chance
        self._numbers: dict[TopicPartition, _Numbers] = {}

    def begin(self, identity: ProducerId) -> None:
        """Go on under another id or epoch: every partition begins at 0. Nothing may be under way."""
        self._identity = identity
        self._numbers.clear()

    def of(self, name: TopicPartition) -> tuple[ProducerId, int]:
        """Id and sequence of the next record of a partition."""
        numbers = self._numbers.setdefault(name, _Numbers(self._identity))
        return numbers.identity, numbers.sequence

    def advance(self, name: TopicPartition, count: int) -> None:
        """Take note that ``count`` records were written; after 2147483647 comes 0."""
        numbers = self._numbers[name]
        numbers.sequence = (numbers.sequence + count) % _SEQUENCES

    def restart(self, name: TopicPartition) -> None:
        """Begin a partition anew under another epoch, as nobody knows which of its records were written."""
        (producer_id, epoch), _ = self.of(name)
        following = ProducerId(producer_id, epoch + 1) if epoch < LAST_EPOCH else new_producer_id(self._chance)
        self._numbers[name] = _Numbers(following)
