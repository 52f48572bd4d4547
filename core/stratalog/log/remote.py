"""How a log asks for what it no longer has: the committed part of it in a tier."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from stratalog.model.offsets import EpochEntry
from stratalog.segment.readable import ReadableSegment


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
    """

    version: int = 0
    log_start: int = 0
    high_watermark: int = 0
    segments: tuple[ReadableSegment, ...] = ()
    leader_epochs: tuple[EpochEntry, ...] = ()
    _bases: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bases", tuple(segment.base_offset for segment in self.segments))

    @property
    def start_offset(self) -> int:
        """The base offset of the first segment, or the log start if there is none."""
        return self._bases[0] if self._bases else self.log_start

    @property
    def end_offset(self) -> int:
        """The first offset after the last segment, or the log start if there is none."""
        return self.segments[-1].end_offset if self.segments else self.log_start

    def floor(self, offset: int) -> ReadableSegment | None:
        """The segment whose range [base_offset, end_offset) holds ``offset``; None if there is none."""
        index = bisect_right(self._bases, offset) - 1
        if index < 0 or offset >= self.segments[index].end_offset:
            return None
        return self.segments[index]


class RemoteLog(Protocol):
    """The tiered part of one log. Thread-safe."""

    def view(self) -> RemoteView:
        """The committed head as last seen. The first call asks the store, later ones do no I/O.

        Raises:
            StoreError: the store failed or refused.
            CorruptManifestError: the head is damaged.
        """

    def refresh(self) -> RemoteView:
        """Ask the store for the head now; errors as ``view``, which goes on with what it had."""


def merged_epochs(runs: Iterable[Iterable[EpochEntry]]) -> tuple[EpochEntry, ...]:
    """The epochs of consecutive segments as one ascending run; an epoch counts from where it is first seen."""
    merged: list[EpochEntry] = []
    for run in runs:
        merged.extend(entry for entry in run if not merged or entry.epoch > merged[-1].epoch)
    return tuple(merged)
