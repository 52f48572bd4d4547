"""Staging of one log's records for a tier: segments are built in temporary files and uploaded one after the other."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from stratalog.env.forks import ends_with_fork
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import (
    ConfigError,
    OffsetsOutOfOrderError,
)
from stratalog.model.records import RecordColumns
from stratalog.model.segment_info import FileKind
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.read.fetcher import RemoteSegment
from stratalog.tier.tier_log import TierLog
from stratalog.writing.bulk_writer import Stage
from stratalog.writing.column_encoder import Encoder, placed_tables
from stratalog.writing.segment_build import SegmentBuilder
from stratalog.writing.staged import StagedSegment


@dataclass(frozen=True, slots=True)
class Place:
    """Target of a stage."""

    remote: TierLog
    encoder: Encoder
    leader_epoch: int
    epochs: EpochCache
    snapshot: bytes | None


class TierStage(Stage):
    """A ``Stage`` that uploads each segment when it is full, so local disk holds only one segment.

    Args:
        place: target of the stage.
        store: store for temporary files.
        base_offset: base offset of the first segment.
        keep_offsets: True if records keep their offsets.
    """

    def __init__(self, place: Place, store: SegmentStore, base_offset: int, *, keep_offsets: bool) -> None:
        self._place, self._store, self._keep_offsets = place, store, keep_offsets
        self._parts, self._config = place.encoder.parts, place.encoder.config
        self._base = self._next = base_offset
        self._builder: SegmentBuilder | None = None
        self._folder = ""
        self._staged: list[StagedSegment] = []
        ends_with_fork(self)

    def add(self, columns: RecordColumns) -> None:
        """See ``Stage.add``."""
        for prepared in self._place.encoder.batches(columns, keep_offsets=self._keep_offsets):
            self.add_encoded(prepared.data)

    def add_encoded(self, data: bytearray) -> None:
        """See ``Stage.add_encoded``."""
        base = None if self._keep_offsets else self._next
        for table, piece in placed_tables(data, self._parts, base, self._place.leader_epoch):
            first, last = table.base_offset[0], table.last_offset[-1]
            if first < self._next:
                raise OffsetsOutOfOrderError(f"offset {first} of {self._place.remote.log} after {self._next - 1}")
            self._make_room(len(piece), first, last).append(piece)
            self._next = last + 1

    def _make_room(self, size_bytes: int, first: int, last: int) -> SegmentBuilder:
        builder = self._builder
        if builder is not None and builder.size_bytes:
            is_full = builder.size_bytes + size_bytes > self._config.segment_bytes
            if is_full or last - builder.base_offset > MAX_RELATIVE_OFFSET:
                self._upload(first)
                builder = None
        return builder or self._begin()

    def _begin(self) -> SegmentBuilder:
        name = uuid.UUID(int=self._parts.env.chance.getrandbits(128), version=4).hex
        files = self._store.open_log(name, create=True)
        self._builder = SegmentBuilder(files, self._base, self._parts, self._config)
        self._folder = name
        return self._builder

    def _upload(self, end_offset: int, snapshot: bytes | None = None) -> None:
        builder = self._builder or self._begin()
        remote, place = self._place.remote, self._place
        epochs = place.epochs.between(self._base, end_offset)
        source = builder.finish(remote.log, remote.topic_id, end_offset, epochs, snapshot or place.snapshot)
        section = self._config.sections.get(self._config.tier_layout)
        stored = remote.store(source, layout=self._config.tier_layout, leader_epoch=place.leader_epoch, section=section)
        self._staged.append(
            StagedSegment(
                remote.log,
                remote.topic_id,
                self._base,
                end_offset,
                source.info.size_bytes,
                place.leader_epoch,
                stored,
            )
        )
        self._drop_builder()
        self._base = end_offset

    def finish(self, end_offset: int | None = None) -> list[StagedSegment]:
        """See ``Stage.finish``."""
        end = self._next if end_offset is None else end_offset
        if end < self._next:
            raise OffsetsOutOfOrderError(f"the last offset is {self._next - 1}, and the end {end}")
        if end > self._base:
            self._upload(end, self._kept_snapshot(end))
        return self._staged

    def _kept_snapshot(self, end_offset: int) -> bytes | None:
        """Return the producers' state in the committed segment that ends at ``end_offset``, for its replacement."""
        remote = self._place.remote
        if not self._keep_offsets:
            return None
        held = remote.entries(end_offset - 1, end_offset, remote.root)
        if not held or held[-1].info.end_offset != end_offset:
            return None
        return RemoteSegment(held[-1], remote.fetcher).read_file(FileKind.SNAPSHOT)

    def discard(self) -> None:
        """See ``Stage.discard``."""
        self._drop_builder()
        if self._staged:
            self._place.remote.discard(entries_of(self._staged))
            self._staged = []
        self._next = self._base

    def _drop_builder(self) -> None:
        if self._builder is not None:
            self._builder.close()
            self._store.remove_log(self._folder)
            self._builder = None


def entries_of(staged: Iterable[StagedSegment]) -> list[StoredSegment]:
    """Return the future entries of staged segments in the tier's manifest."""
    return [entry_of(found) for found in staged]


def entry_of(found: StagedSegment) -> StoredSegment:
    """Return the future manifest entry of a staged segment; ConfigError if it was staged for a directory."""
    if isinstance(found.place, str):
        raise ConfigError(f"{found.log} was staged for a directory, and is published to a tier")
    return found.place
