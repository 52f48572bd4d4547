"""Fetches of raw batches.

Source: apache/kafka UnifiedLog.read, LogSegment.read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from stratalog.errors import OffsetOutOfRangeError
from stratalog.log.read.batch_lookup import find_batches
from stratalog.log.read.down_convert import Converted, convert
from stratalog.log.read.read_plan import hidden_transactions
from stratalog.log.read.retry_read import READ_ERRORS, ReadRetry, ViewSource
from stratalog.log.read.view import LogView
from stratalog.model.offsets import UNDEFINED_END, EpochEnd, Isolation, LogOffsets
from stratalog.model.segment_info import AbortedTransaction, FileSlice
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment

_SMALL_BYTES: Final = 64 << 10
_READ_COMMITTED: Final = Isolation.READ_COMMITTED  # looked up at each fetch


@dataclass(slots=True)
class Fetched:
    """Raw whole batches, unchanged from the log. A context manager.

    The bytes are in memory: they stay the same if the segment is deleted, or the log is truncated or closed.

    Attributes:
        data: the bytes; empty if the requested offset is at the isolation's bound, if ``diverging`` is set, or if the
            first batch is larger than allowed. The first batch may begin below the requested offset; a reader drops
            those records.
        next_offset: the next offset to fetch; the requested offset if nothing was returned.
        offsets: all bounds of the log at the time of the fetch.
        diverging: exclusive end offset of the replica's last epoch in this log, if the replica must truncate its log;
            otherwise None.
        aborted_transactions: for read_committed, the aborted transactions with data in the range; otherwise empty.
        offset: the requested offset.
        components: the log's components, which ``converted`` uses.
        position: position of the bytes in their segment.
        file_slice: the bytes in their file, instead of ``data``, in a fetch for a ``Transfer``, which releases the slice;
            otherwise None.
    """

    data: memoryview
    next_offset: int
    offsets: LogOffsets
    offset: int
    components: Components = field(repr=False, compare=False)
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    diverging: EpochEnd | None = None
    position: int = 0
    file_slice: FileSlice | None = None

    @property
    def slices(self) -> tuple[FileSlice, ...]:
        """The bytes as one slice; empty if there are no bytes."""
        piece = self.file_slice or FileSlice(self.data, self.position)
        return (piece,) if piece.size_bytes else ()

    @property
    def size_bytes(self) -> int:
        """Number of bytes in ``data``."""
        return len(self.data)

    def read(self) -> bytes:
        """Return a copy of all bytes."""
        return bytes(self.data)

    def converted(self, magic: int) -> Converted:
        """Return the batches down-converted for a reader that knows no magic above ``magic``, as in Kafka.

        Fetch requests of versions 0 and 1 come from readers of magic 0, and those of versions 2 and 3 from readers of
        magic 1. Batches at or below ``magic`` are copied unchanged. Other batches are encoded again without the fields
        that the older magic lacks: headers, producers and control batches below magic 2, timestamps below magic 1.
        Offsets do not change. If no records remain, the result is empty: continue the fetch at ``next_offset``.

        Raises:
            UnsupportedCompressionError: a batch above ``magic`` is compressed with zstd, and ``magic`` is below 2; or
                its codec is not installed.
            CorruptBatchError: records do not fit their batch; the error's ``position`` is the position in the result of
                ``read``, and its ``file`` is "".
            DecompressedSizeError: a batch decompresses past ``limits.decompressed.bytes``.
        """
        formats, codecs, limit_bytes = (
            self.components.formats,
            self.components.codecs,
            self.components.limits.decompressed_bytes,
        )
        return convert(self.read(), formats, codecs, magic, first_offset=self.offset, limit_bytes=limit_bytes)

    def release(self) -> None:
        """Do nothing: the bytes stay in memory while a view of them exists."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def fetch(
    views: ViewSource,
    offset: int,
    max_bytes: int,
    isolation: str,
    min_one_batch: bool,  # noqa: FBT001 - each fetch passes all arguments, which costs less by position
    current_leader_epoch: int | None,
    last_fetched_epoch: int | None,
    *,
    to_send: bool = False,
) -> Fetched:
    """Return whole batches of one segment, from ``offset`` up to the high watermark or the last stable offset.

    ``isolation`` selects the bound; with "log_end", the bound is the log end. ``LogReader.fetch`` documents all
    arguments. If ``to_send`` is True and the request is for more than 64 KiB, only headers are read from a local
    segment, and the slice refers to the file, for ``sendfile``. A smaller range is read into memory, because that costs
    less.

    Raises:
        OffsetOutOfRangeError: the offset is below the log start or above the log end, or ``last_fetched_epoch`` is not
            known here.
        StaleLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is older or newer than the log's epoch.
        CorruptBatchError: the first batch is damaged, or the log is damaged and ends at the offset.
        StorageError: a segment cannot be read from disk or from the tier.
    """
    view, retry = views(), None
    while True:
        if current_leader_epoch is not None:
            view.check_leader_epoch(current_leader_epoch)
        diverging = None if last_fetched_epoch is None else _divergence(view, offset, last_fetched_epoch)
        if diverging is not None:  # also if the offset is out of range: the end of the epoch is more precise
            return Fetched(memoryview(b""), offset, view.offsets, offset, view.components, diverging=diverging)
        bound = view.checked_bound(offset, isolation)
        try:
            return _fetch(view, offset, max_bytes, isolation, bound, min_one_batch, to_send)
        except READ_ERRORS as error:
            retry = retry or ReadRetry(views, view)
            if not retry.should_retry(error, view.segment_at(offset)):
                raise
            view = retry.view


def _fetch(
    view: LogView,
    offset: int,
    max_bytes: int,
    isolation: str,
    bound: int,
    min_one_batch: bool,  # noqa: FBT001 - as in ``fetch``
    to_send: bool,  # noqa: FBT001 - as in ``fetch``
) -> Fetched:
    components, segment = view.components, view.segment_at(offset) if offset < bound else None
    while segment is not None:
        local = segment if isinstance(segment, Segment) else None
        batch_range = find_batches(
            segment,
            offset,
            components,
            max_bytes=max_bytes,
            bound=bound,
            needs_data=local is None or not to_send or max_bytes <= _SMALL_BYTES,
            check_crc=local is None,  # as in Kafka, local reads check no CRC
        )
        if batch_range is None:
            segment = view.segment_at(max(offset, segment.end_offset))
            continue
        position, end_position, last_offset, data, _ = batch_range
        size_bytes = end_position - position
        if not size_bytes or (size_bytes > max_bytes and not min_one_batch):
            break
        aborted: tuple[AbortedTransaction, ...] = ()
        if isolation == _READ_COMMITTED:
            aborted = hidden_transactions(view, components, offset, last_offset + 1)
        file_slice = local.slice(position, size_bytes) if local is not None and data is None else None
        data, next_offset = data or memoryview(b""), last_offset + 1
        return Fetched(data, next_offset, view.offsets, offset, components, aborted, None, position, file_slice)
    if view.damage is not None and offset >= view.offsets.log_end:
        raise view.damage.with_traceback(None)
    return Fetched(memoryview(b""), offset, view.offsets, offset, components)


def _divergence(view: LogView, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """Return the end of a replica's last epoch in this log if the replica's log diverges; otherwise None.

    Source: apache/kafka Partition.readRecords.
    """
    end = view.epoch_end(last_fetched_epoch)
    if end == UNDEFINED_END or offset < view.offsets.log_start:
        raise OffsetOutOfRangeError(str(view.name), offset, view.offsets.log_start, view.offsets.log_end)
    return end if end.epoch < last_fetched_epoch or end.end_offset < offset else None
