"""Comparison of two copies of one log by their leader epochs.

Two leaders can write different records at the same offset, but not in the same leader epoch.

Source: KIP-101, KIP-405; apache/kafka RemoteLogManager.isRemoteSegmentWithinLeaderEpochs.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.model.batches import NO_EPOCH
from stratalog.model.offsets import EpochEntry


def first_divergence(ours: Sequence[EpochEntry], theirs: Sequence[EpochEntry], start: int, end: int) -> int | None:
    """Return the first offset in [start, end) with different leader epochs in two copies of a log, or None.

    Both lists ascend. If a copy has no epoch for an offset, for example after retention, the offset counts as equal.
    """
    our_cache, their_cache = EpochCache(ours), EpochCache(theirs)
    edges = {start, *(entry.start_offset for entry in (*ours, *theirs) if start < entry.start_offset < end)}
    for offset in sorted(edges) if start < end else ():
        known_epochs = {our_cache.epoch_at(offset), their_cache.epoch_at(offset)} - {NO_EPOCH}
        if len(known_epochs) > 1:
            return offset
    return None
