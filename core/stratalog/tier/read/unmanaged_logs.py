"""Logs in a tier that other software wrote, such as a Kafka broker. Without a manifest, the segments define the log."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.errors import StorageError
from stratalog.log.read.tier_view import RemoteSegments, RemoteView, merged_epochs
from stratalog.model.offsets import EpochEntry
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.read.epoch_index import EpochIndex
from stratalog.tier.read.fetcher import Fetcher
from stratalog.tier.read.remote_segment import RemoteSegment


def foreign_view(segments: Sequence[StoredSegment], fetcher: Fetcher) -> RemoteView:
    """Return the state of the log that these segments form. A segment is ignored if another one has all its offsets.

    Raises:
        StorageError: two segments leave a gap, or overlap and neither has all offsets of the other.
    """
    chain: list[StoredSegment] = []
    for entry in sorted(segments, key=lambda entry: (entry.info.base_offset, -entry.info.end_offset)):
        info, end = entry.info, chain[-1].info.end_offset if chain else entry.info.base_offset
        if info.end_offset <= end and chain:
            continue  # the chain already has all offsets of this segment
        if info.base_offset != end:
            raise StorageError(f"segments of {info.log} leave a gap: one ends at {end}, the next is {info}")
        chain.append(entry)
    return _view(chain, fetcher)


def foreign_part(
    segments: Sequence[StoredSegment], fetcher: Fetcher, epochs: Sequence[EpochEntry], log_start: int, local_start: int
) -> RemoteView:
    """Return the state in the tier of a log whose newer segments are on local disk.

    The result has only segments with records of the log's leader epochs: after an unclean leader election, the tier can
    also have records of another leader at the same offsets.

    Args:
        segments: segments of the log, in any order; not empty.
        fetcher: reads the segments.
        epochs: leader epochs of the log, ascending; if empty, segments are joined as in ``foreign_view``.
        log_start: the log start offset; segments below it may be missing.
        local_start: the first offset on local disk.

    Raises:
        StorageError: the segments leave a gap between ``log_start`` and ``local_start``.
    """
    if not epochs:
        return foreign_view(segments, fetcher)
    oldest_first = sorted(segments, key=lambda entry: (entry.info.modified_ms, entry.info.end_offset, min(entry.keys)))
    chain = EpochIndex(oldest_first).select_segments(epochs, local_start)
    end = log_start
    for entry in chain:
        if entry.info.base_offset > end:
            break
        end = max(end, entry.info.end_offset)
    if end < local_start:
        log = segments[0].info.log
        raise StorageError(f"the tier of {log} ends at offset {end}, but local disk starts at {local_start}")
    return _view(chain, fetcher)


def _view(chain: Sequence[StoredSegment], fetcher: Fetcher) -> RemoteView:
    if not chain:
        return RemoteView()
    start, end = chain[0].info.base_offset, chain[-1].info.end_offset
    epochs = merged_epochs(entry.info.leader_epochs for entry in chain)
    return RemoteView(0, start, end, RemoteSegments(RemoteSegment(entry, fetcher) for entry in chain), epochs)
