"""Tier layouts: the conversion of a segment's files to objects and back.

A layout gets a function that reads ranges of objects and an ``ObjectSink``, never a store. Therefore it cannot bypass
the core's verification, request limits and cache.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self

from stratalog.config.keys import Section
from stratalog.errors import CorruptObjectError
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.spi.indexes import IndexRole
from stratalog.spi.objects import ByteSource, ObjectInfo
from stratalog.spi.stored import FURTHER_OBJECTS, record_facts, stored_fields

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers

MAC_BYTES: Final = 32
INDEX_KINDS: Final[Mapping[IndexRole, FileKind]] = {
    IndexRole.OFFSET: FileKind.OFFSET_INDEX,
    IndexRole.TIME: FileKind.TIME_INDEX,
    IndexRole.TRANSACTION: FileKind.TRANSACTION_INDEX,
}
RangeReader = Callable[[str, int, int], bytes | memoryview]
"""Function ``fetch(key, start, end)`` that returns exactly the bytes [start, end) of an object of this log.

The result can be a view. If the read fails, the function raises a StorageError.
"""


class HashedLog:
    """The bytes of a ``.log`` file, hashed while they are read.

    Each complete iteration over ``chunks`` is a pass. Each pass hashes the bytes again.

    Args:
        log: the file.
        place: path of the file, or key of the object that the file becomes; for error texts.

    Attributes:
        sha256: hash of the bytes of the last complete pass, in hex; UNKNOWN_SHA256 before the end of the first pass.
    """

    UNKNOWN_SHA256: ClassVar[str] = "0" * 64

    def __init__(self, log: ByteSource, place: str) -> None:
        self._log, self._place = log, place
        self.sha256 = self.UNKNOWN_SHA256

    @classmethod
    def of(cls, log: ByteSource, place: str) -> Self:
        """Return ``log`` itself if it is a HashedLog; otherwise return a new HashedLog over ``log``.

        The core passes a HashedLog to a layout.
        """
        return log if isinstance(log, cls) else cls(log, place)

    @property
    def is_read(self) -> bool:
        """True if ``chunks`` was read to its end: ``sha256`` is then the hash of the file."""
        return self.sha256 != self.UNKNOWN_SHA256

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return self._log.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the bytes of the file in chunks of at most ``chunk_bytes``; set ``sha256`` after the last chunk.

        Raises:
            CorruptObjectError: the file has more or fewer bytes than its ``size_bytes``.
        """
        digest, read_bytes = hashlib.sha256(), 0
        for chunk in self._log.chunks(chunk_bytes):
            read_bytes += len(chunk)
            digest.update(chunk)
            yield chunk
        if read_bytes != self.size_bytes:
            raise CorruptObjectError(
                f"the log file was announced with {self.size_bytes} bytes, but has {read_bytes}", self._place
            )
        self.sha256 = digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """A closed segment to upload to the tier.

    ``log`` streams the bytes of the ``.log`` file. ``files`` holds the whole contents of all other files, which are
    small: the indexes, the producer snapshot and the leader epochs. A file without bytes is left out. The core gives a
    layout a ``HashedLog`` and compares its hash with ``StoredSegment.sha256``. A layout should use the hash of
    ``HashedLog.of(source.log, key)``: then the bytes are hashed only once.

    ``uncompress`` is set and called by the core; a layout ignores it. It returns the source with uncompressed batches,
    for a layout with ``takes_uncompressed``.
    """

    info: SegmentInfo
    log: ByteSource
    files: Mapping[FileKind, bytes]
    uncompress: Callable[[SegmentSource], SegmentSource] | None = field(default=None, compare=False, repr=False)


class ObjectSink(Protocol):
    """The destination of a layout's objects, during one call of ``TierLayout.write``. Not thread-safe.

    The core chooses the keys. A repair writes the same objects under their old keys; otherwise all keys are new.
    """

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Upload one object, and return its key and size. The key is relative to the tier and has the given ``suffix``.

        Raises:
            StoreError: the upload failed after all retries.
            ClosedError: the layout's ``write`` has returned, or has exceeded its deadline.
        """

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix will use. Some layouts write it into the object."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment in the tier, as an entry of the manifest describes it.

    Attributes:
        info: facts about the segment that do not depend on the layout: its log, offsets, size, timestamps and epochs.
        layout: ``name@version`` of the layout that wrote the segment, and that must read it.
        slices: the object, position and size of the stored bytes of each file.
        sha256: hash of the original bytes of the ``.log`` file, in hex.
        requires: further components that a reader needs, such as a codec or an encryption, as ``name@version``.
        extra: the layout's own data as JSON values. The name ``objects`` is reserved for a list of keys of further
            objects, which belong to the segment but hold none of its files. The names ``records``, ``min_timestamp_ms``
            and ``original_bytes`` are reserved: in the JSON form, ``extra`` holds the attributes of ``info`` with these
            names.
    """

    info: SegmentInfo
    layout: str
    slices: Mapping[FileKind, ObjectSlice]
    sha256: str
    requires: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def log_key(self) -> str:
        """The key of the object with the bytes of the ``.log`` file. Each valid entry has such an object."""
        return self.slices[FileKind.LOG].key

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all objects that belong to the segment, including the keys in ``extra["objects"]``."""
        other_keys = self.extra.get(FURTHER_OBJECTS, ())
        return frozenset(
            [*(place.key for place in self.slices.values()), *(other_keys if isinstance(other_keys, list) else ())]
        )

    def to_json(self) -> dict[str, Any]:
        """Return the segment as JSON values for ``json.dumps``.

        ``from_json`` returns an equal segment. It refuses a segment whose ``layout`` is "".
        """
        info = self.info
        return {
            "topic": info.log.topic,
            "partition": info.log.partition,
            "topic_id": info.topic_id.text,
            "base_offset": info.base_offset,
            "end_offset": info.end_offset,
            "size_bytes": info.size_bytes,
            "max_timestamp_ms": info.max_timestamp_ms,
            "modified_ms": info.modified_ms,
            "leader_epochs": [[entry.epoch, entry.start_offset] for entry in info.leader_epochs],
            "layout": self.layout,
            "slices": {
                str(kind): {"key": place.key, "position": place.position, "size_bytes": place.size_bytes}
                for kind, place in self.slices.items()
            },
            "sha256": self.sha256,
            "requires": list(self.requires),
            "extra": {**self.extra, **record_facts(info)},
        }

    @classmethod
    def from_json(cls, value: object, file: str = "") -> Self:
        """Return the segment whose ``to_json`` is ``value``, after a check of each field.

        Args:
            value: result of ``json.loads``; the caller has limited its size.
            file: key of the object that contains the JSON, for error texts.

        Raises:
            CorruptObjectError: a field is missing, unknown, of the wrong type or out of bounds; the text names it.
        """
        return cls(**stored_fields(value, file))


class Unauthenticated(StrEnum):
    """Treatment of a manifest root without a MAC, in a log whose layout authenticates roots.

    ``ManifestAuthenticator.unauthenticated`` explains the values.
    """

    WARN = "warn"
    ACCEPT = "accept"
    REFUSE = "refuse"


class ManifestAuthenticator(ABC):
    """Message authentication codes (MACs) of manifest roots, under keys that the store does not have. Thread-safe.

    Attributes:
        unauthenticated: treatment of a log whose manifest root has no MAC. With ``refuse``, such a log is not read,
            whatever its layout. With ``warn`` and ``accept``, it is read. If the layout of its topic or of one of its
            segments authenticates roots, a warning is logged, and ``warn`` refuses the segments of other layouts. With
            each value, a segment is refused if ``is_required`` returns True for its layout.
    """

    unauthenticated: Unauthenticated = Unauthenticated.WARN

    @abstractmethod
    def key_id(self) -> str:
        """Return the id of the key that authenticates new roots, 1 to 256 characters.

        Raises:
            ConfigError: no such key is configured.
        """

    @abstractmethod
    def mac(self, key_id: str, data: bytes) -> bytes:
        """Return the MAC of ``data`` under the key ``key_id``: 32 bytes, always the same for the same arguments.

        Raises:
            ConfigError: no key with this id exists.
        """

    @abstractmethod
    def is_required(self, label: str) -> bool:
        """Return True if a root without a MAC must not name a segment of the layout ``label`` (``name@version``)."""


class TierLayout(ABC):
    """A conversion of segments to objects and back. Thread-safe. A layout must not keep state of a topic or segment."""

    @property
    def takes_uncompressed(self) -> bool:
        """True if the core must uncompress the batches of magic 2 of a segment before ``write``. Default: False.

        True is for layouts that store records instead of batches, and rebuild the batches for a reader. Such a layout
        cannot reproduce compressed batches, because another version of a codec may compress the same records to other
        bytes. The layout gets the uncompressed batches, and ``read`` must return exactly these bytes. The entry has the
        size and hash of the uncompressed log; ``info.original_bytes`` is the size of the compressed log. If the
        uncompressed log would exceed 2 GiB, the layout gets the compressed batches.
        """
        return False

    @abstractmethod
    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment and return its manifest entry; ``section`` has the layout's topic settings, if there are any.

        The segment may be empty, or have no small files. ``source.log`` yields chunks of any size. A sink may read a
        source several times, for example after a retry; a HashedLog has the hash of the last pass. The entry must name
        every object that was put. The layout leaves ``StoredSegment.layout`` as "", and the core sets it. Afterwards,
        the entry must be equal to its copy after ``to_json`` and ``from_json``. After an error, the core deletes the
        objects of the upload.
        """

    @abstractmethod
    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield the bytes [start, end) of the original ``.log`` file, in order, in one or more pieces.

        ``fetch`` may return views. If the entry or the objects are damaged, or belong to another segment, the method
        must return the right bytes or raise a StorageError, and must not use unlimited memory. A read of the whole log
        must detect every changed bit.

        Raises:
            StorageError: the range is not in the log.
            CorruptObjectError: the layout cannot have stored the fetched bytes, or ``fetch`` returned more or fewer
                bytes than the layout requested.
        """

    @abstractmethod
    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """Return the original bytes of the small file ``kind``; None if the segment has no file of this kind.

        If the entry or the objects are damaged, the method raises a StorageError, as ``read`` does.
        """

    def read_arrow(
        self, segment: StoredSegment, start: int, end: int, columns: Sequence[str] | None, fetch: RangeReader
    ) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the data records with offsets in [start, end) as Arrow batches. Default: None.

        Optional, for layouts that store columns. If the result is None, the core reads the batches of the log and
        decodes them. The Arrow batches have the schema of ``ArrowBuffers.schema(columns)`` and ascending offsets. They
        contain each record that ``RecordFormat.decode_arrow`` would return for the log's batches, except control
        records; if the layout cannot return all of them, the result is None. Records of aborted transactions are
        included: the core calls this method only for ranges without aborted transactions that it must hide.

        Raises:
            CorruptObjectError: the layout cannot have stored the fetched bytes.
        """
        del segment, start, end, columns, fetch
        return None

    def check(self, segment: StoredSegment, fetch: RangeReader) -> None:
        """Check the stored bytes that belong to none of the segment's files: further objects, and copies of the entry.

        ``stratalog verify`` calls this method and reports the error. The files of the segment are checked by ``read``
        and ``read_index``. Optional: the default checks nothing.

        Raises:
            CorruptObjectError: the layout cannot have stored the fetched bytes. ``file`` is the object's key.
        """
        del segment, fetch

    def authenticator(self) -> ManifestAuthenticator | None:
        """Return the authenticator for manifests of logs in this layout. Default: None; manifests then have no MAC.

        Optional, for layouts that encrypt. If the settings contain no encryption keys, the result is None. The core may
        call the method several times.
        """
        return None

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        """Return the entry with its data key encrypted by the active key; ``segment`` itself if nothing changes.

        Optional, for layouts that encrypt. The call must not change any object; only ``extra`` of the entry changes.

        Raises:
            ConfigError: the active key, or the key that encrypts the segment's data key now, is not configured.
            CorruptObjectError: the entry is damaged.
        """
        return segment

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """Yield the segments found in ``objects``, for a log or bucket without a manifest.

        Optional; the default finds none. ``objects`` can be objects of several logs, in the order of their keys. The
        results are equal to the entries that ``write`` returned. Objects that the layout did not write are skipped.
        Damaged objects are skipped, or raise a StorageError. If an object is a file outside of a tier, its key is "". A
        layout must yield the segment of such a file if the file's bytes alone describe the segment.
        """
        del objects, fetch
        return iter(())


class LayoutLookup(Protocol):
    """The installed layouts, for a layout that uses another one. Do not call a method while the layout itself opens.

    If a layout is not installed, or its installed version is older than the version in a label, the methods raise
    UnknownComponentError, which names the layout. If several plugins offer the layout, they raise PluginClashError.
    ``by_name`` and ``by_label`` open the layout at its first use; if it cannot be opened, they raise PluginError or
    ConfigError.
    """

    def label(self, name: str) -> str:
        """Return ``name@version`` of the layout ``name``, with the version that the layout writes."""

    def by_name(self, name: str) -> TierLayout:
        """Return the layout with this name."""

    def by_label(self, label: str) -> TierLayout:
        """Return the layout that reads segments with this ``label`` (``name@version``)."""
