"""Target of bulk writes to one log in a tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ConfigError
from stratalog.model.names import TopicPartition
from stratalog.model.segment_info import FileKind
from stratalog.segment.build import BuiltSegment, SegmentBuilder
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.tier.upload.segment_source import SegmentFacts
from stratalog.writing.column_encoder import Encoder
from stratalog.writing.staged import Published, StagedSegment


@dataclass(frozen=True, slots=True)
class TierTarget:
    """Target of bulk writes to one log in a tier: a ``StageTarget`` that uploads each segment.

    Attributes:
        epochs: leader epochs of the log, including the epoch of the next records.
        snapshot: returns a snapshot of the producers' state at the log end; None if records keep their offsets.
        folder: returns the folder for temporary files, and creates it at the first call.
    """

    publisher: TierPublisher
    encoder: Encoder
    epochs: EpochCache
    snapshot: Callable[[], bytes] | None
    folder: Callable[[], LogFiles]

    @property
    def remote(self) -> TierLog:
        """The log in the tier."""
        return self.publisher.log

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of new records, and of the commit."""
        return self.publisher.leader_epoch

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a segment in a temporary file."""
        return SegmentBuilder.for_upload(self.folder(), base_offset, self.encoder.components, self.encoder.config)

    def store(self, segment: BuiltSegment) -> StagedSegment:
        """Upload a finished segment, and return its description; raise the errors of ``TierPublisher.upload``."""
        snapshot = self._read_snapshot(segment.end_offset) if self.snapshot is None else self.snapshot()
        return self.upload(
            segment, SegmentFacts(self.epochs.entries_between(segment.base_offset, segment.end_offset), snapshot)
        )

    def upload(self, segment: BuiltSegment, facts: SegmentFacts) -> StagedSegment:
        """Upload a finished segment with the epochs and producers of ``facts``; raise the errors of ``store``."""
        publisher = self.publisher
        entry = publisher.upload_built(segment, facts)
        bounds = (segment.base_offset, segment.end_offset, segment.size_bytes)
        return StagedSegment(publisher.log.name, publisher.log.topic_id, *bounds, publisher.leader_epoch, entry)

    def remove(self, staged: Iterable[StagedSegment]) -> None:
        """Delete the objects of staged segments; raise the errors of ``TierLog.discard``."""
        entries = entries_of(staged)
        if entries:
            self.remote.discard(entries)

    def _read_snapshot(self, end_offset: int) -> bytes | None:
        """Return the producer snapshot of the committed segment with this end offset; None if there is none."""
        entries = self.remote.entries(end_offset - 1, end_offset, self.remote.root)
        if not entries or entries[-1].info.end_offset != end_offset:
            return None
        return RemoteSegment(entries[-1], self.remote.fetcher).read_file(FileKind.SNAPSHOT)


def entries_of(staged: Iterable[StagedSegment]) -> list[StoredSegment]:
    """Return the manifest entries of staged segments; raise ConfigError if one was staged for a directory."""
    entries = list[StoredSegment]()
    for segment in staged:
        if isinstance(segment.place, str):
            raise ConfigError(f"{segment.log} was staged for a directory, and cannot be published to a tier")
        entries.append(segment.place)
    return entries


def commit_result(log: TopicPartition, entries: Sequence[StoredSegment], start: int) -> Published:
    """Return the result of a commit of segments with these manifest entries, which begin at offset ``start``."""
    end = entries[-1].info.end_offset
    return Published(log, start, end, len(entries), sum(entry.info.size_bytes for entry in entries))
