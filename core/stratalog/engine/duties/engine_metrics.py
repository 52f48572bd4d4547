"""The metrics of an engine: tables of metrics, each with the function that reads its value.

Reading a value takes no lock of a log, opens no file and sends no request to a store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Generic, NamedTuple, TypeVar

from stratalog.engine.duties.scheduler import DutyStatus
from stratalog.engine.open.log_dir import LogDir
from stratalog.engine.tiering.offload_log import lag_bytes, segments_to_offload
from stratalog.env.cache import CacheMetrics
from stratalog.env.latencies import Latencies, Latency
from stratalog.log.log import Log
from stratalog.log.read.tier_view import RemoteView
from stratalog.log.read.view import LogView
from stratalog.model.metrics import HistogramSample, Metric, MetricKind, Sample
from stratalog.segment.segment import Segment
from stratalog.tier.store.requests import RequestMetrics, StoreMetrics
from stratalog.tier.tier import TierMetrics

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineState:
    """Snapshot of the state from which the metrics of an engine are read.

    Attributes:
        unreached: paths of log directories that could not be opened.
        listener_failures: number of failures of listeners, by plugin.
        tier_away: True while the tier is not used because its store was unavailable when the engine was opened.
        tier_failing: names of the logs whose last offload failed, or whose first manifest root could not be created.
        throttled_ms: total time (ms) that uploads have waited for the rate limit.
    """

    logs: Sequence[Log]
    failed_logs: int
    dirs: Sequence[LogDir]
    unreached: Collection[str]
    duties: Sequence[DutyStatus]
    open_files: int
    listener_failures: dict[str, int]
    tier: TierMetrics | None
    tier_away: bool
    tier_failing: frozenset[object]
    throttled_ms: int


class _Row(NamedTuple, Generic[T]):
    """A metric, and the function that reads its value from a part of the state. It returns None without a value."""

    metric: Metric
    read: Callable[[T], float | None]


class _LogState(NamedTuple):
    log: Log
    view: LogView
    failing: bool


def _row(
    name: str, doc: str, read: Callable[[T], float | None], labels: tuple[str, ...] = (), kafka: str = ""
) -> _Row[T]:
    """Return the row of a counter if the name ends with ``_total``, otherwise the row of a gauge."""
    kind = MetricKind.COUNTER if name.endswith("_total") else MetricKind.GAUGE
    return _Row(Metric(f"stratalog_{name}", kind, doc, labels, kafka), read)


def _labelled(label: str, *rows: _Row[T]) -> tuple[_Row[T], ...]:
    """Return the rows of metrics whose samples differ in the value of one label."""
    return tuple(_Row(replace(row.metric, labels=(label,)), row.read) for row in rows)


def _log_row(name: str, doc: str, read: Callable[[_LogState], float | None], kafka: str = "") -> _Row[_LogState]:
    return _row(f"log_{name}", doc, read, ("topic", "partition"), kafka)


def _lag(state: _LogState, measure: Callable[[Sequence[Segment], int], int]) -> int | None:
    if state.view.remote is None:
        return None
    tier_end = state.view.remote.end_offset
    return measure(segments_to_offload(state.view, tier_end), tier_end)


def _tier_row(name: str, doc: str, read: Callable[[RemoteView], float], kafka: str = "") -> _Row[_LogState]:
    """Return the row of a metric that has a value only for logs with a tier."""
    return _log_row(name, doc, lambda state: None if state.view.remote is None else read(state.view.remote), kafka)


def _latency(name: str, doc: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"stratalog_{name}_seconds", MetricKind.HISTOGRAM, doc, labels)


# One entry for each metric, not one line for each argument:
# fmt: off
_ENGINE: Final[tuple[_Row[EngineState], ...]] = (
    _row("logs", "Number of open logs.", lambda state: len(state.logs), kafka="PartitionCount"),
    _row("failed_logs", "Number of logs that could not be opened.", lambda state: state.failed_logs),
    _row("tier_available", "1 if the engine uses its tier; 0 if the store has been unavailable since the engine opened.",
        lambda state: None if state.tier is None else int(not state.tier_away)),
    _row("open_files", "Number of open file descriptors and maps.", lambda state: state.open_files),
    _row("offload_throttled_milliseconds_total",
        "Time that uploads have waited because of remote.log.manager.copy.max.bytes.per.second.",
        lambda state: None if state.tier is None else state.throttled_ms, kafka="remote-copy-throttle-time"),
)
_DIRS: Final[tuple[_Row[bool], ...]] = _labelled("path",
    _row("log_dir_offline", "1 if the log directory is out of service.", int, kafka="LogDirectoryOffline"),
)
_LOGS: Final[tuple[_Row[_LogState], ...]] = (
    _log_row("start_offset", "Log start offset.", lambda state: state.view.offsets.log_start, "LogStartOffset"),
    _log_row("local_start_offset", "First offset on local disk.", lambda state: state.view.offsets.local_log_start),
    _log_row("last_stable_offset", "Last stable offset: read_committed readers see records below it.",
        lambda state: state.view.offsets.last_stable),
    _log_row("high_watermark_offset", "High watermark: readers see records below it.",
        lambda state: state.view.offsets.high_watermark),
    _log_row("recovery_point_offset", "Recovery point: records below it survive a power loss.",
        lambda state: state.view.offsets.recovery_point),
    _log_row("end_offset", "Log end offset: offset of the next record.",
        lambda state: state.view.offsets.log_end, "LogEndOffset"),
    _log_row("local_segments", "Number of segments on local disk.",
        lambda state: len(state.view.segments), "NumLogSegments"),
    _log_row("local_bytes", "Size of the segments on local disk.",
        lambda state: sum(segment.size_bytes for segment in state.view.segments), "Size"),
    _log_row("leader_epoch", "Current leader epoch of the log.", lambda state: state.view.leader_epoch),
    _log_row("leading", "1 if the log is the leader, 0 if it is a follower.", lambda state: int(state.view.is_leader)),
    _log_row("failed", "1 if the log is out of service after an error.", lambda state: int(not state.log.healthy)),
    _log_row("uncleanable",
        "1 if the local or the tier part of the log is excluded from compaction, because a compaction round failed "
        "or a cleanup policy is wrong.",
        lambda state: int(
            bool(state.log.maintenance.cleaning.local.uncleanable or state.log.maintenance.cleaning.tier.uncleanable)
        ),
        "uncleanable-partitions-count"),
    _tier_row("tier_end_offset", "End offset of the records that are committed to the tier.",
        lambda remote: remote.end_offset),
    _tier_row("tier_segments", "Number of segments in the tier.",
        lambda remote: len(remote.segments), "RemoteLogMetadataCount"),
    _log_row("tier_lag_segments", "Number of closed segments that are not offloaded yet.",
        lambda state: _lag(state, lambda waiting, _: len(waiting)), "RemoteCopyLagSegments"),
    _log_row("tier_lag_bytes", "Size of the closed segments that are not offloaded yet.",
        lambda state: _lag(state, lag_bytes), "RemoteCopyLagBytes"),
    _log_row("tier_failing", "1 if the last offload failed.",
        lambda state: None if state.view.remote is None else int(state.failing)),
)
_DUTIES: Final[tuple[_Row[DutyStatus], ...]] = _labelled("duty",
    _row("duty_runs_total", "Number of runs of a background duty.", lambda duty: duty.runs),
    _row("duty_failures_total", "Number of failed runs of a background duty.", lambda duty: duty.failures),
    _row("duty_failing_runs", "Number of failed runs since the last successful one.", lambda duty: duty.failing),
)
_LISTENERS: Final[tuple[_Row[int], ...]] = _labelled("plugin",
    _row("listener_failures_total", "Number of exceptions that a plugin's listeners raised.", float),
)
_REQUESTS: Final[tuple[_Row[RequestMetrics], ...]] = _labelled("kind",
    _row("tier_requests_total", "Number of requests to the store, including retries.", lambda kind: kind.requests),
    _row("tier_request_failures_total", "Number of failed requests.", lambda kind: kind.failures),
    _row("tier_request_retries_total", "Number of retries.", lambda kind: kind.retries),
    _row("tier_moved_bytes_total", "Bytes that successful requests transferred.", lambda kind: kind.moved_bytes),
)
_CACHES: Final[tuple[_Row[CacheMetrics], ...]] = _labelled("cache",
    _row("tier_cache_bytes", "Bytes in a cache.", lambda cache: cache.size_bytes),
    _row("tier_cache_items", "Number of items in a cache.", lambda cache: cache.items),
    _row("tier_cache_hits_total", "Number of lookups that found their item in a cache.", lambda cache: cache.hits),
    _row("tier_cache_misses_total", "Number of lookups that did not find their item in a cache.",
        lambda cache: cache.misses),
)
_LATENCIES: Final[tuple[tuple[Metric, Callable[[Latencies], Mapping[tuple[str, ...], Latency]]], ...]] = (
    (_latency("append", "Latency of a successful append to a leader, with the wait for the sync if it is durable."),
        lambda latencies: {(): latencies.append}),
    (_latency("fetch", "Latency of a successful fetch, from local disk or the tier."),
        lambda latencies: {(): latencies.fetch}),
    (_latency("offload", "Latency of an offload of the waiting segments of one log."),
        lambda latencies: {(): latencies.offload}),
    (_latency("tier_request", "Latency of a request to the store; each retry is a request.", ("kind",)),
        lambda latencies: {(kind,): latency for kind, latency in latencies.requests.items()}),
)
# fmt: on
METRICS: Final[tuple[Metric, ...]] = (
    *(row.metric for rows in (_ENGINE, _DIRS, _LOGS, _DUTIES, _LISTENERS, _REQUESTS, _CACHES) for row in rows),
    *(metric for metric, _ in _LATENCIES),
)


def samples(state: EngineState) -> Iterator[Sample]:
    """Iterate over the samples of all metrics except latencies, grouped by metric."""
    yield from _read(_ENGINE, [((), state)])
    offline = {directory.store.path(): directory.failure is not None for directory in state.dirs}
    offline |= dict.fromkeys(state.unreached, True)
    yield from _read(_DIRS, [((path,), is_offline) for path, is_offline in offline.items()])
    yield from _read(
        _LOGS,
        [
            ((log.name.topic, str(log.name.partition)), _LogState(log, log.view(), log.name in state.tier_failing))
            for log in state.logs
        ],
    )
    yield from _read(_DUTIES, [((duty.name,), duty) for duty in state.duties])
    yield from _read(_LISTENERS, [((plugin,), count) for plugin, count in state.listener_failures.items()])
    if state.tier is not None:
        store = state.tier.store
        yield from _read(_REQUESTS, [((kind.name,), getattr(store, kind.name)) for kind in fields(StoreMetrics)])
        yield from _read(_CACHES, [(("chunks",), state.tier.chunks), (("indexes",), state.tier.indexes)])


def histograms(latencies: Latencies) -> Iterator[HistogramSample]:
    """Iterate over the latency histograms, grouped by metric."""
    for metric, read in _LATENCIES:
        for labels, latency in read(latencies).items():
            yield HistogramSample(metric, labels, *latency.snapshot())


def _read(rows: Iterable[_Row[T]], subjects: Sequence[tuple[tuple[str, ...], T]]) -> Iterator[Sample]:
    for metric, read in rows:
        for labels, subject in subjects:
            value = read(subject)
            if value is not None:
                yield Sample(metric, labels, value)
