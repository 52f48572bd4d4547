"""A replica that fetches from a leader and handles its responses as Kafka's follower does."""

from __future__ import annotations

from stratalog.errors import OffsetOutOfRangeError
from stratalog.log.log import Log
from stratalog.model.offsets import EpochEnd


def replicate(leader: Log, follower: Log, max_bytes: int = 1 << 20, *, moves_watermark: bool = True) -> int:
    """Run one fetch of ``follower`` from ``leader``. Return the change of the follower's log end offset.

    Source: apache/kafka AbstractFetcherThread.processFetchRequest, truncateOnFetchResponse, fetchOffsetAndTruncate;
    Partition.fetchRecords, which updates a replica's offset only if the logs do not diverge.
    """
    before = follower.offsets().log_end
    last_epoch = follower.view().epochs.latest
    try:
        fetched = leader.fetch(
            before,
            max_bytes,
            "log_end",
            current_leader_epoch=follower.leader_epoch,
            last_fetched_epoch=None if last_epoch < 0 else last_epoch,
        )
    except OffsetOutOfRangeError:
        out_of_range(leader, follower)
        return follower.offsets().log_end - before
    with fetched:
        if fetched.diverging is not None:
            cut(follower, fetched.diverging)
        else:
            if moves_watermark:  # a fetch without a diverging epoch tells the leader the follower's log end
                leader.set_high_watermark(before)
            bounds = leader.offsets()
            follower.append_as_follower(fetched.read(), bounds.high_watermark, bounds.log_start)
    return follower.offsets().log_end - before


def cut(follower: Log, diverging: EpochEnd) -> None:
    """Truncate the follower to the point where its log diverges from the leader's log.

    One call may truncate too little; the next fetch then reports a diverging epoch again. Source: apache/kafka
    AbstractFetcherThread.getOffsetTruncationState.
    """
    log_end = follower.offsets().log_end
    own_end = follower.end_offset_for_epoch(diverging.epoch)
    if own_end.epoch < 0:
        target = min(diverging.end_offset, log_end)
    elif own_end.epoch != diverging.epoch:
        target = min(own_end.end_offset, log_end)
    else:
        target = min(own_end.end_offset, diverging.end_offset, log_end)
    follower.truncate_to(target)


def out_of_range(leader: Log, follower: Log) -> None:
    """Handle a fetch at an offset that the leader does not have: its log is shorter, or it has deleted the offset."""
    leader_offsets, follower_offsets = leader.offsets(), follower.offsets()
    if leader_offsets.log_end < follower_offsets.log_end:
        follower.truncate_to(leader_offsets.log_end)
    elif leader_offsets.log_start > follower_offsets.log_end:
        follower.truncate_fully_and_start_at(leader_offsets.log_start)
    else:  # the leader does not know the follower's last epoch
        follower.truncate_to(follower_offsets.high_watermark)
