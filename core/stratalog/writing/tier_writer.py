"""Bulk writes to a tier: tasks build and upload segments, and one new root for each log makes them part of the log.

If the caller gives no offsets, a task assigns offsets from the tier's end offset on. These offsets are correct if no
other task or writer appends to the log before the commit. At the commit, segments whose offsets follow the log's end
are published unchanged. The other segments are copied with new offsets, into segments as large as the topic's settings
allow, and the originals are deleted. If the caller gives the offsets, nothing is copied: segments that do not follow
the log's end are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Self, TypeVar

from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import all_results, outcomes
from stratalog.errors import (
    ConfigError,
    FencedEpochError,
    LogInUseError,
    OffsetsOutOfOrderError,
    StorageError,
    UnknownTopicError,
)
from stratalog.model.names import TopicId, TopicPartition
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.commit.append_change import check_single_writer
from stratalog.tier.commit.replace_change import Replacing, digest_of
from stratalog.tier.manifest.root import WriteMark
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.writing.bulk_writer import BulkWriter
from stratalog.writing.column_encoder import Encoder
from stratalog.writing.merge_segments import end_group, merge_part, small_groups
from stratalog.writing.recode import MAGIC, RewriteTarget, compact_part, recode_part, rewrite_part
from stratalog.writing.stage import Stage
from stratalog.writing.staged import MergePlan, Published, ReplaceSpan, Rewritten, StagedSegment
from stratalog.writing.tier_access import TierAccess
from stratalog.writing.tier_append import TierAppend
from stratalog.writing.tier_target import commit_result, entries_of

T = TypeVar("T")
R = TypeVar("R")


class TierWriter(BulkWriter):
    """A ``BulkWriter`` for a tier. Created by ``TierWriter.open``. See ``TierAccess`` for the arguments."""

    def __init__(self, host: ComponentHost, tier: Tier, *, staging: str | None, take_over: bool) -> None:
        self._access = TierAccess(host, tier, staging=staging, take_over=take_over)
        self._topics = self._access.topics
        ends_with_fork(self)

    @classmethod
    def open(
        cls,
        location: str,
        settings: Settings,
        options: Mapping[str, object],
        *,
        staging: str | None = None,
        take_over: bool = False,
        env: Env,
    ) -> Self:
        """Open the tier at the URI ``location``, and return its writer. Raises the errors of ``WriteTarget.open``.

        ``options`` are for the client library of the store; see ``TierAccess`` for ``staging`` and ``take_over``.
        """
        host = open_host(settings, (), env)
        try:
            tier = open_tier(host, location, options, read_only=False)
        except BaseException:
            host.close()
            raise
        return cls(host, tier, staging=staging, take_over=take_over)

    # --- topics --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Discard the cached topics; see ``BulkWriter.refresh``."""
        self._topics.forget()

    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic, by name; see ``BulkWriter.topics``."""
        return {topic.name: topic.partitions for topic in self._topics.all()}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; see ``BulkWriter.partitions``."""
        return self._topics.get(topic).partitions

    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic; see ``BulkWriter.config``."""
        return self._topics.get(topic).config

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Create a topic without records; see ``BulkWriter.create_topic``."""
        self._topics.create(topic, partitions, config or {})

    def check(self, topic: str, *, compression: str | None = None, layout: str | None = None) -> None:
        """Run ``BulkWriter.check``, with one request for each partition whose newest state was not read before."""
        tier_topic = self._topics.get(topic)
        Encoder.of(self._access.host.components(tier_topic.config), tier_topic.config, compression)
        if layout is not None:
            self._access.tier.fetcher.layouts.by_name(layout)

        def work(number: int) -> None:
            remote = self._topics.log_from_listing(TopicPartition(topic, number))
            self._access.single_writer_epoch(remote.root or tier_topic.root)

        all_results(self._run_parallel(range(tier_topic.partitions), work, "stratalog-check"))

    # --- staging -------------------------------------------------------------------------------------------------

    def stage(self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None) -> Stage:
        """Begin to stage records in objects of the tier; see ``BulkWriter.stage``."""
        self._topics.get(log.topic)
        target = self._access.target(
            self._topics.log_from_listing(log), compression, keep_offsets=base_offset is not None
        )
        root = target.remote.root
        end = root.end_offset if root is not None else 0
        start = end if base_offset is None else base_offset
        return Stage(target, start, keep_offsets=base_offset is not None)

    # --- publishing ----------------------------------------------------------------------------------------------

    def append(
        self,
        log: TopicPartition,
        staged: Sequence[StagedSegment],
        mark: WriteMark | None = None,
        *,
        keep_offsets: bool = False,
    ) -> Published:
        """Publish staged records at the log's end; see ``BulkWriter.append``."""
        return TierAppend(self._access, self._access.log(log), staged, mark, keep_offsets=keep_offsets).run()

    def append_all(
        self, staged: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None = None
    ) -> list[Published | Exception]:
        """Publish staged records of several logs in parallel; see ``BulkWriter.append_all``."""
        self._topics.forget()
        for topic in {log.topic for log in staged}:
            self._topics.get(topic)

        def work(item: tuple[TopicPartition, Sequence[StagedSegment]]) -> Published:
            return TierAppend(self._access, self._topics.log_from_listing(item[0]), item[1], mark).run()

        return self._run_parallel(list(staged.items()), work, "stratalog-append")

    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged objects, unless an engine made the last commit to their log; see ``BulkWriter.discard``.

        Objects of segments that were published stay, even if a merge has replaced the segments since. With
        ``take_over``, objects with a higher leader epoch than that of the engine's commit are removed, too.
        """
        by_log: dict[tuple[TopicPartition, TopicId], list[StagedSegment]] = {}
        for segment in staged:
            by_log.setdefault((segment.log, segment.topic_id), []).append(segment)
        for name, group in by_log.items():
            remote = self._access.tier.log(*name)
            remote.refresh()
            root, staged_epoch = remote.root, max(segment.leader_epoch for segment in group)
            # an engine that began after the records were staged is not fenced
            take_over = self._access.take_over and root is not None and root.leader_epoch < staged_epoch
            # an engine made the last commit to the log: the objects stay
            with suppress(FencedEpochError):
                remote.cancel_pending_commits(leader_epoch=check_single_writer(root, take_over=take_over))
                remote.discard(entries_of(group))

    # --- replacing -------------------------------------------------------------------------------------------------

    def span(self, log: TopicPartition, start: int = 0, end: int | None = None) -> ReplaceSpan | None:
        """Return the segments of a log in the offsets [start, end), or None; see ``BulkWriter.span``."""
        remote = self._access.log(log)
        root = remote.root
        if root is None:
            return None
        epoch = self._access.single_writer_epoch(root)
        limit = root.end_offset if end is None else end
        entries = [
            entry
            for entry in remote.entries(start, limit, root)
            if entry.info.base_offset >= start and entry.info.end_offset <= limit
        ]
        if not entries:
            return None
        borders = (*(entry.info.base_offset for entry in entries), entries[-1].info.end_offset)
        return ReplaceSpan(log, remote.topic_id, borders[0], borders[-1], borders, epoch, digest_of(entries))

    def rewrite(
        self,
        span: ReplaceSpan,
        part: tuple[int, int],
        filters: Sequence[RecordFilter],
        *,
        now_ms: int,
        keeps_tombstones: bool = False,
    ) -> Rewritten:
        """Stage an offset range of a span without the records that filters drop; see ``BulkWriter.rewrite``."""
        target = self._rewrite_target(span, part)
        return rewrite_part(target, part, filters, now_ms=now_ms, keeps_tombstones=keeps_tombstones)

    def compact(self, span: ReplaceSpan, *, now_ms: int, memory_bytes: int) -> Rewritten:
        """Stage a whole compacted span; see ``BulkWriter.compact``."""
        part = span.start, span.end
        target, policy = self._rewrite_target(span, part), self._access.host.policy("compact")
        return compact_part(target, part, policy, now_ms=now_ms, memory_bytes=memory_bytes)

    def recode(
        self, span: ReplaceSpan, part: tuple[int, int], *, compression: str | None = None, layout: str | None = None
    ) -> Rewritten:
        """Stage an offset range of a span in batches of magic 2; see ``BulkWriter.recode``."""
        settings: dict[str, object] = {"record.version": MAGIC}
        if layout is not None:
            settings["tier.layout"] = layout
        target = self._rewrite_target(span, part, compression, settings)
        return recode_part(target, part, recompress=compression is not None)

    def merge(self, span: ReplaceSpan, groups: Sequence[tuple[int, int]]) -> Rewritten:
        """Stage one segment for each group of segments; see ``BulkWriter.merge``."""
        return merge_part(self._rewrite_target(span, (groups[0][0], groups[-1][1])), groups)

    def plan_merge(self, log: TopicPartition, limit_bytes: int) -> MergePlan | None:
        """Return the groups of small segments that can be merged, or None; see ``BulkWriter.plan_merge``."""
        span = self.span(log)
        if span is None:
            return None
        remote, config = self._access.log(log), self._topics.get(log.topic).config
        root = remote.root
        dirty = root.first_dirty_offset if root is not None else 0
        segments = [RemoteSegment(entry, remote.fetcher) for entry in remote.entries(span.start, span.end, root)]
        parts = (
            [segment for segment in segments if segment.end_offset <= dirty],
            [segment for segment in segments if segment.base_offset >= dirty],
        )
        groups = tuple(
            (group[0].base_offset, group[-1].end_offset, sum(segment.size_bytes for segment in group))
            for part in parts
            for group in small_groups(part, limit_bytes, config)
        )
        return MergePlan(span, groups) if groups else None

    def merge_end(self, log: TopicPartition, limit_bytes: int) -> Published | None:
        """Merge small segments at a log's end; see ``BulkWriter.merge_end``."""
        remote = self._access.tier.log(log, self._topics.get(log.topic).topic_id)
        return self._merge_end(remote, limit_bytes)  # after an append the head is known

    def merge_ends(self, logs: Sequence[TopicPartition], limit_bytes: int) -> list[Published | Exception | None]:
        """Merge small segments at the ends of several logs in parallel; see ``BulkWriter.merge_ends``."""
        self._topics.forget()
        for topic in {log.topic for log in logs}:
            with suppress(UnknownTopicError):  # the result has the error for each log of the topic
                self._topics.get(topic)
        return self._run_parallel(
            logs, lambda log: self._merge_end(self._topics.log_from_listing(log), limit_bytes), "stratalog-merge"
        )

    def _merge_end(self, remote: TierLog, limit_bytes: int) -> Published | None:
        log, topic, root = remote.name, self._topics.get(remote.name.topic), remote.root
        if root is None:
            return None
        segments = [
            RemoteSegment(entry, remote.fetcher)
            for entry in root.entries
            if entry.info.base_offset >= root.first_dirty_offset
        ]
        group = end_group(segments, limit_bytes, topic.config)
        span = self.span(log, group[0].base_offset, group[-1].end_offset) if group else None
        if span is None:
            return None
        merged = self.merge(span, [(span.start, span.end)])
        if not merged.staged:
            return None
        try:
            return self.replace(
                span, merged.staged, reason=f"{merged.segments} small segments merged", keeps_others=True
            )
        except StorageError:
            self.discard(merged.staged)
            raise

    def _rewrite_target(
        self,
        span: ReplaceSpan,
        part: tuple[int, int],
        compression: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> RewriteTarget:
        """Return the target of a task that rewrites the offset range ``part``. ``settings`` override topic settings.

        Raises:
            ConfigError: the offset range does not begin and end with segments of the span.
            StorageError: the segments in the tier have changed since the span was read, or the topic was deleted.
        """
        if not {*part} <= {*span.borders}:
            raise ConfigError(f"[{part[0]}, {part[1]}) of {span.log} does not begin and end with segments of the span")
        target = self._access.target(self._access.log(span.log), compression, keep_offsets=True, settings=settings)
        root = target.remote.root
        if target.remote.topic_id != span.topic_id or root is None:
            raise StorageError(f"topic {span.log.topic} was deleted after the plan was made")
        entries = target.remote.entries(part[0], root.end_offset, root)
        if not entries or not {*part} <= {entries[0].info.base_offset, *(entry.info.end_offset for entry in entries)}:
            raise StorageError(f"the tier has other segments of {span.log} than at the time of the plan: plan again")
        return RewriteTarget.of(target, entries, root.first_dirty_offset)

    def replace(
        self,
        span: ReplaceSpan,
        staged: Sequence[StagedSegment],
        *,
        reason: str,
        first_dirty_offset: int | None = None,
        keeps_others: bool = False,
    ) -> Published:
        """Replace the segments of a span by staged segments with one commit; see ``BulkWriter.replace``."""
        entries = tuple(sorted(entries_of(staged), key=lambda entry: entry.info.base_offset))
        _check_covers(span, entries, keeps_others=keeps_others)
        remote = self._access.tier.log(span.log, span.topic_id)
        remote.refresh()
        epoch = self._access.single_writer_epoch(remote.root)
        if epoch != span.leader_epoch:
            raise LogInUseError(f"{span.log} was planned in leader epoch {span.leader_epoch}, which is now {epoch}")
        remote.check_stored(entries)
        planned = Replacing(
            entries=entries,
            span=(span.start, span.end),
            digest=span.digest,
            keeps_others=keeps_others,
            first_dirty_offset=first_dirty_offset,
            reason=reason,
        )
        TierPublisher(remote, epoch, self._topics.get(span.log.topic).config).replace_planned(planned)
        return commit_result(span.log, entries, entries[0].info.base_offset)

    def _run_parallel(self, items: Sequence[T], work: Callable[[T], R], name: str) -> list[R | Exception]:
        return outcomes(items, work, self._access.host.settings.engine.copier_threads, name)

    def close(self) -> None:
        """Close the tier and remove the temporary files; see ``BulkWriter.close``."""
        self._access.close()


def _check_covers(span: ReplaceSpan, entries: Sequence[StoredSegment], *, keeps_others: bool) -> None:
    """Raise OffsetsOutOfOrderError unless the entries cover the span; with ``keeps_others``, whole segments of it."""
    bounds = [(entry.info.base_offset, entry.info.end_offset) for entry in entries]
    if keeps_others:
        is_wrong = (
            not bounds
            or not {*span.borders}.issuperset(chain(*bounds))
            or list(chain(*bounds)) != sorted(chain(*bounds))
        )
    else:
        is_wrong = [span.start, *(end for _, end in bounds)] != [*(start for start, _ in bounds), span.end]
    if is_wrong:
        required = "whole segments of it" if keeps_others else "exactly these offsets, without a gap"
        raise OffsetsOutOfOrderError(
            f"the replacement of [{span.start}, {span.end}) of {span.log} does not cover {required}"
        )
