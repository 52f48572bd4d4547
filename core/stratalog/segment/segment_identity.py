"""Identity of a closed segment's bytes, which is stored in files that describe the segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from stratalog.model.segment_info import SegmentInfo

if TYPE_CHECKING:
    from stratalog.segment.segment import Segment  # segment imports extra_index_file, which imports this

# These bytes hold the last batches with their CRCs or, for a large batch, the end of its records.
_TAIL_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a segment's bytes, found without reading them all. If the bytes change, a field changes."""

    base_offset: int
    end_offset: int
    size_bytes: int
    modified_ms: int
    tail_crc: int

    @classmethod
    def in_tier(cls, info: SegmentInfo) -> Identity:
        """Return the identity of a segment in a tier.

        ``tail_crc`` is 0, because objects in a tier never change and have their own hashes.
        """
        return cls(info.base_offset, info.end_offset, info.size_bytes, info.modified_ms, 0)

    @classmethod
    def of(cls, segment: Segment) -> Identity:
        """Return the identity of a closed segment as it is now; raise SegmentGoneError if the segment was deleted."""
        size_bytes = segment.size_bytes
        start = max(size_bytes - _TAIL_BYTES, 0)
        tail_crc = crc32c(segment.read(start, size_bytes - start))
        return cls(segment.base_offset, segment.end_offset, size_bytes, segment.file.modified_ms, tail_crc)
