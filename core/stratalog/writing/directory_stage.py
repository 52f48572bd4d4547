"""Staging of one log's records for a directory: batches in plain files of the log's folder, which no reader opens."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable

from stratalog.env.forks import ends_with_fork
from stratalog.errors import OffsetsOutOfOrderError, StorageError
from stratalog.model.names import STAGED_PREFIX, TopicPartition
from stratalog.model.records import RecordColumns
from stratalog.reading.reader import TopicInfo
from stratalog.segment.framing import MAX_RELATIVE_OFFSET
from stratalog.spi.segment_store import LogFiles, SegmentFile
from stratalog.writing.bulk_writer import Stage
from stratalog.writing.column_encoder import Encoder, placed_tables
from stratalog.writing.staged import StagedSegment


class DirectoryStage(Stage):
    """A ``Stage`` that writes batches into plain files, with offsets from ``base_offset`` on."""

    def __init__(
        self, files: LogFiles, topic: TopicInfo, log: TopicPartition, encoder: Encoder, *, base_offset: int | None
    ) -> None:
        assert topic.topic_id is not None  # checked by the caller
        self._files, self._log, self._topic_id, self._encoder = files, log, topic.topic_id, encoder
        self._keep_offsets = base_offset is not None
        self._base = self._next = base_offset or 0
        self._name = ""
        self._file: SegmentFile | None = None
        self._staged: list[StagedSegment] = []
        ends_with_fork(self)

    def add(self, columns: RecordColumns) -> None:
        """See ``Stage.add``."""
        for prepared in self._encoder.batches(columns, keep_offsets=self._keep_offsets):
            self.add_encoded(prepared.data)

    def add_encoded(self, data: bytearray) -> None:
        """See ``Stage.add_encoded``."""
        for table, piece in placed_tables(data, self._encoder.parts, None if self._keep_offsets else self._next, -1):
            if table.base_offset[0] < self._next:
                raise OffsetsOutOfOrderError(f"offset {table.base_offset[0]} of {self._log} after {self._next - 1}")
            if self._file is not None and self._is_full(len(piece), table.last_offset[-1]):
                self._close(table.base_offset[0])
            (self._file or self._begin()).append(piece)
            self._next = table.last_offset[-1] + 1

    def _is_full(self, size_bytes: int, last_offset: int) -> bool:
        assert self._file is not None
        is_far = last_offset - self._base > MAX_RELATIVE_OFFSET
        return is_far or self._file.size_bytes + size_bytes > self._encoder.config.segment_bytes

    def _begin(self) -> SegmentFile:
        unique = uuid.UUID(int=self._encoder.parts.env.chance.getrandbits(128), version=4)
        self._name = f"{STAGED_PREFIX}{unique.hex}"
        self._file = self._files.open_segment(self._name, create=True)
        return self._file

    def _close(self, end_offset: int) -> None:
        file = self._file or self._begin()
        file.sync()
        size_bytes = file.size_bytes
        file.close()
        self._file = None
        found = StagedSegment(self._log, self._topic_id, self._base, end_offset, size_bytes, -1, self._name)
        self._staged.append(found)
        self._base = end_offset

    def finish(self, end_offset: int | None = None) -> list[StagedSegment]:
        """See ``Stage.finish``."""
        end = self._next if end_offset is None else end_offset
        if end < self._next:
            raise OffsetsOutOfOrderError(f"the last offset is {self._next - 1}, and the end {end}")
        if end > self._base:
            self._close(end)
            self._files.sync()
        return self._staged

    def discard(self) -> None:
        """See ``Stage.discard``."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(StorageError):
                self._files.remove(self._name)
        remove_staged(self._files, self._staged)
        self._staged = []
        self._next = self._base


def remove_staged(files: LogFiles, staged: Iterable[StagedSegment]) -> None:
    """Delete the staged files in a log's folder, as far as the disk allows."""
    for found in staged:
        if isinstance(found.place, str):
            with contextlib.suppress(StorageError):
                files.remove(found.place)
