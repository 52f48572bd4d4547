"""The in-sync replicas and the high watermark of the example follow Kafka's rules."""

from __future__ import annotations

import pytest

from replica.in_sync import InSyncReplicas

LAG_MS = 10
HIGH_WATERMARK = 3


def replicas(*followers: str, min_in_sync: int = 2, epoch_start: int = 0) -> InSyncReplicas:
    return InSyncReplicas(followers, min_in_sync, LAG_MS, epoch_start)


def fetched(found: InSyncReplicas, now_ms: int, log_end: int = 5, **offsets: int) -> None:
    for name, offset in offsets.items():
        found.fetched(name, offset, log_end, HIGH_WATERMARK, now_ms)


def committed(found: InSyncReplicas, now_ms: int, log_end: int = 5) -> int:
    return found.committed(log_end, now_ms, HIGH_WATERMARK)


def test_readers_see_what_the_slowest_replica_in_sync_has() -> None:
    found = replicas("a", "b")
    fetched(found, 0, a=5, b=4)
    assert found.members == {"a", "b"}
    assert committed(found, 0) == 4


def test_a_follower_that_stays_behind_leaves_and_holds_nothing_back() -> None:
    found = replicas("a", "b")
    fetched(found, 0, a=5, b=4)
    found.expire(5, LAG_MS + 1)
    assert found.members == {"a"}
    assert committed(found, LAG_MS + 1) == 5


def test_a_follower_that_is_caught_up_by_time_and_may_join_holds_the_high_watermark_back() -> None:
    found = replicas("a", "b", epoch_start=4)
    fetched(found, 0, log_end=3, b=3)  # caught up, but below the start of the epoch, so that it does not join
    fetched(found, 5, a=5)
    found.fetched("b", 4, 5, 5, 5)  # below the high watermark, so that it does not join yet
    assert found.members == {"a"}
    assert committed(found, 5) == 4
    assert committed(found, 5 + LAG_MS + 1) == 5


def test_nothing_is_committed_while_too_few_replicas_are_in_sync() -> None:
    found = replicas("a", "b")
    fetched(found, 0, a=2, b=2)
    assert not found.enough
    assert committed(found, 0) == HIGH_WATERMARK


def test_a_single_leader_commits_if_the_topic_requires_one_replica() -> None:
    found = replicas("a", "b", min_in_sync=1)
    fetched(found, 0, a=2, b=2)
    assert committed(found, 0) == 5


def test_three_of_three_commit_what_all_have() -> None:
    found = replicas("a", "b", min_in_sync=3)
    fetched(found, 0, a=5, b=5)
    assert committed(found, 0) == 5


def test_a_log_without_followers_requires_only_its_leader() -> None:
    assert committed(replicas(min_in_sync=2), 0) == 5


def test_the_leader_learns_of_a_record_with_the_fetch_after_it() -> None:
    found = replicas("a")
    found.fetched("a", 4, 5, 4, 0)  # the response contains the record at offset 4
    assert found.committed(5, 0, 4) == 4
    found.fetched("a", 5, 5, 4, 1)
    assert found.committed(5, 1, 4) == 5


def test_a_follower_that_is_always_one_fetch_behind_stays_in_sync() -> None:
    found = replicas("a")
    for turn in range(1, 5):
        found.fetched("a", turn, turn + 1, 0, turn * LAG_MS)
        found.expire(turn + 1, turn * LAG_MS)
    assert found.members == {"a"}


def test_a_follower_joins_only_with_all_records_that_its_leader_had_when_elected() -> None:
    found = replicas("a", epoch_start=7)
    found.fetched("a", 6, 8, 3, 0)  # above the high watermark, which lags after an election
    assert found.members == set()
    found.fetched("a", 7, 8, 3, 1)
    assert found.members == {"a"}


@pytest.mark.parametrize("high_watermark", [0, 6])
def test_the_high_watermark_never_falls_nor_passes_the_log_end(high_watermark: int) -> None:
    found = replicas("a")
    found.fetched("a", 9, 5, 0, 0)  # a follower that is ahead of its leader, until it truncates
    assert found.committed(5, 0, high_watermark) == max(high_watermark, 5)


def test_a_node_that_is_not_assigned_does_not_count() -> None:
    found = replicas("a", "b")
    fetched(found, 0, observer=5)
    assert found.members == set()
