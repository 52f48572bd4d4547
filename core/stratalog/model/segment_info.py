"""Segments, and slices of their files or objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from stratalog.model.batches import Buffer
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry


class FileKind(StrEnum):
    """The files of a segment that travel with it. Persistent: manifests name them by these words."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    LEADER_EPOCHS = "leader-epochs"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What is known of one segment without opening it. Offsets are [base_offset, end_offset).

    ``max_timestamp_ms`` is -1 if no record has a timestamp; ``modified_ms`` is then what retention goes by.
    ``leader_epochs`` are the (epoch, start offset) pairs that the segment's offsets fall in.
    """

    log: TopicPartition
    topic_id: TopicId
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    modified_ms: int
    leader_epochs: tuple[EpochEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """``size_bytes`` of an object, from ``position`` (bytes); an object may hold several slices."""

    key: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index: data of the producer in [first_offset, last_offset] was aborted.

    ``last_offset`` is the offset of the abort marker, ``last_stable_offset`` the one when it was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(slots=True)
class FileSlice:
    """Bytes of a segment, pinned until released: ``data`` stays valid and the file is not closed meanwhile.

    ``fileno()`` and ``position`` serve ``os.sendfile``; fileno is None where the bytes come from a tier.
    A context manager; releasing twice is fine.
    """

    data: memoryview
    position: int = 0
    descriptor: int | None = None
    on_release: Callable[[], None] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, data: Buffer, position: int = 0) -> FileSlice:
        """A slice over bytes in memory."""
        return cls(memoryview(data), position)

    @property
    def size_bytes(self) -> int:
        """Bytes in the slice."""
        return len(self.data)

    def fileno(self) -> int | None:
        """The descriptor of the file, or None."""
        return self.descriptor

    def release(self) -> None:
        """Unpin. The data must not be touched afterwards."""
        done, self.on_release = self.on_release, None
        if done is not None:
            done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def share_bytes(size_bytes: int, base_offset: int, end_offset: int, start: int, end: int) -> int:
    """The bytes of a segment that hold the offsets [start, end), by their share of its own.

    What is in both tiers under different borders is counted so, and counted once.
    """
    inside = min(end, end_offset) - max(start, base_offset)
    if inside <= 0 or end_offset <= base_offset:
        return 0
    return size_bytes * inside // (end_offset - base_offset)
