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
        base_offset: first offset of the segment.
        end_offset: exclusive end offset.
        records: number of erased records.
        bytes_before: size of the segment's batches before the erasure.
        bytes_after: size afterwards; in a dry run the size before.
        sha256_before: hash (hex) of the segment's batches before the erasure.
        sha256_after: hash (hex) afterwards; "" in a dry run.
        part: "local" or "tier".
        objects_before: keys of the objects of a tier segment before the erasure.
        objects_after: keys of the new objects of a tier segment; () for a local segment or in a dry run.
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
    """A file or object that may still hold the key after an erasure; ``where`` is its path or object key.

    ``kind`` is one of:

    - "object": an object in the tier that only an older root refers to, or that was never committed. The first
      collection after ``until_ms`` deletes it.
    - "deleted file": a local file that is already renamed for deletion. It is deleted at ``until_ms``, or earlier at a
      clean stop of the engine.
    - "tier" and "local copy": a segment in the tier, or a local copy of it, of a log that is a follower here. The
      leader must erase the key.
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
        log: the log.
        end: log end offset when the erasure began. Records of the key at or above it stay.
        segments: the rewritten segments.
        remnants: files and objects that may still hold the key.
        error: error that ended the erasure early; a second call continues the erasure. None if it is finished.
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
        """True if no reader can find the key below ``end``, because readers cannot open any of the remnants."""
        return self.error is None and all(found.kind in GONE_BY_ITSELF for found in self.remnants)

    @property
    def gone_ms(self) -> int:
        """Time (ms since 1970) from which no file or object holds the key, if the tier is collected regularly.

        It is -1 if the erasure is incomplete, or if a remnant stays for an unknown time.
        """
        untils = [found.until_ms for found in self.remnants]
        return -1 if not self.is_complete or -1 in untils else max(untils, default=self.made_ms)
