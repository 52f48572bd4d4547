"""Bulk writes to a log directory that no engine has open.

Tasks write batches into files in the logs' folders. The publishing process opens an engine on the directory, which
takes the lock of the directory. This process assigns offsets to the batches, and adds the batches to each log as closed
segments. After a crash, a log has either all of these segments or none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Final, Self

from stratalog.cleaning.compact.segment_range import LocalRange
from stratalog.config.settings_sources import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env import Env
from stratalog.env.forks import ends_with_fork
from stratalog.errors import (
    ClosedError,
    ConfigError,
    LogDirLockedError,
    LogDirNotFoundError,
    OffsetsOutOfOrderError,
    SegmentGoneError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from stratalog.log.change.local_publisher import LocalPublisher
from stratalog.log.log import Log
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import LOG_SUFFIX, STAGED_PREFIX, TopicId, TopicPartition, partition_folder, random_uuid
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.open_reader import open_host, open_settled
from stratalog.reading.reader import TopicInfo
from stratalog.segment.build import BuiltSegment, RollingBuilder, SegmentBuilder
from stratalog.segment.framing import walk
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.bulk_writer import BulkWriter, only_engine
from stratalog.writing.column_encoder import Encoder, place_tables
from stratalog.writing.merge_segments import end_group, merge_group, mergeable
from stratalog.writing.stage import Stage
from stratalog.writing.staged import Published, StagedSegment

NO_OPTIONS: Final[Mapping[str, object]] = {}
LOCK_WAIT_MS: Final = 10_000  # maximum wait for the lock of a directory, for example while another process publishes
_LOCK_PAUSE_MS: Final = 100
OLD_MS: Final = 7 * 86_400_000  # age of unpublished staged files from which they count as abandoned


class DirectoryWriter(BulkWriter):
    """A ``BulkWriter`` for a log directory. Created by ``DirectoryWriter.open``.

    Staging takes no lock, and writes only files that readers ignore: an engine may have the directory open. The first
    call that publishes or creates a topic takes the lock of the directory, until the writer is closed.
    """

    def __init__(
        self,
        location: str,
        host: ComponentHost,
        store: SegmentStore,
        config: str | Mapping[str, object] | None,
        tier_options: Mapping[str, object],
    ) -> None:
        self._location, self._host, self._store, self._env = location, host, store, host.env
        self._config, self._tier_options = config, tier_options
        self._resources = ExitStack()
        self._resources.callback(host.close)
        self._resources.enter_context(store)
        self._engine: Engine | None = None
        self._closed = False
        self._cached_topics: Mapping[str, TopicInfo] | None = None
        ends_with_fork(self)

    @classmethod
    def open(
        cls,
        location: str,
        config: str | Mapping[str, object] | None = None,
        tier_options: Mapping[str, object] = NO_OPTIONS,
        *,
        env: Env,
    ) -> Self:
        """Open a directory, without its lock. ``WriteTarget`` describes the arguments, and ``open`` the errors."""
        host = open_host(read_settings(config, os.environ), (), env)
        try:
            store = host.segment_store(location, read_only=False)
        except BaseException:
            host.close()
            raise
        return cls(location, host, store, config, tier_options)

    # --- topics --------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Discard the cached topics; see ``BulkWriter.refresh``."""
        self._cached_topics = None

    def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of each topic, by name; see ``BulkWriter.topics``."""
        return {name: len(info.partitions) for name, info in self._read_topics().items()}

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; see ``BulkWriter.partitions``."""
        return len(self._find_topic(topic).partitions)

    def config(self, topic: str) -> TopicConfig:
        """Return the settings of a topic; see ``BulkWriter.config``."""
        return self._find_topic(topic).config

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """Create a topic without records; see ``BulkWriter.create_topic``."""
        existing = self._read_topics().get(topic)
        if existing is None:
            self._ensure_engine().create_topic(topic, partitions=partitions, config=config)
            self._cached_topics = None
        elif len(existing.partitions) != partitions:
            raise TopicExistsError(f"topic {topic} has {len(existing.partitions)} partitions, not {partitions}")

    def check(self, topic: str, *, compression: str | None = None, layout: str | None = None) -> None:
        """Check that records can be staged and published for a topic; see ``BulkWriter.check``."""
        if layout is not None:
            raise only_engine(topic)
        info = self._find_topic(topic)
        Encoder.of(self._host.components(info.config), info.config, compression)
        waited_ms = 0
        while self._engine is None and self._store.is_acquired_elsewhere():
            if waited_ms >= LOCK_WAIT_MS:
                raise LogDirLockedError("another engine or a running broker holds the directory", self._location)
            self._env.clock.sleep_ms(_LOCK_PAUSE_MS)
            waited_ms += _LOCK_PAUSE_MS

    def _check_open(self) -> None:
        """Raise ClosedError if the writer is closed: an engine opened now would keep the lock of the directory."""
        if self._closed:
            raise ClosedError(f"the writer is closed path={self._location}")

    def _read_topics(self) -> Mapping[str, TopicInfo]:
        self._check_open()
        if self._engine is not None:
            return self._engine.topics()
        if self._cached_topics is None:
            try:
                with open_settled(self._location, self._host.settings, env=self._env) as reader:
                    self._cached_topics = reader.topics()
            except LogDirNotFoundError:
                self._cached_topics = {}
        return self._cached_topics

    def _find_topic(self, topic: str) -> TopicInfo:
        info = self._read_topics().get(topic)
        if info is None:
            raise UnknownTopicError(f"there is no topic {topic} in {self._location}: create it first")
        if info.topic_id is None:
            raise ConfigError(f"topic {topic} has no id: open the directory once with stratalog run")
        return info

    # --- staging -------------------------------------------------------------------------------------------------

    def stage(self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None) -> Stage:
        """Begin to stage records in a file of the log's folder; see ``BulkWriter.stage``."""
        return Stage(self._open_folder(log, compression), base_offset or 0, keep_offsets=base_offset is not None)

    def _open_folder(self, log: TopicPartition, compression: str | None = None) -> _Folder:
        topic = self._find_topic(log.topic)
        assert topic.topic_id is not None  # checked by _find_topic
        if log.partition not in topic.partitions:
            raise UnknownTopicError(f"there is no {log} in {self._location}")
        encoder = Encoder.of(self._host.components(topic.config), topic.config, compression)
        return _Folder(self._store.open_log(partition_folder(log)), log, topic.topic_id, encoder)

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
        engine_log, folder = self._ensure_engine().log(*log), self._open_folder(log)
        end = engine_log.offsets().log_end
        if mark is not None and engine_log.maintenance.marks().number_of(mark.writer) >= mark.number:
            folder.remove(staged)
            return Published(log, end, end, 0, 0, duplicate=True)
        if not staged:
            return Published(log, end, end, 0, 0)
        if any(segment.topic_id != engine_log.topic_id for segment in staged):
            raise StorageError(
                f"topic {log.topic} was deleted and created again after records of {log} were staged: the staged records "
                "are not published"
            )
        if keep_offsets:
            end = _end_to_keep(engine_log, staged)
        publisher = engine_log.maintenance.publisher()
        batches = ((segment, self._read_batches(folder.files, segment)) for segment in staged)
        new_segments = self._build(engine_log, publisher, batches, end, keep_offsets=keep_offsets)
        publisher.add(new_segments, None if mark is None else (mark.writer, mark.number))
        folder.remove(staged)
        self._remove_abandoned(folder.files)
        size_bytes = sum(segment.size_bytes for segment in new_segments)
        return Published(log, end, new_segments[-1].end_offset, len(new_segments), size_bytes)

    def append_all(
        self, staged: Mapping[TopicPartition, Sequence[StagedSegment]], mark: WriteMark | None = None
    ) -> list[Published | Exception]:
        """Publish staged records of several logs; see ``BulkWriter.append_all``. The call waits for the lock once."""
        self._ensure_engine()
        for topic in {log.topic for log in staged}:
            self._find_topic(topic)
        return super().append_all(staged, mark)

    def _build(
        self,
        log: Log,
        publisher: LocalPublisher,
        staged_batches: Iterable[tuple[StagedSegment, Iterator[bytearray]]],
        base: int,
        *,
        keep_offsets: bool,
    ) -> list[BuiltSegment]:
        """Build the segments to publish, from offset ``base`` on, in files whose names readers ignore."""
        new_segments = list[BuiltSegment]()
        builder = RollingBuilder(publisher.begin, new_segments.append, self._env.clock, base, log.config.segment_bytes)
        try:
            end = base
            for segment, batches in staged_batches:
                for data in batches:
                    start = None if keep_offsets else builder.next_offset
                    for table, piece in place_tables(data, log.components, start, log.leader_epoch):
                        builder.append(piece, table.base_offset[0], table.last_offset[-1])
                end = segment.end_offset if keep_offsets else builder.next_offset
            builder.finish(end)
        except BaseException:
            builder.discard()
            for new_segment in new_segments:
                new_segment.discard()
            raise
        return new_segments

    def _read_batches(self, files: LogFiles, staged: StagedSegment) -> Iterator[bytearray]:
        """Yield the batches of a staged file, with their CRCs checked."""
        if not isinstance(staged.place, str):
            raise ConfigError(f"{staged.log} was staged for a tier, and cannot be published to a directory")
        components = self._host.components(TopicConfig())
        try:
            log_file = files.open_segment(staged.place)
        except SegmentGoneError as error:
            raise _staged_file_error(files.path(staged.place), "no longer exists") from error
        with closing(log_file) as file:
            if file.size_bytes != staged.size_bytes:
                raise _staged_file_error(files.path(staged.place), "has another size than when it was staged")
            names = {LOG_SUFFIX: staged.place}
            segment = Segment(files, staged.base_offset, staged.end_offset, components, file, names=names)
            for chunk in walk(segment, 0, components, offset_limit=staged.end_offset):
                yield bytearray(chunk.data[: chunk.end_position - chunk.position])

    def _remove_abandoned(self, files: LogFiles) -> None:
        """Remove staged files that were never published and are older than ``OLD_MS``; errors are ignored."""
        before_ms = self._env.clock.now_ms() - OLD_MS
        with suppress(StorageError):  # the records are published; after an error, the caller would repeat the call
            for info in files.list():
                if info.name.startswith(STAGED_PREFIX) and info.is_file and info.modified_ms < before_ms:
                    files.remove(info.name)

    def merge_end(self, log: TopicPartition, limit_bytes: int) -> Published | None:
        """Merge small closed segments at a log's end; see ``BulkWriter.merge_end``."""
        engine_log = self._ensure_engine().log(*log)
        with engine_log.maintenance.cleaning.local.busy:
            publisher, part = engine_log.maintenance.publisher(), LocalRange(engine_log)
            lowest = max(engine_log.view().remote_end, engine_log.maintenance.cleaning.dirty_start or 0)
            segments = [segment for segment in part.segments[:-1] if segment.base_offset >= lowest]
            groups = mergeable(part, end_group(segments, limit_bytes, engine_log.config))
            merged_groups = [group for group in groups if merge_group(part, publisher, group) is not None]
        if not merged_groups:
            return None
        size_bytes = sum(segment.size_bytes for group in merged_groups for segment in group)
        return Published(
            log, merged_groups[0][0].base_offset, merged_groups[-1][-1].end_offset, len(merged_groups), size_bytes
        )

    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged files that are not published; see ``BulkWriter.discard``."""
        by_log: dict[TopicPartition, list[StagedSegment]] = {}
        for segment in staged:
            by_log.setdefault(segment.log, []).append(segment)
        for log, group in by_log.items():
            with suppress(UnknownTopicError):  # the staged files were deleted with the topic
                self._open_folder(log).remove(group)

    def _ensure_engine(self) -> Engine:
        """Return this writer's engine. The first call opens it, and waits up to ``LOCK_WAIT_MS`` for the lock."""
        self._check_open()
        waited_ms = 0
        while self._engine is None:
            try:
                engine = open_engine(
                    self._location, tier_options=self._tier_options, config=self._config, env=self._env
                )
            except LogDirLockedError:
                if waited_ms >= LOCK_WAIT_MS:
                    raise
                self._env.clock.sleep_ms(_LOCK_PAUSE_MS)
                waited_ms += _LOCK_PAUSE_MS
            else:
                self._engine = self._resources.enter_context(engine)
        return self._engine

    def close(self) -> None:
        """Close the directory and the engine, and release the lock; see ``BulkWriter.close``."""
        self._closed = True
        self._resources.close()
        self._engine = None


@dataclass(frozen=True, slots=True)
class _Folder:
    """A log's folder as a ``StageTarget``. Batches are stored in files without indexes, whose names readers ignore.

    Records get their leader epoch when they are published.
    """

    files: LogFiles
    log: TopicPartition
    topic_id: TopicId
    encoder: Encoder
    leader_epoch: int = NO_EPOCH

    def begin(self, base_offset: int) -> SegmentBuilder:
        """Return the builder of a staged file, which has no indexes."""
        random_id = random_uuid(self.encoder.components.env.chance)
        names = {LOG_SUFFIX: f"{STAGED_PREFIX}{random_id.hex}"}
        components = replace(self.encoder.components, indexes={})
        return SegmentBuilder(self.files, base_offset, components, self.encoder.config, names=names)

    def store(self, segment: BuiltSegment) -> StagedSegment:
        """Return the description of a finished staged file."""
        bounds = (segment.base_offset, segment.end_offset, segment.size_bytes)
        return StagedSegment(self.log, self.topic_id, *bounds, self.leader_epoch, segment.names[LOG_SUFFIX])

    def remove(self, staged: Iterable[StagedSegment]) -> None:
        """Delete staged files, as far as the disk allows; errors are ignored."""
        for segment in staged:
            if isinstance(segment.place, str):
                with suppress(StorageError):
                    self.files.remove(segment.place)


def _staged_file_error(path: str, reason: str) -> StorageError:
    """Return the error for a staged file that cannot be published. It is not retriable: a repeated call fails, too."""
    return StorageError(f"the staged file {path} {reason}: stage its records again")


def _end_to_keep(log: Log, staged: Sequence[StagedSegment]) -> int:
    """Return the offset where staged segments with kept offsets begin. If the log ends at 0, move its start there.

    Raises:
        OffsetsOutOfOrderError: the segments do not begin at the log's end, or leave a gap.
    """
    end, base = log.offsets().log_end, staged[0].base_offset
    is_new = end == 0 < base
    next_offset = base if is_new else end
    for segment in staged:
        if segment.base_offset != next_offset:
            raise OffsetsOutOfOrderError(
                f"{log.name} ends at {next_offset}, but the staged records with fixed offsets begin at {segment.base_offset}"
            )
        next_offset = segment.end_offset
    if is_new:
        log.truncate_fully_and_start_at(base)
    return base if is_new else end
