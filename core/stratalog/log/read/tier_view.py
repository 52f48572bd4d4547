"""How a log asks for what it no longer has: the committed part of it in a tier."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Protocol, overload

from stratalog.epochs.lineage import parted_at
from stratalog.errors import StoreError
from stratalog.model.offsets import EpochEntry
from stratalog.segment.readable import ReadableSegment


class RemoteSegments(Sequence[ReadableSegment]):
    """The segments of a log's tier, ascending, without gap or overlap. Immutable, thread-safe.

    A tier may hold very many of them and then reads the list page by page: every way into it but the bounds and the
    length may ask the store, with the errors of ``RemoteLog.view``.
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[ReadableSegment] = ()) -> None:
        self._segments = tuple(segments)

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> ReadableSegment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSegment]: ...

    def __getitem__(self, index: int | slice) -> ReadableSegment | Sequence[ReadableSegment]:
        return self._segments[index]

    @property
    def start_offset(self) -> int | None:
        """The base offset of the first one, None if there is none."""
        return self._segments[0].base_offset if self._segments else None

    @property
    def end_offset(self) -> int | None:
        """The first offset after the last one, None if there is none."""
        return self._segments[-1].end_offset if self._segments else None

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """Those that end above ``offset``, ascending.

        Args:
            offset: what ends at or below it is not looked at.
            since_ms: segments whose newest record is older may be left out.
        """
        del since_ms
        first = bisect_right(self._segments, offset, key=lambda segment: segment.end_offset)
        return iter(self._segments[first:])

    def up_to(self, end: int) -> RemoteSegments:
        """Those that end at or below ``end``; made without looking at the list."""
        return _SegmentsUpTo(self, end)


@dataclass(frozen=True, slots=True)
class RemoteView:
    """What one manifest root says of a log; immutable, so that readers take no lock.

    Segments tile [start_offset, end_offset) without gap or overlap. Everything below ``end_offset`` is committed in
    the tier, or below ``log_start``: a local segment may be evicted if its end offset is at or below ``end_offset``.
    Without segments both offsets are ``log_start``, which is 0 if nothing was ever committed.

    Attributes:
        version: of the root, 0 if there is none.
        log_start: the first offset a reader may ask for, as committed.
        high_watermark: of the log when the root was written.
        segments: ascending by offset.
        leader_epochs: where epochs start in the tiered part, ascending.
        first_dirty_offset: what lies below it is compacted.
        identity: text that only this root has, if a key authenticates it; else "".
    """

    version: int = 0
    log_start: int = 0
    high_watermark: int = 0
    segments: RemoteSegments = field(default_factory=RemoteSegments)
    leader_epochs: tuple[EpochEntry, ...] = ()
    first_dirty_offset: int = 0
    identity: str = ""

    @property
    def start_offset(self) -> int:
        """The base offset of the first segment, or the log start if there is none."""
        start = self.segments.start_offset
        return self.log_start if start is None else start

    @property
    def end_offset(self) -> int:
        """The first offset after the last segment, or the log start if there is none."""
        end = self.segments.end_offset
        return self.log_start if end is None else end

    def floor(self, offset: int) -> ReadableSegment | None:
        """The segment whose range [base_offset, end_offset) holds ``offset``; None if there is none."""
        found = next(self.segments.from_offset(offset), None)
        return found if found is not None and found.base_offset <= offset else None

    def within(self, epochs: Sequence[EpochEntry]) -> RemoteView:
        """The part of it that is of a log's own history: up to where a segment holds what another leader wrote.

        Args:
            epochs: the leader epochs of the log, ascending; what they do not know is not compared.
        """
        end = parted_at(epochs, self.leader_epochs, self.start_offset, self.end_offset)
        if end is None:
            return self
        known = tuple(entry for entry in self.leader_epochs if entry.start_offset < end)
        return replace(self, segments=self.segments.up_to(end), leader_epochs=known)


class _SegmentsUpTo(RemoteSegments):
    """The segments of another list that end at or below ``end``."""

    __slots__ = ("_all", "_end")

    def __init__(self, segments: RemoteSegments, end: int) -> None:
        super().__init__()
        self._all, self._end = segments, end

    def __bool__(self) -> bool:
        """Whether there may be any: asked at each append, so that the list is not looked at."""
        start = self._all.start_offset
        return start is not None and start < self._end

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[ReadableSegment]:
        return self.from_offset(0)

    @overload
    def __getitem__(self, index: int) -> ReadableSegment: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSegment]: ...

    def __getitem__(self, index: int | slice) -> ReadableSegment | Sequence[ReadableSegment]:
        return tuple(self)[index]

    @property
    def start_offset(self) -> int | None:
        """As of the whole list, None if nothing is left of it; may ask the store."""
        return None if self.end_offset is None else self._all.start_offset

    @property
    def end_offset(self) -> int | None:
        """Where the last one ends, None if there is none; may ask the store."""
        beyond = next(self._all.from_offset(self._end), None)
        end = self._all.end_offset if beyond is None else beyond.base_offset
        return None if end == self._all.start_offset else end

    def from_offset(self, offset: int, *, since_ms: int | None = None) -> Iterator[ReadableSegment]:
        """As of the whole list, up to the end."""
        found = self._all.from_offset(offset, since_ms=since_ms)
        return takewhile(lambda segment: segment.end_offset <= self._end, found)


class RemoteLog(Protocol):
    """The tiered part of one log. Thread-safe."""

    def view(self) -> RemoteView:
        """The committed head as last seen. The first call asks the store, later ones do no I/O.

        Raises:
            StoreError: the store failed or refused.
            CorruptManifestError: the head is damaged.
            TamperedManifestError: the head is not authentic, or older than what was noted.
        """

    def refresh(self) -> RemoteView:
        """Ask the store for the head now; errors as ``view``, which goes on with what it had."""

    def expect(self, version: int, identity: str) -> None:
        """Compare the head, once it is read, with the root noted on local disk: ``view`` raises if it does not continue it."""

    @property
    def is_settled(self) -> bool:
        """Whether what ``view`` says is certain. It is not while a commit may yet take effect whose reply was lost."""

    def may_open_without(self, error: StoreError) -> bool:
        """Whether the log may be opened though ``view`` raised ``error``, by ``assume``."""

    def assume(self, view: RemoteView) -> None:
        """Rely on what local disk tells, as the store is away: until the log joins it again it is neither asked nor changed."""

    @property
    def is_assumed(self) -> bool:
        """Whether ``view`` is what was assumed."""

    def wanted(self) -> StoreError:
        """What to raise meanwhile when something of the tier is wanted; the store may be asked again for it."""


def merged_epochs(runs: Iterable[Iterable[EpochEntry]]) -> tuple[EpochEntry, ...]:
    """The epochs of consecutive segments as one ascending run; an epoch counts from where it is first seen."""
    merged: list[EpochEntry] = []
    for run in runs:
        merged.extend(entry for entry in run if not merged or entry.epoch > merged[-1].epoch)
    return tuple(merged)
