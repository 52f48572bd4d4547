"""What was done to forget a key, and what may still hold it: the proof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition

GONE_BY_ITSELF: Final = frozenset({"deleted file", "object"})  # kinds of remnants that no reader is given


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment that was written anew; digests are those of its ``.log``, before and after.

    ``part`` is "local" or "tier"; in a tier other objects hold it now.
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
    """What may still hold the key.

    ``kind`` is "object" (of an older root, or never committed: goes with the first collection after ``until_ms``), "deleted
    file" (goes at ``until_ms``, at an orderly stop at the latest), "tier" and "local copy" (this log does not lead: its leader
    erases), or "damaged segment" (``reason`` says how). ``until_ms`` is -1 where nothing ends it by itself.
    """

    kind: str
    where: str
    until_ms: int = -1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EraseResult:
    """What was done to one log. ``end`` is the log end when it began: later records of the key are none of its business.

    ``error`` is what ended it early; a second call goes on. ``made_ms`` is when it ended.
    """

    log: TopicPartition
    end: int
    segments: tuple[ErasedSegment, ...]
    remnants: tuple[Remnant, ...]
    error: StorageError | None = None
    made_ms: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether no reader can find the key below ``end``: only what nobody is given may still hold it."""
        return self.error is None and all(found.kind in GONE_BY_ITSELF for found in self.remnants)

    @property
    def gone_ms(self) -> int:
        """From when on nothing holds it, if the tier is collected; -1 if something ends by no time."""
        untils = [found.until_ms for found in self.remnants]
        return -1 if not self.is_complete or -1 in untils else max(untils, default=self.made_ms)
