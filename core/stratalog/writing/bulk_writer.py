"""Interface for bulk writes from many processes. In each log, readers see all records of a write, or none.

A task *stages* records: it writes them to files or objects that readers do not read, and returns small values that
describe them. One process then *publishes* the staged records of all tasks, by one commit for each log. Staged records
that are never published only use space.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from stratalog.client.group_offsets import commit_record
from stratalog.client.partitioner import partition_of_name
from stratalog.client.statetopic import CONFIG, PARTITIONS
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.closing import Closeable
from stratalog.errors import ConfigError, StorageError, UnknownTopicError
from stratalog.model.arguments import CheckedArguments, checked
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC
from stratalog.model.names import TopicPartition
from stratalog.model.records import RecordColumns
from stratalog.spi.cleanup import RecordFilter
from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.stage import Stage
from stratalog.writing.staged import MergePlan, Published, ReplaceSpan, Rewritten, StagedSegment

T = TypeVar("T")
_MERGED_BYTES: Final = 1 << 20  # of a segment of commits; one commit has about 100 bytes for each partition


def only_engine(log: TopicPartition | str) -> ConfigError:
    """Return the error for a call that replaces segments of a directory: only the directory's engine may do this."""
    return ConfigError(f"only the engine replaces segments of {log} in a directory: stratalog cleaner")


class BulkWriter(CheckedArguments, Closeable):
    """A log directory or a tier, opened in one process for bulk writes. A context manager; not thread-safe.

    For a directory, ``span``, ``rewrite``, ``compact``, ``recode``, ``plan_merge``, ``merge`` and ``replace`` raise
    ConfigError. All methods raise these errors: UnknownTopicError if the topic or log does not exist, ConfigError or
    UnknownComponentError if a codec or layout does not exist, FencedEpochError if an engine or another writer may be
    writing to the log in the tier, LogDirLockedError if an engine or a broker has had the directory open for the last
    10 seconds, and StoreError if the store failed or refused a request.
    """

    @abstractmethod
    def refresh(self) -> None:
        """Discard the cached descriptions of topics. The next call that needs a description reads it."""

    @abstractmethod
    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of each existing topic, by name."""

    @abstractmethod
    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; raise UnknownTopicError if it does not exist."""

    @abstractmethod
    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic; raise UnknownTopicError if it does not exist."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Create a topic without records; do nothing if it exists with the same number of partitions.

        Raises:
            TopicExistsError: the topic exists with another number of partitions.
            InvalidTopicError, ConfigError, UnknownSettingError: a name or a setting is wrong.
        """

    @abstractmethod
    def check(self, topic: str, *, compression: str | None = None, layout: str | None = None) -> None:
        """Check that records can be staged and published for a topic now. A driver calls this before its tasks start.

        ``compression`` and ``layout`` are those of the records, or None for those of the topic's settings. Raise
        ConfigError if the topic of a directory has no topic id, or if ``layout`` is not None for a directory, which has
        no layouts.
        """

    @abstractmethod
    def stage(self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None) -> Stage:
        """Begin to stage records of one log.

        Args:
            log: log of an existing topic.
            base_offset: first offset of the first segment; the records keep their offsets, which must not be lower.
                With None, the records get new offsets when they are published.
            compression: codec of the records; None for the topic's ``compression.type``.

        Raises:
            ConfigError: the codec does not exist, or the topic of a directory has no topic id.
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
        """Publish staged records at the log's end, in the order of ``staged``: all of them, or none.

        If ``mark``, or a mark of the same writer with a higher number, was published before, nothing is published, and
        ``staged`` is discarded. If ``staged`` is empty, nothing is published, and ``mark`` is not stored.

        Args:
            log: an existing partition of the directory or tier.
            staged: staged segments of all tasks, each task's only once even if the task was repeated.
            mark: name of the writer and number of this write, by which a repeated call is recognized. With None, a
                repeated call publishes the records twice.
            keep_offsets: True if the segments were staged with a ``base_offset``, so the records keep their offsets.
                The first segment must begin at the log's end, unless the log has never had a record.

        Raises:
            FencedEpochError: an engine, or another writer, owns the log; nothing was published.
            LogDirLockedError: an engine has had the directory open for the last 10 seconds; nothing was published.
            OffsetsOutOfOrderError: with kept offsets, the segments leave a gap, overlap, or do not begin at the log's
                end.
            ConfigError: the segments were staged for another kind of target, a directory or a tier.
            StorageError: staged records no longer exist, the topic was deleted and created again after they were
                staged, the disk failed, or other writers appended in all attempts.
            StoreError: the store failed or refused a request. Repeat the call with the same mark: the records are then
                published only once.
        """

    def append_all(
        self, staged: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None = None
    ) -> list[Published | Exception]:
        """Publish staged records at the ends of several logs, with one commit for each log; in a tier, in parallel.

        ``mark`` has the same meaning as for ``append``. Records get new offsets.

        Returns:
            For each log, in the order of ``staged``, the result or the error of ``append``. An error in one log does
            not affect the others.

        Raises:
            UnknownTopicError: a topic does not exist; nothing was published.
            LogDirLockedError: an engine has had the directory open for the last 10 seconds; nothing was published.
            StoreError: the store failed before the first commit.
        """
        return [_outcome(partial(self.append, log, segments, mark)) for log, segments in staged.items()]

    def span(self, log: TopicPartition, start: int = 0, end: int | None = None) -> ReplaceSpan | None:
        """Return the segments of a log that are completely in the offsets [start, end), for a job that replaces them.

        Return None if there is no such segment. ``end`` None is the end offset of the log in the tier.
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
        """Stage an offset range of a span without the records that filters drop. The other records keep their offsets.

        Like a compaction round, the method also drops records of aborted transactions, and markers of transactions that
        have no records. The method calls only ``judge`` of the filters, and not ``observe``.

        Args:
            span: result of ``span``.
            part: offset range [start, end); ``borders`` of the span contains both numbers.
            filters: at least one filter. A record is dropped if any of them drops it.
            now_ms: time (ms since 1970) that decides which tombstones have expired; it must be equal in all tasks.
            keeps_tombstones: True to keep all tombstones and markers, because older records exist outside of the span.

        Raises:
            ConfigError: ``part`` does not begin and end with segments of the span, or the target is a directory.
            CorruptBatchError: a batch is damaged.
            StorageError: the segments have changed since the span was planned.
        """
        del part, filters, now_ms, keeps_tombstones
        raise only_engine(span.log)

    def compact(self, span: ReplaceSpan, *, now_ms: int, memory_bytes: int) -> Rewritten:
        """Compact a whole span like ``cleanup.policy=compact``, with both passes of a compaction, and stage it.

        Pass 1 reads keys from the log's first dirty offset on, or the whole span if the topic's ``cleanup.policy`` does
        not contain ``compact``. Afterwards, call ``replace`` with the end offset of the span as
        ``first_dirty_offset``.

        Args:
            span: result of ``span``.
            now_ms: time (ms since 1970) that decides which tombstones have expired.
            memory_bytes: memory for keys. 28 bytes for each offset of the span, plus 1 KiB, are always enough.

        Raises:
            StorageError: the keys do not fit into the memory; nothing was staged.
            The other errors of ``rewrite``.
        """
        del now_ms, memory_bytes
        raise only_engine(span.log)

    def recode(
        self, span: ReplaceSpan, part: tuple[int, int], *, compression: str | None = None, layout: str | None = None
    ) -> Rewritten:
        """Stage an offset range of a span in record batches of magic 2. All records and their offsets stay the same.

        Segments that need no change are read but not staged: call ``replace`` with ``keeps_others`` afterwards. Raises
        the errors of ``rewrite``.

        Args:
            span: result of ``span``.
            part: offset range [start, end); ``borders`` of the span contains both numbers.
            compression: codec of the batches. With None, batches of magic 2 stay unchanged, and older batches get the
                topic's codec. Control batches, batches with a delete horizon, and batches without a record at their
                first or last offset keep their codec.
            layout: layout of the new segments; None for the topic's layout.
        """
        del part, compression, layout
        raise only_engine(span.log)

    def plan_merge(self, log: TopicPartition, limit_bytes: int) -> MergePlan | None:
        """Return the groups of adjacent small segments that can be merged, each into at most ``limit_bytes``.

        ``segment.bytes`` of the topic also limits the size of a group. Return None if there are no groups. Raises the
        errors of ``span``.
        """
        del limit_bytes
        raise only_engine(log)

    def merge(self, span: ReplaceSpan, groups: Sequence[tuple[int, int]]) -> Rewritten:
        """Stage one segment for each group of a plan. The batches are copied unchanged.

        A group whose indexes are too large for one segment becomes several segments. Call ``replace`` with
        ``keeps_others`` afterwards. Raises the errors of ``rewrite``.

        Args:
            span: span of the plan.
            groups: offsets [start, end) of the plan's groups, or of some of them, ascending; not empty.
        """
        del groups
        raise only_engine(span.log)

    @abstractmethod
    def merge_end(self, log: TopicPartition, limit_bytes: int) -> Published | None:
        """Merge the small closed segments at a log's end, if there are enough segments of similar size.

        A program that appends often calls this after each append. The merge is a separate commit: after a crash, either
        all or none of the segments are merged. Offsets, batches and write marks do not change. In a tier, at most
        ``limit_bytes`` are copied.

        Args:
            log: an existing partition of the directory or tier.
            limit_bytes: maximum size of the merged segment, which ``segment.bytes`` also limits.

        Returns:
            Description of the merged segments; None if nothing was merged.

        Raises:
            CorruptBatchError: a batch is damaged.
            StorageError: segments in the tier were changed during the merge; nothing was merged.
            The other errors of ``append``. Records that were appended before the call stay published in any case.
        """

    def merge_ends(self, logs: Sequence[TopicPartition], limit_bytes: int) -> list[Published | Exception | None]:
        """Call ``merge_end`` for several logs; for a tier, in parallel.

        Return for each log, in the order of ``logs``, the result or the error of ``merge_end``. StoreError is raised if
        the store fails before the first merge.
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
        """Replace the segments of a span by the staged segments, with one commit.

        Args:
            span: result of ``span``.
            staged: segments with kept offsets, which together cover exactly the span, without gaps.
            reason: reason of the commit, for people.
            keeps_others: True if the staged segments replace only some of the span's segments, each of them as a whole;
                the other segments stay.
            first_dirty_offset: offset up to which the log is compacted now; None keeps the stored offset.

        Raises:
            OffsetsOutOfOrderError: the staged segments do not cover the span, or whole segments of it.
            StorageError: the segments have changed since the span was planned; nothing was replaced.
            The other errors of ``append``.
        """
        del staged, reason, first_dirty_offset, keeps_others
        raise only_engine(span.log)

    @abstractmethod
    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged segments that are not published. Published segments always stay.

        If the outcome of an earlier commit is unknown, the call first ensures that the commit cannot take effect later.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the target, release its lock, and remove its temporary files. Further calls of ``close`` do nothing.

        Unpublished staged records stay. Other methods then raise ClosedError, unless they need only cached values.
        """


def _outcome(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except StorageError as error:
        return error


@checked
def commit_offsets(
    writer: BulkWriter, group: str, offsets: Mapping[TopicPartition, int], *, env: Env | None = None
) -> None:
    """Commit offsets of a group in the target of a bulk writer, and create ``__consumer_offsets`` if it does not exist.

    Args:
        writer: writer of the target.
        group: name of the group.
        offsets: offset of the next record to read, at least 0, by partition. All offsets are stored in one batch. If
            the mapping is empty, the function does nothing.
        env: has the clock for the timestamp; None for the system's clock.

    Raises:
        ConfigError: an offset is negative.
        InvalidRecordError: the group's name is longer than 32767 bytes.
        The errors of ``BulkWriter.append``.
    """
    if not offsets:
        return
    try:
        count = writer.partitions(OFFSETS_TOPIC)
    except UnknownTopicError:
        writer.create_topic(OFFSETS_TOPIC, PARTITIONS, CONFIG)
        count = PARTITIONS
    now_ms = (env or Env()).clock.now_ms()
    records = [commit_record(group, name, offset, now_ms) for name, offset in sorted(offsets.items())]
    log = TopicPartition(OFFSETS_TOPIC, partition_of_name(group, count))
    with writer.stage(log) as stage:
        stage.add(RecordColumns.from_records(records))
        staged = stage.finish()
    writer.append(log, staged)
    writer.merge_end(log, _MERGED_BYTES)
