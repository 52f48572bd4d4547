"""Interface for bulk writes from many processes, of which readers see all records or none.

A task *stages* records: it writes them where no reader looks, and returns small values that describe them. One process then
*publishes* what all tasks staged, by one commit for each log. Staged records that are not published are only garbage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from stratalog.config.topic import TopicConfig
from stratalog.env.closing import Closeable
from stratalog.errors import ConfigError, StorageError
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicPartition
from stratalog.model.records import RecordColumns
from stratalog.spi.cleanup import RecordFilter
from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.staged import MergePlan, Published, ReplaceSpan, Rewritten, StagedSegment

T = TypeVar("T")


def only_engine(log: TopicPartition | str) -> ConfigError:
    """Return the error for a replacement of segments that only the engine of a directory makes."""
    return ConfigError(f"only the engine replaces segments of {log} in a directory: stratalog cleaner")


class Stage(CheckedArguments, ABC):
    """Staging of records of one log, in one process. A context manager that discards after an error. For one thread."""

    @abstractmethod
    def add(self, columns: RecordColumns) -> None:
        """Write records with all fields, in batches of this log's format and codec.

        If offsets are kept, the records keep the offsets and leader epochs of the columns.

        Raises:
            InvalidRecordError: a record breaks a rule of the topic.
            RecordTooLargeError: a record is larger than ``max.message.bytes``.
            DiskFullError: no space for the staged records.
        """

    @abstractmethod
    def add_encoded(self, data: bytearray) -> None:
        """Write whole batches of any magic as they are; unless offsets are kept, new offsets are set in ``data``."""

    @abstractmethod
    def finish(self, end_offset: int | None = None) -> list[StagedSegment]:
        """Return the staged segments, ascending; none if no record was staged.

        Args:
            end_offset: only if offsets are kept: end offset of the segments, which may be above the last record. At least one
                segment is then returned, possibly without records.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove what was staged, as far as possible. May be called again, and after ``finish``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()


class BulkWriter(CheckedArguments, Closeable):
    """A target, opened in one process to stage, to publish, or both. A context manager. Not thread-safe.

    For a directory, ``span`` and the methods that stage or publish a replacement of segments raise ConfigError.
    """

    @abstractmethod
    def refresh(self) -> None:
        """Forget what was read about topics, for a writer that stays open: later calls read again what they need."""

    @abstractmethod
    def topics(self) -> Mapping[str, int]:
        """Return the existing topics with their numbers of partitions."""

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; raise UnknownTopicError if it does not exist."""

    @abstractmethod
    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic; raise UnknownTopicError if it does not exist."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Create a topic without records; do nothing if it exists with as many partitions.

        Raises:
            TopicExistsError: the topic exists with another number of partitions.
            InvalidTopicError, ConfigError, UnknownSettingError: a name or a setting is wrong.
        """

    @abstractmethod
    def check(self, topic: str, *, compression: str | None = None, layout: str | None = None) -> None:
        """Raise the errors that staging and publishing for a topic would raise now; for a driver, before its tasks begin.

        Args:
            topic: its name.
            compression: as for ``stage``.
            layout: as for ``recode``; a directory has none.

        Raises:
            UnknownTopicError: the topic does not exist.
            UnknownComponentError, ConfigError: there is no such codec, or layout.
            FencedEpochError: an engine may be writing to a partition.
            LogDirLockedError: an engine has had the directory open for 10 seconds.
        """

    @abstractmethod
    def stage(self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None) -> Stage:
        """Begin to write records of one log.

        Args:
            log: log of an existing topic.
            base_offset: keep the offsets of the records, which must all be at or above this one, where the first segment
                begins; None: records get their offsets when they are published.
            compression: codec to use instead of ``compression.type`` of the topic.

        Raises:
            UnknownTopicError: the log does not exist.
            FencedEpochError: an engine writes to the log.
        """

    @abstractmethod
    def append(
        self,
        log: TopicPartition,
        staged: Sequence[StagedSegment],
        mark: WriteMark | None = None,
        *,
        keep_offsets: bool = False,
    ) -> Published:
        """Publish records at the log's end, in the order of ``staged``: all of them, or none.

        If this mark, or a later one of the same writer, was published already, nothing is published, and ``staged`` is
        discarded.

        Args:
            log: the log.
            staged: segments of any tasks, but not of several attempts at the same work.
            mark: the writer and the number of its round; None: a repeated call publishes the records twice.
            keep_offsets: the records keep their offsets; the first segment must begin at the log's end, or the log be empty.

        Raises:
            FencedEpochError: an engine, or another writer, owns the log; nothing was published.
            LogDirLockedError: an engine has had the directory open for 10 seconds; nothing was published.
            OffsetsOutOfOrderError: kept offsets leave a gap or overlap.
            StorageError: staged records no longer exist, or the disk failed.
            StoreError: the store failed or refused. Call again with the same mark: this publishes only once.
        """

    def append_all(
        self, staged: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None = None
    ) -> list[Published | Exception]:
        """Publish records at the ends of several logs, each as ``append`` does; several commits may run at once.

        Returns:
            For each log, in the order of ``staged``, the result or the error of ``append``. An error in one log does not
            affect the others.

        Raises:
            UnknownTopicError: a topic does not exist; nothing was published.
            LogDirLockedError: as ``append``.
            StoreError: the store failed before the first commit.
        """
        return [_outcome(partial(self.append, log, found, mark)) for log, found in staged.items()]

    def span(self, log: TopicPartition, start: int = 0, end: int | None = None) -> ReplaceSpan | None:
        """Return the closed segments of a log within [start, end), for a job that replaces them; None if there are none.

        Raises:
            UnknownTopicError: the log does not exist.
            FencedEpochError: an engine writes to the log.
        """
        del start, end
        raise only_engine(log)

    def rewrite(
        self,
        span: ReplaceSpan,
        part: tuple[int, int],
        filters: Sequence[RecordFilter],
        *,
        now_ms: int,
        keeps_tombstones: bool = False,
    ) -> Rewritten:
        """Stage the kept records of a part of a span, like compaction: offsets, headers and markers stay as they are.

        Aborted records are dropped. Of the filters, only ``judge`` is called, not ``observe``.

        Args:
            span: result of ``span``.
            part: offsets [start, end), both in the ``borders`` of the span.
            filters: filters that must all return KEEP for a record to stay.
            now_ms: time that decides which tombstones have expired; the same in all tasks.
            keeps_tombstones: True if older records exist outside of the span, or if all markers must stay.

        Raises:
            CorruptBatchError: an entry is damaged.
            FencedEpochError: an engine writes to the log.
            StorageError: the segments have changed since the span was planned.
            StoreError: the store failed.
        """
        del part, filters, now_ms, keeps_tombstones
        raise only_engine(span.log)

    def compact(self, span: ReplaceSpan, *, now_ms: int, memory_bytes: int) -> Rewritten:
        """Stage the kept records of a whole span by ``cleanup.policy=compact``: both passes of a round of the cleaner.

        Pass 1 reads keys from the log's first dirty offset on. Pass the new one to ``replace`` afterwards.

        Args:
            span: result of ``span``.
            now_ms: time that decides which tombstones have expired.
            memory_bytes: memory for keys: 28 bytes for each offset of the span and a KiB are always enough.

        Raises:
            ConfigError: only the engine compacts this target.
            StorageError: the keys do not fit; nothing was staged.
            Others as ``rewrite``.
        """
        del now_ms, memory_bytes
        raise only_engine(span.log)

    def recode(
        self, span: ReplaceSpan, part: tuple[int, int], *, compression: str | None = None, layout: str | None = None
    ) -> Rewritten:
        """Stage a part of a span in record batches of magic 2: each record stays as it was, with its offset.

        Segments that need no change are read and left alone: call ``replace`` with ``keeps_others``.

        Args:
            span: result of ``span``.
            part: offsets [start, end), both in the ``borders`` of the span.
            compression: the codec of batches; None leaves batches of magic 2 as they are. Control batches, and batches that
                have lost records by compaction, keep their codec.
            layout: layout of the new segments; None is the topic's.

        Raises:
            UnknownComponentError: there is no such codec, or layout.
            Others as ``rewrite``.
        """
        del part, compression, layout
        raise only_engine(span.log)

    def plan_merge(self, log: TopicPartition, limit_bytes: int) -> MergePlan | None:
        """Return the runs of small closed segments, anywhere in a log, that could be merged to ``limit_bytes`` each.

        None if there are none. Errors as ``span``.
        """
        del limit_bytes
        raise only_engine(log)

    def merge(self, span: ReplaceSpan, groups: Sequence[tuple[int, int]]) -> Rewritten:
        """Stage one segment for each group of a plan: their unchanged batches, one after the other.

        A group whose indexes are too large for one segment becomes several. Call ``replace`` with ``keeps_others``.

        Args:
            span: span of the plan.
            groups: offsets [start, end) of the plan's groups, or of some of them.

        Raises:
            As ``rewrite``.
        """
        del groups
        raise only_engine(span.log)

    @abstractmethod
    def merge_end(self, log: TopicPartition, limit_bytes: int) -> Published | None:
        """Merge the small closed segments at a log's end, if there are enough of about one size.

        For programs that append often, after each append: it merges segments of earlier rounds, by a separate commit that a
        crash leaves either done or not done. Offsets, bytes of batches and marks stay. In a tier at most ``limit_bytes`` are
        copied.

        Args:
            log: the log.
            limit_bytes: maximal size of the merged segment; ``segment.bytes`` is a limit, too.

        Returns:
            The merged segment; None if there was nothing to do.

        Raises:
            CorruptBatchError: an entry is damaged.
            StorageError: the segments were changed meanwhile; nothing was done.
            Others as ``append``. Records that were appended before stay published in any case.
        """

    def merge_ends(self, logs: Sequence[TopicPartition], limit_bytes: int) -> list[Published | Exception | None]:
        """Merge at the ends of several logs, each as ``merge_end`` does; several merges may run at once.

        Returns:
            For each log the result or the error of ``merge_end``.
        """
        return [_outcome(partial(self.merge_end, log, limit_bytes)) for log in logs]

    def replace(
        self,
        span: ReplaceSpan,
        staged: Sequence[StagedSegment],
        *,
        reason: str,
        first_dirty_offset: int | None = None,
        keeps_others: bool = False,
    ) -> Published:
        """Replace the segments of a span by the staged ones: all of them, or none.

        Args:
            span: result of ``span``.
            staged: segments with kept offsets; together they cover exactly the span, without gaps.
            reason: reason of the commit, for people.
            keeps_others: the staged segments cover one or more whole segments of the span, and the others stay.
            first_dirty_offset: offset up to which the log is compacted now; None keeps the present value.

        Raises:
            StorageError: the segments have changed since the span was planned; nothing was changed.
            Others as ``append``.
        """
        del staged, reason, first_dirty_offset, keeps_others
        raise only_engine(span.log)

    @abstractmethod
    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove what was staged and not published. Published segments always stay.

        If a commit failed with an unknown outcome, this call makes sure that it can no longer take effect.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the target and release all of its resources. A second call does nothing."""


def _outcome(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except StorageError as error:
        return error
