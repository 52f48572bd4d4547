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
    """The kinds of files that are stored with a segment. Persistent: manifests use these words."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    LEADER_EPOCHS = "leader-epochs"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment's description, known without opening it. Offsets are [base_offset, end_offset).

    ``max_timestamp_ms`` is -1 if no record has a timestamp; retention then uses ``modified_ms``.
    ``leader_epochs`` are the (epoch, start offset) pairs of the epochs in which the segment has offsets.
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
    """A slice of an object: ``size_bytes`` bytes from ``position`` (bytes). An object may hold several slices."""

    key: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index: data of the producer in [first_offset, last_offset] was aborted.

    ``last_offset`` is the offset of the abort marker. ``last_stable_offset`` is the log's last stable offset at the
    time when the marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(slots=True)
class FileSlice:
    """Bytes of a segment, pinned until released: until then, ``data`` stays valid and the file stays open.

    ``fileno()`` and ``position`` are for ``os.sendfile``; fileno is None if the bytes come from a tier.
    A context manager; ``release`` may be called twice.
    """

    data: memoryview
    position: int = 0
    descriptor: int | None = None
    on_release: Callable[[], None] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, data: Buffer, position: int = 0) -> FileSlice:
        """Return a slice over bytes in memory."""
        return cls(memoryview(data), position)

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the slice."""
        return len(self.data)

    def fileno(self) -> int | None:
        """Return the descriptor of the file, or None."""
        return self.descriptor

    def release(self) -> None:
        """Unpin the bytes. Do not access ``data`` afterwards."""
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
    """Return an estimate of the bytes of a segment for the offsets [start, end), in proportion to its own offsets.

    If local disk and tier have the same offsets in segments with different borders, this counts each offset once.
    """
    inside = min(end, end_offset) - max(start, base_offset)
    if inside <= 0 or end_offset <= base_offset:
        return 0
    return size_bytes * inside // (end_offset - base_offset)
