from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from stratalog.env.cache import Cache, CacheOrder, LeastRecent, TwoQueues

LIMIT = 64
TAIL = 20  # number of items, of one byte each, that the readers of the tail need


def hit_share(order: CacheOrder, *, history_per_step: int, steps: int = 2_000) -> float:
    """Return the cache hit ratio of tail reads during reads of old items, measured in the second half.

    In each step, one consumer reads a random item of the tail. Each old item is read four times in a row, as by a
    reader that reads a chunk in several steps.
    """
    chance = random.Random(7)  # noqa: S311 - a seed repeats it
    cache = Cache[bytes](LIMIT, order)
    loads: list[Hashable] = []

    def read(key: Hashable) -> None:
        def load() -> bytes:
            loads.append(key)
            return b"x"

        cache.get_or_load(key, load)

    history = reads = 0
    for step in range(steps):
        if step == steps // 2:
            loads.clear()
            reads = 0
        read(("tail", chance.randrange(TAIL)))
        reads += 1
        for _ in range(history_per_step):
            for _ in range(4):
                read(("history", history))
            history += 1
    missed = [key for key in loads if isinstance(key, tuple) and key[0] == "tail"]
    return 1 - len(missed) / reads


@pytest.mark.parametrize("history_per_step", [0, 1, 3, 10, 50])
@pytest.mark.long
def test_a_replay_of_history_does_not_evict_what_the_tail_needs(history_per_step: int) -> None:
    assert hit_share(TwoQueues(LIMIT), history_per_step=history_per_step) == 1.0


def test_a_plain_lru_order_would_evict_the_tail_during_a_read_of_history() -> None:
    """This shows that the test above can fail: an LRU order has a low hit ratio for the same reads."""
    assert hit_share(LeastRecent(LIMIT), history_per_step=10) < 0.5


def test_a_chunk_requested_again_after_eviction_is_kept() -> None:
    order = TwoQueues(8)
    for number in range(8):
        assert order.add(number, 1) == []
    assert order.add(8, 1) == [0]
    assert order.add(0, 1) == [1]
    for number in range(9, 30):
        order.touch(0)
        order.add(number, 1)
        assert 0 in order


def test_a_cache_that_changes_its_readers_changes_its_contents() -> None:
    """An item that was used often in the past must not stay for ever."""
    order = TwoQueues(8)
    for era in range(5):
        for turn in range(40):
            for number in range(4):
                key = (era, number)
                if key in order:
                    order.touch(key)
                else:
                    order.add(key, 1)
            order.add((era, "history", turn), 1)
        assert all((era, number) in order for number in range(4))


def test_a_begun_item_stays_until_its_reader_has_finished_it() -> None:
    order = TwoQueues(8)
    order.add("begun", 1)
    order.begin("begun")
    for number in range(50):
        order.add(number, 1)
    assert "begun" in order
    order.finish("begun")
    for number in range(50, 58):
        order.add(number, 1)
    assert "begun" not in order


def test_a_begun_item_whose_reader_has_stopped_makes_room_for_others() -> None:
    order = TwoQueues(8)
    for number in range(50):
        order.add(number, 1)
        order.begin(number)
        order.begin(0)
    assert {0, 49, 48, 47, 46} <= set(order.keys())
    assert 1 not in order


def test_begun_items_leave_room_for_frequent_ones() -> None:
    order = TwoQueues(8)
    for number in (*range(9), 0):
        order.add(number, 1)
    for number in range(9, 50):
        order.add(number, 1)
        order.begin(number)
        assert 0 in order


@pytest.mark.parametrize("limit", [0, 1, 7, 100])
def test_the_bound_holds_for_any_input(limit: int) -> None:
    chance = random.Random(limit)  # noqa: S311 - a seed repeats it
    order, sizes = TwoQueues(limit), dict[Hashable, int]()
    for _ in range(3_000):
        key = chance.randrange(40)
        if key in sizes and chance.random() < 0.1:
            assert order.remove(key)
            del sizes[key]
        elif key in sizes:
            chance.choice([order.touch, order.begin, order.finish])(key)
        else:
            sizes[key] = chance.randrange(30)
            for evicted_key in order.add(key, sizes[key]):
                del sizes[evicted_key]
        assert order.size_bytes == sum(sizes.values()) <= limit
        assert set(order.keys()) == set(sizes)
        assert len(order) == len(sizes)
    assert not order.remove("never there")
