"""Which bytes a closed segment has, for files beside it that describe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from stratalog.model.segment_info import SegmentInfo

if TYPE_CHECKING:
    from stratalog.segment.segment import Segment  # which has such a file beside it

# The last batches with their CRCs or, of a large one, the end of its records.
_TAIL_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Which bytes a segment has, told without reading them all: no two states of one segment agree in all of this."""

    base_offset: int
    end_offset: int
    size_bytes: int
    modified_ms: int
    tail_crc: int

    @classmethod
    def in_tier(cls, info: SegmentInfo) -> Identity:
        """That of one in a tier, whose objects never change and have hashes of their own."""
        return cls(info.base_offset, info.end_offset, info.size_bytes, info.modified_ms, 0)

    @classmethod
    def of(cls, segment: Segment) -> Identity:
        """That of a closed segment as it is now; SegmentGoneError if it was deleted meanwhile."""
        size_bytes = segment.size_bytes
        start = max(size_bytes - _TAIL_BYTES, 0)
        tail_crc = crc32c(segment.read(start, size_bytes - start))
        return cls(segment.base_offset, segment.end_offset, size_bytes, segment.log.modified_ms, tail_crc)
