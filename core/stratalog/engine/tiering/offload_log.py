"""Offload of one log: choice of the segments to copy to its tier, and their upload.

Source: KIP-405, RemoteLogManager: closed segments, in order, up to the last stable offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from stratalog.env.progress import OnBytes, uncounted
from stratalog.epochs.epoch_cache import first_divergence
from stratalog.log.change.extra_indexes import pack_segment_extras
from stratalog.log.log import Log
from stratalog.log.read.tier_view import RemoteLog
from stratalog.log.read.view import LogView
from stratalog.model.events import SegmentOffloaded
from stratalog.model.names import SNAPSHOT_SUFFIX, TopicPartition, segment_file
from stratalog.model.segment_info import share_bytes
from stratalog.producers.snapshot import encode_snapshot
from stratalog.segment.file_chunks import file_chunks
from stratalog.segment.segment import Segment
from stratalog.spi.layouts import INDEX_KINDS, SegmentSource
from stratalog.tier.commit.append_change import divergence_error
from stratalog.tier.manifest.root import TopicNote
from stratalog.tier.store.store import ChunkSource
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upload.segment_part import SegmentPart
from stratalog.tier.upload.segment_source import count_bytes, describe_segment, segment_source
from stratalog.tier.upload.uploader import OffloadReport


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """Result of one offload of one log.

    Attributes:
        segments: number of segments that were committed.
        size_bytes: size of the batches of these segments.
        tier_end: exclusive end offset of the tier afterwards. All records below it are in the tier or were deleted.
    """

    log: TopicPartition
    segments: int
    size_bytes: int
    tier_end: int


@dataclass(frozen=True, slots=True)
class TierLag:
    """Tier lag of one log: the closed segments below the last stable offset that are not in the tier.

    Attributes:
        segments: number of these segments.
        size_bytes: size of their batches that are not in the tier.
        lag_ms: time since the last write to the oldest of these segments; 0 if there are none.
        local_bytes: size of all local segments of the log.
        is_pressed: True if ``local_bytes`` is above ``local.hard.limit.bytes``.
        error: error of the last offload, or the reason why the tier is unavailable; "" if there is neither.

    Source: apache/kafka BrokerTopicMetrics RemoteCopyLagBytes, RemoteCopyLagSegments.
    """

    log: TopicPartition
    segments: int
    size_bytes: int
    lag_ms: int
    local_bytes: int
    is_pressed: bool
    error: str = ""


def tier_lag(log: Log, remote: RemoteLog, now_ms: int, error: str = "") -> TierLag:
    """Return the tier lag of a log, from the last known state of the tier.

    The store is read only if the state of the tier was never read before. ``error`` is the error of the last offload.
    """
    view = log.view()
    waiting = segments_to_offload(view, _tier_end(view, remote))
    local_bytes = sum(segment.size_bytes for segment in view.segments)
    return TierLag(
        log=log.name,
        segments=len(waiting),
        size_bytes=lag_bytes(waiting, _tier_end(view, remote)),
        lag_ms=max(0, now_ms - min((segment.file.modified_ms for segment in waiting), default=now_ms)),
        local_bytes=local_bytes,
        is_pressed=0 <= log.config.local_hard_limit_bytes < local_bytes,
        error=error,
    )


def offload_log(
    log: Log,
    remote: TierLog,
    may_begin: Callable[[int], bool] = lambda _: True,
    describe_topic: Callable[[], TopicNote | None] = lambda: None,
    on_bytes: OnBytes = uncounted,
) -> OffloadResult:
    """Copy the closed segments below the last stable offset that are not in the tier yet.

    The log is made durable first. If the last write to a segment is less than ``segment.offload.delay.ms`` ago, this
    segment and all later segments are not copied yet.

    Args:
        log: log with closed segments.
        remote: the tier part of the log.
        may_begin: called with the size of each segment before its upload; False ends the offload before that segment.
        describe_topic: returns the description of the topic, which is committed with the segments for readers of the
            tier; None for no description. Called only if segments are copied.
        on_bytes: called with the sizes of the pieces of segments that were sent.

    Raises:
        FencedEpochError: another writer owns the log; the log refuses appends from now on.
        StorageError: another leader has committed other records to the tier, or ``TierLog.offload`` raised an error.
    """
    view = log.view()
    now_ms = log.components.env.clock.now_ms()
    waiting = _waiting(view, remote)
    if waiting and (0 if remote.root is None else remote.root.leader_epoch) < view.leader_epoch:
        _begin_epoch(log, remote, view.leader_epoch)
        view = log.view()
        waiting = _waiting(view, remote)
    written_by_ms = now_ms - log.config.segment_offload_delay_ms
    if log.config.segment_offload_delay_ms:
        waiting = list(takewhile(lambda segment: segment.file.modified_ms <= written_by_ms, waiting))
    report = OffloadReport()
    if waiting:
        log.flush()
        try:
            with log.maintenance.stop_if_fenced(view.leader_epoch), _observe(log):
                tiered = view.remote or remote.view()
                # without segments, the tier ends at the log start, which may be inside a batch
                start = tiered.end_offset if tiered.segments else 0
                sources = _sources(log, view, waiting, start, may_begin, on_bytes)
                report = remote.offload(
                    sources,
                    layout=log.config.tier_layout,
                    section=log.config.sections.get(log.config.tier_layout),
                    leader_epoch=view.leader_epoch,
                    log_start=view.offsets.log_start,
                    high_watermark=view.offsets.high_watermark,
                    topic=describe_topic(),
                )
        finally:
            log.maintenance.refresh_remote()  # even after an error: some segments may be committed
    for entry in report.committed:
        info = entry.info
        log.maintenance.notify(
            SegmentOffloaded(
                log=log.name, base_offset=info.base_offset, end_offset=info.end_offset, size_bytes=info.size_bytes
            )
        )
    return OffloadResult(log.name, len(report.committed), report.size_bytes, remote.view().end_offset)


def _sources(
    log: Log, view: LogView, waiting: Iterable[Segment], start: int, may_begin: Callable[[int], bool], on_bytes: OnBytes
) -> Iterator[SegmentSource]:
    """Yield a source for each waiting segment, from offset ``start`` on, until ``may_begin`` returns False.

    The code runs inside ``TierLog.offload``, one segment at a time: a segment is opened only when the segments before it
    are committed.
    """
    for segment in waiting:
        if not may_begin(segment.size_bytes):
            return
        # Earlier leaders may have had other segment bounds: then the tier already has the start of a segment.
        part = SegmentPart(segment, start) if segment.base_offset < start else segment
        source = offload_source(log, view, part)
        yield replace(source, log=count_bytes(source.log, on_bytes))


def _waiting(view: LogView, remote: RemoteLog) -> list[Segment]:
    """Return the segments to offload; [] for a follower, because its commit would fence the leader.

    The commits use the leader epoch of ``view``, because the log may become a follower at any time.
    """
    return segments_to_offload(view, _tier_end(view, remote)) if view.is_leader else []


def _observe(log: Log) -> AbstractContextManager[object]:
    attributes = {"stratalog.topic": log.name.topic, "stratalog.partition": str(log.name.partition)}
    return log.components.env.watch.observe("offload log", attributes, lambda latencies: latencies.offload)


def _begin_epoch(log: Log, remote: TierLog, leader_epoch: int) -> None:
    """Read the newest state of the tier. If its records diverge from this log, raise an error or remove them.

    The diverging records are removed only if ``unclean.leader.election.enable`` is set.
    """
    remote.refresh()
    log.maintenance.refresh_remote()
    tiered, log_remote = remote.view(), log.view().remote
    if log_remote is None or log_remote.end_offset == tiered.end_offset:
        return
    epochs = log.view().epochs.entries
    offset = first_divergence(epochs, tiered.leader_epochs, log_remote.end_offset, tiered.end_offset)
    if offset is None:
        return
    if not log.config.unclean_leader_election_enable:
        raise divergence_error(log.name, offset, epochs, tiered.leader_epochs)
    reason = f"leader epoch {leader_epoch} started at offset {offset}, which discarded later records"
    with log.maintenance.stop_if_fenced(leader_epoch):
        remote.cut_back(log_remote.end_offset, leader_epoch=leader_epoch, reason=reason)
    log.maintenance.refresh_remote()


def _tier_end(view: LogView, remote: RemoteLog) -> int:
    """Return the exclusive end offset of this log's records in the tier. Records of another leader do not count."""
    return (view.remote or remote.view()).end_offset


def lag_bytes(waiting: Iterable[Segment], tier_end: int) -> int:
    """Return the size (bytes) of the records in ``waiting`` that are not in the tier.

    If the tier already has the start of the first segment, the size is an estimate.
    """
    return sum(
        share_bytes(
            segment.size_bytes,
            segment.base_offset,
            segment.end_offset,
            max(tier_end, segment.base_offset),
            segment.end_offset,
        )
        for segment in waiting
    )


def segments_to_offload(view: LogView, remote_end: int) -> list[Segment]:
    """Return the closed local segments with end offsets above ``remote_end``, at most the last stable offset.

    All end offsets are exclusive; ``remote_end`` is the end offset of the tier. Segments whose end offset is at or
    below the log start are left out.
    """
    return [
        segment
        for segment in view.segments[:-1]
        if max(remote_end, view.offsets.log_start) < segment.end_offset <= view.offsets.last_stable
    ]


def offload_source(log: Log, view: LogView, segment: Segment | SegmentPart) -> SegmentSource:
    """Return the batches, indexes, producer snapshot and description of one closed segment, for its upload."""
    assert log.topic_id is not None
    info = describe_segment(
        segment,
        log.name,
        log.topic_id,
        view.epochs.entries_between(segment.base_offset, segment.end_offset),
        log.components,
        max_timestamp_ms=segment.max_timestamp_ms,
        modified_ms=segment.modified_ms,
    )
    snapshot = segment.files.read_small(segment_file(segment.end_offset, SNAPSHOT_SUFFIX))
    if snapshot is None and not log.maintenance.has_producers:
        snapshot = encode_snapshot([])  # an old log without producers: a reader of the tier need not search for them
    return segment_source(
        info,
        ChunkSource(segment.size_bytes, partial(file_chunks, segment, segment.files, log.components)),
        {role: segment.index_entries(role) for role in INDEX_KINDS},
        log.components,
        snapshot=snapshot,
        extras=pack_segment_extras(segment, info, log.components, log.config),
    )
