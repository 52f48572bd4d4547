"""The part of a tier's bulk writer for topics and for the replacement of segments."""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import chain
from typing import Self, TypeVar

from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.forks import ends_with_fork
from stratalog.env.threads import outcomes
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ConfigError, LogInUseError, OffsetsOutOfOrderError, StorageError, UnknownTopicError
from stratalog.errors.system import log_dir_error
from stratalog.log.load.tier_producers import producers_at
from stratalog.model.names import TopicPartition
from stratalog.producers.snapshot import encode_snapshot
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.segment.components import Components
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.tier.commit.append_change import check_single_writer
from stratalog.tier.commit.replace_change import Replacing, digest_of
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.writing.bulk_writer import BulkWriter
from stratalog.writing.column_encoder import Encoder
from stratalog.writing.merge_segments import end_group, merge_part, small_groups
from stratalog.writing.recode import MAGIC, RewriteTarget, compact_part, recode_part, rewrite_part
from stratalog.writing.staged import MergePlan, Published, ReplaceSpan, Rewritten, StagedSegment
from stratalog.writing.tier_target import TierTarget, entries_of
from stratalog.writing.tier_topics import TierTopics

T = TypeVar("T")
R = TypeVar("R")


class TierRewriter(BulkWriter):
    """Base class of ``TierWriter`` with the methods for topics and for the replacement of segments.

    Args:
        host: opens components; closed with this writer.
        tier: the tier; closed with this writer.
        staging: folder in which a folder for temporary files is created; None for the system's temporary folder.
        take_over: True to write to logs whose last writer was an engine.
    """

    def __init__(self, host: ComponentHost, tier: Tier, *, staging: str | None, take_over: bool) -> None:
        self._host, self._tier, self._staging, self._take_over = host, tier, staging, take_over
        self._opened = ExitStack()
        self._opened.callback(host.close)
        self._opened.enter_context(tier)
        self._topics = TierTopics(host, tier)
        self._temporary: SegmentStore | None = None
        self._making = threading.Lock()  # held while _temporary is created
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
        """Open the tier at the URI ``location``, and return its writer. Errors are those of ``WriteTarget.open``.

        ``options`` are for the client library of the store; ``staging`` and ``take_over`` are those of the constructor.
        """
        host = open_host(settings, (), env)
        try:
            tier = open_tier(host, location, options, read_only=False)
        except BaseException:
            host.close()
            raise
        return cls(host, tier, staging=staging, take_over=take_over)

    def refresh(self) -> None:
        """Discard the cached topics, as ``BulkWriter.refresh``."""
        self._topics.forget()

    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic, by name, as ``BulkWriter.topics``."""
        return {found.name: found.partitions for found in self._topics.all()}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, as ``BulkWriter.partitions``."""
        return self._topics.get(topic).partitions

    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic, as ``BulkWriter.config``."""
        return self._topics.get(topic).config

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Create a topic without records, as ``BulkWriter.create_topic``."""
        self._topics.create(topic, partitions, config or {})

    def check(self, topic: str, *, compression: str | None = None, layout: str | None = None) -> None:
        """Check as ``BulkWriter.check``; sends a request for each partition whose newest state was not read before."""
        found = self._topics.get(topic)
        Encoder.of(self._host.components(found.config), found.config, compression)
        if layout is not None:
            self._tier.fetcher.layouts.by_name(layout)

        def work(number: int) -> None:
            remote = self._topics.listed(TopicPartition(topic, number))
            check_single_writer(remote.root or found.root, take_over=self._take_over)

        for outcome in self._in_parallel(range(found.partitions), work, "stratalog-check"):
            if isinstance(outcome, Exception):
                raise outcome

    # --- target of writes ------------------------------------------------------------------------------------------

    def _target(
        self,
        remote: TierLog,
        compression: str | None = None,
        *,
        keep_offsets: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> TierTarget:
        log = remote.name
        root, config = remote.root, self._topics.get(log.topic).config.replaced(settings or {}, "settings")
        components = self._host.components(config)
        # an engine may own a partition without having uploaded anything of it yet
        known_root = root if root is not None else self._topics.get(log.topic).root
        epoch = check_single_writer(known_root, take_over=self._take_over)
        epochs = EpochCache(root.leader_epochs if root is not None else ())
        if not keep_offsets or not epochs.entries:
            epochs = epochs.assign(epoch, root.end_offset if root is not None else 0)
        snapshot = None if keep_offsets else cache(partial(_snapshot, remote, components))
        encoder = Encoder.of(components, config, compression)
        publisher = TierPublisher(remote, epoch, encoder.config)
        return TierTarget(publisher, encoder, epochs, snapshot, cache(self._new_folder))

    def _remote(self, log: TopicPartition) -> TierLog:
        found = self._topics.get(log.topic)
        if not 0 <= log.partition < found.partitions:
            raise UnknownTopicError(f"topic {log.topic} has {found.partitions} partitions: there is no {log}")
        remote = self._tier.log(log, found.topic_id)
        remote.refresh()
        return remote

    def _in_parallel(self, items: Sequence[T], work: Callable[[T], R], name: str) -> list[R | Exception]:
        return outcomes(items, work, self._host.settings.engine.copier_threads, name)

    def _new_folder(self) -> LogFiles:
        """Create a folder for temporary files, which is removed when this writer is closed. Thread-safe."""
        with self._making:
            if self._temporary is None:
                parent = self._staging
                try:
                    parent = parent or tempfile.gettempdir()
                    folder = tempfile.TemporaryDirectory(prefix="stratalog-", dir=parent, ignore_cleanup_errors=True)
                except OSError as error:
                    found = log_dir_error(error, parent or "the system's temporary folder")
                    raise found.advised("stage in a writable folder with free space") from error
                path = self._opened.enter_context(folder)
                self._temporary = self._opened.enter_context(self._host.segment_store(path, read_only=False))
                self._temporary.acquire()
            name = uuid.UUID(int=self._host.env.chance.getrandbits(128), version=4).hex
            return self._temporary.open_log(name, create=True)

    # --- replacing -------------------------------------------------------------------------------------------------

    def span(self, log: TopicPartition, start: int = 0, end: int | None = None) -> ReplaceSpan | None:
        """Return the segments of a log in the offsets [start, end), or None, as ``BulkWriter.span``."""
        remote = self._remote(log)
        root = remote.root
        if root is None:
            return None
        epoch = check_single_writer(root, take_over=self._take_over)
        limit = root.end_offset if end is None else end
        held = [
            entry
            for entry in remote.entries(start, limit, root)
            if entry.info.base_offset >= start and entry.info.end_offset <= limit
        ]
        if not held:
            return None
        borders = (*(entry.info.base_offset for entry in held), held[-1].info.end_offset)
        return ReplaceSpan(log, remote.topic_id, borders[0], borders[-1], borders, epoch, digest_of(held))

    def rewrite(
        self,
        span: ReplaceSpan,
        part: tuple[int, int],
        filters: Sequence[RecordFilter],
        *,
        now_ms: int,
        keeps_tombstones: bool = False,
    ) -> Rewritten:
        """Stage a part of a span without the records that filters drop, as ``BulkWriter.rewrite``."""
        at = self._rewrite_target(span, part)
        return rewrite_part(at, part, filters, now_ms=now_ms, keeps_tombstones=keeps_tombstones)

    def compact(self, span: ReplaceSpan, *, now_ms: int, memory_bytes: int) -> Rewritten:
        """Stage a whole compacted span, as ``BulkWriter.compact``."""
        part = span.start, span.end
        at, policy = self._rewrite_target(span, part), self._host.policy("compact")
        return compact_part(at, part, policy, now_ms=now_ms, memory_bytes=memory_bytes)

    def recode(
        self, span: ReplaceSpan, part: tuple[int, int], *, compression: str | None = None, layout: str | None = None
    ) -> Rewritten:
        """Stage a part of a span in batches of magic 2, as ``BulkWriter.recode``."""
        wanted: dict[str, object] = {"record.version": MAGIC}
        if layout is not None:
            wanted["tier.layout"] = layout
        at = self._rewrite_target(span, part, compression, wanted)
        return recode_part(at, part, recompress=compression is not None)

    def merge(self, span: ReplaceSpan, groups: Sequence[tuple[int, int]]) -> Rewritten:
        """Stage one segment for each group of segments, as ``BulkWriter.merge``."""
        return merge_part(self._rewrite_target(span, (groups[0][0], groups[-1][1])), groups)

    def plan_merge(self, log: TopicPartition, limit_bytes: int) -> MergePlan | None:
        """Return the groups of small segments that can be merged, or None, as ``BulkWriter.plan_merge``."""
        span = self.span(log)
        if span is None:
            return None
        remote, config = self._remote(log), self._topics.get(log.topic).config
        root = remote.root
        dirty = root.first_dirty_offset if root is not None else 0
        held = [RemoteSegment(entry, remote.fetcher) for entry in remote.entries(span.start, span.end, root)]
        parts = (
            [segment for segment in held if segment.end_offset <= dirty],
            [segment for segment in held if segment.base_offset >= dirty],
        )
        groups = tuple(
            (group[0].base_offset, group[-1].end_offset, sum(segment.size_bytes for segment in group))
            for part in parts
            for group in small_groups(part, limit_bytes, config)
        )
        return MergePlan(span, groups) if groups else None

    def merge_end(self, log: TopicPartition, limit_bytes: int) -> Published | None:
        """Merge small segments at a log's end, as ``BulkWriter.merge_end``."""
        found = self._topics.get(log.topic)
        return self._merge_end(self._tier.log(log, found.topic_id), limit_bytes)  # after an append the head is known

    def merge_ends(self, logs: Sequence[TopicPartition], limit_bytes: int) -> list[Published | Exception | None]:
        """Merge small segments at the ends of several logs in parallel, as ``BulkWriter.merge_ends``."""
        self._topics.forget()
        for topic in {log.topic for log in logs}:
            with suppress(UnknownTopicError):  # the result has the error for each log of the topic
                self._topics.get(topic)
        return self._in_parallel(
            logs, lambda log: self._merge_end(self._topics.listed(log), limit_bytes), "stratalog-merge"
        )

    def _merge_end(self, remote: TierLog, limit_bytes: int) -> Published | None:
        log, found, root = remote.name, self._topics.get(remote.name.topic), remote.root
        if root is None:
            return None
        held = [
            RemoteSegment(entry, remote.fetcher)
            for entry in root.entries
            if entry.info.base_offset >= root.first_dirty_offset
        ]
        group = end_group(held, limit_bytes, found.config)
        span = self.span(log, group[0].base_offset, group[-1].end_offset) if group else None
        if span is None:
            return None
        made = self.merge(span, [(span.start, span.end)])
        if not made.staged:
            return None
        try:
            return self.replace(span, made.staged, reason=f"{made.segments} small segments merged", keeps_others=True)
        except StorageError:
            self.discard(made.staged)
            raise

    def _rewrite_target(
        self,
        span: ReplaceSpan,
        part: tuple[int, int],
        compression: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> RewriteTarget:
        """Return the target for a task that rewrites ``part``. ``settings`` override settings of the topic.

        Raises:
            ConfigError: the part does not begin and end with segments of the span.
            StorageError: the tier has other segments than those of the span, or the topic was deleted.
        """
        if not {*part} <= {*span.borders}:
            raise ConfigError(f"[{part[0]}, {part[1]}) of {span.log} does not begin and end with segments of the span")
        target = self._target(self._remote(span.log), compression, keep_offsets=True, settings=settings)
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
        """Replace the segments of a span by staged segments with one commit, as ``BulkWriter.replace``."""
        entries = tuple(sorted(entries_of(staged), key=lambda entry: entry.info.base_offset))
        _check_covers(span, entries, keeps_others=keeps_others)
        remote = self._tier.log(span.log, span.topic_id)
        remote.refresh()
        epoch = check_single_writer(remote.root, take_over=self._take_over)
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
        return published(span.log, entries, entries[0].info.base_offset)

    def close(self) -> None:
        """Close the tier and remove the temporary files, as ``BulkWriter.close``."""
        self._opened.close()


def _check_covers(span: ReplaceSpan, entries: Sequence[StoredSegment], *, keeps_others: bool) -> None:
    """Raise OffsetsOutOfOrderError unless the entries cover a span, or, with ``keeps_others``, whole segments of it."""
    bounds = [(entry.info.base_offset, entry.info.end_offset) for entry in entries]
    if keeps_others:
        wrong = (
            not bounds
            or not {*span.borders}.issuperset(chain(*bounds))
            or list(chain(*bounds)) != sorted(chain(*bounds))
        )
    else:
        wrong = [span.start, *(end for _, end in bounds)] != [*(start for start, _ in bounds), span.end]
    if wrong:
        what = "whole segments of it" if keeps_others else "exactly these offsets, without a gap"
        raise OffsetsOutOfOrderError(
            f"the replacement of [{span.start}, {span.end}) of {span.log} does not cover {what}"
        )


def _snapshot(remote: TierLog, components: Components) -> bytes:
    """Return the encoded producers' state at the tier's end, for new segments. Bulk writes add no producers."""
    view = remote.view()
    return encode_snapshot(producers_at(view, view.end_offset, components).entries())


def published(log: TopicPartition, entries: Sequence[StoredSegment], start: int) -> Published:
    """Return the result of a commit of segments with these manifest entries, which begin at offset ``start``."""
    end = entries[-1].info.end_offset
    return Published(log, start, end, len(entries), sum(entry.info.size_bytes for entry in entries))
