"""Segments, and slices of their files or objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from stratalog.model.batches import Buffer
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry


class FileKind(StrEnum):
    """The kinds of files that are stored with a segment. Manifests contain the values: never change them."""

    LOG = "log"
    OFFSET_INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    LEADER_EPOCHS = "leader-epochs"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Description of a segment, which has the offsets [base_offset, end_offset).

    ``max_timestamp_ms`` is -1 if no record has a timestamp; retention then uses ``modified_ms``. ``leader_epochs`` are
    the entries of the leader epochs in which the segment has offsets. ``records`` is the number of data records,
    including those of aborted transactions; None if unknown. ``min_timestamp_ms`` is the smallest timestamp of the data
    records; -1 if a record has no timestamp or a timestamp before 1970, or if there are no data records; None if
    unknown. ``original_bytes`` is the size of the ``.log`` file before its batches were decompressed for a layout that
    stores records, such as Parquet; None if its batches are unchanged.
    """

    log: TopicPartition
    topic_id: TopicId
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    modified_ms: int
    leader_epochs: tuple[EpochEntry, ...] = ()
    records: int | None = None
    min_timestamp_ms: int | None = None
    original_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectSlice:
    """A slice of the object ``key`` in the tier: ``size_bytes`` bytes from ``position`` (bytes) on."""

    key: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index: the producer's records in [first_offset, last_offset] were aborted.

    ``last_offset`` is the offset of the abort marker. ``last_stable_offset`` is the log's last stable offset when the
    marker was written.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class FileSlice:
    """Bytes of a segment. ``data`` stays valid, and the file stays open, until the slice is released.

    ``fileno()`` and ``position`` are for ``os.sendfile``. A slice is a context manager, which calls ``release`` at its
    end. Not thread-safe.

    Args:
        data: the bytes, or a function that reads them when ``data`` is first used.
        position: position of the first byte in the file.
        descriptor: descriptor of the file; None if there is none.
        on_release: called by the first ``release``.
        size_bytes: number of bytes; None means the size of ``data``, which is then read at once.
    """

    __slots__ = ("_data", "_descriptor", "_on_release", "position", "size_bytes")

    def __init__(
        self,
        data: memoryview | Callable[[], memoryview],
        position: int = 0,
        descriptor: int | None = None,
        on_release: Callable[[], None] | None = None,
        size_bytes: int | None = None,
    ) -> None:
        self._data, self.position, self._descriptor, self._on_release = data, position, descriptor, on_release
        self.size_bytes = len(self.data) if size_bytes is None else size_bytes

    @classmethod
    def of(cls, data: Buffer, position: int = 0) -> FileSlice:
        """Return a slice of bytes in memory."""
        return cls(memoryview(data), position)

    @property
    def data(self) -> memoryview:
        """The bytes. The first access may read them from the file.

        Raises:
            SegmentGoneError: the bytes were not read yet, and the file was truncated or its log was closed.
        """
        if not isinstance(self._data, memoryview):
            self._data = self._data()
        return self._data

    def fileno(self) -> int | None:
        """Return the descriptor of the file; None if the bytes are in memory."""
        return self._descriptor

    def release(self) -> None:
        """Release the bytes and the file. Do not access ``data`` afterwards. Idempotent."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def share_bytes(size_bytes: int, base_offset: int, end_offset: int, start: int, end: int) -> int:
    """Estimate how many bytes of a segment belong to the offsets [start, end), as if all offsets had equal size.

    The segment has the offsets [base_offset, end_offset). The result is 0 if none of them is in [start, end).
    """
    shared_offsets = min(end, end_offset) - max(start, base_offset)
    if shared_offsets <= 0 or end_offset <= base_offset:
        return 0
    return size_bytes * shared_offsets // (end_offset - base_offset)
