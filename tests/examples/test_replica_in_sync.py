"""The in-sync replicas and the high watermark of the example follow Kafka's rules."""

from __future__ import annotations

import pytest

from replica.in_sync import InSyncReplicas

LAG_MS = 10
HIGH_WATERMARK = 3


def replicas(*followers: str, min_in_sync: int = 2, epoch_start: int = 0) -> InSyncReplicas:
    return InSyncReplicas(followers, min_in_sync, LAG_MS, epoch_start)


def fetched(replica_set: InSyncReplicas, now_ms: int, log_end: int = 5, **offsets: int) -> None:
    for name, offset in offsets.items():
        replica_set.fetched(name, offset, log_end, HIGH_WATERMARK, now_ms)


def committed(replica_set: InSyncReplicas, now_ms: int, log_end: int = 5) -> int:
    return replica_set.committed(log_end, now_ms, HIGH_WATERMARK)


def test_readers_see_what_the_slowest_replica_in_sync_has() -> None:
    replica_set = replicas("a", "b")
    fetched(replica_set, 0, a=5, b=4)
    assert replica_set.members == {"a", "b"}
    assert committed(replica_set, 0) == 4


def test_a_follower_that_stays_behind_leaves_and_holds_nothing_back() -> None:
    replica_set = replicas("a", "b")
    fetched(replica_set, 0, a=5, b=4)
    replica_set.expire(5, LAG_MS + 1)
    assert replica_set.members == {"a"}
    assert committed(replica_set, LAG_MS + 1) == 5


def test_a_follower_that_is_caught_up_by_time_and_may_join_holds_the_high_watermark_back() -> None:
    replica_set = replicas("a", "b", epoch_start=4)
    fetched(replica_set, 0, log_end=3, b=3)  # caught up, but below the start of the epoch, so that it does not join
    fetched(replica_set, 5, a=5)
    replica_set.fetched("b", 4, 5, 5, 5)  # below the high watermark, so that it does not join yet
    assert replica_set.members == {"a"}
    assert committed(replica_set, 5) == 4
    assert committed(replica_set, 5 + LAG_MS + 1) == 5


def test_nothing_is_committed_while_too_few_replicas_are_in_sync() -> None:
    replica_set = replicas("a", "b")
    fetched(replica_set, 0, a=2, b=2)
    assert not replica_set.enough
    assert committed(replica_set, 0) == HIGH_WATERMARK


def test_a_single_leader_commits_if_the_topic_requires_one_replica() -> None:
    replica_set = replicas("a", "b", min_in_sync=1)
    fetched(replica_set, 0, a=2, b=2)
    assert committed(replica_set, 0) == 5


def test_three_of_three_commit_what_all_have() -> None:
    replica_set = replicas("a", "b", min_in_sync=3)
    fetched(replica_set, 0, a=5, b=5)
    assert committed(replica_set, 0) == 5


def test_a_log_without_followers_requires_only_its_leader() -> None:
    assert committed(replicas(min_in_sync=2), 0) == 5


def test_the_leader_learns_of_a_record_with_the_fetch_after_it() -> None:
    replica_set = replicas("a")
    replica_set.fetched("a", 4, 5, 4, 0)  # the response contains the record at offset 4
    assert replica_set.committed(5, 0, 4) == 4
    replica_set.fetched("a", 5, 5, 4, 1)
    assert replica_set.committed(5, 1, 4) == 5


def test_a_follower_that_is_always_one_fetch_behind_stays_in_sync() -> None:
    replica_set = replicas("a")
    for turn in range(1, 5):
        replica_set.fetched("a", turn, turn + 1, 0, turn * LAG_MS)
        replica_set.expire(turn + 1, turn * LAG_MS)
    assert replica_set.members == {"a"}


def test_a_follower_joins_only_with_all_records_that_its_leader_had_when_elected() -> None:
    replica_set = replicas("a", epoch_start=7)
    replica_set.fetched("a", 6, 8, 3, 0)  # above the high watermark, which lags after an election
    assert replica_set.members == set()
    replica_set.fetched("a", 7, 8, 3, 1)
    assert replica_set.members == {"a"}


@pytest.mark.parametrize("high_watermark", [0, 6])
def test_the_high_watermark_never_falls_nor_passes_the_log_end(high_watermark: int) -> None:
    replica_set = replicas("a")
    replica_set.fetched("a", 9, 5, 0, 0)  # a follower that is ahead of its leader, until it truncates
    assert replica_set.committed(5, 0, high_watermark) == max(high_watermark, 5)


def test_a_node_that_is_not_assigned_does_not_count() -> None:
    replica_set = replicas("a", "b")
    fetched(replica_set, 0, observer=5)
    assert replica_set.members == set()
