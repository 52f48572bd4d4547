"""Report of an erasure: the rewritten segments, and the remnants that may still hold the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition

GONE_BY_ITSELF: Final = frozenset({"deleted file", "object"})  # kinds of remnants that readers cannot reach


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment that was rewritten; the digests are those of its ``.log`` before and after.

    ``part`` is "local" or "tier". In a tier, the segment is stored in other objects afterwards.
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
    """A place that may still hold the key.

    ``kind`` is one of:

    - "object": an object of an older root, or never committed. The first collection after ``until_ms`` deletes it.
    - "deleted file": is deleted at ``until_ms``, or earlier at an orderly stop.
    - "tier" and "local copy": this log does not lead; the leader of the log erases the key.
    - "damaged segment": ``reason`` describes the damage.

    ``until_ms`` is -1 if the remnant does not go away by itself.
    """

    kind: str
    where: str
    until_ms: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EraseResult:
    """Result of an erasure in one log. ``end`` is the log end offset at its begin; later records of the key stay.

    ``error`` is the error that ended the erasure early; a second call continues. ``made_ms`` is the time when it ended.
    """

    log: TopicPartition
    end: int
    segments: tuple[ErasedSegment, ...]
    remnants: tuple[Remnant, ...]
    error: StorageError | None = None
    made_ms: int = 0

    @property
    def is_complete(self) -> bool:
        """True if no reader can find the key below ``end``: all remnants are out of the reach of readers."""
        return self.error is None and all(found.kind in GONE_BY_ITSELF for found in self.remnants)

    @property
    def gone_ms(self) -> int:
        """Time from which nothing holds the key, if the tier is collected; -1 if a remnant stays for an unknown time."""
        untils = [found.until_ms for found in self.remnants]
        return -1 if not self.is_complete or -1 in untils else max(untils, default=self.made_ms)
