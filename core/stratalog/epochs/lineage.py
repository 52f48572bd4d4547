"""Whether two histories of one log are the same, as far as their leader epochs tell.

Two leaders can have written different records at the same offset, never in the same epoch.

Source: KIP-101, KIP-405; apache/kafka RemoteLogManager.isRemoteSegmentWithinLeaderEpochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.model.batches import NO_EPOCH
from stratalog.model.offsets import EpochEntry


def parted_at(ours: Sequence[EpochEntry], theirs: Sequence[EpochEntry], start: int, end: int) -> int | None:
    """The first offset in [start, end) that the two have in different leader epochs; None if there is none.

    Both ascending. Where one of them knows no epoch, as retention has taken it, they count as the same.
    """
    one, other = EpochCache(ours), EpochCache(theirs)
    edges = {start, *(entry.start_offset for entry in (*ours, *theirs) if start < entry.start_offset < end)}
    for offset in sorted(edges) if start < end else ():
        found = {one.at(offset), other.at(offset)} - {NO_EPOCH}
        if len(found) > 1:
            return offset
    return None
