"""A replica as Kafka's follower is one: fetches, and what it makes of the answers."""

from __future__ import annotations

from stratalog.errors import OffsetOutOfRangeError
from stratalog.log.log import Log
from stratalog.model.offsets import EpochEnd


def replicate(leader: Log, follower: Log, max_bytes: int = 1 << 20, *, moves_watermark: bool = True) -> int:
    """One fetch of ``follower`` from ``leader``; how many offsets the follower's log end moved.

    Source: apache/kafka AbstractFetcherThread.processFetchRequest, truncateOnFetchResponse, fetchOffsetAndTruncate;
    Partition.fetchRecords, which counts a replica's offset only where the logs do not part.
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
            if moves_watermark:  # a fetch that does not part says what the follower has
                leader.set_high_watermark(before)
            bounds = leader.offsets()
            follower.append_as_follower(fetched.read(), bounds.high_watermark, bounds.log_start)
    return follower.offsets().log_end - before


def cut(follower: Log, diverging: EpochEnd) -> None:
    """Truncate to where the logs part; maybe not far enough, then the next fetch says so.

    Source: apache/kafka AbstractFetcherThread.getOffsetTruncationState.
    """
    log_end = follower.offsets().log_end
    own = follower.end_offset_for_epoch(diverging.epoch)
    if own.epoch < 0:
        target = min(diverging.end_offset, log_end)
    elif own.epoch != diverging.epoch:
        target = min(own.end_offset, log_end)
    else:
        target = min(own.end_offset, diverging.end_offset, log_end)
    follower.truncate_to(target)


def out_of_range(leader: Log, follower: Log) -> None:
    """The leader has nothing at the follower's end: it is shorter, or has deleted that."""
    there, here = leader.offsets(), follower.offsets()
    if there.log_end < here.log_end:
        follower.truncate_to(there.log_end)
    elif there.log_start > here.log_end:
        follower.truncate_fully_and_start_at(there.log_start)
    else:  # the leader knows nothing of the last epoch here
        follower.truncate_to(here.high_watermark)
