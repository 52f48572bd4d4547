"""Comparison of two states of one log by segments: two roots of a tier, or a directory and its tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from stratalog.segment.readable import ReadableSegment
from stratalog.tier.read.remote_segment import RemoteSegment


class Side(StrEnum):
    """The state that has a segment, in a comparison of a left and a right state."""

    LEFT = "left"
    RIGHT = "right"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class SegmentDifference:
    """A segment, and the state that has it.

    ``name`` is the object key or file path of the segment. If both states have it, it is the name in the left state.
    """

    side: Side
    base_offset: int
    end_offset: int
    size_bytes: int
    name: str


def differences(
    left: Iterable[ReadableSegment], right: Iterable[ReadableSegment], *, with_common: bool = False
) -> Iterator[SegmentDifference]:
    """Yield the segments that only one of two ascending lists has, ascending; both lists are consumed one by one.

    Two segments are equal if their offsets and sizes are equal. If both are in a tier, the SHA-256 of their ``.log``
    files must be equal, too. The keys of their objects are not compared. With ``with_common``, segments that both states
    have are yielded, too.
    """
    left_segments, right_segments = iter(left), iter(right)
    left_segment, right_segment = next(left_segments, None), next(right_segments, None)
    while left_segment is not None or right_segment is not None:
        if left_segment is not None and right_segment is not None and _is_same(left_segment, right_segment):
            if with_common:
                yield _difference(Side.BOTH, left_segment)
            left_segment, right_segment = next(left_segments, None), next(right_segments, None)
        elif right_segment is None or (left_segment is not None and _place(left_segment) <= _place(right_segment)):
            assert left_segment is not None
            yield _difference(Side.LEFT, left_segment)
            left_segment = next(left_segments, None)
        else:
            yield _difference(Side.RIGHT, right_segment)
            right_segment = next(right_segments, None)


def _place(segment: ReadableSegment) -> tuple[int, int]:
    return segment.base_offset, segment.end_offset


def _is_same(left_segment: ReadableSegment, right_segment: ReadableSegment) -> bool:
    hashes = {_sha256(left_segment), _sha256(right_segment)} - {""}
    return (
        _place(left_segment) == _place(right_segment)
        and left_segment.size_bytes == right_segment.size_bytes
        and len(hashes) < 2
    )


def _sha256(segment: ReadableSegment) -> str:
    """Return the hash of the ``.log`` file of a segment in a tier; "" for a local segment, whose hash is unknown."""
    return segment.entry.sha256 if isinstance(segment, RemoteSegment) else ""


def _difference(side: Side, segment: ReadableSegment) -> SegmentDifference:
    return SegmentDifference(side, segment.base_offset, segment.end_offset, segment.size_bytes, segment.label)
