"""Logs in a tier that somebody else wrote: no manifest says what counts, so the segments themselves must."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.errors import StorageError
from stratalog.log.remote import RemoteSegments, RemoteView, merged_epochs
from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.fetch import Fetcher, RemoteSegment


def foreign_views(found: Iterable[StoredSegment], fetcher: Fetcher) -> dict[tuple[TopicPartition, TopicId], RemoteView]:
    """The logs that these segments make up, by name and topic id. Of copies of the same offsets the longest counts.

    Raises:
        StorageError: segments of a log leave a gap, or overlap in part.
    """
    logs: dict[tuple[TopicPartition, TopicId], list[StoredSegment]] = {}
    for stored in found:
        logs.setdefault((stored.info.log, stored.info.topic_id), []).append(stored)
    return {name: _view(segments, fetcher) for name, segments in logs.items()}


def _view(segments: list[StoredSegment], fetcher: Fetcher) -> RemoteView:
    chain: list[StoredSegment] = []
    for stored in sorted(segments, key=lambda each: (each.info.base_offset, -each.info.end_offset)):
        info, end = stored.info, chain[-1].info.end_offset if chain else stored.info.base_offset
        if info.end_offset <= end and chain:
            continue  # a copy of what is there
        if info.base_offset != end:
            raise StorageError(f"segments of {info.log} do not meet: one ends at {end}, the next is {info}")
        chain.append(stored)
    start, end = chain[0].info.base_offset, chain[-1].info.end_offset
    epochs = merged_epochs(stored.info.leader_epochs for stored in chain)
    return RemoteView(0, start, end, RemoteSegments(RemoteSegment(stored, fetcher) for stored in chain), epochs)
