"""Statistics of whole topics: records, bytes, keys and times of each partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from stratalog import TopicPartition
from stratalog.reading import DamagedRange, MissingRange, OffsetRange, ReadSource, Scanned, Split, plan_splits, scan
from stratalog_spark.jobs.sketch import KeySketch, TimeSketch
from stratalog_spark.keys.hashes import DIFFERENT_KINDS, KIND, hash_keys
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import SparkJobError, TaskProgress, run_tasks, source_of, task_count

_SECRET: Final = bytes(16)  # not a secret: colliding keys could only falsify the count
_FIRST: Final = 0
_LAST: Final = 1 << 62
_COLUMNS: Final = (
    "records", "log_bytes", "key_bytes", "value_bytes", "keys", "without_key", "tombstones", "first_offset",
    "last_offset"
)  # fmt: skip


@dataclass(slots=True)
class PartitionStats:
    """Statistics of one partition.

    ``first_offset`` and ``last_offset`` are inclusive; both are None if there are no records.

    Attributes:
        records: number of data records, without control records.
        log_bytes: approximate stored size of the ``.log`` files that the job reads.
        without_key: number of records whose key is null.
        tombstones: number of records whose value is null.
        without_time: number of records without a timestamp.
        damaged: number of corrupt batches, which the job skips.
        lost: number of offsets that were removed while the job ran.
    """

    log: TopicPartition
    records: int = 0
    log_bytes: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    without_key: int = 0
    tombstones: int = 0
    without_time: int = 0
    damaged: int = 0
    lost: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    key_sketch: KeySketch = field(default_factory=KeySketch, repr=False)
    times: TimeSketch = field(default_factory=TimeSketch, repr=False)

    @property
    def keys(self) -> int:
        """Approximate number of distinct keys, with a standard error of 1.6 %."""
        return self.key_sketch.count()

    @property
    def first_ms(self) -> int | None:
        """Smallest timestamp (ms since 1970); None if no record has a timestamp."""
        return self.times.first_ms

    @property
    def last_ms(self) -> int | None:
        """Largest timestamp (ms since 1970); None if no record has a timestamp."""
        return self.times.last_ms

    def add(self, batch: Any) -> None:
        """Count the records of a ``pyarrow.RecordBatch`` with the schema ``arrow_schema()`` and at least one record."""
        keys, values, times = batch.column("key"), batch.column("value"), batch.column("timestamp")
        offsets = batch.column("offset")
        self.records += batch.num_rows
        self.key_bytes += pc.sum(pc.binary_length(keys)).as_py() or 0
        self.value_bytes += pc.sum(pc.binary_length(values)).as_py() or 0
        self.without_key += keys.null_count
        self.tombstones += values.null_count
        self.without_time += times.null_count
        self._include(offsets[0].as_py(), offsets[-1].as_py())
        present_keys = keys.drop_null() if keys.null_count else keys
        self.key_sketch.add(hash_keys(present_keys, _SECRET))
        present_times = times.drop_null() if times.null_count else times
        self.times.add(present_times.cast("int64").to_numpy() // 1000)

    def merge(self, other: PartitionStats) -> None:
        """Add another task's counts of this partition. ``log_bytes`` is not added, because the driver counts it."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.first_offset is not None and other.last_offset is not None:
            self._include(other.first_offset, other.last_offset)
        self.key_sketch.merge(other.key_sketch)
        self.times.merge(other.times)

    def row(self) -> dict[str, object]:
        """Return the statistics as a row of a table: values by column name, with times as text."""
        return {
            "topic": self.log.topic,
            "partition": self.log.partition,
            **{name: getattr(self, name) for name in _COLUMNS},
            "first_time": time_text(self.first_ms),
            "last_time": time_text(self.last_ms),
            "damaged": self.damaged,
        }

    def _include(self, first_offset: int, last_offset: int) -> None:
        self.first_offset = first_offset if self.first_offset is None else min(first_offset, self.first_offset)
        self.last_offset = last_offset if self.last_offset is None else max(last_offset, self.last_offset)


_SUMS: Final = tuple(item.name for item in fields(PartitionStats) if item.default == 0 and item.name != "log_bytes")


def time_text(time_ms: int | None) -> str | None:
    """Return a time as ISO 8601 in UTC with seconds; None for None; ``NUMBER ms`` for a time outside the calendar."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def stats(
    spark: SparkSession,
    source: ReadSource | str,
    *,
    topics: Iterable[str] | None = None,
    isolation: str = "read_uncommitted",
    progress: TaskProgress | None = None,
) -> list[PartitionStats]:
    """Count all records of a directory or tier. Return one result for each partition, sorted by partition.

    The job skips corrupt batches, and the result contains their number.

    The isolation level ``read_committed`` skips records that are not committed. ``stratalog_spark.jobs`` describes the
    other arguments.

    Raises:
        UnknownTopicError: a topic does not exist.
        StorageError: the source cannot be read.
        SparkJobError: a task failed, or only some workers have the compiled code of stratalog.
    """
    read_source = source_of(source)
    with read_source.open(peek=True) as reader:
        partitions = partitions_of_topics(reader, topics)
        ranges = [OffsetRange(partition, _FIRST, _LAST) for partition in partitions]
        splits = plan_splits(reader, ranges, isolation=isolation, usual_splits=task_count(spark))
    stats_by_log = {partition: PartitionStats(partition) for partition in partitions}
    for split in splits:
        for piece in split.pieces:
            stats_by_log[piece.log].log_bytes += piece.span_bytes

    def work(split: Split) -> tuple[int, list[PartitionStats]]:
        return KIND, _count(read_source, split)

    results = run_tasks(spark, splits, work, task=Split, result=tuple[int, list[PartitionStats]], progress=progress)
    if len({kind for kind, _ in results}) > 1:
        raise SparkJobError(DIFFERENT_KINDS)
    for part in (part for _, parts in results for part in parts):
        stats_by_log[part.log].merge(part)
    return [stats_by_log[partition] for partition in partitions]


def _count(source: ReadSource, split: Split) -> list[PartitionStats]:
    """Return the statistics of each partition in one split. Called in a task."""
    stats_by_log = {piece.log: PartitionStats(piece.log) for piece in split.pieces}

    def on_damage(damage: DamagedRange) -> None:
        stats_by_log[damage.log].damaged += 1

    def on_loss(loss: MissingRange) -> None:
        stats_by_log[loss.log].lost += loss.end - loss.start

    scanned: Scanned
    for scanned in scan(source, split, on_damage=on_damage, on_loss=on_loss):
        stats_by_log[scanned.log].add(scanned.batch)
    return list(stats_by_log.values())
