"""Building of segments with their indexes in a folder for temporary files, for an upload to a tier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratalog.config.topic import TopicConfig
from stratalog.epochs.checkpoint import format_epochs
from stratalog.log.change.extra_indexes import packed_extras_of
from stratalog.model.batches import Buffer
from stratalog.model.names import LOG_SUFFIX, TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.segment.components import Components
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.segment_store import LogFiles, SegmentFile
from stratalog.tier.upload.closed_segment import INDEX_KINDS


@dataclass(frozen=True, slots=True)
class _FileBytes:
    """A finished ``.log`` file as a ``ByteSource``."""

    file: SegmentFile

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        for position in range(0, self.size_bytes, chunk_bytes):
            yield self.file.read(position, chunk_bytes)


class SegmentBuilder:
    """Builder of one segment. A context manager that removes the written files at its end.

    Args:
        files: its own folder.
        base_offset: base offset of the segment.
        parts: formats and index formats.
        config: settings of the topic.
    """

    def __init__(self, files: LogFiles, base_offset: int, parts: Components, config: TopicConfig) -> None:
        self.base_offset, self._files, self._clock = base_offset, files, parts.env.clock
        self._parts, self._config = parts, config
        self._made = CleanedSegment(files, base_offset, parts, config)
        self._log: SegmentFile | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the batches so far."""
        return self._made.size_bytes

    def append(self, data: Buffer) -> None:
        """Write whole batches that already have their offsets; errors as ``CleanedSegment.append``."""
        self._made.append(data)

    def finish(
        self,
        log: TopicPartition,
        topic_id: TopicId,
        end_offset: int,
        epochs: tuple[EpochEntry, ...],
        snapshot: bytes | None,
    ) -> SegmentSource:
        """Return the segment as the source of an upload; its files exist until the builder is closed."""
        now_ms = self._clock.now_ms()
        self._made.finish(now_ms)
        self._log = self._files.open_segment(self._made.name(LOG_SUFFIX))
        info = SegmentInfo(
            log,
            topic_id,
            self.base_offset,
            end_offset,
            self.size_bytes,
            self._made.largest.timestamp_ms,
            now_ms,
            epochs,
        )
        files = {
            kind: bytes(self._made.entries[role]) for role, kind in INDEX_KINDS.items() if self._made.entries[role]
        }
        if snapshot is not None:
            files[FileKind.SNAPSHOT] = snapshot
        files[FileKind.LEADER_EPOCHS] = format_epochs(epochs)
        extras = packed_extras_of(self._made, info, self._parts, self._config)
        if extras:
            files[FileKind.EXTRA] = extras
        return SegmentSource(info, _FileBytes(self._log), files)

    def close(self) -> None:
        """Remove all files. A second call does nothing."""
        if self._log is not None:
            self._log.close()
        self._made.discard()
