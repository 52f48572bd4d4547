"""What the producers of a log had done where its tier ends."""

from __future__ import annotations

from stratalog.errors import CorruptSnapshotError
from stratalog.log.remote import RemoteView
from stratalog.log.replay import replay_range
from stratalog.model.segments import FileKind
from stratalog.producers.snapshot import decode_snapshot
from stratalog.producers.state import ProducerState
from stratalog.segment.components import Components
from stratalog.tier.fetch import RemoteSegment


def producers_at_end(remote: RemoteView, parts: Components) -> ProducerState:
    """The producers' state where the tier ends: its newest good snapshot, brought forward over the batches after it.

    A segment's snapshot is that of its end, so nothing but the last one is read if it has one.

    Raises:
        CorruptBatchError: a bad entry after that snapshot.
    """
    state, start = ProducerState(), remote.start_offset
    for segment in reversed(remote.segments):
        found = _snapshot_of(segment) if isinstance(segment, RemoteSegment) else None
        if found is not None:
            state, start = found, segment.end_offset
            break
    replay_range(state, remote.segments.from_offset(start), start, remote.end_offset, parts)
    return state


def _snapshot_of(segment: RemoteSegment) -> ProducerState | None:
    data = segment.read_file(FileKind.SNAPSHOT)
    try:
        return ProducerState.restored(decode_snapshot(data, segment.label), segment.end_offset) if data else None
    except CorruptSnapshotError:
        return None
