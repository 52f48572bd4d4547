"""A log's view of its tier: the committed remote segments, and the interface to read them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Reversible, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Never, Protocol

from stratalog.epochs.epoch_cache import first_divergence
from stratalog.errors import StoreError
from stratalog.model.offsets import EpochEntry
from stratalog.segment.readable import ReadableSegment


class RemoteSegments(Reversible[ReadableSegment], Sized):
    """The segments of a log's tier, ascending, without gap or overlap. Immutable, thread-safe.

    A long list is read page by page. Each access may read from the store, and raises the errors of ``RemoteLog.view``.
    ``start_offset``, ``end_offset`` and the length of a whole list are known without a read. In a result of ``up_to``,
    they may need a read.
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[ReadableSegment] = ()) -> None:
        self._segments = tuple(segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[ReadableSegment]:
        return iter(self._segments)

    def __reversed__(self) -> Iterator[ReadableSegment]:
        return reversed(self._segments)

    def __getitem__(self, index: int) -> ReadableSegment:
        return self._segments[index]

    @property
    def start_offset(self) -> int | None:
        """Base offset of the first segment; None if there is none."""
        return self._segments[0].base_offset if self._segments else None

    @property
    def end_offset(self) -> int | None:
        """Exclusive end offset of the last segment; None if there is none."""
        return self._segments[-1].end_offset if self._segments else None

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Return an iterator over the segments whose end offset (exclusive) is above ``offset``, ascending.

        Args:
            offset: segments whose end offset is at or below it are skipped.
            since_ms: segments whose newest record is older may be skipped.
        """
        del since_ms
        first = bisect_right(self._segments, offset, key=lambda segment: segment.end_offset)
        return iter(self._segments[first:])

    def up_to(self, end: int) -> RemoteSegments:
        """Return the segments whose end offset (exclusive) is at most ``end``, without reading the list."""
        return _SegmentsUpTo(self, end)


@dataclass(frozen=True, slots=True)
class RemoteView:
    """Contents of a log's tier, as one manifest root (one version of the list of segments) has them. Immutable.

    Segments cover [start_offset, end_offset) without gap or overlap. Each offset below ``end_offset`` is committed in
    the tier, or is below ``log_start``: a local segment may be evicted if its end offset is at or below ``end_offset``.
    Without segments both offsets are ``log_start``, which is 0 if nothing was ever committed.

    Attributes:
        version: version of the root; 0 if there is none.
        log_start: the committed log start offset.
        high_watermark: the log's high watermark when the root was written.
        segments: segments, ascending by offset.
        leader_epochs: start offsets of the epochs in the tier part of the log, ascending.
        first_dirty_offset: offsets below it are compacted.
        identity: text that is unique to this root, if a key authenticates it; otherwise "".
        is_deleted: True if the topic was deleted; the collector deletes the rest of the log later.
    """

    version: int = 0
    log_start: int = 0
    high_watermark: int = 0
    segments: RemoteSegments = field(default_factory=RemoteSegments)
    leader_epochs: tuple[EpochEntry, ...] = ()
    first_dirty_offset: int = 0
    identity: str = ""
    is_deleted: bool = False

    @property
    def start_offset(self) -> int:
        """Base offset of the first segment, or the log start if there is none."""
        start = self.segments.start_offset
        return self.log_start if start is None else start

    @property
    def end_offset(self) -> int:
        """Exclusive end offset of the last segment, or the log start if there is none."""
        end = self.segments.end_offset
        return self.log_start if end is None else end

    def floor(self, offset: int) -> ReadableSegment | None:
        """Return the segment whose range [base_offset, end_offset) contains ``offset``; None if there is none."""
        segment = next(self.segments.from_offset(offset), None)
        return segment if segment is not None and segment.base_offset <= offset else None

    def within(self, epochs: Sequence[EpochEntry]) -> RemoteView:
        """Return the segments of the tier that belong to a log's history: those before the first divergence.

        Args:
            epochs: the leader epochs of the log, ascending. Offsets without a known epoch are not compared.
        """
        end = first_divergence(epochs, self.leader_epochs, self.start_offset, self.end_offset)
        if end is None:
            return self
        epochs_before_end = tuple(entry for entry in self.leader_epochs if entry.start_offset < end)
        return replace(self, segments=self.segments.up_to(end), leader_epochs=epochs_before_end)


class _SegmentsUpTo(RemoteSegments):
    """The segments of another list whose end offset (exclusive) is at most ``end``."""

    __slots__ = ("_all", "_end")

    def __init__(self, segments: RemoteSegments, end: int) -> None:
        super().__init__()
        self._all, self._end = segments, end

    def __bool__(self) -> bool:
        """Return True if there may be segments, without reading the list: each append calls this method."""
        start = self._all.start_offset
        return start is not None and start < self._end

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[ReadableSegment]:
        return self.from_offset(0)

    def __reversed__(self) -> Iterator[ReadableSegment]:
        return reversed(tuple(self))

    def __getitem__(self, index: int) -> ReadableSegment:
        return tuple(self)[index]

    @property
    def start_offset(self) -> int | None:
        """Base offset of the first segment; None if there is none. The access may read from the store."""
        return None if self.end_offset is None else self._all.start_offset

    @property
    def end_offset(self) -> int | None:
        """Exclusive end offset of the last segment; None if there is none. The access may read from the store."""
        next_segment = next(self._all.from_offset(self._end), None)
        end = self._all.end_offset if next_segment is None else next_segment.base_offset
        return None if end == self._all.start_offset else end

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Return the segments whose end offset is above ``offset``, up to the list's end offset, ascending."""
        segments = self._all.from_offset(offset, since_ms=since_ms)
        return takewhile(lambda segment: segment.end_offset <= self._end, segments)


class OfflineSegments(RemoteSegments):
    """The segments of an unavailable tier: their start, their end and their approximate number are known.

    Args:
        start: base offset of the first segment.
        end: exclusive end offset of the last segment.
        count: number of segments; at least 1.
        why: returns the error to raise when a segment is accessed.
    """

    __slots__ = ("_count", "_end", "_start", "_why")

    def __init__(self, start: int, end: int, count: int, why: Callable[[], StoreError]) -> None:
        super().__init__()
        self._start, self._end, self._count, self._why = start, end, count, why

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReadableSegment]:
        self._raise()

    def __reversed__(self) -> Iterator[ReadableSegment]:
        self._raise()

    def __getitem__(self, index: int) -> ReadableSegment:
        self._raise()

    @property
    def start_offset(self) -> int:
        """First offset that is known to be in the tier."""
        return self._start

    @property
    def end_offset(self) -> int:
        """Exclusive end offset of the segments."""
        return self._end

    def up_to(self, end: int) -> RemoteSegments:
        """Return the segments below offset ``end``, as if this were the end offset of one of them.

        The result is empty if ``end`` is at or below the start offset.
        """
        return OfflineSegments(self._start, end, self._count, self._why) if end > self._start else RemoteSegments()

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Return an empty iterator if all segments are below ``offset``; otherwise raise the error of ``why``."""
        del since_ms
        if offset < self._end:
            self._raise()
        return iter(())

    def _raise(self) -> Never:
        raise self._why()


class RemoteLog(Protocol):
    """The tier part of one log. Thread-safe. The head is the newest manifest root of the log."""

    def view(self) -> RemoteView:
        """Return the contents of the head (newest manifest root) as last read.

        The first call reads from the store; later calls do no I/O.

        Raises:
            StoreError: the store failed or refused the request.
            CorruptManifestError: the head is damaged.
            TamperedManifestError: the head is not authentic, or older than the local tier note.
            ConfigError: the key that authenticates the head is missing.
            UnknownComponentError: a later release wrote the head.
        """

    def refresh(self) -> RemoteView:
        """Read the head (newest manifest root) from the store now, and return its contents.

        Raises the same errors as ``view``. After an error, ``view`` still returns the contents of the previous head.
        """

    def expect(self, version: int, identity: str) -> None:
        """Set the manifest root that the local tier note names.

        If a key authenticates the tier, this call or ``view`` raises TamperedManifestError unless the newest root is
        this root or one of its successors.
        """

    @property
    def is_settled(self) -> bool:
        """True if the result of ``view`` is certain; False while a commit with a lost reply may still take effect."""

    def may_open_without(self, error: StoreError) -> bool:
        """Return True if the log may be opened with ``assume`` after ``view`` raised ``error``."""

    def assume(self, view: RemoteView) -> None:
        """Use ``view``, derived from local disk, while the store is unavailable.

        Until the log rejoins the tier, the tier is neither read nor changed.
        """

    @property
    def is_assumed(self) -> bool:
        """True if ``view`` returns the assumed view."""

    def unavailable_error(self) -> StoreError:
        """Return the error that a read from an assumed tier must raise. The call may first try to rejoin the tier."""


def merged_epochs(runs: Iterable[Iterable[EpochEntry]]) -> tuple[EpochEntry, ...]:
    """Return the epochs of consecutive segments as one ascending list, each epoch with its first start offset."""
    merged: list[EpochEntry] = []
    for run in runs:
        merged.extend(entry for entry in run if not merged or entry.epoch > merged[-1].epoch)
    return tuple(merged)
