"""Erasure of keys: segments of a tier that hold their records are rewritten without these, over the whole history."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Final

from pyspark.sql import SparkSession

from stratalog import Reader, RecordColumns, TopicPartition
from stratalog.errors import ConfigError
from stratalog.reading import OffsetRange, ReadSource, Split, plan_splits, scan
from stratalog.spi import Env, Fields, RecordFilter, Verdict
from stratalog.writing import BulkWriter, ReplaceSpan, Rewritten
from stratalog_spark.jobs.runs import RUN, Replaced, Run, plan_runs, publish, target_of
from stratalog_spark.jobs.tasks import Progress, run_tasks, source_of, task_count
from stratalog_spark.messages import REWRITTEN, SPLIT, Message
from stratalog_spark.ranges import topics_of

_ALL = 1 << 62
_HELD: Final = Message[dict[tuple[TopicPartition, int], int]]("held", dict[tuple[TopicPartition, int], int])


@dataclass(frozen=True, slots=True)
class EraseReport:
    """Records found, and logs changed.

    Attributes:
        records: records of the keys, by log, including those of aborted transactions.
        segments: number of segments that held such records.
        logs: replaced ranges: one commit for each run of neighbouring segments; empty in a dry run.
    """

    records: dict[TopicPartition, int]
    segments: int
    logs: tuple[Replaced, ...]


def erase(
    spark: SparkSession,
    tier: ReadSource | str,
    keys: Iterable[bytes],
    *,
    topics: Iterable[str] | None = None,
    take_over: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> EraseReport:
    """Erase all records of some keys in all closed segments of topics. A repeated run finds what a failed one left.

    Offsets, headers and markers of the remaining records do not change. Aborted records are dropped from rewritten
    segments. Earlier states of the tier hold the keys until ``tier.history.ms`` and the grace time have passed and the
    collector has deleted them.

    Args:
        spark: a session, classic or Connect.
        tier: URI of the tier, or a source with credentials.
        keys: keys in bytes.
        topics: topics to erase from; None means all.
        take_over: fence the engine that wrote to the tier; use it only after that engine has stopped.
        dry_run: only report.
        progress: called with the progress of tasks.

    Raises:
        ConfigError: there are no keys, or it is no tier.
        Others as ``compact``.
    """
    source, wanted = source_of(tier), sorted(set(keys))
    if not wanted:
        raise ConfigError("no keys to erase are given")
    target = target_of(source, take_over=take_over)

    def look(split: Split) -> dict[tuple[TopicPartition, int], int]:
        return _found(source, split, wanted)

    with source.open(peek=True) as reader:
        names = topics_of(reader, topics)
        ranges = [OffsetRange(name, 0, _ALL) for name in names]
        splits = plan_splits(reader, ranges, usual_splits=task_count(spark))
        held: dict[tuple[TopicPartition, int], int] = {}
        for part in run_tasks(spark, splits, look, task=SPLIT, result=_HELD, progress=progress):
            for place, count in part.items():
                held[place] = held.get(place, 0) + count
        records: dict[TopicPartition, int] = {}
        for (log, _), count in held.items():
            records[log] = records.get(log, 0) + count
        done: tuple[Replaced, ...] = ()
        if held and not dry_run:
            with target.open() as writer:
                bases = {log: {base for name, base in held if name == log} for log in records}
                spans = [span for log in sorted(bases) for span in _spans(writer, log, bases[log])]
                done = _erase(spark, reader, source, writer, spans, wanted, take_over=take_over, progress=progress)
    return EraseReport(records, len(held), done)


def _found(source: ReadSource, split: Split, keys: Sequence[bytes]) -> dict[tuple[TopicPartition, int], int]:
    """Return the number of records of the keys for each segment that holds any, by log and base offset."""
    pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
    wanted, found = pa.array(keys, pa.binary()), dict[tuple[TopicPartition, int], int]()
    bases = {
        log: sorted({piece.base_offset for piece in split.pieces if piece.log == log})
        for log in {p.log for p in split.pieces}
    }
    for log, batch in scan(source, split):
        matches = compute.is_in(batch.column("key"), value_set=wanted)
        offsets: list[int] = batch.column("offset").filter(matches).to_pylist()  # type: ignore[assignment]  # none is null
        for offset in offsets:
            place = log, bases[log][bisect_right(bases[log], offset) - 1]
            found[place] = found.get(place, 0) + 1
    return found


def _spans(writer: BulkWriter, log: TopicPartition, bases: set[int]) -> Iterator[ReplaceSpan]:
    """Yield runs of neighbouring segments with these base offsets."""
    whole = writer.span(log)
    borders = [] if whole is None else list(whole.borders)
    start: int | None = None
    for base in borders:
        if base in bases and base != borders[-1]:
            start = base if start is None else start
        elif start is not None:
            span = writer.span(log, start, base)
            if span is not None:
                yield span
            start = None


def _erase(
    spark: SparkSession,
    reader: Reader,
    source: ReadSource,
    writer: BulkWriter,
    spans: Sequence[ReplaceSpan],
    keys: Sequence[bytes],
    *,
    take_over: bool,
    progress: Progress | None,
) -> tuple[Replaced, ...]:
    runs = plan_runs(reader, spans, tasks=task_count(spark))
    target, now_ms = target_of(source, take_over=take_over), Env().clock.now_ms()

    def work(run: Run) -> Rewritten:
        with target.open() as opened:
            part = run.start, run.end
            return opened.rewrite(run.span, part, [Without(keys)], now_ms=now_ms, keeps_tombstones=True)

    parts = run_tasks(spark, runs, work, task=RUN, result=REWRITTEN, progress=progress)
    return publish(writer, spans, runs, parts, f"{len(keys)} keys erased by a job")


class Without(RecordFilter):
    """Keeps all records except those of some keys."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = frozenset(keys)

    def observe(self, records: RecordColumns) -> int:
        """Return the number of records: there is nothing to observe."""
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record."""
        for row, key in enumerate(records.keys()):
            verdicts[row] = Verdict.DROP if key in self._keys else Verdict.KEEP
