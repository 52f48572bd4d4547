"""Staging of one log's records in segments, which are built one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, Self

from stratalog.env.forks import ends_with_fork
from stratalog.model.arguments import CheckedArguments
from stratalog.model.records import RecordColumns
from stratalog.segment.build import BuiltSegment, RollingBuilder, SegmentBuilder
from stratalog.writing.column_encoder import Encoder, place_tables
from stratalog.writing.staged import StagedSegment


class StageTarget(Protocol):
    """Folder or tier that receives the staged segments of one log."""

    @property
    def encoder(self) -> Encoder:
        """Encoder for the log's topic."""

    @property
    def leader_epoch(self) -> int:
        """Leader epoch for batches whose records do not keep their own epochs."""

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a new segment that begins at ``base_offset``."""

    def store(self, segment: BuiltSegment) -> StagedSegment:
        """Stage a finished segment, and return its description. From then on, the target owns the segment's files."""

    def remove(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged segments that were not published, as far as possible."""


class Stage(CheckedArguments):
    """Stages records of one log in one process, in segments of up to ``segment.bytes`` of the topic. Not thread-safe.

    A single batch, or the data of one call of ``add_encoded``, can make a segment larger. As a context manager, a stage
    discards its records if the ``with`` block raises an exception.

    Args:
        target: receives the finished segments.
        base_offset: base offset of the first segment.
        keep_offsets: True if records keep their offsets.
    """

    def __init__(self, target: StageTarget, base_offset: int, *, keep_offsets: bool) -> None:
        components, config = target.encoder.components, target.encoder.config
        self._target, self._keep_offsets = target, keep_offsets
        self._segments = RollingBuilder(
            target.begin, self._store, components.env.clock, base_offset, config.segment_bytes
        )
        self._staged: list[StagedSegment] = []
        ends_with_fork(self)

    def add(self, columns: RecordColumns) -> None:
        """Stage records, in batches of the topic's format and codec. ``columns`` must have all fields.

        If offsets are kept (``base_offset`` of ``BulkWriter.stage`` is not None), the records keep the offsets, leader
        epochs and append times of ``columns``, and only their size is checked. Otherwise, records without a timestamp
        (-1) get the current time.

        Raises:
            InvalidRecordError: offsets are not kept, and a record breaks a rule of the topic; nothing was staged.
            RecordTooLargeError: a record is larger than ``max.message.bytes``.
            OffsetsOutOfOrderError: kept offsets do not ascend, or are below ``base_offset``.
            DiskFullError: no space for the staged records.
            StoreError: an upload to the tier failed.
            StorageError: an earlier call did not finish a segment. Call ``discard``, and stage all records again in a
                new stage.
        """
        for prepared in self._target.encoder.batches(columns, keep_offsets=self._keep_offsets):
            self.add_encoded(prepared.data)

    def add_encoded(self, data: bytearray) -> None:
        """Stage whole encoded batches of any magic. The method checks neither records nor CRCs.

        Unless offsets are kept, ``data`` is changed: the batches get new offsets and the current leader epoch.

        Raises:
            CorruptBatchError: ``data`` does not consist of whole batches.
            OffsetsOutOfOrderError, DiskFullError, StoreError, StorageError: for the reasons in ``add``.
        """
        base = None if self._keep_offsets else self._segments.next_offset
        for table, piece in place_tables(data, self._target.encoder.components, base, self._target.leader_epoch):
            self._segments.append(piece, table.base_offset[0], table.last_offset[-1])

    def finish(self, end_offset: int | None = None) -> list[StagedSegment]:
        """Complete the last segment, and return all staged segments, ascending.

        Return [] if no record was staged, and ``end_offset`` is None or the stage's base offset.

        Args:
            end_offset: exclusive end offset of the last segment, which may have no records; only if offsets are kept.
                None for the end of the last record.

        Raises:
            OffsetsOutOfOrderError: ``end_offset`` is not above the last staged offset.
            DiskFullError, StoreError, StorageError: for the reasons in ``add``.
        """
        self._segments.finish(end_offset)
        return self._staged

    def discard(self) -> None:
        """Remove the staged records, as far as possible. May be called several times, and after ``finish``."""
        self._segments.discard()
        staged, self._staged = self._staged, []
        self._target.remove(staged)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()

    def _store(self, segment: BuiltSegment) -> None:
        self._staged.append(self._target.store(segment))
