"""Copies of closed segments of a Kafka broker's log directory into a tier, without locks or writes in the directory.

The broker may run during the copy. A pass copies the closed segments from the end offset of the archive in the tier to
the high watermark in the broker's checkpoint. Segments that the broker deletes or compacts later stay in the tier. If
the broker changes a file during the read, the pass reports an error for the log, and the next pass copies the segment.

Source: apache/kafka ReplicaManager.checkpointHighWatermarks, LogManager, LocalLog.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.env import Clock
from stratalog.env.progress import OnBytes, Progress, counters
from stratalog.epochs.checkpoint import format_epochs
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import LogDirNotFoundError, StorageError
from stratalog.log.folder.directory_state import partition_folders, read_offsets, read_topic_id
from stratalog.log.folder.folder import UNKNOWN_END, file_names, read_epochs
from stratalog.log.load.overflow import open_pieces
from stratalog.log.read.tier_view import RemoteView
from stratalog.model.batches import NO_EPOCH
from stratalog.model.names import (
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS_FILE,
    LOG_STARTS_FILE,
    LOG_SUFFIX,
    TopicId,
    TopicPartition,
    parse_segment_file,
)
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.components import Components
from stratalog.segment.segment import Segment
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.objects import BytesSource
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.tier.collect_all import TierCollection
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.collect import CollectReport
from stratalog.tier.upload.checked_source import CheckedSources
from stratalog.tier.upload.segment_source import count_bytes

_NOTHING_CONFIRMED: Final = 0
_ID_NAMESPACE: Final = uuid.UUID("6f0f5d0e-3c5b-5a0e-9d55-6d1f1b0c7a41")  # namespace of derived topic ids; persistent


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """Result of one pass (``Archiver.run``) for one log.

    Attributes:
        directory: path of its log directory.
        segments: the number of segments that the pass committed.
        size_bytes: size of their ``.log`` files, as stated in the manifest. With the layout ``parquet``, this is the
            size of the uncompressed batches.
        tier_end: the exclusive end offset of the archive after the pass; 0 if the archive could not be read.
        high_watermark: high watermark in the broker's last checkpoint; 0 if it is unknown.
        skipped_offsets: the number of offsets that the pass skipped, because the broker had deleted them.
        error: the error that ended the pass; None if there was none.
    """

    log: TopicPartition
    directory: str
    segments: int = 0
    size_bytes: int = 0
    tier_end: int = 0
    high_watermark: int = 0
    skipped_offsets: int = 0
    error: StorageError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """Selection of topics for an archive, and settings for it.

    Attributes:
        config: settings for the upload: ``tier.layout`` and the settings of layouts.
        wants: called with the name of a topic; returns True if the topic is to be archived.
        skip_gaps: True to continue after offsets that the broker deleted before they were archived; False to end the
            pass for the log with an error.
        wait_for: called with the size (bytes) of each segment before its upload; may wait, to limit the rate.
        progress: called with the number of bytes uploaded so far, and the number of all bytes to upload; None to report
            nothing.
    """

    config: TopicConfig
    wants: Callable[[str], bool] = lambda _: True
    skip_gaps: bool = False
    wait_for: Callable[[int], object] = lambda _: None
    progress: Progress | None = None


class Archiver:
    """Archives the logs in log directories of one broker. Not thread-safe.

    Args:
        stores: the log directories, opened for reading; not closed here.
        tier: the tier with the archive; not closed here.
    """

    def __init__(self, stores: Sequence[SegmentStore], tier: Tier, components: Components, plan: ArchivePlan) -> None:
        self._stores, self._tier, self._components, self._plan = stores, tier, components, plan
        # Topic id and high watermark of each log after a successful pass: while both are unchanged, the log is skipped.
        self._settled_bounds: dict[tuple[str, TopicPartition], tuple[TopicId, int]] = {}
        # Leader epochs of the logs with commits since their last collection.
        self._written_epochs: dict[TierLogName, int] = {}

    def run(self) -> Iterator[ArchivedLog]:
        """Archive the closed segments of each log, from the end offset of its archive on; yield a result for each log.

        The error of a log is in its result. A later call archives new segments, and segments that this call did not
        archive.

        A log is skipped without a result if its last pass succeeded and its high watermark has not changed since, or if
        its folder was deleted or moved after the directory was listed.

        Raises:
            LogDirError: a log directory is missing (LogDirNotFoundError), or cannot be read.
            CorruptCheckpointError: the checkpoint of the high watermarks or of the log starts is damaged or too large.
        """
        broker_logs = list(self._list_logs())
        byte_counters = counters(self._plan.progress, broker_logs, self._waiting_bytes)
        directory_by_log: dict[TopicPartition, str] = {}
        for broker_log, on_bytes in zip(broker_logs, byte_counters, strict=True):
            if broker_log.log in directory_by_log:
                error = StorageError(
                    f"{broker_log.log} is also in {directory_by_log[broker_log.log]}: archive only one of them"
                )
                yield ArchivedLog(broker_log.log, broker_log.store.path(), error=error)
                continue
            directory_by_log[broker_log.log] = broker_log.store.path()
            yield from self._archive(broker_log, on_bytes)

    def _list_logs(self) -> Iterator[_BrokerLog]:
        """Yield the logs in the directories that the plan selects, except Kafka's cluster metadata."""
        for store in self._stores:
            is_live = store.is_acquired_elsewhere()  # checked before the read: a broker writes the file when it stops
            watermarks = read_offsets(store, HIGH_WATERMARKS_FILE)
            log_starts = read_offsets(store, LOG_STARTS_FILE) or {}
            unknown = UNKNOWN_END if watermarks is None and not is_live else _NOTHING_CONFIRMED
            for log, folder in partition_folders(store).items():
                if log.topic == CLUSTER_METADATA_TOPIC or not self._plan.wants(log.topic):
                    continue
                bound = (watermarks or {}).get(log, unknown)
                yield _BrokerLog(store, log, folder, log_starts.get(log, 0), bound)

    def _waiting_bytes(self, broker_log: _BrokerLog) -> int:
        """Return the bytes of the closed segments that are not archived yet, by the list of files; 0 after an error."""
        try:
            files = broker_log.store.open_log(broker_log.folder)
            remote = self._tier.log(broker_log.log, read_topic_id(files) or derived_topic_id(broker_log.log.topic))
            tier_end = remote.view().end_offset
            parsed_files = ((file, parse_segment_file(file.name)) for file in files.list())
            sizes = {
                name.base_offset: file.size_bytes for file, name in parsed_files if name and name.suffix == LOG_SUFFIX
            }
        except StorageError:  # the pass over the log reports it
            return 0
        return sum(sizes[base] for base, end in pairwise(sorted(sizes)) if tier_end < end <= broker_log.bound)

    def collect(self, collection: TierCollection) -> CollectReport:
        """Call ``TierCollection.collect_all`` for the logs to which this archiver has committed, and return its result.

        Once nothing is left to delete, later calls include only logs with later commits.
        """
        total = collection.collect_all((self._tier.log(*name), epoch) for name, epoch in self._written_epochs.items())
        if not total.left:
            self._written_epochs.clear()
        return total

    def _archive(self, broker_log: _BrokerLog, on_bytes: OnBytes) -> Iterator[ArchivedLog]:
        store, log, bound = broker_log.store, broker_log.log, broker_log.bound
        try:
            files = store.open_log(broker_log.folder)
            topic_id = read_topic_id(files) or derived_topic_id(log.topic)
        except LogDirNotFoundError:
            return  # the topic was deleted, or the log moved, since the directory was listed
        except StorageError as error:
            yield ArchivedLog(log, store.path(), error=error)
            return
        if self._settled_bounds.get((store.path(), log)) == (topic_id, bound):
            return
        remote = self._tier.log(log, topic_id)
        log_pass = _LogPass(files, remote, self._components, self._plan, broker_log, on_bytes)
        result = log_pass.run()
        if log_pass.leader_epoch is not None:
            self._written_epochs[TierLogName(log, topic_id)] = log_pass.leader_epoch
        if result.error is None:
            self._settled_bounds[store.path(), log] = topic_id, bound
        yield result


@dataclass(frozen=True, slots=True)
class _BrokerLog:
    """A log in a directory. ``log_start`` and ``bound`` (the high watermark) are from the directory's checkpoints."""

    store: SegmentStore
    log: TopicPartition
    folder: str
    log_start: int
    bound: int


@dataclass(slots=True)
class _LogPass:
    """One pass over one log. ``leader_epoch`` is the epoch that the pass writes in; None if it writes nothing."""

    _files: LogFiles
    _remote: TierLog
    _components: Components
    _plan: ArchivePlan
    _broker_log: _BrokerLog
    _on_bytes: OnBytes
    _skipped_offsets: int = 0
    leader_epoch: int | None = None

    def run(self) -> ArchivedLog:
        """Run the pass. Return its result, including commits before an error."""
        result = ArchivedLog(self._remote.name, self._broker_log.store.path())
        old_view: RemoteView | None = None
        try:
            old_view = self._remote.view()
            self._run(old_view)
        except StorageError as error:
            result = replace(result, error=error)
        if old_view is None:  # the tier's head could not be read
            return result
        new_view, bound = self._remote.view(), self._broker_log.bound
        new_segments = [segment for segment in new_view.segments.from_offset(old_view.end_offset) if segment.size_bytes]
        return replace(
            result,
            segments=len(new_segments),
            size_bytes=sum(segment.size_bytes for segment in new_segments),
            tier_end=new_view.end_offset,
            high_watermark=0 if bound == UNKNOWN_END else bound,
            skipped_offsets=self._skipped_offsets,
        )

    def _run(self, tiered: RemoteView) -> None:
        names, bound = file_names(self._files), self._broker_log.bound
        if not _may_wait(names, tiered.end_offset, bound):
            return
        with ExitStack() as resources:
            segments = open_pieces(self._files, self._components, resources, names=names)
            epochs = read_epochs(self._files)  # read after the names: it is complete for closed segments
            start = tiered.end_offset if tiered.version else max(self._broker_log.log_start, segments[0].base_offset)
            waiting = [segment for segment in segments[:-1] if start < segment.end_offset <= bound]
            if waiting:
                self._check_lineage(tiered, epochs)
                self._offload(tiered, start, waiting, epochs)

    def _offload(self, tiered: RemoteView, start: int, waiting: Sequence[Segment], epochs: EpochCache) -> None:
        gap = waiting[0].base_offset - start
        if gap > 0 and not self._plan.skip_gaps:
            raise StorageError(
                f"the broker deleted {gap} offsets of {self._remote.name} before they were archived, [{start}, "
                f"{waiting[0].base_offset}): add --skip-gaps to continue after them, or archive to another URI"
            )
        config, self.leader_epoch = self._plan.config, max(epochs.latest, 0)
        self._remote.offload(
            self._sources(start, tiered.end_offset, waiting, epochs),
            layout=config.tier_layout,
            section=config.sections.get(config.tier_layout),
            leader_epoch=self.leader_epoch,
            log_start=tiered.log_start if tiered.version else start,
            high_watermark=max(waiting[-1].end_offset, tiered.high_watermark),
        )
        self._skipped_offsets = max(gap, 0)

    def _sources(
        self, start: int, tier_end: int, waiting: Sequence[Segment], epochs: EpochCache
    ) -> Iterator[SegmentSource]:
        """Yield the waiting segments, after an empty segment for offsets before them that the broker has deleted."""
        log, topic_id = self._remote.name, self._remote.topic_id
        if waiting[0].base_offset > start:
            yield _empty_source(log, topic_id, start, waiting[0].base_offset, epochs, self._components.env.clock)
        reader = CheckedSources(self._files, log, topic_id, epochs, self._components)
        for segment in waiting:
            self._plan.wait_for(segment.size_bytes)
            source = reader.source(segment, max(tier_end, segment.base_offset))
            yield replace(source, log=count_bytes(source.log, self._on_bytes))

    def _check_lineage(self, tiered: RemoteView, epochs: EpochCache) -> None:
        """Raise StorageError if archive and broker have different leader epochs at the archive's last offset."""
        # One offset is enough: two logs that have diverged never become equal again.
        last = tiered.end_offset - 1
        local_epoch, archive_epoch = epochs.epoch_at(last), EpochCache(tiered.leader_epochs).epoch_at(last)
        if tiered.version and NO_EPOCH not in (local_epoch, archive_epoch) and local_epoch != archive_epoch:
            raise StorageError(
                f"{self._remote.name} and its archive have different records at offset {last}: leader epoch {local_epoch} in "
                f"the log, {archive_epoch} in the archive: the broker lost archived records; archive to another URI"
            )


def derived_topic_id(topic: str) -> TopicId:
    """Return a topic id computed from the topic's name, for logs of brokers without topic ids (before Kafka 2.8)."""
    return TopicId.from_uuid(uuid.uuid5(_ID_NAMESPACE, topic))


def _may_wait(names: Collection[str], tier_end: int, bound: int) -> bool:
    """Return True if, by the file names, a closed segment may have an end offset in (``tier_end``, ``bound``]."""
    parsed_names = (parse_segment_file(name) for name in names)
    bases = sorted({name.base_offset for name in parsed_names if name and name.suffix == LOG_SUFFIX})
    return any(tier_end < end <= bound for _, end in pairwise(bases))


def _empty_source(
    log: TopicPartition, topic_id: TopicId, start: int, end: int, epochs: EpochCache, clock: Clock
) -> SegmentSource:
    """Return a segment without records for the offsets [start, end), which the broker has deleted."""
    leader_epochs = epochs.entries_between(start, end)
    info = SegmentInfo(log, topic_id, start, end, 0, -1, clock.now_ms(), leader_epochs)
    return SegmentSource(info, BytesSource(b""), {FileKind.LEADER_EPOCHS: format_epochs(leader_epochs)})
