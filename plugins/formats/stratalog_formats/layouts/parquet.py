"""Layout ``parquet``: a segment as one Parquet file, which other programs can read.

::

    PAR1 | row groups | page indexes | frames | directory | small files | footer | Parquet's footer

docs/formats/parquet.md describes the parts. A group is a range of the log's bytes, stored as a row group and its
frames. To read a range of the log, a reader fetches the groups of the range and rebuilds the bytes of the log from
them. The hash of each fetched part is checked before the part is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from stratalog.errors import CorruptObjectError
from stratalog.spi import (
    ArrowBuffers,
    BatchTable,
    CodecTable,
    FileKind,
    HashedLog,
    ObjectInfo,
    ObjectSink,
    ObjectSlice,
    OpenContext,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
    TierLayout,
)
from stratalog_formats.kernels.dispatch import KERNELS, Kernels
from stratalog_formats.layouts.parquet_directory import (
    END_BYTES,
    MAGIC,
    OpenDirectory,
    decompress,
    directory_notes,
    encode_directory,
    fetch_checked,
    open_directory,
    read_directory,
)
from stratalog_formats.layouts.parquet_file import GroupWriter
from stratalog_formats.layouts.parquet_rows import REBUILT_COLUMNS, RowMaker, import_pyarrow, row_buffers, select_rows
from stratalog_formats.layouts.pieces import RecentlyUsed, fetch_exactly, place_of
from stratalog_formats.layouts.sections import ParquetSection
from stratalog_formats.layouts.single import WholeLayout, put_whole
from stratalog_formats.layouts.spool import Spool

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers

LABEL: Final = "parquet@1"
SUFFIX: Final = "parquet"  # suffix of the objects' keys: never change it
_CHUNK_BYTES: Final = 1 << 20
_MOST_GROUPS: Final = 1 << 14  # approximate: a directory needs 1 KiB per group, and readers refuse more than 64 MiB
_REBUILT_BYTES: Final = 32 << 20  # limit of all rebuilt groups in the cache


class ParquetLayout(WholeLayout):
    """Tier layout that stores each segment as a Parquet file.

    ``settings`` apply to new segments; None means the defaults. ``codecs`` convert the rows of compressed batches,
    whose decompressed size is at most ``limit_bytes``.
    """

    label = LABEL

    def __init__(
        self, codecs: CodecTable, limit_bytes: int, settings: ParquetSection | None = None, kernels: Kernels = KERNELS
    ) -> None:
        self._codecs, self._limit_bytes, self._kernels = codecs, limit_bytes, kernels
        self._settings, self._directories = settings or ParquetSection(), RecentlyUsed[OpenDirectory]()
        self._rebuilt = RecentlyUsed[memoryview](_REBUILT_BYTES, len)

    @property
    def takes_uncompressed(self) -> bool:
        """True if the setting ``compressed.batches`` is "rewrite"."""
        return self._settings.compressed_batches == "rewrite"

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Convert a segment to a Parquet file in temporary storage, then store the file as one object."""
        del section  # this layout has settings of the engine only, and no topic settings
        maker = RowMaker(self._codecs, self._limit_bytes, self._kernels)
        log = HashedLog.of(source.log, sink.key(SUFFIX))
        with Spool() as spool, GroupWriter(spool, self._settings.level) as writer:
            for data, tables in self._groups(log, maker):
                writer.add(maker.group(data, tables, source.info.log.partition))
            directory = writer.finish()
            encoded_directory = encode_directory(directory)
            spool.write(encoded_directory)
            spool.sha256 = log.sha256
            notes = directory_notes(encoded_directory)
            return put_whole(LABEL, source, spool, sink, notes, suffix=SUFFIX, tail=directory.footer)

    def read_arrow(
        self, segment: StoredSegment, start: int, end: int, columns: Sequence[str] | None, fetch: RangeReader
    ) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the data records with offsets in [start, end) as Arrow batches.

        The result is None if any data record of the segment is not stored as a row.
        """
        opened_directory, place = open_directory(segment, fetch, self._directories), place_of(segment, FileKind.LOG)
        numbers = opened_directory.numbers_with_offsets(start, end)
        if numbers is None:
            return None
        schema = ArrowBuffers.schema(columns)
        column_names = [name for name in dict.fromkeys(("offset", *schema.names)) if name != "partition"]
        tables = (
            _read_rows(
                opened_directory, number, _fetch_rows(opened_directory, number, place, fetch), place, column_names
            )
            for number in numbers
        )
        return (
            batch
            for table in tables
            for batch in select_rows(table, range(start, end), schema, segment.info.log.partition)
        )

    def check(self, segment: StoredSegment, fetch: RangeReader) -> None:
        """Check both footers of the object: stratalog's footer, and Parquet's footer.

        Only other programs read Parquet's footer.

        Raises:
            CorruptObjectError: stratalog's footer differs from the manifest entry ``segment``, Parquet's footer differs
                from its copy in the directory, or the directory is damaged.
        """
        start, footer = self._check_footer(segment, fetch), read_directory(segment, fetch).footer
        end = start + len(footer)
        if fetch_exactly(fetch, ObjectSlice(segment.log_key, 0, end), start, end) != footer:
            raise CorruptObjectError("Parquet's footer is damaged", segment.log_key, start)

    def _tail_bytes(self, info: ObjectInfo, fetch: RangeReader) -> int | None:
        """Return the size of Parquet's footer, including the 8 bytes after it.

        Return None if the object is not a Parquet file.
        """
        if info.size_bytes < END_BYTES + len(MAGIC):
            return None
        file = ObjectSlice(info.key, 0, info.size_bytes)
        end = fetch_exactly(fetch, file, info.size_bytes - END_BYTES, info.size_bytes)
        if end[4:] != MAGIC:
            return None
        return END_BYTES + int.from_bytes(end[:4], "little")

    # --- writing ---------------------------------------------------------------------------------------------------

    def _groups(self, log: HashedLog, maker: RowMaker) -> Iterator[tuple[bytes, list[BatchTable]]]:
        """Yield the log in groups of bytes, with the tables of the complete batches at the start of each group."""
        group_bytes = max(self._settings.row_group_bytes, log.size_bytes // _MOST_GROUPS)
        pending, has_batches = bytearray(), True
        required_bytes = group_bytes
        for chunk in log.chunks(min(_CHUNK_BYTES, group_bytes)):
            pending += chunk
            if len(pending) < required_bytes:
                continue
            data = bytes(pending)
            tables, has_batches = maker.scan_whole_batches(data) if has_batches else ([], False)
            end = tables[-1].stop_position if tables else 0
            if end or not has_batches:
                end = end or len(data)
                yield data[:end], tables
                del pending[:end]
                required_bytes = group_bytes
            else:  # the first batch is larger than the data that was read so far
                required_bytes = 2 * len(pending)
        if pending:
            data = bytes(pending)
            yield data, maker.scan_whole_batches(data)[0] if has_batches else []

    # --- reading ---------------------------------------------------------------------------------------------------

    def _pieces(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        if start == end:
            return
        place = place_of(segment, FileKind.LOG)
        opened_directory = open_directory(segment, fetch, self._directories)
        if end - start == segment.info.size_bytes:
            size, sha256 = opened_directory.directory.between_bytes, opened_directory.directory.between_sha256
            fetch_checked(
                fetch, place, (opened_directory.page_indexes_start, opened_directory.page_indexes_start + size), sha256
            )
        for number in opened_directory.numbers(start, end):
            position = opened_directory.log_position(number)
            yield self._group(opened_directory, number, place, fetch)[max(0, start - position) : end - position]

    def _group(
        self, opened_directory: OpenDirectory, number: int, place: ObjectSlice, fetch: RangeReader
    ) -> memoryview:
        """Return the log's bytes of a group. Raise CorruptObjectError if the group is damaged.

        The stored bytes are fetched and checked at each call. Only the rebuilt bytes are cached.
        """
        group = opened_directory.directory.groups[number]
        row_bytes = _fetch_rows(opened_directory, number, place, fetch)
        frames = fetch_checked(fetch, place, opened_directory.frames_range(number), group.frames_sha256)

        def rebuild() -> memoryview:
            pieces = decompress(frames, 2 * group.log_bytes + _CHUNK_BYTES, place)
            rows = _read_rows(opened_directory, number, row_bytes, place, REBUILT_COLUMNS) if group.rows else None
            try:
                data = self._kernels.rebuild_pieces(pieces, row_buffers(rows), 0, group.log_bytes)
            except ValueError as error:
                raise CorruptObjectError(f"group {number} is damaged: {error}", place.key) from error
            return memoryview(data).toreadonly()

        return self._rebuilt.get_or_load((group.sha256, group.frames_sha256), rebuild)


def _fetch_rows(opened_directory: OpenDirectory, number: int, place: ObjectSlice, fetch: RangeReader) -> bytes:
    """Return the stored bytes of a row group after a check of their hash."""
    return fetch_checked(
        fetch, place, opened_directory.row_group_range(number), opened_directory.directory.groups[number].sha256
    )


def _read_rows(
    opened_directory: OpenDirectory, number: int, row_bytes: bytes, place: ObjectSlice, columns: Sequence[str]
) -> Any:  # a pyarrow.Table
    """Return columns of the row group in ``row_bytes``. Raise CorruptObjectError if Parquet's reader refuses it."""
    pa = import_pyarrow()
    region = StoredRegion(row_bytes, opened_directory.row_group_range(number)[0])
    try:
        file = pa.parquet.ParquetFile(pa.PythonFile(region, mode="r"), metadata=opened_directory.metadata)
        return file.read_row_group(opened_directory.row_group(number), columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CorruptObjectError(f"row group {number} cannot be read: {error}", place.key) from error


class StoredRegion:
    """File object for Parquet's reader. It contains only one region of the file, which begins at ``start``."""

    closed = False

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start, self._at = data, start, 0

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes of the region; all bytes if ``size`` is negative.

        Raise OSError if the current position is before the region.
        """
        index = self._at - self._start
        if index < 0:
            raise OSError(f"bytes at {self._at} are not in the region from {self._start} on")
        data = self._data[index:] if size < 0 else self._data[index : index + size]
        self._at += len(data)
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        """Set and return the position in the file.

        See ``io.IOBase.seek`` for ``whence``; 2 means the end of the region.
        """
        base = (0, self._at, self._start + len(self._data))[whence]
        self._at = base + position
        return self._at

    def tell(self) -> int:
        """Return the current position in the file."""
        return self._at

    def close(self) -> None:
        """Do nothing: the region is in memory."""


def open_parquet(context: OpenContext) -> TierLayout:
    """Return the layout with the settings of ``[plugins.parquet]``. pyarrow is imported at the first use."""
    section = context.section if isinstance(context.section, ParquetSection) else ParquetSection()
    return ParquetLayout(context.codecs, context.limits.decompressed_bytes, section)
