"""Report of an erasure: the rewritten segments, and the remnants that may still hold the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition

GONE_BY_ITSELF: Final = frozenset({"deleted file", "object"})  # kinds of remnants that readers cannot reach


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment that an erasure has rewritten, or would rewrite in a dry run.

    Attributes:
        end_offset: exclusive end offset of the segment.
        records: number of erased records.
        bytes_before: size of the segment's batches before the erasure.
        bytes_after: size of the batches after the erasure; equal to ``bytes_before`` in a dry run.
        sha256_before: hash (hex) of the batches before the erasure.
        sha256_after: hash (hex) of the batches after the erasure; "" in a dry run.
        part: the part of the log that has the segment, "local" or "tier".
        objects_before: keys of the segment's objects in the tier before the erasure; () for a local segment.
        objects_after: keys of the segment's new objects in the tier; () for a local segment or in a dry run.
    """

    base_offset: int
    end_offset: int
    records: int
    bytes_before: int
    bytes_after: int
    sha256_before: str
    sha256_after: str
    part: str = "local"
    objects_before: tuple[str, ...] = ()
    objects_after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remnant:
    """A file or object that may still contain the key after an erasure; ``where`` is its path or object key.

    ``kind`` is one of:

    - "object": an object in the tier that only an older manifest root refers to, or that was never committed. The first
      collection after ``until_ms`` deletes the object.
    - "deleted file": a local file that is already renamed for deletion. The file is deleted at ``until_ms``, or earlier
      at a clean stop of the engine.
    - "tier" and "local copy": a segment in the tier, or its local copy, of a log that is a follower here. The leader
      must erase the key.
    - "damaged segment": a segment that could not be searched. ``reason`` describes the damage.

    ``until_ms`` (ms since 1970) is -1 if no background duty deletes the remnant.
    """

    kind: str
    where: str
    until_ms: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EraseResult:
    """Result of an erasure in one log.

    Attributes:
        end: log end offset when the erasure began. The erasure is for records of the key below ``end``.
        segments: the rewritten segments; in a dry run, the segments that would be rewritten.
        remnants: files and objects that may still contain the key.
        error: error that ended the erasure early; a second call continues the erasure. None without an error.
        made_ms: time (ms since 1970) when the erasure ended.
    """

    log: TopicPartition
    end: int
    segments: tuple[ErasedSegment, ...]
    remnants: tuple[Remnant, ...]
    error: StorageError | None = None
    made_ms: int = 0

    @property
    def is_complete(self) -> bool:
        """True if the erasure or the dry run had no error, and readers can open none of the remnants."""
        return self.error is None and all(remnant.kind in GONE_BY_ITSELF for remnant in self.remnants)

    @property
    def gone_ms(self) -> int:
        """Time (ms since 1970) from which no file or object holds the key, if the tier is collected regularly.

        The time is -1 if the erasure is incomplete, or if a remnant stays for an unknown time.
        """
        until_times = [remnant.until_ms for remnant in self.remnants]
        return -1 if not self.is_complete or -1 in until_times else max(until_times, default=self.made_ms)
