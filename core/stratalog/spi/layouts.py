"""Tier layouts: how a segment's files become objects.

A layout sees a range reader and a sink, never a store: it cannot bypass verification, budget or cache.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, Self

from stratalog.config.keys import Section
from stratalog.errors import CorruptObjectError, UnknownComponentError
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.spi.objects import ByteSource, ObjectInfo

MAC_BYTES: Final = 32
FURTHER_OBJECTS: Final = "objects"  # in ``StoredSegment.extra``; persistent
UNKNOWN_SHA256: Final = "0" * 64
RangeReader = Callable[[str, int, int], bytes | memoryview]
"""``fetch(key, start, end)``: bytes [start, end) of an object of this log, exactly that many; it may be a view of more."""


class HashedLog:
    """The bytes of a ``.log`` file as they are, hashed in each pass.

    Args:
        log: the file.
        place: of the file or of the object that it becomes, for error texts.

    Attributes:
        sha256: of the bytes of the last complete pass, UNKNOWN_SHA256 before it.
    """

    def __init__(self, log: ByteSource, place: str) -> None:
        self._log, self._place = log, place
        self.sha256 = UNKNOWN_SHA256

    @classmethod
    def of(cls, log: ByteSource, place: str) -> Self:
        """Return ``log`` itself if it is hashed already, as the log that the core gives to a layout is."""
        return log if isinstance(log, cls) else cls(log, place)

    @property
    def is_read(self) -> bool:
        """True after a complete pass."""
        return self.sha256 != UNKNOWN_SHA256

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self._log.size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the bytes of the file.

        Raises:
            CorruptObjectError: the file gave more or fewer bytes than it said.
        """
        digest, seen = hashlib.sha256(), 0
        for chunk in self._log.chunks(chunk_bytes):
            seen += len(chunk)
            digest.update(chunk)
            yield chunk
        if seen != self.size_bytes:
            raise CorruptObjectError(f"the log said {self.size_bytes} bytes and gave {seen}", self._place)
        self.sha256 = digest.hexdigest()


@dataclass(frozen=True, slots=True)
class SegmentSource:
    """A closed segment on its way to the tier.

    ``log`` are the bytes of the ``.log`` file, streamed; ``files`` the whole contents of the small ones. The core gives a
    layout a ``HashedLog`` and compares its hash with ``StoredSegment.sha256``: a layout that takes the hash from
    ``HashedLog.of(source.log, key)`` spares a second one.
    """

    info: SegmentInfo
    log: ByteSource
    files: Mapping[FileKind, bytes]


class ObjectSink(Protocol):
    """Where a layout puts objects. The core chooses the keys; they are unique and never overwritten."""

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Upload one object whose key ends with ``.suffix``; ``info.key`` is relative to the tier."""

    def key(self, suffix: str = "seg") -> str:
        """The key that the next ``put`` with this suffix will use, for layouts that write it into the object."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment in the tier: the entry that manifests hold.

    Attributes:
        info: the segment as Kafka knows it.
        layout: ``name@version`` of the layout that wrote it, and must read it.
        slices: where the bytes of each file are, as the layout stored them.
        sha256: of the ``.log`` file's original bytes, hex.
        requires: further ``name@version`` that a reader needs (a codec, an encryption).
        extra: the layout's own notes; JSON values. ``objects`` is reserved: a list of the keys of further objects,
            which belong to the segment and hold no file of it.
    """

    info: SegmentInfo
    layout: str
    slices: Mapping[FileKind, ObjectSlice]
    sha256: str
    requires: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[str]:
        """All objects that hold a part of the segment, those that ``extra["objects"]`` names included."""
        further = self.extra.get(FURTHER_OBJECTS, ())
        return frozenset(
            [*(place.key for place in self.slices.values()), *(further if isinstance(further, list) else ())]
        )


class Unauthenticated(StrEnum):
    """Treatment of a manifest root without a MAC, in a log whose layout authenticates roots."""

    WARN = "warn"
    ACCEPT = "accept"
    REFUSE = "refuse"


class ManifestAuthenticator(ABC):
    """Message authentication codes of manifest roots, under keys that the store does not have. Thread-safe.

    Attributes:
        unauthenticated: ``warn`` reads a log whose roots have no MAC if all its segments are of the layout, and logs a
            warning; ``accept`` reads any such log; ``refuse`` reads no log at all without a MAC, whatever its layout.
    """

    unauthenticated: Unauthenticated = Unauthenticated.WARN

    @abstractmethod
    def key_id(self) -> str:
        """Return the id of the key for new roots, 1 to 256 characters.

        Raises:
            ConfigError: there is none.
        """

    @abstractmethod
    def mac(self, key_id: str, data: bytes) -> bytes:
        """Return the 32 bytes that authenticate ``data`` under a key.

        Raises:
            ConfigError: there is no key of this id.
        """

    @abstractmethod
    def is_required(self, label: str) -> bool:
        """Return True if segments of this ``name@version`` of the layout count only in roots with a MAC."""


class TierLayout(ABC):
    """One way to store segments. Components hold no topic state; thread-safe."""

    @abstractmethod
    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment; ``section`` holds the topic's settings of this layout, if it has any.

        ``StoredSegment.layout`` is left "" and filled by the core.
        """

    @abstractmethod
    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Bytes [start, end) of the original ``.log`` file, in order, in one or more pieces.

        Raises:
            CorruptObjectError: what was fetched cannot be what was stored.
        """

    @abstractmethod
    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """The original bytes of a small file; None if the segment has none of this kind."""

    def authenticator(self) -> ManifestAuthenticator | None:
        """Return what authenticates the manifests of logs in this layout; None if nothing does, or no keys are configured.

        Optional: for layouts that encrypt. Asked once a layout.
        """
        return None

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        """The entry with the segment's key wrapped by the key that is active now; ``segment`` itself if nothing changes.

        Optional: for layouts that encrypt. No object may change by it.
        """
        return segment

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """The segments among ``objects`` of one log, for a bucket whose manifests are lost. Optional: finds none.

        An object that was taken out of its tier has the key "": a layout that knows it by itself still reads it.
        """
        del objects, fetch
        return iter(())


class LayoutLookup(Protocol):
    """The layouts that are installed, for one that stands on another. Not to be asked while it opens itself.

    All raise UnknownComponentError, which says what is missing.
    """

    def label(self, name: str) -> str:
        """``name@version`` of the layout called ``name``, as it writes."""

    def by_name(self, name: str) -> TierLayout:
        """The layout called ``name``."""

    def by_label(self, label: str) -> TierLayout:
        """The layout that reads what ``label`` (``name@version``) wrote."""


class _NoLayouts:
    """A lookup that finds nothing, where a component is opened alone."""

    def label(self, name: str) -> str:
        """Raise."""
        raise UnknownComponentError(f"no tier layout {name!r} is installed here")

    def by_name(self, name: str) -> TierLayout:
        """Raise."""
        raise UnknownComponentError(f"no tier layout {name!r} is installed here")

    def by_label(self, label: str) -> TierLayout:
        """Raise."""
        raise UnknownComponentError(f"{label} is required to read this and not installed here")


NO_LAYOUTS: Final[LayoutLookup] = _NoLayouts()
