"""The in-sync replicas of one log, and the high watermark that follows from them.

Source of the rules: apache/kafka Partition.maybeIncrementLeaderHW, Replica.updateFetchStateOrThrow,
Replica.isCaughtUp, Partition.isFollowerInSync.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Follower:
    """State of one follower, as its fetches show it.

    Attributes:
        log_end: the follower has all records below this offset; -1 before its first fetch.
        caught_up_ms: time when the follower last had all records of the leader; None if it never had.
        fetched_ms: time of its last fetch.
        leader_end: the leader's log end at that fetch.
    """

    log_end: int = -1
    caught_up_ms: int | None = None
    fetched_ms: int = 0
    leader_end: int = -1


class InSyncReplicas:
    """The followers of one log in one leader epoch; not thread-safe.

    A new leader begins alone. A follower joins when it has all records that the leader had at the start of its epoch,
    and all committed ones: whichever member is elected next has every record that was acknowledged.
    """

    def __init__(self, followers: Iterable[str], min_in_sync: int, lag_ms: int, epoch_start: int) -> None:
        """Begin an epoch.

        Args:
            followers: names of the assigned followers.
            min_in_sync: replicas, the leader included, that must be in sync before the high watermark moves. More than
                there are count as all of them.
            lag_ms: time after which a follower that does not catch up leaves.
            epoch_start: log end offset of the leader when its epoch began.
        """
        self._followers = {name: _Follower() for name in followers}
        self._min_in_sync = min(min_in_sync, 1 + len(self._followers))
        self._lag_ms, self._epoch_start = lag_ms, epoch_start
        self._members = set[str]()

    @property
    def members(self) -> frozenset[str]:
        """Names of the followers that are in sync. The leader always is."""
        return frozenset(self._members)

    @property
    def enough(self) -> bool:
        """True if so many replicas are in sync that records can be committed."""
        return 1 + len(self._members) >= self._min_in_sync

    def fetched(self, name: str, offset: int, log_end: int, high_watermark: int, now_ms: int) -> None:
        """Note a fetch whose log does not diverge: the follower has all records below ``offset``.

        Args:
            name: the follower; a fetch of one that is not assigned changes nothing.
            offset: fetch offset.
            log_end: the leader's log end.
            high_watermark: the leader's high watermark.
            now_ms: time of the fetch.
        """
        found = self._followers.get(name)
        if found is None:
            return
        if offset >= log_end:
            found.caught_up_ms = now_ms
        elif found.leader_end >= 0 and offset >= found.leader_end:
            found.caught_up_ms = max(found.fetched_ms, found.caught_up_ms or 0)
        found.log_end, found.fetched_ms, found.leader_end = offset, now_ms, log_end
        if offset >= max(high_watermark, self._epoch_start):
            self._members.add(name)

    def expire(self, log_end: int, now_ms: int) -> None:
        """Let the followers leave that have not caught up with ``log_end`` for longer than the limit."""
        self._members = {name for name in self._members if self._is_caught_up(self._followers[name], log_end, now_ms)}

    def committed(self, log_end: int, now_ms: int, high_watermark: int) -> int:
        """Return the high watermark: the end of the records that all replicas in sync have.

        A follower that is caught up by time and has all committed records holds the offset back, so that it can join.
        """
        if not self.enough:
            return high_watermark
        joining = (
            name
            for name, found in self._followers.items()
            if found.log_end >= max(high_watermark, self._epoch_start) and self._is_caught_up(found, log_end, now_ms)
        )
        ends = [self._followers[name].log_end for name in {*self._members, *joining}]
        return max(high_watermark, min([log_end, *ends]))

    def _is_caught_up(self, found: _Follower, log_end: int, now_ms: int) -> bool:
        if found.log_end >= log_end:
            return True
        return found.caught_up_ms is not None and now_ms - found.caught_up_ms <= self._lag_ms
