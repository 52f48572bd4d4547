"""Erasure of keys: the job rewrites each segment of a tier that contains records of the keys without these records.

The keys are divided into sets that fit in memory, and the sets are erased one after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
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
from stratalog.writing import BulkWriter, ReplaceSpan, Rewritten
from stratalog_spark.jobs.runs import Replaced, ReplaceJob, Run
from stratalog_spark.keys.key_set import KeySet
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import TaskProgress, run_tasks, task_count

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

    The job reads ``keys`` one by one. If ``keys`` contains a key more than once, a dry run may count its records more
    than once. A dry run only counts the records, and changes nothing.

    ``memory_bytes``, at least 1 KiB, is the approximate memory for keys of the driver and of each task. Each key needs
    64 bytes. If all keys need more memory, the job erases them in several sets, and reads the keys of all records once
    for each set. If a task fails, the keys of earlier sets are erased. ``stratalog_spark.jobs`` describes the other
    arguments and the errors.
    """
    if memory_bytes < _LEAST_BYTES:
        raise ConfigError(f"an erasure needs {_LEAST_BYTES} bytes of memory or more for keys, not {memory_bytes}")
    job = ReplaceJob.of(spark, tier, take_over=take_over, progress=progress)
    topics = None if topics is None else tuple(topics)  # read once for each set of keys
    records, places, replaced, rounds = Counter[TopicPartition](), set[Place](), list[Replaced](), 0
    for key_set in KeySet.split_keys(keys, memory_bytes):
        rounds += 1
        with job.source.open(peek=True) as reader:
            counts = _count_records(job, reader, key_set, partitions_of_topics(reader, topics))
            places |= counts.keys()
            for (log, _), count in counts.items():
                records[log] += count
            if counts and not dry_run:
                with job.target.open() as writer:
                    replaced += _erase(job, reader, writer, counts, key_set)
    if not rounds:
        raise ConfigError("no keys to erase are given")
    return EraseReport(dict(records), len(places), tuple(replaced))


def _count_records(job: ReplaceJob, reader: Reader, key_set: KeySet, logs: Iterable[TopicPartition]) -> Counter[Place]:
    """Return the number of records with the keys in each segment that has such records."""
    source = job.source

    def count_keys(split: Split) -> dict[Place, int]:
        split_counts = Counter[Place]()
        bases = {
            log: sorted({piece.base_offset for piece in split.pieces if piece.log == log})
            for log in {piece.log for piece in split.pieces}
        }
        for log, batch in scan(source, split, columns=("offset", "key")):
            offsets = batch.column("offset").to_numpy()[key_set.contains(batch.column("key"))]
            split_counts.update((log, bases[log][bisect_right(bases[log], offset) - 1]) for offset in offsets.tolist())
        return dict(split_counts)

    ranges = [OffsetRange(name, 0, _NO_END) for name in logs]
    splits = list(_add_deleted(plan_splits(reader, ranges, usual_splits=task_count(job.spark))))
    counts = Counter[Place]()
    for part in run_tasks(job.spark, splits, count_keys, task=Split, result=dict[Place, int], progress=job.progress):
        counts.update(part)
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
    job: ReplaceJob, reader: Reader, writer: BulkWriter, places: Iterable[Place], keys: KeySet
) -> tuple[Replaced, ...]:
    spans = [
        span
        for log, log_places in groupby(sorted(places), key=itemgetter(0))
        for span in _spans(writer, log, {base for _, base in log_places})
    ]
    now_ms = Env().clock.now_ms()

    def work(task_writer: BulkWriter, run: Run) -> Rewritten:
        return task_writer.rewrite(
            run.span, (run.start, run.end), [Without(keys)], now_ms=now_ms, keeps_tombstones=True
        )

    return job.replace(reader, writer, spans, work, f"{len(keys)} keys erased by a job")


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
