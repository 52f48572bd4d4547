"""Cleanup policies. A policy plans actions, and the core executes the plan. Policies have no state and do no I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from stratalog.config.topic import TopicConfig
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.model.records import Fields, RecordColumns


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One segment in a ``LogSummary``, with the offsets [base_offset, end_offset).

    ``age_from_ms`` is the largest record timestamp, or the file's modification time if no record has a timestamp. A
    segment may be ``is_local``, ``is_remote``, or both. ``is_active`` is True for the segment that receives appends.

    A closed segment is dirty if its end offset (exclusive) is above ``dirty_start`` (local) or ``tier_dirty_start``
    (tier) of the LogSummary. ``first_timestamp_ms`` is the largest timestamp of a dirty segment's first batch. It is -1
    if that batch has no timestamp, or if the core did not read the batch. The core reads it only before it plans
    compaction of a topic that sets ``max.compaction.lag.ms``, and only in the dirty segments on local disk and the
    first dirty segment of the tier.

    A segment in the tier can overlap local segments that have other base and end offsets. Then ``size_bytes`` of the
    segment in the tier is an estimate of its bytes that are not on local disk. Therefore a sum over all segments counts
    no byte twice.

    If a tier has very many segments, the manifest lists them in pages. One summary with ``is_page`` then represents all
    segments of a page, and has the ``age_from_ms`` of the newest segment in the page. If the first segment that a plan
    does not delete is in a page, the core calls the policy again, with one summary for each segment up to the end
    offset of that page.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    age_from_ms: int
    is_local: bool
    is_remote: bool
    is_active: bool
    first_timestamp_ms: int = -1
    is_page: bool = False


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A log with all its local and remote segments, oldest first. It is the input of a policy's plan.

    Segments do not overlap, with one exception: the last segment in the tier may overlap local segments that have other
    base and end offsets. ``has_tier`` is True if closed segments of the topic are offloaded.

    The tier part of a log consists of the segments with ``is_remote``, and the local part of all others. The two parts
    are compacted separately. ``dirty_start`` is the first offset of the local part that was not compacted yet, from the
    cleaner's checkpoint; None if the local part was never compacted. It can be below the log start or above the log end
    if records were deleted after the checkpoint was written. ``tier_dirty_start`` is the first offset of the tier part
    that was not compacted yet, from the manifest; 0 if it was never compacted.

    ``offsets`` has, among others, ``log_start``, ``last_stable``, ``high_watermark`` and ``log_end``.
    """

    log: TopicPartition
    offsets: LogOffsets
    segments: tuple[SegmentSummary, ...]
    has_tier: bool
    dirty_start: int | None = None
    tier_dirty_start: int = 0

    def rewrites(self, config: TopicConfig) -> list[Action]:
        """Return a Rewrite or Keep for the tier part, then one for the local part.

        A policy can return these actions from ``plan`` if its filter drops a record only because of other records,
        never because of its age. In both parts, the method uses only closed segments whose end offset is above the log
        start, and at or below the last stable offset. A part without such segments has no action. The action is a
        Rewrite if more than ``min.cleanable.dirty.ratio`` of the bytes of these segments are in segments whose end
        offset is above the part's dirty start. Otherwise it is a Keep.
        """
        actions = list[Action]()
        for is_remote, checkpoint in ((True, self.tier_dirty_start), (False, self.dirty_start or 0)):
            part = [
                segment
                for segment in self.segments
                if segment.is_remote == is_remote
                and not segment.is_active
                and self.offsets.log_start < segment.end_offset <= self.offsets.last_stable
            ]
            if not part:
                continue
            start, end = part[0].base_offset, part[-1].end_offset
            dirty_start = max(start, min(checkpoint, end))
            total = sum(segment.size_bytes for segment in part)
            dirty = sum(segment.size_bytes for segment in part if segment.end_offset > dirty_start)
            ratio = dirty / total if total else 0.0
            rule = f"dirty ratio {ratio:.2f}, min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio:g}"
            if ratio > config.min_cleanable_dirty_ratio and dirty_start < end:
                actions.append(Rewrite(start, end, dirty_start, rule, ratio))
            else:
                actions.append(Keep(start, end, f"not dirty enough: {rule}"))
        return actions


@dataclass(frozen=True, slots=True)
class Keep:
    """An action that leaves [start, end) unchanged."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """An action that deletes the records with offsets in [start, end).

    ``start`` is the base offset of the log's first segment. ``end`` is the end offset of a segment or, if the log start
    is inside a segment, the log start.
    """

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """An action that compacts [start, end); ``dirty_start`` is the first offset in it that was not compacted before.

    ``start`` is the base offset of a closed segment, and ``end`` is the end offset of a closed segment. ``end`` is at
    or below the last stable offset, and above ``dirty_start``. Either all segments of the range are in the tier part of
    the log, or all are in its local part (``LogSummary``). A plan may contain one Rewrite for each of the two parts.
    The cleaner runs the Rewrite with the greatest ``dirty_ratio`` (0 to 1) of all logs first.
    """

    start: int
    end: int
    dirty_start: int
    reason: str
    dirty_ratio: float = 0.0


Action: TypeAlias = Keep | DeletePrefix | Rewrite


@dataclass(frozen=True, slots=True)
class RewriteJob:
    """One compaction round, for the record filter. A round compacts the offsets [start, end) of one log once.

    ``dirty_start`` is the first offset that no earlier round compacted. ``memory_bytes`` is the memory that the filter
    may use for its state: ``log.cleaner.dedupe.buffer.size`` divided by ``log.cleaner.threads``. If the state is a hash
    table, ``load_factor`` is the share of its slots that the filter may fill (``log.cleaner.io.buffer.load.factor``).
    ``now_ms`` is the time when the round begins. ``config`` holds the topic's settings, including settings of plugins.

    ``secret`` has 16 bytes. A filter uses it to hash record keys for digest sections (``RecordFilter.digest``). The
    sections of earlier rounds were made with the same secret. The secret is stored only in the log's files. It is empty
    if the round writes no digest files.
    """

    log: TopicPartition
    start: int
    end: int
    dirty_start: int
    now_ms: int
    memory_bytes: int
    load_factor: float = 0.9
    config: TopicConfig = field(default_factory=TopicConfig)
    secret: bytes = b""


class RecordFilter(ABC):
    """A filter that decides which data records compaction keeps. One filter serves one compaction round.

    Only one thread at a time uses a filter, but not always the thread that created the filter.

    A compaction round has two passes. In pass 1 the core calls ``observe`` with all records that the filter observes.
    In pass 2 it calls ``judge`` with the records to decide on. Before both calls, the core removes control batches and
    the batches of aborted transactions. Offsets ascend.

    A digest file describes the kept records of a segment. With it, a later round can skip the segment without reading
    it. A filter with a ``digest_kind`` returns digest sections of the records that it judges. The core stores the
    sections if the round compacts segments on local disk, and if all filters of the round have a ``digest_kind``. In a
    later round, the core passes each section to ``spares`` of a filter with the same ``digest_kind``.

    Attributes:
        fields: the record fields that the filter reads; columns of other fields may be empty.
        observes: the records that ``observe`` gets. "dirty": the records of the dirty range, which is [``dirty_start``,
            ``end``) of the ``RewriteJob``. "part": the records of [``start``, ``end``), in the part of the log that the
            round compacts: the tier or local disk. "log": the records of the whole log, in both parts, up to the last
            stable offset. With "log", a record on local disk can be the reason to drop an older record in the tier. If
            a log is then restored from the tier alone, it lacks both records.
        digest_kind: name of the digest format including its version (at most 64 ASCII characters, persistent); "" if
            the filter makes no digest sections. Then every round reads every segment.
    """

    fields: ClassVar[Fields] = Fields.ALL
    observes: ClassVar[Literal["dirty", "part", "log"]] = "dirty"
    digest_kind: str = ""

    @abstractmethod
    def observe(self, records: RecordColumns) -> int:
        """Add records in order to the filter's state (pass 1 of a compaction round); return how many were added.

        A result below the number of records means that the filter's memory is full. The round then ends before the
        first record that was not added. In two cases the round changes nothing: the filter added no record of the dirty
        range, or its attribute ``observes`` is "log" and it did not add all records. The core then logs a warning, and
        does not compact this part of the log (local or tier) until the log is opened again.
        """

    @abstractmethod
    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one ``Verdict`` for each record into ``verdicts`` (pass 2 of a compaction round).

        The core calls this method with the records of the round in order, without the records of segments for which
        ``spares`` returned True. ``verdicts`` has one byte for each record, initially KEEP. The method must not change
        the size of ``verdicts``. A second call with the same records must write the same verdicts. DROP_AT_HORIZON is
        for tombstones: the core keeps a tombstone for ``delete.retention.ms`` after the first round that read it, and
        then drops it.
        """

    def digest(self, *, end: bool) -> Sequence[bytes]:
        """Return digest sections of the records judged KEEP or DROP_AT_HORIZON since the last call. Default: none.

        A section is a piece of a segment's digest file, in the filter's own format. A later compaction round passes the
        section to ``spares``. The core calls this method several times for each segment that pass 2 writes. Therefore
        the filter need not hold all sections of a segment in memory. ``end`` is True in the last call for a segment:
        return all remaining sections, at least one. The sections must cover all kept records, and may cover further
        records.

        If ``RewriteJob.secret`` is empty, as in compaction rounds over the tier part of a log, the core does not call
        this method. The filter then must not collect sections, because they would only use memory.
        """
        del end
        return ()

    def spares(self, section: memoryview) -> bool:
        """Return True if the filter would drop none of the records that a digest section covers. Default: False.

        The core calls this method after the calls of ``observe``. All records of the section have offsets below the
        dirty range. A filter does not drop a record if its verdict would be KEEP or DROP_AT_HORIZON. If in doubt,
        return False: then the core reads the segment.
        """
        del section
        return False

    @property
    def load(self) -> float:
        """The used share of the filter's memory, from 0 to 1, which the core shows in events and logs. Default: 0."""
        return 0.0


class CleanupPolicy(ABC):
    """A cleanup policy. Thread-safe. A DeletePrefix of one policy has priority over a Rewrite of another policy."""

    @abstractmethod
    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return the actions for a log, each with a reason for people to read; [] plans nothing.

        The ranges of the actions must ascend without overlap, must not be empty, and must be inside the log. A
        DeletePrefix or Rewrite must end at or below the high watermark. At most one action is a DeletePrefix. It must
        contain a whole segment or increase the log start, and must not delete an empty active segment. The plan depends
        only on the arguments, and the policy must not change them. After the core has executed a plan, the next plan
        must not contain the same deletion or rewrite. With a later ``now_ms``, the end of the DeletePrefix must not be
        lower.
        """

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return DeletePrefix actions for local segments. Default: none.

        The core deletes only segments that the tier has. ``log`` contains all local segments, and no segment that only
        the tier has. The core calls this method only if closed segments of the topic are offloaded. If an action ends
        at the log end, the core can close the active segment, which is then offloaded and deleted.
        """
        del log, config, now_ms
        return ()

    def record_filter(self, job: RewriteJob) -> RecordFilter:
        """Return a new filter for one compaction round. Filters must not share state.

        A policy that plans a Rewrite must override this method. The default raises NotImplementedError.
        """
        raise NotImplementedError(f"{type(self).__name__} plans no rewrites, so it has no filter for {job.log}")
