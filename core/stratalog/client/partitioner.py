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
    digest = _SEED ^ size
    word_bytes = size & ~3
    for (word,) in _WORDS.iter_unpack(memoryview(data)[:word_bytes]):
        mixed = word * _FACTOR & _MASK
        mixed ^= mixed >> _SHIFT
        digest = (digest * _FACTOR & _MASK) ^ (mixed * _FACTOR & _MASK)
    if word_bytes < size:
        digest = (digest ^ int.from_bytes(data[word_bytes:], "little")) * _FACTOR & _MASK
    digest = (digest ^ digest >> 13) * _FACTOR & _MASK
    return digest ^ digest >> 15


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition to which Kafka's producer sends a record with this key."""
    return (murmur2(key) & _INT_MAX) % partitions


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of a text: a signed 32-bit number."""
    hash_code = 0
    for (unit,) in Struct("<H").iter_unpack(text.encode("utf-16-le", "surrogatepass")):
        hash_code = (hash_code * 31 + unit) & _MASK
    return hash_code - (1 << 32) if hash_code > _INT_MAX else hash_code


def partition_of_name(name: str, partitions: int) -> int:
    """Return the partition in which Kafka stores a group's offsets or a transactional id's state.

    ``name`` is the group or the transactional id. ``partitions`` is the number of partitions of the state topic.
    """
    hash_code = java_hash(name)
    return (0 if hash_code == -_INT_MAX - 1 else abs(hash_code)) % partitions


class StickyPartitioner:
    """Choice of partitions for records without a key: the partition of a topic changes after each full batch.

    The next partition is chosen at random.

    Args:
        batch_size_bytes: number of bytes after which the next partition is chosen.
    """

    def __init__(self, batch_size_bytes: int, chance: random.Random) -> None:
        self._batch_size_bytes, self._chance = batch_size_bytes, chance
        self._current: dict[str, tuple[int, int]] = {}  # by topic: current partition, and bytes sent to it

    def choose(self, topic: str, partitions: int, size_bytes: int) -> int:
        """Return a partition from 0 to ``partitions`` - 1 for a record without a key, and count the record's size."""
        partition, sent_bytes = self._current.get(topic, (partitions, 0))
        if partition >= partitions or sent_bytes >= self._batch_size_bytes:
            partition, sent_bytes = self._chance.randrange(partitions), 0
        self._current[topic] = partition, sent_bytes + size_bytes
        return partition
