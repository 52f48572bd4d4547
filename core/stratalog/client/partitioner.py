"""Choice of the partition of a record, a group or a transactional id.

Source: apache/kafka Utils.murmur2, BuiltInPartitioner (KIP-794), GroupCoordinatorService.partitionFor.
"""

from __future__ import annotations

import random
from struct import Struct
from typing import Final

_WORDS: Final = Struct("<I")
_MASK: Final = 0xFFFF_FFFF
_SEED: Final = 0x9747_B28C
_FACTOR: Final = 0x5BD1_E995
_SHIFT: Final = 24
_INT_MAX: Final = 0x7FFF_FFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash of a key, unsigned."""
    size = len(data)
    found = _SEED ^ size
    whole = size & ~3
    for (word,) in _WORDS.iter_unpack(memoryview(data)[:whole]):
        mixed = word * _FACTOR & _MASK
        mixed ^= mixed >> _SHIFT
        found = (found * _FACTOR & _MASK) ^ (mixed * _FACTOR & _MASK)
    if whole < size:
        found = (found ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    found = (found ^ found >> 13) * _FACTOR & _MASK
    return found ^ found >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition to which Kafka's producer sends a record with this key."""
    return (murmur2(key) & _INT_MAX) % partitions


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of a text: a signed 32-bit number."""
    found = 0
    for (unit,) in Struct("<H").iter_unpack(text.encode("utf-16-le", "surrogatepass")):
        found = (found * 31 + unit) & _MASK
    return found - (1 << 32) if found > _INT_MAX else found


def partition_of_name(name: str, partitions: int) -> int:
    """Return the same partition as Kafka for a group's offsets or a transactional id's state.

    ``name`` is the group or the transactional id. ``partitions`` is the number of partitions of the state topic.
    """
    found = java_hash(name)
    return (0 if found == -_INT_MAX - 1 else abs(found)) % partitions


class StickyPartitioner:
    """Choice of partitions for records without a key: the partition of a topic changes after each full batch.

    The next partition is chosen at random.

    Args:
        batch_size_bytes: number of bytes after which the next partition is chosen.
        chance: random source of the choice.
    """

    def __init__(self, batch_size_bytes: int, chance: random.Random) -> None:
        self._batch_size_bytes, self._chance = batch_size_bytes, chance
        self._current: dict[str, tuple[int, int]] = {}  # by topic: current partition, and bytes sent to it

    def choose(self, topic: str, partitions: int, size_bytes: int) -> int:
        """Return a partition from 0 to ``partitions`` - 1 for a record without a key, and count the record's size."""
        partition, used = self._current.get(topic, (partitions, 0))
        if partition >= partitions or used >= self._batch_size_bytes:
            partition, used = self._chance.randrange(partitions), 0
        self._current[topic] = partition, used + size_bytes
        return partition
