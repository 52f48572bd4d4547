"""Producers' state, computed from the tier of a log."""

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
    """A segment in a tier, with a method to read its other files, such as the producer snapshot."""

    def read_file(self, kind: FileKind) -> bytes:
        """Return the original bytes of a file that was uploaded with the segment; empty if there is none."""


def producers_at(remote: RemoteView, offset: int, components: Components) -> ProducerState:
    """Return the producers' state below ``offset``, which is at or below the tier's end offset.

    Of the segments whose end offset (exclusive) is at most ``offset``, the last one with a valid snapshot is used. The
    batches from this end offset to ``offset`` (exclusive) are replayed on the snapshot. Without such a snapshot, all
    batches from the tier's start are replayed. If a snapshot cannot be fetched, the error is raised.

    Raises:
        CorruptBatchError: a batch that must be read is damaged.
        CorruptObjectError, CorruptManifestError: an object or a manifest page is damaged.
        PluginError: the layout of a segment failed or is not installed.
        StoreError: the store failed or refused the request.
    """
    state, start = ProducerState(), remote.start_offset
    for segment in dropwhile(lambda snapshot: snapshot.end_offset > offset, reversed(remote.segments)):
        snapshot = _snapshot_of(segment) if isinstance(segment, TieredSegment) else None
        if snapshot is not None:
            state, start = snapshot, segment.end_offset
            break
    replay_range(state, remote.segments.from_offset(start), start, offset, components)
    return state


def stable_end(remote: RemoteView, components: Components) -> int:
    """Return the tier's last stable offset: the tier has the end markers of all transactions with records below it.

    Raises the same errors as ``producers_at``.
    """
    end = remote.end_offset
    unstable = producers_at(remote, end, components).first_unstable(end)
    return end if unstable is None else max(unstable, remote.log_start)


def _snapshot_of(segment: TieredSegment) -> ProducerState | None:
    data = segment.read_file(FileKind.SNAPSHOT)
    try:
        return ProducerState.restore(decode_snapshot(data, segment.label), segment.end_offset) if data else None
    except CorruptSnapshotError:
        return None
