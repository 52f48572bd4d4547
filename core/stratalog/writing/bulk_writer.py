"""The contract of whoever writes many records at once, from many processes, so that readers see all of them or none.

A task *stages*: it writes records where nobody reads them, and hands back small values that say what it wrote. One
process then *publishes* what all tasks staged: one commit a log. What is not published is garbage, and no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from stratalog.config.topic import TopicConfig
from stratalog.env.closing import Closeable
from stratalog.errors import ConfigError
from stratalog.model.arguments import CheckedArguments
from stratalog.model.names import TopicPartition
from stratalog.model.records import RecordColumns
from stratalog.spi.cleanup import RecordFilter
from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.staged import MergePlan, Published, Rewritten, Span, StagedSegment


class Stage(CheckedArguments, ABC):
    """Records of one log on their way, in one process. A context manager: left with an error, it discards. One thread."""

    @abstractmethod
    def add(self, columns: RecordColumns) -> None:
        """Write records with all fields, in batches of this log's format and codec.

        Where offsets are kept, those of the columns are taken, and their leader epochs.

        Raises:
            InvalidRecordError: a record breaks a rule of the topic.
            RecordTooLargeError: a record is larger than ``max.message.bytes``.
            DiskFullError: no space for what is staged.
        """

    @abstractmethod
    def add_encoded(self, data: bytearray) -> None:
        """Write whole batches of any magic as they are; where offsets are not kept, they get others, in place."""

    @abstractmethod
    def finish(self, end_offset: int | None = None) -> list[StagedSegment]:
        """What was staged, ascending; none if nothing was.

        Args:
            end_offset: where offsets are kept: the segments reach so far, though the last record may lie below. There
                is at least one segment then, without records if need be.
        """

    @abstractmethod
    def discard(self) -> None:
        """Remove what was staged, as far as that can be done. Twice is fine, and so is after ``finish``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()


class BulkWriter(CheckedArguments, Closeable):
    """One target, opened in one process: to stage, to publish, or both. A context manager. Not thread-safe."""

    @abstractmethod
    def topics(self) -> Mapping[str, int]:
        """The topics that are there, and how many partitions each has."""

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; UnknownTopicError if it is not there."""

    @abstractmethod
    def config(self, topic: str) -> TopicConfig:
        """The settings of a topic; UnknownTopicError if it is not there."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Make a topic without records; one that is there with as many partitions stays as it is.

        Raises:
            TopicExistsError: it is there with another number of partitions.
            InvalidTopicError, ConfigError, UnknownSettingError: a name or a setting is wrong.
        """

    @abstractmethod
    def check(self, topic: str, *, compression: str | None = None, layout: str | None = None) -> None:
        """Raise what staging and publishing for a topic would raise now: a driver asks before its tasks begin.

        Args:
            topic: its name.
            compression: as for ``stage``.
            layout: as for ``recode``; a directory has none.

        Raises:
            UnknownTopicError: the topic is not there.
            UnknownComponentError, ConfigError: there is no such codec, or layout.
            FencedEpochError: an engine may be writing to a partition.
            LogDirLockedError: an engine has had the directory open for 10 seconds.
        """

    @abstractmethod
    def stage(self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None) -> Stage:
        """Begin to write records of one log.

        Args:
            log: of a topic that is there.
            base_offset: keep the offsets of what is written, all of which are at or above this one, where the first
                segment begins; None: records get their offsets when they are published.
            compression: another codec than ``compression.type`` of the topic.

        Raises:
            UnknownTopicError: the log is not there.
            FencedEpochError: an engine writes to it.
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
        """Publish records behind the log's end, in the order of ``staged``: all of them, or none.

        Done again with the same mark, or with an earlier one of the same writer, it does nothing: what of it was
        staged is discarded.

        Args:
            log: whose.
            staged: of any tasks. What comes from another attempt at the same work must not be among them.
            mark: which round of which writer this is; None: done twice, the records are there twice.
            keep_offsets: the records keep theirs; the first segment must begin at the log's end, or the log be empty.

        Raises:
            FencedEpochError: an engine, or another writer, owns the log; nothing was published.
            LogDirLockedError: an engine has had the directory open for 10 seconds; nothing was published.
            OffsetsOutOfOrderError: offsets that are kept leave a gap or overlap.
            StorageError: what was staged is gone, or the disk failed.
            StoreError: the store failed or refused; whether it was published shows when asked again with the same mark.
        """

    @abstractmethod
    def span(self, log: TopicPartition, start: int = 0, end: int | None = None) -> Span | None:
        """The closed segments of a log that lie in [start, end), for a job that replaces them; None if there are none.

        Raises:
            UnknownTopicError: the log is not there.
            FencedEpochError: an engine writes to it.
        """

    @abstractmethod
    def rewrite(
        self,
        span: Span,
        part: tuple[int, int],
        filters: Sequence[RecordFilter],
        *,
        now_ms: int,
        keeps_tombstones: bool = False,
    ) -> Rewritten:
        """Stage what stays of a part of a span, as compaction does: with the offsets, headers and markers that there are.

        What was aborted goes. The filters' ``judge`` is called, and not ``observe``.

        Args:
            span: as planned.
            part: offsets [start, end), both among the borders of the span.
            filters: all must say KEEP for a record to stay.
            now_ms: by which tombstones are old; the same in all tasks.
            keeps_tombstones: there are older records outside the span, or nobody is to lose markers.

        Raises:
            CorruptBatchError: an entry is damaged.
            FencedEpochError: an engine writes to the log.
            StorageError: other segments are there by now.
            StoreError: the store failed.
        """

    def compact(self, span: Span, *, now_ms: int, memory_bytes: int) -> Rewritten:
        """Stage what stays of a whole span by ``cleanup.policy=compact``: both passes of a round of the cleaner.

        Keys are looked at from the log's first dirty offset on, of which ``replace`` is told afterwards.

        Args:
            span: as planned.
            now_ms: by which tombstones are old.
            memory_bytes: what may be used to remember keys: 28 an offset of the span, and a KiB, are always enough.

        Raises:
            ConfigError: nobody but the engine compacts this target.
            StorageError: the keys do not fit, which shows before anything is staged.
            Others as ``rewrite``.
        """
        del now_ms, memory_bytes
        raise ConfigError(f"the segments of {span.log} are compacted by its engine alone")

    @abstractmethod
    def recode(
        self, span: Span, part: tuple[int, int], *, compression: str | None = None, layout: str | None = None
    ) -> Rewritten:
        """Stage a part of a span in record batches of magic 2: each record as it was, with its offset.

        Segments that are so already are read and left alone: replace the span with ``keeps_others``.

        Args:
            span: as planned.
            part: offsets [start, end), both among the borders of the span.
            compression: the codec of batches; None leaves those of magic 2 as they are. Control batches, and those of
                whose records compaction has taken some, keep theirs.
            layout: how segments are stored; None is as the topic says.

        Raises:
            UnknownComponentError: there is no such codec, or layout.
            Others as ``rewrite``.
        """

    @abstractmethod
    def plan_merge(self, log: TopicPartition, limit_bytes: int) -> MergePlan | None:
        """Which runs of small closed segments of a log, wherever they are, could be one of up to ``limit_bytes`` each.

        None if there are none. Errors as ``span``.
        """

    @abstractmethod
    def merge(self, span: Span, groups: Sequence[tuple[int, int]]) -> Rewritten:
        """Stage one segment for each group of a plan: their batches one behind the other, as they are.

        A group whose indexes are too large for one becomes several. Replace the span with ``keeps_others``.

        Args:
            span: as planned.
            groups: offsets [start, end) of the plan's groups, or of some of them.

        Raises:
            As ``rewrite``.
        """

    @abstractmethod
    def merge_end(self, log: TopicPartition, limit_bytes: int) -> Published | None:
        """Make one of the small closed segments at a log's end, if enough of about one size are there.

        For who appends often, each time it has: it tidies up what earlier rounds left, by a commit of its own that a
        crash does or undoes. Offsets, bytes of batches and marks stay. In a tier at most ``limit_bytes`` are copied.

        Args:
            log: whose.
            limit_bytes: of the segment that is made; ``segment.bytes`` bounds it, too.

        Returns:
            What took their place; None if there was nothing to do.

        Raises:
            CorruptBatchError: an entry is damaged.
            StorageError: others changed the segments meanwhile; nothing was done.
            Others as ``append``; what was appended before is there in any case.
        """

    @abstractmethod
    def replace(
        self,
        span: Span,
        staged: Sequence[StagedSegment],
        *,
        reason: str,
        first_dirty_offset: int | None = None,
        keeps_others: bool = False,
    ) -> Published:
        """Put what was staged in the place of the segments of a span: all of it, or nothing.

        Args:
            span: as planned.
            staged: with offsets that were kept; together they cover just the span, without gaps.
            reason: for people: why.
            keeps_others: they cover whole segments of the span, one or more, and what is beside them stays.
            first_dirty_offset: where compaction goes on.

        Raises:
            StorageError: other segments are there by now; nothing was changed.
            Others as ``append``.
        """

    @abstractmethod
    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove what was staged and not published. What was published stays, whoever asks.

        A commit that failed without saying whether it was carried out is not carried out any more afterwards.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Twice is fine."""
