"""Runs of whole segments of a tier: what one task of a job that replaces them reads, and writes anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from stratalog import Isolation, Reader, TopicPartition
from stratalog.errors import ConfigError, StorageError
from stratalog.reading import OffsetRange, Piece, ReadSource, Split, plan_splits
from stratalog.writing import BulkWriter, Rewritten, Span, WriteTarget
from stratalog_spark.messages import Message

SMALLEST_RUN_BYTES: Final = 4 << 20
LARGEST_RUN_BYTES: Final = 128 << 20
_WHOLE: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Run:
    """Segments of one log: offsets [start, end), borders of the span that they are a part of.

    Attributes:
        span: what is replaced.
        start: base offset of the first segment.
        end: end offset of the last one.
        split: how its records are read; None if it has none.
    """

    span: Span
    start: int
    end: int
    split: Split | None

    @property
    def log(self) -> TopicPartition:
        """Whose."""
        return self.span.log


RUN: Final = Message[Run]("run", Run)


class OfSpan(Protocol):
    """What a task did, as far as it is said of which span that is a part."""

    @property
    def span(self) -> Span:
        """What is replaced."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a job did to one log: records and bytes of ``.log`` files in what it replaced, and in what took its place."""

    log: TopicPartition
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


def target_of(source: ReadSource, *, take_over: bool) -> WriteTarget:
    """Where a tier is replaced that is read as ``source``.

    Raises:
        ConfigError: it is no tier, or an earlier state of one.
    """
    target = WriteTarget(source.location, tier_options=source.tier_options, config=source.config, take_over=take_over)
    if not target.is_tier or source.as_of is not None:
        raise ConfigError("what is replaced are segments of a tier as it is now: give its URI, and no as_of")
    return target


def plan_runs(
    reader: Reader, spans: Iterable[Span], *, tasks: int, isolation: str = Isolation.READ_COMMITTED
) -> list[Run]:
    """Cut spans into runs of 4 to 128 MiB, as many as there are tasks if they are so large."""
    held = [(span, _pieces(reader, span, isolation)) for span in spans]
    total = sum(piece.span_bytes for _, pieces in held for piece in pieces)
    target = min(max(-(-total // max(tasks, 1)), SMALLEST_RUN_BYTES), LARGEST_RUN_BYTES)
    seen = Isolation.of(isolation)
    return [
        Run(span, start, end, Split(tuple(part), seen) if part else None)
        for span, pieces in held
        for start, end, part in _cut(span, pieces, target)
    ]


def _pieces(reader: Reader, span: Span, isolation: str) -> list[Piece]:
    """A piece a segment that has bytes."""
    wanted = OffsetRange(span.log, span.start, span.end)
    splits = plan_splits(reader, [wanted], isolation=isolation, split_bytes=_WHOLE)
    return [piece for split in splits for piece in split.pieces]


def _cut(span: Span, pieces: Sequence[Piece], target_bytes: int) -> Iterator[tuple[int, int, list[Piece]]]:
    borders, start, part, held = set(span.borders), span.start, list[Piece](), 0
    for piece in pieces:
        if part and held + piece.span_bytes > target_bytes and piece.base_offset in borders:
            yield start, piece.base_offset, part
            start, part, held = piece.base_offset, [], 0
        part.append(piece)
        held += piece.span_bytes
    yield start, span.end, part


def publish(
    writer: BulkWriter,
    spans: Sequence[Span],
    runs: Sequence[OfSpan],
    parts: Sequence[Rewritten],
    reason: str,
    *,
    is_clean: bool = False,
    keeps_others: bool = False,
) -> tuple[Replaced, ...]:
    """Replace each span by one commit; what fails is discarded, and keeps none of the others from being replaced.

    Args:
        writer: of the tier.
        spans: as planned.
        runs: what each task was given, of all spans.
        parts: what it made.
        reason: for people.
        is_clean: the spans are compacted now.
        keeps_others: what no part takes the place of stays; where that is all of a span, there is nothing to commit.

    Raises:
        StorageError: the first that went wrong; a note says how many spans were replaced.
    """
    failed, done = list[StorageError](), list[Replaced]()
    for span in spans:
        own = [part for run, part in zip(runs, parts, strict=True) if run.span == span]
        staged = [segment for part in own for segment in part.staged]
        if keeps_others and not staged:
            continue
        dirty = span.end if is_clean else None
        try:
            writer.replace(span, staged, reason=reason, first_dirty_offset=dirty, keeps_others=keeps_others)
        except StorageError as error:
            failed.append(error)
            writer.discard(staged)
            continue
        done.append(
            Replaced(
                span.log,
                sum(part.records_read for part in own),
                sum(part.records_kept for part in own),
                sum(part.bytes_read for part in own),
                sum(part.bytes_written for part in own),
                sum(part.segments for part in own),
                len(staged),
            )
        )
    if failed:
        failed[0].add_note(f"{len(done)} of {len(spans)} ranges were replaced; run it again for the others")
        raise failed[0]
    return tuple(done)
