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
_FIRST_INTERNAL_ID: Final = 1 << 62  # ids of producers inside the engine, which end with the engine
_FIRST_EXTERNAL_ID: Final = 1 << 61  # ids of producers outside the process, which outlive the engine


class ProducerId(NamedTuple):
    """Producer id and epoch: a higher epoch fences lower epochs of the same id."""

    producer_id: int
    epoch: int


def new_producer_id(chance: random.Random) -> ProducerId:
    """Return a random producer id from 2^62 to 2^63 - 1, with epoch 0, for a producer that ends with its engine.

    Kafka assigns ids from 0 upwards, and stores the last id. stratalog stores no used ids: in practice, no two random
    ids are equal.
    """
    return ProducerId(_FIRST_INTERNAL_ID | chance.getrandbits(62), 0)


def new_external_id(chance: random.Random) -> int:
    """Return a random producer id from 2^61 to 2^62 - 1, for a transactional producer outside the process.

    Such a producer may continue its transaction after a restart of the engine. Kafka's ids are smaller.
    """
    return _FIRST_EXTERNAL_ID | chance.getrandbits(61)


def is_internal(producer_id: int) -> bool:
    """Return True if the id is in the range of ``new_producer_id``, for producers that end with their engine."""
    return producer_id >= _FIRST_INTERNAL_ID


def is_external(producer_id: int) -> bool:
    """Return True if the id is in the range of ``new_external_id``, for producers outside the process."""
    return _FIRST_EXTERNAL_ID <= producer_id < _FIRST_INTERNAL_ID


@dataclass(slots=True)
class _Numbers:
    identity: ProducerId
    sequence: int = 0


class Sequences:
    """The next sequence number of an idempotent producer in each partition.

    Different threads may call the methods concurrently for different partitions, but not for the same partition.

    Args:
        identity: producer id and epoch with which every partition starts.
        chance: random source for a new producer id, which replaces an id whose epochs are all used.
    """

    def __init__(self, identity: ProducerId, chance: random.Random) -> None:
        self._identity, self._chance = identity, chance
        self._numbers: dict[TopicPartition, _Numbers] = {}

    def begin(self, identity: ProducerId) -> None:
        """Use another producer id or epoch. Each partition starts at sequence number 0. No batch may be in progress."""
        self._identity = identity
        self._numbers.clear()

    def next_sequence(self, name: TopicPartition) -> tuple[ProducerId, int]:
        """Return the producer id and epoch, and the sequence number of the next record, for a partition."""
        numbers = self._numbers.setdefault(name, _Numbers(self._identity))
        return numbers.identity, numbers.sequence

    def advance(self, name: TopicPartition, count: int) -> None:
        """Advance a partition's sequence number by ``count`` written records; 0 follows 2147483647."""
        numbers = self._numbers[name]
        numbers.sequence = (numbers.sequence + count) % _SEQUENCES

    def restart(self, name: TopicPartition) -> None:
        """Restart a partition's sequence numbers at 0 in the next epoch, or, after the last epoch, with a new id."""
        (producer_id, epoch), _ = self.next_sequence(name)
        following = ProducerId(producer_id, epoch + 1) if epoch < LAST_EPOCH else new_producer_id(self._chance)
        self._numbers[name] = _Numbers(following)
