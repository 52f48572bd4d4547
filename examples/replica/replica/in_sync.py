"""The in-sync replicas of one log, and the high watermark that follows from them.

Source of the rules: apache/kafka Partition.maybeIncrementLeaderHW, Replica.updateFetchStateOrThrow,
Replica.isCaughtUp, Partition.isFollowerInSync.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Follower:
    """State of one follower, known from its fetches.

    Attributes:
        log_end: the follower has all records below this offset; -1 before its first fetch.
        caught_up_ms: time when the follower last had all records of the leader; None if it never had.
        fetched_ms: time of the follower's last fetch.
        leader_end: the leader's log end at that fetch.
    """

    log_end: int = -1
    caught_up_ms: int | None = None
    fetched_ms: int = 0
    leader_end: int = -1


class InSyncReplicas:
    """The in-sync followers of one log in one leader epoch; not thread-safe.

    At first, no follower is in sync. A follower becomes in sync when it has all committed records, and all records that
    the leader had at the start of its epoch. Each in-sync follower therefore has every acknowledged record, and can be
    elected as the next leader.
    """

    def __init__(self, followers: Iterable[str], min_in_sync: int, lag_ms: int, epoch_start: int) -> None:
        """Begin a leader epoch, without in-sync followers.

        Args:
            followers: names of the assigned followers.
            min_in_sync: number of replicas, the leader included, that must be in sync before the high watermark moves;
                at most the number of all replicas is used.
            lag_ms: time after which a follower that does not catch up is no longer in sync.
            epoch_start: log end offset of the leader when its epoch began.
        """
        self._followers = {name: _Follower() for name in followers}
        self._min_in_sync = min(min_in_sync, 1 + len(self._followers))
        self._lag_ms, self._epoch_start = lag_ms, epoch_start
        self._members = set[str]()

    @property
    def members(self) -> frozenset[str]:
        """Names of the followers that are in sync. The leader, which is always in sync, is not included."""
        return frozenset(self._members)

    @property
    def enough(self) -> bool:
        """True if at least ``min_in_sync`` replicas, the leader included, are in sync: records can be committed."""
        return 1 + len(self._members) >= self._min_in_sync

    def fetched(self, name: str, offset: int, log_end: int, high_watermark: int, now_ms: int) -> None:
        """Record a fetch of a follower whose log does not diverge: the follower has all records below ``offset``.

        The follower becomes in sync if it has all committed records, and all records from before the leader's epoch.

        Args:
            name: name of the follower; the call does nothing if the follower is not assigned.
            offset: fetch offset.
            log_end: the leader's log end.
            high_watermark: the leader's high watermark.
            now_ms: time of the fetch.
        """
        follower = self._followers.get(name)
        if follower is None:
            return
        if offset >= log_end:
            follower.caught_up_ms = now_ms
        elif follower.leader_end >= 0 and offset >= follower.leader_end:
            follower.caught_up_ms = max(follower.fetched_ms, follower.caught_up_ms or 0)
        follower.log_end, follower.fetched_ms, follower.leader_end = offset, now_ms, log_end
        if offset >= max(high_watermark, self._epoch_start):
            self._members.add(name)

    def expire(self, log_end: int, now_ms: int) -> None:
        """Remove the in-sync followers that have not caught up with ``log_end`` for longer than ``lag_ms``."""
        self._members = {name for name in self._members if self._is_caught_up(self._followers[name], log_end, now_ms)}

    def committed(self, log_end: int, now_ms: int, high_watermark: int) -> int:
        """Return the new high watermark: the end of the records that all in-sync replicas have.

        The result is never below ``high_watermark``, and equal to it unless ``enough``. A follower that is not in sync
        yet, but has caught up within ``lag_ms`` and has all committed records, counts too. Otherwise the high watermark
        could move away from this follower, which could then not become in sync.
        """
        if not self.enough:
            return high_watermark
        joining = (
            name
            for name, follower in self._followers.items()
            if follower.log_end >= max(high_watermark, self._epoch_start)
            and self._is_caught_up(follower, log_end, now_ms)
        )
        ends = [self._followers[name].log_end for name in {*self._members, *joining}]
        return max(high_watermark, min([log_end, *ends]))

    def _is_caught_up(self, follower: _Follower, log_end: int, now_ms: int) -> bool:
        if follower.log_end >= log_end:
            return True
        return follower.caught_up_ms is not None and now_ms - follower.caught_up_ms <= self._lag_ms
