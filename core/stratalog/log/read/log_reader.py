"""Read operations of a log, for readers and writers."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stratalog.env.forks import ends_with_fork
from stratalog.env.latencies import Watch
from stratalog.log.read.columns import read_columns
from stratalog.log.read.fetch import Fetched, fetch
from stratalog.log.read.key_lookup import SegmentExtra, records_with_key, segment_extras
from stratalog.log.read.parallel_table import read_table
from stratalog.log.read.retry_read import ViewSource
from stratalog.log.read.time_lookup import TimeFences, largest_timestamp, offset_for_timestamp
from stratalog.log.read.transfer import Transfer
from stratalog.log.read.view import LogView
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEnd, LogOffsets, TimestampOffset
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.model.segment_info import share_bytes
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment
from stratalog.spi.cleanup import SegmentSummary

if TYPE_CHECKING:
    import socket

    import pyarrow  # noqa: ICN001 - a type alone


class LogReader(CheckedArguments, ABC):
    """One log, on local disk and in its tier, for reading. Thread-safe. A read holds no lock that appends wait for.

    ``isolation`` is ``"read_uncommitted"`` (up to the high watermark), ``"read_committed"`` (up to the last stable
    offset, without aborted transactions) or ``"log_end"`` (up to the log end). Other values raise ConfigError.

    Attributes:
        name: topic and partition.
        topic_id: the topic's id; None for directories older than topic ids.
    """

    def __init__(self, name: TopicPartition, topic_id: TopicId | None, views: ViewSource, watch: Watch) -> None:
        self.name, self.topic_id, self._views, self._watch = name, topic_id, views, watch
        self._fences: TimeFences | None = None  # created at the first lookup by time, because there may be many logs
        ends_with_fork(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.name)!r})"

    @property
    @abstractmethod
    def components(self) -> Components:
        """The formats, codecs, indexes, limits and caches that reads of the log use."""

    def view(self) -> LogView:
        """Return the segments, bounds and epochs that readers see now, as one immutable value.

        Raises:
            ClosedError: the log belongs to a ``Reader``, which is closed.
        """
        return self._views()

    def offsets(self) -> LogOffsets:
        """Return the log start, high watermark, last stable offset, log end and other bounds, at one point in time."""
        return self.view().offsets

    @property
    def latest_epoch(self) -> int:
        """The latest known leader epoch of the log; -1 if none is known."""
        return self.view().epochs.latest

    def columns(
        self,
        start: int = 0,
        end: int | None = None,
        isolation: str = "read_uncommitted",
        fields: Fields = Fields.ALL,
    ) -> Iterator[RecordColumns]:
        """Yield records as columns, about ``limits.read.bytes`` of log at a time.

        ``fields`` are the columns to decode; offsets are always decoded. ``records`` documents the other arguments.
        Raises the same errors as ``records``.
        """
        return read_columns(self.view, self.components, start, end, isolation, fields)

    def records(self, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted") -> Iterator[Record]:
        """Return an iterator over the records with offsets in [start, end), in order; control records are omitted.

        Errors are raised during the iteration, not by this call.

        Args:
            start: first offset; 0 means the log start.
            end: exclusive end; None means the isolation's bound when iteration begins.
            isolation: upper bound of the read; see the class.

        Raises:
            OffsetOutOfRangeError: ``start`` is not 0 and below the log start, or above the log end.
            CorruptBatchError: a batch is damaged; all records before it have been yielded.
            StorageError: a segment cannot be read from disk or from the tier, or a batch cannot be decompressed.
        """
        partition = self.name.partition
        pieces = (columns.iter_records(partition) for columns in self.columns(start, end, isolation))
        return itertools.chain.from_iterable(pieces)  # faster than a generator that runs for each record

    def records_with_key(
        self, key: bytes, start: int = 0, end: int | None = None, isolation: str = "read_uncommitted"
    ) -> Iterator[Record]:
        """Return an iterator over the records with this key, in order. The result is the same with and without indexes.

        A segment is neither read nor fetched from a tier if its extra indexes (``index.extra``) prove that it lacks the
        key. The active segment is always read.

        Args:
            key: the whole key.
            start: first offset; 0 means the log start.
            end: exclusive end; None means the isolation's bound when iteration begins.
            isolation: upper bound of the read; see the class.

        Raises:
            StorageError: any error of ``records``, raised during the iteration. Damage in a skipped segment is not
                detected.
            TypeError: the key is not bytes.
        """
        return records_with_key(self.view, self.components, key, start, end, isolation, self.name.partition)

    def extra_index(self, name: str) -> Iterator[SegmentExtra]:
        """Return an iterator over one extra index of each segment, on local disk and in the tier, oldest first.

        The plugin that provides the index documents the methods of its readers.

        Raises:
            UnknownComponentError: the topic names no index of this name (``index.extra``). For a log opened only for
                reading: no index of this name is installed. The error is raised when the iteration begins.
            StorageError: the tier's list of segments cannot be read, or the log is closed.
        """
        return segment_extras(self.view, self.components.extras, name)

    def to_arrow(
        self,
        start: int = 0,
        end: int | None = None,
        isolation: str = "read_uncommitted",
        *,
        columns: Sequence[str] | None = None,
    ) -> pyarrow.Table:
        """Return the same records as ``records``, as one Arrow table. Needs the extra ``arrow``.

        Up to ``limits.arrow.threads`` threads, including the caller's thread, read a long range on local disk.

        Args:
            start: first offset; 0 means the log start.
            end: exclusive end; None means the isolation's bound.
            isolation: upper bound of the read; see the class.
            columns: names of the columns, in the order of the result; only these are decoded. None means all:
                partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch.

        Raises:
            StorageError: any error of ``records``.
            ConfigError: a column does not exist, or is named twice.
            PluginImportError: pyarrow is not installed; the text names the extra.
        """
        return read_table(self.view, self.components, start, end, isolation, self.name.partition, columns)

    def fetch(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        *,
        min_one_batch: bool = True,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> Fetched:
        """Return raw whole batches of one segment, from the first batch whose last offset is at or above ``offset``.

        The result is empty if ``offset`` is the upper bound of the read. As in Kafka, the CRCs of batches on local disk
        are not checked.

        Args:
            offset: the first requested offset; the first batch may begin below it.
            max_bytes: maximum total size of the batches.
            isolation: upper bound of the read; replicas read with ``"log_end"``.
            min_one_batch: True to return the first batch even if it is larger than ``max_bytes``; False to return an
                empty result in this case.
            current_leader_epoch: the leader epoch that the caller expects; None means no check.
            last_fetched_epoch: epoch of the replica's last record before ``offset``. If the replica's log diverges from
                this one, the result has no batches, and ``diverging`` is set, even if ``offset`` is above the log end.

        Raises:
            OffsetOutOfRangeError: ``offset`` is below the log start or above the log end, or ``last_fetched_epoch`` is
                -1 or later than all known epochs.
            StaleLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is older or newer than the log's
                epoch.
            CorruptBatchError: the batch at ``offset`` is damaged, or the log is damaged and ends at ``offset``.
            StorageError: a segment cannot be read from disk or from the tier.
        """
        latencies = self._watch.latencies
        began_ns = 0 if latencies is None else latencies.fetch.now_ns()
        fetched = fetch(
            self.view,
            offset,
            max_bytes,
            isolation,
            min_one_batch,
            current_leader_epoch,
            last_fetched_epoch,
        )
        if latencies is not None:
            latencies.fetch.count_since(began_ns)
        return fetched

    def transfer(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        isolation: str = "read_uncommitted",
        *,
        min_one_batch: bool = True,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> Transfer:
        """Return the batches of ``fetch``, ready to be sent to a socket.

        If ``max_bytes`` is above 64 KiB, only the headers of the first and the last batches are read from a local file.
        ``Transfer.size_bytes`` is known before the first byte is sent, for protocols that send the size first.
        ``fetch`` documents the arguments. Raises the same errors as ``fetch``.
        """
        fetched = fetch(
            self.view,
            offset,
            max_bytes,
            isolation,
            min_one_batch,
            current_leader_epoch,
            last_fetched_epoch,
            to_send=True,
        )
        return Transfer(fetched, fetched.components.env.files)

    def send_to(
        self, to: socket.socket, offset: int, max_bytes: int = 1 << 20, isolation: str = "read_uncommitted"
    ) -> Transfer:
        """Send batches to a socket, with ``sendfile`` if they are in a local file and ``to`` is a plain socket.

        Returns:
            The transfer. If the socket is non-blocking, some bytes may be unsent; send them with ``Transfer.send``.

        Raises:
            OSError: the socket failed; the number of sent bytes is not reported. Use ``transfer`` to continue after
                errors.
            StorageError: any error of ``fetch`` or of ``Transfer.send``.
        """
        sending = self.transfer(offset, max_bytes, isolation)
        try:
            sending.send(to)
        except BaseException:
            sending.release()
            raise
        return sending

    def leader_epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which the record at ``offset`` was appended; -1 if it is not known.

        From the log end on, the result is the latest known epoch.
        """
        return self.view().epoch_at(offset)

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int | None = None) -> EpochEnd:
        """Return the exclusive end offset of a leader epoch in this log.

        A replica compares its own end offset of the epoch with the end offset in the leader's log.

        Args:
            epoch: the latest epoch in the replica's log.
            current_leader_epoch: the leader epoch that the caller expects; None means no check.

        Returns:
            The largest known epoch at or below ``epoch``, with the first offset after it; for the latest epoch, this
            is the log end offset. If ``epoch`` is older than all known epochs, the result is ``epoch`` with the start
            of the first known epoch. If ``epoch`` is -1 or later than all known epochs, the result is (-1, -1).

        Raises:
            StaleLeaderEpochError, UnknownLeaderEpochError: ``current_leader_epoch`` is older or newer than the log's
                epoch.
        """
        view = self.view()
        view.check_leader_epoch(current_leader_epoch)
        return view.epoch_end(epoch)

    def offset_for_timestamp(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> int | None:
        """Return the offset of the first record with a timestamp at or after ``timestamp_ms``.

        As in Kafka, control records and records of aborted transactions count, although readers may omit them. The
        result is None if ``isolation`` shows no such record. Raises StorageError if a segment cannot be read.
        """
        first = self.first_since(timestamp_ms, isolation)
        return None if first is None else first.offset

    def first_since(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> TimestampOffset | None:
        """Return timestamp and offset of the first record with a timestamp at or after ``timestamp_ms``.

        As in Kafka, control records and records of aborted transactions count, although readers may omit them. The
        result is None if ``isolation`` shows no such record. Raises StorageError if a segment cannot be read.
        """
        fences = self._fences = self._fences or TimeFences()
        return offset_for_timestamp(self.view, self.components, timestamp_ms, isolation, fences)

    def largest_timestamp(self, isolation: str = "read_uncommitted") -> TimestampOffset | None:
        """Return the largest timestamp from the log start on, and the offset of the first record that has it.

        The result is None if no record has a timestamp, or if ``isolation`` does not show that record. As in Kafka,
        control records count. Raises StorageError if a segment cannot be read.

        Source: apache/kafka ListOffsetsRequest.MAX_TIMESTAMP. Kafka also returns a record below the log start if its
        segment is not deleted yet.
        """
        fences = self._fences = self._fences or TimeFences()
        return largest_timestamp(self.view, self.components, isolation, fences)

    def segments(self) -> tuple[SegmentSummary, ...]:
        """Return a summary of each segment, oldest first. A segment on local disk and in the tier is listed once.

        Raises StorageError if the tier's list of segments cannot be read.
        """
        return summaries(self.view())


def summaries(view: LogView) -> tuple[SegmentSummary, ...]:
    """Return a summary of each segment of a view, oldest first. A segment on disk and in the tier is listed once.

    If local segments have the last offsets of a segment in the tier, its summary keeps its offsets, but ``size_bytes``
    is an estimate of the bytes that are not on local disk. Raises StorageError if the tier's list of segments cannot be
    read.
    """
    remote_end = view.remote.end_offset if view.remote is not None and view.remote.segments else -1
    local_start = view.segments[0].base_offset if view.segments else view.offsets.log_end
    result = []
    for segment in view.all_segments():
        is_local = isinstance(segment, Segment)
        base, end, size_bytes = segment.base_offset, segment.end_offset, segment.size_bytes
        if not is_local and end > local_start:  # local segments with other boundaries cover the rest
            size_bytes = share_bytes(size_bytes, base, end, base, local_start)
        is_active = is_local and segment is view.segments[-1]
        result.append(
            SegmentSummary(
                base_offset=base,
                end_offset=end,
                size_bytes=size_bytes,
                age_from_ms=segment.age_from_ms,
                is_local=is_local,
                is_remote=not is_local or (not is_active and segment.end_offset <= remote_end),
                is_active=is_active,
            )
        )
    return tuple(result)
