"""Erasure of keys: the job rewrites each segment of a tier that contains records of the keys without these records.

The keys are divided into sets that fit in memory, and the sets are erased one after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from stratalog import Reader, RecordColumns, TopicPartition
from stratalog.errors import ConfigError, StorageError
from stratalog.reading import OffsetRange, Piece, ReadSource, Split, plan_splits, scan
from stratalog.spi import Env, Fields, RecordFilter, Verdict
from stratalog.writing import BulkWriter, ReplaceSpan, Rewritten, WriteTarget
from stratalog_spark.jobs.runs import Replaced, Run, plan_runs, publish, rewrite, target_of
from stratalog_spark.keys.key_set import KeySet
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import TaskProgress, run_tasks, source_of, task_count

Place = tuple[TopicPartition, int]
"""A segment, identified by its log and its base offset."""
MEMORY_BYTES: Final = 128 << 20
_LEAST_BYTES: Final = 1 << 10
_NO_END: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class EraseReport:
    """Result of an erasure: numbers of records and segments with the keys, and the changed logs.

    Attributes:
        records: number of records with the keys, by log. Aborted records count, too.
        segments: number of segments that contained such records.
        logs: replaced offset ranges, one for each run of neighbouring segments; empty in a dry run.
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
    memory_bytes: int = MEMORY_BYTES,
    progress: TaskProgress | None = None,
) -> EraseReport:
    """Erase all records of some keys in all closed segments of topics.

    If the job fails, repeat it: the next job erases the remaining records. Offsets, headers and markers of the
    remaining records do not change. Aborted records are dropped from rewritten segments. Earlier states of the tier
    still contain the keys. The collector deletes the old objects after ``tier.history.ms`` and the grace time.

    Args:
        spark: a session, classic or Connect.
        tier: URI of the tier, or a source with credentials.
        keys: keys in bytes. The job reads them one by one. If ``keys`` contains a key more than once, a dry run may
            count its records more than once.
        topics: topics to erase from; None means all topics.
        take_over: fence the engine that wrote to the tier; use it only after that engine has stopped.
        dry_run: only count the records; change nothing.
        memory_bytes: approximate memory for keys of the driver and of each task. Each key needs 64 bytes. If all keys
            need more memory, the job erases them in several sets, and reads the keys of all records once for each set.
        progress: called with the numbers of completed tasks and of all tasks.

    Raises:
        ConfigError: ``tier`` is not a tier, there are no keys, or ``memory_bytes`` is below 1 KiB.
        UnknownTopicError: a topic does not exist.
        FencedEpochError: an engine writes to a topic, or has records that are not in the tier.
        StorageError: another program replaced segments of a log while the job ran. The job did not change this log. Run
            the job again.
        SparkJobError: a task failed. The keys of earlier sets are erased.
    """
    if memory_bytes < _LEAST_BYTES:
        raise ConfigError(f"an erasure needs {_LEAST_BYTES} bytes of memory or more for keys, not {memory_bytes}")
    source, topics = source_of(tier), None if topics is None else tuple(topics)
    target = target_of(source, take_over=take_over)
    records, places, replaced, rounds = dict[TopicPartition, int](), set[Place](), list[Replaced](), 0
    for key_set in KeySet.split_keys(keys, memory_bytes):
        rounds += 1
        with source.open(peek=True) as reader:
            counts = _count_records(spark, reader, source, key_set, partitions_of_topics(reader, topics), progress)
            places |= counts.keys()
            for (log, _), count in counts.items():
                records[log] = records.get(log, 0) + count
            if counts and not dry_run:
                with target.open() as writer:
                    spans = [span for log, bases in _group_by_log(counts) for span in _spans(writer, log, bases)]
                    replaced += _erase(spark, reader, target, writer, spans, key_set, progress=progress)
    if not rounds:
        raise ConfigError("no keys to erase are given")
    return EraseReport(records, len(places), tuple(replaced))


def _count_records(
    spark: SparkSession,
    reader: Reader,
    source: ReadSource,
    key_set: KeySet,
    logs: Iterable[TopicPartition],
    progress: TaskProgress | None,
) -> dict[Place, int]:
    """Return the number of records with the keys in each segment that has such records."""

    def count_keys(split: Split) -> dict[Place, int]:
        return _count_split(source, split, key_set)

    live_splits = plan_splits(reader, [OffsetRange(name, 0, _NO_END) for name in logs], usual_splits=task_count(spark))
    splits = list(_add_deleted(live_splits))
    counts = dict[Place, int]()
    for part in run_tasks(spark, splits, count_keys, task=Split, result=dict[Place, int], progress=progress):
        for place, count in part.items():
            counts[place] = counts.get(place, 0) + count
    return counts


def _add_deleted(splits: Iterable[Split]) -> Iterator[Split]:
    """Yield the splits of whole logs, extended to the records below the log start in the first segment of each log.

    Readers do not return records below the log start, but the segment contains them until all its records are deleted.
    """
    seen_logs = set[TopicPartition]()
    for split in splits:
        pieces = list[Piece]()
        for piece in split.pieces:
            is_first = piece.log not in seen_logs
            seen_logs.add(piece.log)
            pieces.append(piece._replace(start=piece.base_offset, position=0) if is_first else piece)
        yield replace(split, pieces=tuple(pieces))


def _group_by_log(places: Iterable[Place]) -> Iterator[tuple[TopicPartition, set[int]]]:
    """Yield each log with the base offsets of its segments, in the order of the logs."""
    for log, group in groupby(sorted(places), key=itemgetter(0)):
        yield log, {base for _, base in group}


def _count_split(source: ReadSource, split: Split, key_set: KeySet) -> dict[Place, int]:
    """Return the number of records with the keys in each segment of a split that has such records."""
    counts = dict[Place, int]()
    bases = {
        log: sorted({piece.base_offset for piece in split.pieces if piece.log == log})
        for log in {p.log for p in split.pieces}
    }
    for log, batch in scan(source, split, columns=("offset", "key")):
        offsets = batch.column("offset").to_numpy()[key_set.contains(batch.column("key"))]
        for offset in offsets.tolist():
            place = log, bases[log][bisect_right(bases[log], offset) - 1]
            counts[place] = counts.get(place, 0) + 1
    return counts


def _spans(writer: BulkWriter, log: TopicPartition, bases: set[int]) -> Iterator[ReplaceSpan]:
    """Yield one span for each group of neighbouring segments. ``bases`` contains the base offsets of the segments.

    Raises:
        StorageError: some of these segments have been replaced. Segments that retention has deleted are ignored.
    """
    log_span = writer.span(log)
    borders = [] if log_span is None else list(log_span.borders)
    if any(base > borders[0] for base in bases.difference(borders) if borders):
        raise StorageError(f"segments of {log} were replaced while the job searched for the keys").advised(
            "run it again"
        )
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
    target: WriteTarget,
    writer: BulkWriter,
    spans: Sequence[ReplaceSpan],
    keys: KeySet,
    *,
    progress: TaskProgress | None,
) -> tuple[Replaced, ...]:
    runs = plan_runs(reader, spans, tasks=task_count(spark))
    now_ms = Env().clock.now_ms()

    def work(task_writer: BulkWriter, run: Run) -> Rewritten:
        return task_writer.rewrite(
            run.span, (run.start, run.end), [Without(keys)], now_ms=now_ms, keeps_tombstones=True
        )

    parts = rewrite(spark, target, runs, work, task=Run, progress=progress)
    return publish(writer, spans, parts, f"{len(keys)} keys erased by a job")


class Without(RecordFilter):
    """Filter that drops the records of some keys."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.KEY

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    def observe(self, records: RecordColumns) -> int:
        """Return the number of records. The filter stores nothing."""
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: DROP for the keys of the filter, KEEP for other keys and for null."""
        is_erased = self._keys.contains(pa.array(records.keys(), pa.binary()))
        codes: Any = np.where(is_erased, np.uint8(Verdict.DROP), np.uint8(Verdict.KEEP))
        verdicts[: records.count] = codes.tobytes()
