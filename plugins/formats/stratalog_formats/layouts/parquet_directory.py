"""The directory of layout ``parquet``: sizes and hashes of the groups of a segment.

docs/formats/parquet.md describes the bytes of the directory.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Any, Final, NamedTuple

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import FileKind, ObjectSlice, RangeReader, StoredSegment
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.layouts.parquet_rows import import_pyarrow
from stratalog_formats.layouts.pieces import RecentlyUsed, fetch_exactly, place_of

NOTES: Final = "parquet"  # key in ``extra``
MAGIC: Final = b"PAR1"
MAX_DIRECTORY_BYTES: Final = 64 << 20
END_BYTES: Final = 8  # end of a Parquet file: size of the metadata, magic
_COUNT: Final = Struct("<I")
_GROUP: Final = Struct("<QQIII32s32s")
_BETWEEN: Final = Struct("<Q32s")
_FIELDS: Final = frozenset({"directory_bytes", "directory_sha256"})
_OFFSET_COLUMN: Final = 1
_FRAME_MAGIC: Final = 2  # magic that is passed to the codec, so that frames are the same as in record batches


class StoredGroup(NamedTuple):
    """A group in the directory: a range of the log, stored as a row group and compressed frames.

    Attributes:
        log_bytes: size of the group in the log.
        stored_bytes: size of the row group in the object; 0 if the group has no rows.
        frames_bytes: size of the compressed frames.
        is_complete: 1 if each data record of the group is stored as a row; otherwise 0.
        sha256: hash of the row group's bytes.
        frames_sha256: hash of the compressed frames.
    """

    log_bytes: int
    stored_bytes: int
    rows: int
    frames_bytes: int
    is_complete: int
    sha256: bytes
    frames_sha256: bytes


@dataclass(frozen=True, slots=True)
class Directory:
    """Directory of one segment.

    Attributes:
        groups: the groups, in the order of the log.
        between_bytes: size of the page indexes, which are stored between row groups and frames.
        between_sha256: SHA-256 of the page indexes.
        footer: Parquet's footer, from its metadata to its magic.
    """

    groups: Sequence[StoredGroup]
    between_bytes: int
    between_sha256: bytes
    footer: bytes


def encode_directory(directory: Directory) -> bytes:
    """Return the bytes of a directory, compressed with zstd."""
    parts = [_COUNT.pack(len(directory.groups)), *(_GROUP.pack(*group) for group in directory.groups)]
    parts += [_BETWEEN.pack(directory.between_bytes, directory.between_sha256), directory.footer]
    return compress(b"".join(parts))


def directory_notes(encoded: bytes) -> dict[str, object]:
    """Return size and hash of the directory with the bytes ``encoded``, for ``extra`` of the manifest entry."""
    return {NOTES: {"directory_bytes": len(encoded), "directory_sha256": hashlib.sha256(encoded).hexdigest()}}


class OpenDirectory:
    """Directory of a segment, with the positions of all groups in the log and in the log's slice of the object.

    ``place`` is the log's slice of the object. ``directory_bytes`` is the stored size of the directory.

    Attributes:
        page_indexes_start: position of the page indexes in the slice.
        metadata: Parquet's metadata, parsed.

    Raises:
        CorruptObjectError: sizes contradict each other, or Parquet's footer cannot be parsed.
    """

    def __init__(self, directory: Directory, place: ObjectSlice, log_bytes: int, directory_bytes: int) -> None:
        groups = directory.groups
        self.directory = directory
        self._ends = [0, *accumulate(group.log_bytes for group in groups)]
        self._stored = [0, *accumulate(group.stored_bytes for group in groups)]
        self.page_indexes_start = self._stored[-1]
        self._frames = [
            *accumulate(
                (group.frames_bytes for group in groups), initial=self.page_indexes_start + directory.between_bytes
            )
        ]
        if self._ends[-1] != log_bytes or self._frames[-1] + directory_bytes != place.size_bytes:
            raise CorruptObjectError("the directory describes another segment", place.key, place.position)
        self._row_groups = [0, *accumulate(int(group.rows > 0) for group in groups)]
        self.metadata: Any = _parse_metadata(directory.footer, place)

    def numbers(self, start: int, end: int) -> range:
        """Return the numbers of the groups that contain bytes [start, end) of the log. The range must not be empty."""
        return range(bisect_right(self._ends, start) - 1, bisect_right(self._ends, end - 1))

    def log_position(self, number: int) -> int:
        """Return the position (bytes) of a group in the log."""
        return self._ends[number]

    def row_group_range(self, number: int) -> tuple[int, int]:
        """Return start and end (exclusive) of a group's row group in the slice.

        They are equal if the group has no rows.
        """
        return self._stored[number], self._stored[number + 1]

    def frames_range(self, number: int) -> tuple[int, int]:
        """Return start and end (exclusive) of a group's compressed frames in the slice."""
        return self._frames[number], self._frames[number + 1]

    def numbers_with_offsets(self, start: int, end: int) -> list[int] | None:
        """Return the numbers of the groups that may have rows with offsets in [start, end).

        Return None if any data record of the segment is not stored as a row, because the rows are then incomplete.
        """
        if not all(group.is_complete for group in self.directory.groups):
            return None
        numbers = [number for number, group in enumerate(self.directory.groups) if group.rows]
        return [number for number in numbers if self._may_hold(number, start, end)]

    def _may_hold(self, number: int, start: int, end: int) -> bool:
        statistics = self.metadata.row_group(self.row_group(number)).column(_OFFSET_COLUMN).statistics
        return statistics is None or (statistics.max >= start and statistics.min < end)

    def row_group(self, number: int) -> int:
        """Return the number of a group's row group in the Parquet file. The group must have rows."""
        return self._row_groups[number]


def open_directory(segment: StoredSegment, fetch: RangeReader, cache: RecentlyUsed[OpenDirectory]) -> OpenDirectory:
    """Return the directory of a segment. Read the directory if ``cache`` does not have it."""
    place, log_bytes = place_of(segment, FileKind.LOG), segment.info.size_bytes
    notes = _notes(segment, place)
    # The key contains the hash of the directory, and all values that the directory is checked against.
    return cache.get_or_load(
        (place, log_bytes, *notes), lambda: OpenDirectory(read_directory(segment, fetch), place, log_bytes, notes[0])
    )


def fetch_checked(fetch: RangeReader, place: ObjectSlice, span: tuple[int, int], sha256: bytes) -> bytes:
    """Return the bytes ``span`` (start, exclusive end) of a slice, after a check of their SHA-256.

    Raises:
        CorruptObjectError: the hash is wrong, the span is not inside the slice, or the store returned more or fewer
            bytes.
    """
    if span[1] > place.size_bytes:
        raise CorruptObjectError("a part is not inside its slice", place.key, place.position)
    data = fetch_exactly(fetch, place, *span)
    if hashlib.sha256(data).digest() != sha256:
        raise CorruptObjectError("the hash of a part is wrong", place.key, place.position + span[0])
    return data


def decompress(data: bytes, limit_bytes: int, place: ObjectSlice) -> bytes:
    """Decompress ``data`` with zstd. ``place`` is the slice that contains the data, for errors.

    Raises:
        CorruptObjectError: the data is not valid, or larger than ``limit_bytes`` after decompression.
    """
    try:
        return bytes(ZstdCodec().decompress(data, limit_bytes=limit_bytes, magic=_FRAME_MAGIC))
    except StorageError as error:
        raise CorruptObjectError(f"a part cannot be decompressed: {error}", place.key, place.position) from error


def compress(data: bytes) -> bytes:
    """Compress ``data`` with zstd."""
    return ZstdCodec().compress(data, level=None, magic=_FRAME_MAGIC)


def read_directory(segment: StoredSegment, fetch: RangeReader) -> Directory:
    """Fetch and return the directory of a segment in one request. This function does not need pyarrow.

    Raises:
        CorruptObjectError: the directory is damaged, or the data about the directory in the manifest entry is
            impossible.
    """
    place = place_of(segment, FileKind.LOG)
    directory_bytes, sha256 = _notes(segment, place)
    span = (place.size_bytes - directory_bytes, place.size_bytes)
    data = decompress(fetch_checked(fetch, place, span, sha256), MAX_DIRECTORY_BYTES, place)
    if len(data) < _COUNT.size:
        raise CorruptObjectError("the directory is cut off", place.key)
    (count,) = _COUNT.unpack_from(data)
    position = _COUNT.size + count * _GROUP.size
    if len(data) < position + _BETWEEN.size:
        raise CorruptObjectError(f"the directory names {count} groups, but has only {len(data)} bytes", place.key)
    groups = [StoredGroup(*fields) for fields in _GROUP.iter_unpack(data[_COUNT.size : position])]
    between_bytes, between_sha256 = _BETWEEN.unpack_from(data, position)
    return Directory(groups, between_bytes, between_sha256, data[position + _BETWEEN.size :])


def _parse_metadata(footer: bytes, place: ObjectSlice) -> Any:
    pa = import_pyarrow()
    try:
        return pa.parquet.read_metadata(pa.BufferReader(MAGIC + footer))
    except (pa.ArrowException, OSError) as error:
        raise CorruptObjectError(f"Parquet's footer cannot be read: {error}", place.key) from error


def _notes(segment: StoredSegment, place: ObjectSlice) -> tuple[int, bytes]:
    notes = segment.extra.get(NOTES)
    if not isinstance(notes, Mapping) or set(notes) != _FIELDS:
        raise CorruptObjectError("the entry does not describe its directory", place.key)
    size, sha256 = notes["directory_bytes"], notes["directory_sha256"]
    if (
        not isinstance(size, int)
        or isinstance(size, bool)
        or not 0 < size <= min(MAX_DIRECTORY_BYTES, place.size_bytes)
    ):
        raise CorruptObjectError(f"a directory cannot have {size!r:.32} bytes", place.key)
    try:
        return size, bytes.fromhex(str(sha256))
    except ValueError as error:
        raise CorruptObjectError("the entry has no hash of its directory", place.key) from error
