"""A segment on local disk: its files, and facts about it that need no full read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from crc32c import crc32c

from stratalog.errors import CorruptIndexError, SegmentGoneError
from stratalog.model.batches import Buffer
from stratalog.model.names import EXTRA_SUFFIX, LOG_SUFFIX, segment_file
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.segment_info import FileSlice
from stratalog.registry.guarded_parts import place_in
from stratalog.segment.components import Components
from stratalog.segment.extra_index_file import PackedExtras, unpack_extras
from stratalog.segment.index_entries import rebuild_entries
from stratalog.segment.readable import KeepsReadPosition
from stratalog.segment.section_file import Identity
from stratalog.segment.time_search import largest_timestamp
from stratalog.spi.indexes import IndexRole
from stratalog.spi.segment_store import IndexFile, LogFiles, SegmentFile

MAX_FILE_BYTES: Final = (1 << 31) - 1  # maximum size of an index file
DOUBTED: Final = frozenset({"damaged"})  # not a label: marks a segment with a damaged extra index
# These bytes hold the last batches with their CRCs or, for a large batch, the end of its records.
_TAIL_BYTES: Final = 4096
_NO_EXTRAS: Final = frozenset[str]()
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})  # shared by the many segments with nothing to store here


class Segment(KeepsReadPosition):
    """One segment in a log directory: the ``.log`` file, its indexes, and its bounds.

    The bounds of a closed segment never change. The end of the active segment grows with each append. The appender
    writes the bytes first, and then sets the new end under the log's lock: all bytes below the end can be read.

    Args:
        files: the log's folder.
        base_offset: offset in the names of the files.
        end_offset: the first offset after the segment.
        components: the log's components.
        file: the opened ``.log`` file; the segment owns it from now on.
        size_bytes: size of the used part; None means all bytes, including those of later appends.
        names: file names to use instead of the usual ones, by suffix (for a swap that was not finished).
        index_entries: entries to use instead of the index files, which are then not opened (for a reader's recovery).
        start: position (bytes) in the file where the segment begins; above 0 if the bytes before it are another
            segment.

    Attributes:
        known_extras: labels of the extra indexes that are known to exist and to fit the segment; ``DOUBTED`` after a
            read found one of them damaged.
    """

    __slots__ = (
        "_held_entries",
        "_index_files",
        "_largest",
        "_size_bytes",
        "_token",
        "base_offset",
        "components",
        "end_offset",
        "file",
        "files",
        "known_extras",
        "names",
        "start",
    )

    def __init__(
        self,
        files: LogFiles,
        base_offset: int,
        end_offset: int,
        components: Components,
        file: SegmentFile,
        *,
        size_bytes: int | None = None,
        names: Mapping[str, str] | None = None,
        index_entries: Mapping[IndexRole, Buffer] | None = None,
        start: int = 0,
    ) -> None:
        self.next_read: OffsetPosition | None = None
        self.files, self.file, self.components, self.start = files, file, components, start
        self.base_offset, self.end_offset = base_offset, end_offset
        self._size_bytes = size_bytes
        self.names: Mapping[str, str] = dict(names) if names else _NONE
        self._held_entries: Mapping[IndexRole, Buffer] = dict(index_entries) if index_entries else _NONE
        self._index_files: tuple[
            IndexRole | IndexFile, ...
        ] = ()  # each role before its file; a dict would take 250 bytes
        self._token: object | None = object()  # names this segment in the cache, which lives longer; None if closed
        self.known_extras = _NO_EXTRAS
        self._largest: TimestampOffset | None = None

    def __repr__(self) -> str:
        return f"Segment({self.label}, offsets=[{self.base_offset}, {self.end_offset}), bytes={self.size_bytes})"

    @property
    def label(self) -> str:
        """Path of the ``.log`` file, for error texts.

        The text includes the position where the segment begins if it is not 0, and the name of the plugin if a plugin
        provides the segment store.
        """
        path = self.files.path(self.file_name(LOG_SUFFIX))
        return place_in(self.files, f"{path}[{self.start}:]" if self.start else path)

    @property
    def size_bytes(self) -> int:
        """Size of the used part of the ``.log`` file."""
        size_bytes = self.file.size_bytes - self.start
        return size_bytes if self._size_bytes is None else min(self._size_bytes, size_bytes)

    @property
    def max_timestamp_ms(self) -> int:
        """Largest record timestamp, -1 if no record has one; the first call may scan the segment's end."""
        return self.largest.timestamp_ms

    @property
    def largest(self) -> TimestampOffset:
        """Largest timestamp, and an offset in a batch that has it; -1 and the base offset if no batch has one."""
        if self._largest is None:
            self._largest = largest_timestamp(self, self.components)
        return self._largest

    @largest.setter
    def largest(self, value: TimestampOffset) -> None:
        self._largest = value

    @property
    def age_from_ms(self) -> int:
        """Start of the age for time-based retention: the largest timestamp, or the file's time if no record has one."""
        stamp = self.max_timestamp_ms
        return stamp if stamp >= 0 else self.file.modified_ms

    @property
    def modified_ms(self) -> int:
        """Time of the last write to the file (ms since 1970)."""
        return self.file.modified_ms

    def file_name(self, suffix: str) -> str:
        """Return the current name of the segment's file with this suffix."""
        return self.names.get(suffix) or segment_file(self.base_offset, suffix)

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` bytes from ``position``, fewer at the end of the segment.

        Raises:
            SegmentGoneError: the segment's files are closed or deleted.
        """
        if self._size_bytes is not None:
            size_bytes = min(size_bytes, self._size_bytes - position)
        return self.file.read(self.start + position, size_bytes)

    def identity(self) -> Identity:
        """Return the identity of the bytes of a closed segment; raise SegmentGoneError if the segment was deleted."""
        size_bytes = self.size_bytes
        start = max(size_bytes - _TAIL_BYTES, 0)
        tail_crc = crc32c(self.read(start, size_bytes - start))
        return Identity(self.base_offset, self.end_offset, size_bytes, self.file.modified_ms, tail_crc)

    def read_over(self, position: int, buffer: memoryview) -> memoryview:
        """Read from ``position`` into ``buffer``, at most ``len(buffer)`` bytes; return the filled part."""
        target = buffer[: max(0, min(len(buffer), self.size_bytes - position))]
        return buffer[: self.file.read_into(self.start + position, target)]

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        """Return a slice of ``size_bytes`` bytes from ``position``. Its bytes are valid until the slice is released."""
        return self.file.slice(self.start + position, size_bytes)

    def index_entries(self, role: IndexRole) -> Buffer:
        """Return the entries of an index: from its file, or rebuilt if the file does not match the ``.log`` file.

        The rebuilt entries stay in memory. A transaction index is not rebuilt here: its entries are then empty.

        Raises:
            SegmentGoneError: the segment is closed.
        """
        index_files: Any = self._index_files
        if role in index_files:
            view: Buffer = index_files[index_files.index(role) + 1].view()
            return view
        entries = self._held_entries.get(role)
        if entries is not None:
            return entries
        cached_entries = self.components.index_cache.get_or_load(
            (self._token, role), lambda: bytes(self._load_entries(role))
        )
        # files may have been renamed meanwhile, and a missing file must not count as an empty index
        if self._token is None:
            raise SegmentGoneError("the segment was closed while it was read", self.label)
        return cached_entries

    def extra_index(self, label: str) -> bytes:
        """Return the extra index with this label (``name@version``); ``b""`` if it is missing, damaged or empty.

        Raises:
            SegmentGoneError: the segment's files are closed.
        """
        data = self.components.index_cache.get_or_load((self._token, label), lambda: self._read_extra(label))
        if self._token is None:
            raise SegmentGoneError("the segment was closed while it was read", self.label)
        return data

    def stored_extras(self, labels: Collection[str] | None = None) -> dict[str, bytes]:
        """Return the extra indexes of a closed segment from the file beside it, by label; None means all labels.

        Missing and damaged indexes are left out. The result is empty if there is no such file, or if the file was made
        for other bytes than the segment has now.
        """
        with suppress(SegmentGoneError), self._open_extras() as (file, extras):
            indexes = {
                label: extras.index(label, file.read) for label in (extras.sections if labels is None else labels)
            }
            return {label: data for label, data in indexes.items() if data is not None}
        return {}

    def stored_extra_labels(self) -> frozenset[str]:
        """Return the labels in the file of extra indexes, without reading the indexes; see ``stored_extras``."""
        with suppress(SegmentGoneError), self._open_extras() as (_, extras):
            return frozenset(extras.sections)
        return frozenset()

    def stored_entries(self, role: IndexRole) -> bytes:
        """Return the entries of an index as they are in its file now, right or wrong; empty if there is no file.

        Raises:
            CorruptIndexError: the file is larger than ``limits.index.bytes``.
        """
        name = self.file_name(self.components.indexes[role].suffix)
        index = self.files.open_index(name, max_bytes=self.components.limits.index_bytes, writable=False)
        try:
            return bytes(index.view())
        finally:
            index.close()

    def is_sound(self, role: IndexRole) -> bool:
        """Return True if an index's file fits the segment. A missing file counts as an index without entries."""
        return self._read_sound_entries(role) is not None

    def limit_to(self, size_bytes: int, entries: Mapping[IndexRole, Buffer]) -> Segment:
        """Return a segment with the first ``size_bytes`` of this segment, and these index entries.

        The returned segment owns the ``.log`` file from now on.
        """
        return Segment(
            self.files,
            self.base_offset,
            self.end_offset,
            self.components,
            self.file,
            size_bytes=size_bytes,
            names=self.names,
            index_entries=entries,
            start=self.start,
        )

    def forget(self) -> bool:
        """Return False: no bytes of the ``.log`` file are cached, so a second read cannot help."""
        return False

    def forget_indexes(self) -> None:
        """Read the index files again at the next use, because they or the segment's bounds have changed.

        Entries that were given to the segment instead of its files are forgotten.
        """
        self._held_entries = _NONE
        self._uncache()

    def hold_entries(self, role: IndexRole, entries: Buffer) -> None:
        """Use ``entries`` as the contents of the index, instead of the contents of its file."""
        self._held_entries = {**self._held_entries, role: entries}

    def use_index(self, role: IndexRole, index: IndexFile) -> None:
        """Use ``index``, which grows with the appends, as the index of this role. The segment owns the file."""
        if role in self._held_entries:
            self._held_entries = {
                other_role: entries for other_role, entries in self._held_entries.items() if other_role is not role
            }
        self._uncache()
        self._index_files = tuple(chain.from_iterable({**self.indexes(), role: index}.items()))

    def indexes(self) -> dict[IndexRole, IndexFile]:
        """Return the index files that grow with the appends; empty unless the segment is active."""
        index_files: Any = self._index_files
        return dict(zip(index_files[::2], index_files[1::2], strict=True))

    def seal(self) -> None:
        """Trim and close the growing index files, which are not synced here."""
        self._close_indexes()

    def close(self) -> None:
        """Close all files. A second call does nothing."""
        self.forget_indexes()
        self._token = None
        try:
            self._close_indexes()
        finally:
            self.file.close()

    def note_extras_made(self, labels: frozenset[str]) -> None:
        """Record that the file of extra indexes was written with these labels."""
        self.components.index_cache.discard((self._token, label) for label in labels)
        self.known_extras = labels

    def _read_extra(self, label: str) -> bytes:
        data = self.stored_extras([label]).get(label)
        if data is None and label in self.known_extras:
            self.known_extras = DOUBTED
        return data or b""

    @contextmanager
    def _open_extras(self) -> Iterator[tuple[SegmentFile, PackedExtras]]:
        """Open the file of extra indexes; if it was made for other bytes than the segment has now, it has no sections.

        Raise SegmentGoneError if there is no such file, or if the segment was deleted; then its reads fail, too.
        """
        with closing(self.files.open_segment(self.file_name(EXTRA_SUFFIX))) as file:
            extras = unpack_extras(file.read, file.size_bytes)
            identity = self.identity()
            yield file, extras if extras is not None and extras.identity == identity else PackedExtras(identity, {})

    def _uncache(self) -> None:
        names = (*self.components.indexes, *self.components.extras.labels, *self.known_extras)
        self.components.index_cache.discard((self._token, name) for name in names)
        self.known_extras = _NO_EXTRAS
        if self._token is not None:
            self._token = object()  # entries under the old token are never used again

    def _close_indexes(self) -> None:
        try:
            with ExitStack() as stack:
                for index in self.indexes().values():
                    stack.callback(index.close)
        finally:
            self._index_files = ()

    def _read_sound_entries(self, role: IndexRole) -> bytes | None:
        """Return the entries in an index's file; None if they do not fit the segment."""
        try:
            entries = self.stored_entries(role)
            self.components.indexes[role].reader(entries, self.base_offset).check(self.end_offset, self.size_bytes)
        except CorruptIndexError:
            return None
        return entries

    def _load_entries(self, role: IndexRole) -> Buffer:
        entries = self._read_sound_entries(role)
        # without an offset index, each search would read from the start
        is_missed = role is IndexRole.OFFSET and not entries and self.size_bytes > self.components.limits.read_bytes
        return rebuild_entries(self, role, self.components) if entries is None or is_missed else entries
