"""State of a log directory or a tier at one time, for the views.

The state has logs, segments on local disk and in the tier, next actions of cleaning, cost and groups. ``collect`` reads
it with a reader, and does not lock or change anything. If a log has more than ``MOST_SPANS`` segments, neighbouring
segments with the same place and next action are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from itertools import groupby
from typing import Final

from stratalog.cleaning.explain.explain import Fate, RangeFate
from stratalog.cleaning.explain.forecast import forecast
from stratalog.cli.tier.pricing import log_bill
from stratalog.client.committed_offsets import CommittedOffsets, lag
from stratalog.env.clock import Clock
from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEntry, LogOffsets
from stratalog.reading.reader import Reader, StaticLog
from stratalog.segment.finding import FindingKind
from stratalog.spi.cleanup import SegmentSummary
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.cost import PART_BYTES, Bill, Prices
from stratalog.tier.upkeep.tier_check import TierLogCheck

MOST_SPANS: Final = 400  # maximum number of spans of one log that are not joined
LONG_MS: Final = 15 * 60_000  # Kafka's default of transaction.max.timeout.ms, after which a broker aborts a transaction

NO_OFFSETS: Final = LogOffsets(0, 0, 0, 0, 0, 0)  # offsets of a log that cannot be read


class Place(StrEnum):
    """Place of a segment: active segment, only on local disk, on local disk and in the tier, or only in the tier."""

    ACTIVE = "active"
    LOCAL = "local"
    BOTH = "both"
    TIER = "tier"


@dataclass(frozen=True, slots=True)
class Span:
    """One segment, or several neighbouring segments: offsets [start, end), records from ``first_ms`` to ``last_ms``.

    ``first_ms`` is the time of the newest record before the span. In the oldest span, ``first_ms`` is the time of its
    first record. -1 means unknown. ``last_ms`` is the time of the newest record in the span. ``fate`` is the next
    action of cleaning, ``when_ms`` the time of this action (None if unknown), and ``reason`` the reason of this action.
    """

    start: int
    end: int
    size_bytes: int
    first_ms: int
    last_ms: int
    place: Place
    fate: Fate = Fate.KEEP
    when_ms: int | None = None
    reason: str = ""
    segments: int = 1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction. ``age_ms`` is the time since the newest record of its producer; -1 if unknown."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    age_ms: int

    @property
    def is_long(self) -> bool:
        """True if ``age_ms`` is above ``LONG_MS``. A broker with default settings aborts a transaction earlier."""
        return self.age_ms > LONG_MS


@dataclass(frozen=True, slots=True)
class TierState:
    """State of a log in a tier.

    Attributes:
        version: version of the manifest root; 0 if there is none.
        end: exclusive end offset of the records in the tier.
        bill: cost of the segments; None if ``Detail.bill`` is False.
        orphans: number of objects to which no root refers, plus the number of unfinished uploads, including uploads in
            progress; None if ``Detail.orphans`` is False.
    """

    version: int
    end: int
    segments: int
    bill: Bill | None = None
    orphans: int | None = None


@dataclass(slots=True)
class LogOverview:
    """State of one log. ``error`` is the reason why the log cannot be read completely, or "".

    Attributes:
        spans: segments on local disk and in the tier, oldest first.
        dirty_ratio: share of the closed segments that is not compacted yet; None if no policy compacts the log.
    """

    name: TopicPartition
    topic_id: str = ""
    offsets: LogOffsets = NO_OFFSETS
    spans: tuple[Span, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    policy: str = ""
    dirty_ratio: float | None = None
    tier: TierState | None = None
    error: str = ""

    @property
    def segments(self) -> int:
        """Number of segments on local disk and in the tier. A segment that is in both places counts once."""
        if self.tier is None:
            return sum(span.segments for span in self.spans)
        local_only = (Place.ACTIVE, Place.LOCAL)
        return self.tier.segments + sum(span.segments for span in self.spans if span.place in local_only)

    @property
    def size_bytes(self) -> int:
        """Size (bytes) of the segments on local disk and in the tier. A segment that is in both places counts once."""
        return self.bytes_in(*Place)

    @property
    def local_bytes(self) -> int:
        """Size (bytes) of the segments on local disk, with or without a copy in the tier."""
        return self.bytes_in(Place.ACTIVE, Place.LOCAL, Place.BOTH)

    @property
    def tier_bytes(self) -> int:
        """Size (bytes) of the segments in the tier, with or without a copy on local disk."""
        return self.bytes_in(Place.BOTH, Place.TIER)

    @property
    def waiting_bytes(self) -> int:
        """Size (bytes) of the closed segments that are not in the tier yet; 0 if the log has no tier."""
        return self.bytes_in(Place.LOCAL) if self.tier is not None else 0

    @property
    def is_empty(self) -> bool:
        """True if the log can be read and has no record."""
        return not self.error and self.offsets.log_start == self.offsets.log_end

    def bytes_in(self, *places: Place) -> int:
        """Return the size (bytes) of the segments in these places."""
        return sum(span.size_bytes for span in self.spans if span.place in places)

    def next_actions(self) -> Iterator[Span]:
        """Yield the spans, oldest first. Neighbours with the same place, next action and reason are joined."""
        for _, alike in groupby(self.spans, key=lambda span: (span.place, span.fate, span.reason)):
            yield reduce(_join, alike)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Committed offset of a group in one partition. ``lag`` is the number of offsets from it to the high watermark.

    ``lag`` is None if the partition is not a log of the reader.
    """

    group: str
    name: TopicPartition
    committed: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Contents of a log directory or a tier at ``time_ms``.

    ``group_error`` is the reason why groups cannot be read, or "".
    """

    location: str
    tier_uri: str
    time_ms: int
    logs: tuple[LogOverview, ...]
    groups: tuple[GroupLag, ...] = ()
    group_error: str = ""

    def topics(self) -> dict[str, list[LogOverview]]:
        """Return the logs by topic; Kafka's internal topics are last."""
        logs_by_topic: dict[str, list[LogOverview]] = {}
        for log in sorted(self.logs, key=lambda log: (log.name.topic.startswith("__"), log.name)):
            logs_by_topic.setdefault(log.name.topic, []).append(log)
        return logs_by_topic


@dataclass(frozen=True, slots=True)
class Detail:
    """Optional work of ``collect``.

    Attributes:
        bill: True to compute the cost of each log in the tier. This reads the whole manifest of the log.
        orphans: True to search for orphans. This lists the objects of each log, and reads every manifest root.
        part_bytes: size of a part of a multipart upload.
    """

    bill: bool = False
    orphans: bool = False
    prices: Prices = field(default_factory=Prices)
    part_bytes: int = PART_BYTES


def collect(reader: Reader, clock: Clock, detail: Detail | None = None) -> Overview:
    """Return the contents of the reader's directory or tier; raise StorageError if they cannot be listed.

    If a log cannot be read, its ``LogOverview`` has the error. Each log is closed before the next log is read, to limit
    the memory.
    """
    detail, now_ms = detail or Detail(), clock.now_ms()
    logs = list[LogOverview]()
    for name in reader.partitions():
        logs.append(collect_log(reader, name, now_ms, detail))
        reader.release(name)
    groups, error = tuple[GroupLag, ...](), ""
    try:
        groups = group_lags(CommittedOffsets(reader), {log.name: log.offsets for log in logs if not log.error})
    except StorageError as failure:
        error = str(failure)
    tier_uri = "" if reader.tier is None else reader.tier.uri
    return Overview(reader.location, tier_uri, now_ms, tuple(logs), groups, error)


def collect_log(reader: Reader, name: TopicPartition, now_ms: int, detail: Detail) -> LogOverview:
    """Return the state of one log. A StorageError is not raised, but becomes the ``error`` of the result."""
    overview = LogOverview(name)
    try:
        log = reader.log(*name)
        overview.topic_id, overview.offsets = str(log.topic_id or ""), log.offsets()
        overview.epochs, overview.transactions = _epochs(log), _transactions(log, now_ms)
        config = reader.topic_config(name)
        has_tier = reader.tier is not None and config.remote_storage_enable
        policies = reader.policies(config)
        plan = forecast(log, config, policies, has_tier=has_tier, now_ms=now_ms, dirty_start=log.dirty_start)
        oldest = next(log.records(log.offsets().log_start), None) if plan.segments else None
        first_ms = -1 if oldest is None else oldest.timestamp_ms
        overview.policy, overview.dirty_ratio = ",".join(config.cleanup_policy), plan.dirty_ratio
        overview.spans = join_spans(_spans(plan.segments, plan.ranges, first_ms))
        if config.remote_storage_enable:
            overview.tier = _tier_state(reader, log, detail)
    except StorageError as error:
        overview.error = str(error)
    return overview


def _spans(segments: Sequence[SegmentSummary], fates: Sequence[RangeFate], first_ms: int) -> Iterator[Span]:
    before_ms = first_ms
    for segment, fate in zip(segments, fates, strict=True):
        bounds = (segment.base_offset, segment.end_offset, segment.size_bytes, before_ms, segment.age_from_ms)
        yield Span(*bounds, _place(segment), fate.fate, fate.when_ms, fate.reason)
        before_ms = max(before_ms, segment.age_from_ms)


def _place(segment: SegmentSummary) -> Place:
    if segment.is_active:
        return Place.ACTIVE
    if segment.is_local:
        return Place.BOTH if segment.is_remote else Place.LOCAL
    return Place.TIER


def join_spans(spans: Iterable[Span], limit: int = MOST_SPANS) -> tuple[Span, ...]:
    """Return the spans. If there are more than ``limit``, join neighbours with the same ``place`` and ``fate``.

    All joined spans have about the same number of segments. The result can have more than ``limit`` spans, because
    neighbours that differ are not joined.
    """
    all_spans = list(spans)
    segments_per_span, result = -(-len(all_spans) // limit), list[Span]()
    for span in all_spans:
        last = result[-1] if result else None
        if (
            last is not None
            and (last.place, last.fate) == (span.place, span.fate)
            and last.segments + span.segments <= segments_per_span
        ):
            result[-1] = _join(last, span)
        else:
            result.append(span)
    return tuple(result)


def _join(older: Span, newer: Span) -> Span:
    """Join two neighbouring spans. The time of the next action is the time of ``newer``."""
    return replace(
        older,
        end=newer.end,
        size_bytes=older.size_bytes + newer.size_bytes,
        last_ms=max(older.last_ms, newer.last_ms),
        when_ms=newer.when_ms,
        segments=older.segments + newer.segments,
    )


def _epochs(log: StaticLog) -> tuple[EpochEntry, ...]:
    view = log.view()
    local, remote = view.epochs.entries, () if view.remote is None else view.remote.leader_epochs
    first = local[0].epoch if local else None
    return (*(entry for entry in remote if first is None or entry.epoch < first), *local)


def _transactions(log: StaticLog, now_ms: int) -> tuple[OpenTransaction, ...]:
    return tuple(
        OpenTransaction(
            entry.producer_id,
            entry.producer_epoch,
            entry.transaction_first_offset,
            max(now_ms - entry.last_timestamp_ms, 0) if entry.last_timestamp_ms >= 0 else -1,
        )
        for entry in log.producers
        if entry.transaction_first_offset >= 0
    )


def tier_log(reader: Reader, log: StaticLog) -> TierLog | None:
    """Return the log of the reader's tier; None if the reader has no tier or the log has no topic id."""
    if reader.tier is None or log.topic_id is None:
        return None
    return reader.tier.log(log.name, log.topic_id)


def _tier_state(reader: Reader, log: StaticLog, detail: Detail) -> TierState | None:
    remote, view = tier_log(reader, log), log.view().remote
    if remote is None:
        return None
    root = None if view is None or not view.version else remote.root
    if root is None or view is None:
        end, segments = (0, 0) if view is None else (view.end_offset, len(view.segments))
        return TierState(0, end, segments)
    bill = log_bill(remote, part_bytes=detail.part_bytes, prices=detail.prices) if detail.bill else None
    orphans = _orphans(remote, log) if detail.orphans else None
    return TierState(root.version, view.end_offset, root.segments, bill, orphans)


def _orphans(remote: TierLog, log: StaticLog) -> int:
    check = TierLogCheck(remote, log.components, contents=False)
    for findings in (check.roots(), check.segments()):
        for _ in findings:  # iterating collects the names of the objects; only `stratalog verify` reports the findings
            pass
    return sum(1 for finding in check.orphans() if finding.kind is FindingKind.ORPHAN)


def group_lags(groups: CommittedOffsets, offsets: Mapping[TopicPartition, LogOffsets]) -> tuple[GroupLag, ...]:
    """Return the committed offsets and lags of all groups, sorted. ``offsets`` are the offsets of the reader's logs."""
    return tuple(
        GroupLag(group, name, committed.offset, lag(offsets[name], committed.offset) if name in offsets else None)
        for group in groups.groups()
        for name, committed in sorted(groups.committed(group).items())
    )
