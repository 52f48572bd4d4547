"""What the tier of a log knows of its producers."""

from __future__ import annotations

from itertools import dropwhile
from typing import Protocol, runtime_checkable

from stratalog.errors import CorruptSnapshotError
from stratalog.log.load.producer_replay import replay_range
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.segment_info import FileKind
from stratalog.producers.snapshot import decode_snapshot
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.segment.readable import ReadableSegment


@runtime_checkable
class TieredSegment(ReadableSegment, Protocol):
    """A segment that came to its tier with the small files beside it."""

    def read_file(self, kind: FileKind) -> bytes:
        """The original bytes of a small file; empty if there is none."""


def producers_at(remote: RemoteView, offset: int, parts: Components) -> ProducerState:
    """The producers' state at ``offset``, at or below the tier's end: a good snapshot, brought forward over what follows.

    A segment's snapshot is that of its end, so nothing but one is read if a segment that has one ends there.

    Raises:
        CorruptBatchError: a bad entry after that snapshot.
        StoreError: the store failed or refused.
    """
    state, start = ProducerState(), remote.start_offset
    for segment in dropwhile(lambda found: found.end_offset > offset, reversed(remote.segments)):
        found = _snapshot_of(segment) if isinstance(segment, TieredSegment) else None
        if found is not None:
            state, start = found, segment.end_offset
            break
    replay_range(state, remote.segments.from_offset(start), start, offset, parts)
    return state


def stable_end(remote: RemoteView, parts: Components) -> int:
    """Up to where a tier alone tells how transactions ended; errors as ``producers_at``."""
    end = remote.end_offset
    unstable = producers_at(remote, end, parts).first_unstable(end)
    return end if unstable is None else max(unstable, remote.log_start)


def _snapshot_of(segment: TieredSegment) -> ProducerState | None:
    data = segment.read_file(FileKind.SNAPSHOT)
    try:
        return ProducerState.restored(decode_snapshot(data, segment.label), segment.end_offset) if data else None
    except CorruptSnapshotError:
        return None
