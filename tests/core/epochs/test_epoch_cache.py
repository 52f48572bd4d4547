from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ConfigError
from stratalog.model.offsets import EpochEntry

Entries = list[tuple[int, int]]
LOG_END = 25

steps = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 40)), max_size=12)


def cache(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochEntry(*entry) for entry in entries)


def entries_of(epoch_cache: EpochCache) -> Entries:
    return [(entry.epoch, entry.start_offset) for entry in epoch_cache.entries]


THREE = cache((0, 0), (1, 10), (2, 20))


# --- Kafka's worked examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (0, 10)), (1, (1, 20)), (2, (2, LOG_END)), (5, (-1, -1)), (-1, (-1, -1))],
)
def test_where_an_epoch_ends(epoch: int, expected: tuple[int, int]) -> None:
    assert THREE.end_offset_for(epoch, LOG_END) == expected


def test_an_epoch_in_a_gap_ends_where_the_one_below_it_does() -> None:
    assert cache((0, 0), (1, 10), (4, 20)).end_offset_for(3, LOG_END) == (1, 20)


def test_an_epoch_below_all_ends_where_the_first_begins() -> None:
    assert cache((3, 7), (4, 20)).end_offset_for(1, LOG_END) == (1, 7)


def test_without_epochs_no_end_is_known() -> None:
    assert cache().end_offset_for(0, LOG_END) == (-1, -1)
    assert cache().latest == -1


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (15, [(1, 15), (2, 20)]),
        (10, [(1, 10), (2, 20)]),
        (5, [(0, 5), (1, 10), (2, 20)]),
        (0, [(0, 0), (1, 10), (2, 20)]),
        (30, [(2, 30)]),
    ],
)
def test_truncating_from_the_start(offset: int, expected: Entries) -> None:
    assert entries_of(THREE.truncate_from_start(offset)) == expected


def test_after_truncating_from_the_start_older_epochs_end_there() -> None:
    assert THREE.truncate_from_start(15).end_offset_for(0, LOG_END) == (0, 15)


def test_truncating_before_the_first_epoch_changes_nothing() -> None:
    later = cache((1, 10), (2, 20))
    assert later.truncate_from_start(5) == later


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(20, [(0, 0), (1, 10)]), (10, [(0, 0)]), (21, [(0, 0), (1, 10), (2, 20)]), (0, [])],
)
def test_truncating_from_the_end(offset: int, expected: Entries) -> None:
    assert entries_of(THREE.truncate_from_end(offset)) == expected


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (3, 18, [(0, 0), (1, 10), (3, 18)]),
        (2, 25, [(0, 0), (1, 10), (2, 20)]),
        (3, 20, [(0, 0), (1, 10), (3, 20)]),
        (2, 20, [(0, 0), (1, 10), (2, 20)]),
        (2, 15, [(0, 0), (1, 10), (2, 15)]),
        (1, 30, [(0, 0), (1, 30)]),
        (3, 5, [(0, 0), (3, 5)]),
        (0, 0, [(0, 0)]),
    ],
)
def test_assigning(epoch: int, start: int, expected: Entries) -> None:
    assert entries_of(THREE.assign(epoch, start)) == expected


def test_assigning_what_is_known_gives_the_same_cache() -> None:
    assert THREE.assign(2, 25) is THREE


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_negative_values_are_refused(epoch: int, start: int) -> None:
    with pytest.raises(ConfigError):
        THREE.assign(epoch, start)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 30, [(0, 0), (1, 10), (2, 20)]),
        (12, 20, [(1, 12)]),
        (12, 21, [(1, 12), (2, 20)]),
        (20, 21, [(2, 20)]),
        (5, 10, [(0, 5)]),
    ],
)
def test_the_epochs_of_a_range(start: int, end: int, expected: Entries) -> None:
    assert [tuple(entry) for entry in THREE.entries_between(start, end)] == expected


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (1000, 2), (-1, -1)])
def test_the_epoch_at_an_offset(offset: int, epoch: int) -> None:
    assert THREE.epoch_at(offset) == epoch


# --- properties of any history -----------------------------------------------------------------------------------


def built(history: Sequence[tuple[int, int]]) -> EpochCache:
    epoch_cache = EpochCache()
    for epoch, start in history:
        epoch_cache = epoch_cache.assign(epoch, start)
    return epoch_cache


@given(steps)
def test_epochs_and_offsets_ascend(history: Entries) -> None:
    for entry, next_entry in itertools.pairwise(built(history).entries):
        assert entry.epoch < next_entry.epoch
        assert entry.start_offset < next_entry.start_offset


@given(steps, st.integers(0, 40))
def test_truncating_keeps_the_epoch_of_every_offset_left(history: Entries, offset: int) -> None:
    epoch_cache = built(history)
    assert all(
        epoch_cache.truncate_from_start(offset).epoch_at(o) == epoch_cache.epoch_at(o) for o in range(offset, 45)
    )
    assert all(epoch_cache.truncate_from_end(offset).epoch_at(o) == epoch_cache.epoch_at(o) for o in range(offset))


@given(steps)
def test_a_cache_is_a_value(history: Entries) -> None:
    epoch_cache = built(history)
    equal_cache = EpochCache(epoch_cache.entries)
    assert (equal_cache, hash(equal_cache)) == (epoch_cache, hash(epoch_cache))
    assert epoch_cache != "something else"
    assert str(epoch_cache.latest) in repr(epoch_cache) or epoch_cache.latest == -1
