from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.partitioner import StickyPartitioner, java_hash, murmur2, partition_of_key, partition_of_name
from vectors import VECTORS

HASHES = VECTORS["hashes"]
GROUPS = [vector for vector in HASHES if vector["name"] == "group_to_partition"]

# Source: apache/kafka UtilsTest.testMurmur2.
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", MURMUR2)
def test_keys_hash_as_in_kafka(key: bytes) -> None:
    assert murmur2(key) == MURMUR2[key] % (1 << 32)
    assert partition_of_key(key, 7) == (MURMUR2[key] & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("vector", GROUPS, ids=lambda vector: vector["input"])
def test_groups_have_the_partition_that_kafka_gives_them(vector: dict[str, str | int]) -> None:
    name = str(vector["input"])
    assert java_hash(name) == vector["java_hash"]
    assert partition_of_name(name, int(vector["partitions"])) == vector["result"]


def test_characters_beyond_16_bits_count_as_two_units() -> None:
    assert java_hash("\U0001f600") == 31 * 0xD83D + 0xDE00  # what String.hashCode adds up over the surrogates


@given(st.binary(), st.integers(1, 1000))
def test_a_key_always_has_the_same_partition(key: bytes, partitions: int) -> None:
    partition = partition_of_key(key, partitions)
    assert 0 <= partition < partitions
    assert partition == partition_of_key(bytes(bytearray(key)), partitions)


def test_records_without_a_key_stay_together_until_a_batch_is_full() -> None:
    sticky = StickyPartitioner(1000, random.Random(1))  # noqa: S311 - for a test
    partitions = [sticky.choose("t", 5, 100) for _ in range(2000)]
    runs = [partitions[start : start + 10] for start in range(0, len(partitions), 10)]
    assert all(len(set(run)) == 1 for run in runs)
    counts = Counter(run[0] for run in runs)
    assert set(counts) == set(range(5))
    assert min(counts.values()) > len(runs) / 10


def test_the_sticky_partition_of_a_topic_does_not_depend_on_other_topics() -> None:
    sticky = StickyPartitioner(1000, random.Random(1))  # noqa: S311 - for a test
    first_partition, second_partition = sticky.choose("one", 50, 900), sticky.choose("other", 50, 1)
    assert sticky.choose("one", 50, 200) == first_partition
    assert sticky.choose("other", 50, 10) == second_partition


def test_a_topic_that_has_fewer_partitions_than_before_gets_another_choice() -> None:
    sticky = StickyPartitioner(1000, random.Random(2))  # noqa: S311 - for a test
    while sticky.choose("t", 50, 1000) < 1:
        pass
    assert sticky.choose("t", 1, 1) == 0
