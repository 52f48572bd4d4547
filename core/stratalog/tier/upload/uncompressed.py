"""The ``.log`` file of a segment with uncompressed batches, for layouts that store records instead of batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Final

from crc32c import crc32c

from stratalog.config.topic import TopicConfig
from stratalog.errors import StorageError
from stratalog.model.batches import CODEC_MASK, BatchTable, Buffer, ScanStop
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.components import Components
from stratalog.segment.extra_index_file import pack_extras, unpack_extras
from stratalog.segment.framing import scan
from stratalog.segment.index_entries import IndexEntries
from stratalog.segment.section_file import Identity
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.objects import ByteSource

_MAGIC: Final = 2  # messages of magic 0 and 1 are not changed: a wrapper message has its own offset
_HEADER_BYTES: Final = 61
_OVERHEAD_BYTES: Final = 12  # bytes of a batch that its size field does not count
_CRC_START, _CRC_END = 17, 21  # the CRC covers all bytes after itself
_ATTRIBUTES_END: Final = 23
_CHUNK_BYTES: Final = 1 << 20
_MAX_LOG_BYTES: Final = (1 << 31) - 1  # positions in indexes have 31 bits


class UncompressedBytes:
    """The bytes of a log with each compressed batch of magic 2 uncompressed; each iteration decompresses the batches.

    In the header of such a batch, only codec, size and CRC are changed. A batch that is damaged or cannot be
    decompressed is not changed: with a new CRC, readers would not detect the damage.

    Args:
        size_bytes: size of the uncompressed log; 0 if it is not known yet.
    """

    def __init__(self, log: ByteSource, components: Components, size_bytes: int = 0) -> None:
        self._log, self._components, self._size_bytes = log, components, size_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the uncompressed log; 0 if it was not known when this object was created."""
        return self._size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield all bytes of the uncompressed log, in chunks of at most ``chunk_bytes``."""
        for data, _ in self.runs(chunk_bytes):
            view = memoryview(data)
            for start in range(0, len(view), chunk_bytes):
                yield view[start : start + chunk_bytes]

    def runs(self, chunk_bytes: int) -> Iterator[tuple[Buffer, bool]]:
        """Yield the uncompressed log in pieces of whole batches, each with True if it is a batch that was compressed.

        The log is read in chunks of at most ``chunk_bytes``. Bytes that are not batches are yielded as they are.
        """
        pending, needed_bytes = bytearray(), _HEADER_BYTES
        for chunk in self._log.chunks(chunk_bytes):
            pending += chunk
            if len(pending) < needed_bytes:
                continue
            used_bytes = yield from self._uncompress_start(bytes(pending))
            del pending[:used_bytes]
            needed_bytes = _HEADER_BYTES if used_bytes else 2 * len(pending)
        used_bytes = yield from self._uncompress_start(bytes(pending))
        if used_bytes < len(pending):
            yield bytes(pending[used_bytes:]), False

    def _uncompress_start(self, data: bytes) -> Generator[tuple[Buffer, bool], None, int]:
        """Yield the pieces of the whole batches at the start of ``data``; return the number of bytes that were used."""
        scanned = scan(self._components.formats, data, 0, len(data), check_crc=False)
        for table in scanned.tables:
            yield from self._uncompress_table(data, table)
        if scanned.stop is not ScanStop.CORRUPT:
            return scanned.stop_position
        yield data[scanned.stop_position :], False  # no batches: the layout gets these bytes as they are
        return len(data)

    def _uncompress_table(self, data: bytes, table: BatchTable) -> Iterator[tuple[Buffer, bool]]:
        start = table.position[0]
        if table.magic == _MAGIC:
            for row, attributes in enumerate(table.attributes):
                if not attributes & CODEC_MASK or table.record_count[row] <= 0:
                    continue
                position, end = table.position[row], table.position[row] + table.size_bytes[row]
                uncompressed = self._uncompress(data[position:end])
                if uncompressed is None:
                    continue
                if start < position:
                    yield data[start:position], False
                yield uncompressed, True
                start = end
        end = table.position[-1] + table.size_bytes[-1]
        if start < end:
            yield data[start:end], False

    def _uncompress(self, batch: bytes) -> bytearray | None:
        limit_bytes = self._components.limits.decompressed_bytes
        if crc32c(memoryview(batch)[_CRC_END:]) != int.from_bytes(batch[_CRC_START:_CRC_END], "big"):
            return None
        try:
            codec = self._components.codecs.by_id(batch[_ATTRIBUTES_END - 1] & CODEC_MASK)
            records = codec.decompress(memoryview(batch)[_HEADER_BYTES:], limit_bytes=limit_bytes, magic=_MAGIC)
        except StorageError:
            return None
        uncompressed = bytearray(batch[:_HEADER_BYTES])
        uncompressed += records
        uncompressed[8:_OVERHEAD_BYTES] = (len(uncompressed) - _OVERHEAD_BYTES).to_bytes(4, "big")
        uncompressed[_ATTRIBUTES_END - 1] &= ~CODEC_MASK
        uncompressed[_CRC_START:_CRC_END] = crc32c(memoryview(uncompressed)[_CRC_END:].toreadonly()).to_bytes(4, "big")
        return uncompressed


def uncompressed_source(source: SegmentSource, components: Components) -> SegmentSource:
    """Return a source whose batches of magic 2 are uncompressed, with an offset index for the new positions.

    Return ``source`` itself if no batch of magic 2 is compressed, or if the new log would have 2 GiB or more. The
    ``info`` of a new source has the new size, and the old size as ``original_bytes``.
    """
    entries = IndexEntries(
        {IndexRole.OFFSET: components.indexes[IndexRole.OFFSET]}, source.info.base_offset, TopicConfig()
    )
    size_bytes, is_changed = 0, False
    for data, was_compressed in UncompressedBytes(source.log, components).runs(_CHUNK_BYTES):
        is_changed |= was_compressed
        for table in scan(components.formats, data, 0, len(data), check_crc=False).tables:
            entries.add(table, size_bytes)
        size_bytes += len(data)
        if size_bytes > _MAX_LOG_BYTES:
            return source
    if not is_changed:
        return source
    info = replace(source.info, size_bytes=size_bytes, original_bytes=source.info.size_bytes)
    files = {**source.files, FileKind.OFFSET_INDEX: entries.finish()[IndexRole.OFFSET]}
    if FileKind.EXTRA in files:
        files[FileKind.EXTRA] = _replace_identity(files[FileKind.EXTRA], info)
    log = UncompressedBytes(source.log, components, size_bytes)
    return SegmentSource(info, log, {kind: data for kind, data in files.items() if data})


def _replace_identity(extras: bytes, info: SegmentInfo) -> bytes:
    """Return the file ``extras`` of EXTRA indexes with the identity of ``info``; empty if ``extras`` is damaged."""

    def read(position: int, size_bytes: int) -> bytes:
        return extras[position : position + size_bytes]

    extra_file = unpack_extras(read, len(extras))
    if extra_file is None:
        return b""
    indexes = {label: extra_file.index(label, read) for label in extra_file.sections}
    present = {label: data for label, data in indexes.items() if data is not None}
    return b"".join(map(bytes, pack_extras(Identity.in_tier(info), present)))
