"""Runs of whole segments of a tier. One task of a job reads and rewrites one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from stratalog import Isolation, Reader, TopicPartition
from stratalog.errors import ConfigError, StorageError
from stratalog.reading import OffsetRange, Piece, ReadSource, Split
from stratalog.writing import BulkWriter, ReplaceSpan, Rewritten, WriteTarget
from stratalog_spark.read.plan import plan_segments
from stratalog_spark.tasks.messages import Message
from stratalog_spark.tasks.run_tasks import TaskProgress, run_tasks, source_of, task_count

SMALLEST_RUN_BYTES: Final = 4 << 20
LARGEST_RUN_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """Whole segments of one log, with the offsets [start, end). One task reads and rewrites them.

    Attributes:
        span: the span that the job replaces. It contains the segments of the run.
        split: split with the records of the run; without pieces if one task compacts the whole span.
    """

    span: ReplaceSpan
    start: int
    end: int
    split: Split


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of segments of one span. One task merges each group into one segment."""

    span: ReplaceSpan
    groups: tuple[tuple[int, int], ...]


T = TypeVar("T", Run, Groups)
REWRITTEN: Final = Message(Rewritten)


@dataclass(frozen=True, slots=True)
class Replaced:
    """Result of a job for one span of a log: counts of the replaced segments (before) and the new segments (after).

    ``bytes_before`` and ``bytes_after`` are sizes of ``.log`` files.
    """

    log: TopicPartition
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


@dataclass(frozen=True, slots=True)
class ReplaceReport:
    """Result of a job: one item for each replaced span of a log."""

    logs: tuple[Replaced, ...]


@dataclass(frozen=True, slots=True)
class ReplaceJob:
    """A job that replaces segments of a tier, with arguments that all these jobs have (see ``stratalog_spark.jobs``)."""

    spark: SparkSession
    source: ReadSource
    target: WriteTarget
    progress: TaskProgress | None

    @classmethod
    def of(
        cls, spark: SparkSession, tier: ReadSource | str, *, take_over: bool, progress: TaskProgress | None
    ) -> ReplaceJob:
        """Return a job for the arguments of its function.

        Raise ConfigError if ``tier`` is not a tier, or is an earlier state of a tier (``as_of``).
        """
        source = source_of(tier)
        target = WriteTarget(
            source.location, tier_options=source.tier_options, config=source.config, take_over=take_over
        )
        if not target.is_tier or source.as_of is not None:
            raise ConfigError(
                "segments can be replaced only in the current state of a tier: give its URI without as_of"
            )
        return cls(spark, source, target, progress)

    def rewrite(
        self, tasks: Sequence[T], work: Callable[[BulkWriter, T], Rewritten], task: type[T]
    ) -> list[tuple[ReplaceSpan, Rewritten]]:
        """Run ``work`` on each item of ``tasks``, in a task with a writer of the tier.

        Return spans and results in order. Raises the errors of ``run_tasks``.
        """
        target = self.target

        def run(item: T) -> Rewritten:
            with target.open() as writer:
                return work(writer, item)

        parts = run_tasks(self.spark, tasks, run, task=task, result=Rewritten, progress=self.progress)
        return [(item.span, part) for item, part in zip(tasks, parts, strict=True)]

    def replace(
        self,
        reader: Reader,
        writer: BulkWriter,
        spans: Sequence[ReplaceSpan],
        work: Callable[[BulkWriter, Run], Rewritten],
        reason: str,
        *,
        keeps_others: bool = False,
    ) -> tuple[Replaced, ...]:
        """Run ``work`` on each run of the spans, and publish the new segments. Raises the errors of ``publish``."""
        runs = plan_runs(reader, spans, tasks=task_count(self.spark))
        return publish(writer, spans, self.rewrite(runs, work, Run), reason, keeps_others=keeps_others)


def run_bytes(total: int, tasks: int) -> int:
    """Return the target size of one task's segments: an equal share of ``total``, but 4 MiB to 128 MiB."""
    return min(max(-(-total // max(tasks, 1)), SMALLEST_RUN_BYTES), LARGEST_RUN_BYTES)


def plan_runs(reader: Reader, spans: Iterable[ReplaceSpan], *, tasks: int) -> list[Run]:
    """Divide spans into runs of about equal size (see ``run_bytes``), one run per task.

    Only segments with committed records count for the size of a run. A run of one segment may be larger than
    128 MiB.
    """
    committed = Isolation.READ_COMMITTED
    span_pieces = [
        (span, plan_segments(reader, [OffsetRange(span.log, span.start, span.end)], committed)) for span in spans
    ]
    target_bytes = run_bytes(sum(piece.span_bytes for _, pieces in span_pieces for piece in pieces), tasks)
    return [
        Run(span, start, end, Split(tuple(part), committed))
        for span, pieces in span_pieces
        for start, end, part in _cut(span, pieces, target_bytes)
    ]


def _cut(span: ReplaceSpan, pieces: Sequence[Piece], target_bytes: int) -> Iterator[tuple[int, int, list[Piece]]]:
    borders, start, part, part_bytes = set(span.borders), span.start, list[Piece](), 0
    for piece in pieces:
        if part and part_bytes + piece.span_bytes > target_bytes and piece.base_offset in borders:
            yield start, piece.base_offset, part
            start, part, part_bytes = piece.base_offset, [], 0
        part.append(piece)
        part_bytes += piece.span_bytes
    yield start, span.end, part


def publish(
    writer: BulkWriter,
    spans: Sequence[ReplaceSpan],
    parts: Sequence[tuple[ReplaceSpan, Rewritten]],
    reason: str,
    *,
    is_clean: bool = False,
    keeps_others: bool = False,
) -> tuple[Replaced, ...]:
    """Replace the segments of each span by one commit. Return a result for each replaced span.

    If the replacement of a span fails, its new segments are discarded, and the other spans are still replaced.

    ``parts`` is the result of ``ReplaceJob.rewrite``. The commit stores ``reason``, a text for people. ``is_clean`` is
    True if the spans are now compacted. If ``keeps_others`` is True, segments that no task replaced are kept, and a span
    without new segments gets no commit.

    Raises:
        StorageError: a span was not replaced. If several spans fail, the first error is raised. Its note contains the
            number of replaced spans.
    """
    errors, replaced = list[StorageError](), list[Replaced]()
    for span in spans:
        span_parts = [part for of_span, part in parts if of_span == span]
        new_segments = [segment for part in span_parts for segment in part.staged]
        if keeps_others and not new_segments:
            continue
        first_dirty = span.end if is_clean else None
        try:
            writer.replace(span, new_segments, reason=reason, first_dirty_offset=first_dirty, keeps_others=keeps_others)
        except StorageError as error:
            errors.append(error)
            writer.discard(new_segments)
            continue
        replaced.append(
            Replaced(
                span.log,
                sum(part.records_read for part in span_parts),
                sum(part.records_kept for part in span_parts),
                sum(part.bytes_read for part in span_parts),
                sum(part.bytes_written for part in span_parts),
                sum(part.segments for part in span_parts),
                len(new_segments),
            )
        )
    if errors:
        errors[0].add_note(f"{len(replaced)} of {len(spans)} ranges were replaced; run it again for the others")
        raise errors[0]
    return tuple(replaced)
