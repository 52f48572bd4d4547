"""Compaction of whole topics of a tier. The number of keys is not limited. Values never pass through the JVM.

One task compacts a small log like the cleaner of an engine. A larger log is compacted in three steps:

1. First pass, one task for each run (neighbouring segments): find the latest offset of each key in the run, and send
   these offsets with the hashes of the keys. Each message contains the keys of one bucket of hashes.
2. Between the passes, for each bucket: find the latest offset of each key in the whole log, and send to the task of
   each run the offsets that it keeps.
3. Second pass, one task for each run: rewrite the segments of the run.

Afterwards, one commit for each partition replaces the segments. A task needs memory for one bucket, which does not
depend on the number of keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stratalog import Isolation, RecordColumns
from stratalog.errors import ConfigError
from stratalog.reading import ReadSource, Split, scan
from stratalog.spi import Env, Fields, RecordFilter, Verdict
from stratalog.writing import BulkWriter, ReplaceSpan, Rewritten, WriteTarget
from stratalog_spark.jobs.packing import (
    pack_newest,
    pack_offsets,
    partition_keys,
    split_buckets,
    unpack_newest,
    unpack_offsets,
)
from stratalog_spark.jobs.runs import REWRITTEN, Replaced, ReplaceJob, Run, plan_runs, publish
from stratalog_spark.keys.hashes import SECRET_BYTES, hash_keys
from stratalog_spark.keys.newest import Newest, key_table
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.messages import Message
from stratalog_spark.tasks.run_tasks import TaskProgress, convert_errors, frame_of_tasks, task_count, watch_progress
from stratalog_spark.tasks.worker import freeze_once

MEMORY_BYTES: Final = 128 << 20  # the numbers below are for this memory, and are reduced in proportion for less memory
_LEAST_BYTES: Final = 1 << 20
# largest offset range of a log that one task compacts: 56 MiB are enough for all keys
ALONE_RECORDS: Final = 1 << 21
ALONE_BYTES: Final = 256 << 20  # one task compacts this size in the time that the three steps need to start
_ALONE_RECORD_BYTES: Final = 28
BUCKET_RECORDS: Final = 1 << 20  # 24 MiB of hashes and offsets, and about 96 MiB to sort them
_TABLE_KEYS: Final = 1 << 20
_HASHES_DDL: Final = "place int, bucket int, run int, blob binary"
_OFFSETS_DDL: Final = "place int, run int, shuffled bigint, blob binary"
_RESULT_DDL: Final = "run int, shuffled bigint, rewritten string"


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Result of a compaction: the result of each log, and the size in bytes of all messages between the passes."""

    logs: tuple[Replaced, ...]
    shuffled_bytes: int

    @property
    def records_before(self) -> int:
        """Number of records that the job read in all logs."""
        return sum(replaced.records_before for replaced in self.logs)

    @property
    def records_after(self) -> int:
        """Number of records that the job kept in all logs."""
        return sum(replaced.records_after for replaced in self.logs)


def compact(
    spark: SparkSession,
    tier: ReadSource | str,
    *,
    topics: Iterable[str],
    take_over: bool = False,
    any_policy: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    progress: TaskProgress | None = None,
) -> CompactReport:
    """Keep only the latest record of each key in all closed segments of topics, like the cleaner of an engine.

    Offsets and headers of kept records, and control batches do not change. Aborted records and records without a key
    are dropped. A tombstone is dropped when ``delete.retention.ms`` has passed since the first compaction that read it.
    Segments whose end offset (exclusive) is above the last stable offset are not rewritten.

    Unless ``any_policy`` is True, the ``cleanup.policy`` of the topics must contain ``compact``. ``memory_bytes``, at
    least 1 MiB, is the approximate memory of a task for keys. In addition, a task needs about 20 MiB, and 24 bytes for
    each record of its segments. A task has segments of up to 128 MiB, or one larger segment. With less memory, tasks
    exchange more messages, and the result is the same. ``stratalog_spark.jobs`` describes the other arguments and the
    errors.
    """
    if memory_bytes < _LEAST_BYTES:
        raise ConfigError(f"tasks need {_LEAST_BYTES} bytes of memory or more for keys, not {memory_bytes}")
    job, share = ReplaceJob.of(spark, tier, take_over=take_over, progress=progress), memory_bytes / MEMORY_BYTES
    with job.target.open() as writer, job.source.open(peek=True) as reader:
        spans = list[ReplaceSpan]()
        for log in partitions_of_topics(reader, topics):
            if "compact" not in writer.config(log.topic).cleanup_policy and not any_policy:
                raise ConfigError(
                    f"cleanup.policy of {log.topic} does not contain compact: set any_policy to compact the topic "
                    "nevertheless"
                )
            span = writer.span(log, 0, reader.log(*log).offsets().last_stable)
            if span is not None:
                spans.append(span)
        all_runs = plan_runs(reader, spans, tasks=task_count(spark))
        alone_records = int(ALONE_RECORDS * share)
        single_runs, runs = _divide_runs(all_runs, alone_records)
        now_ms, shuffled_bytes = Env().clock.now_ms(), 0

        def compact_alone(task_writer: BulkWriter, run: Run) -> Rewritten:
            return task_writer.compact(run.span, now_ms=now_ms, memory_bytes=_ALONE_RECORD_BYTES * alone_records)

        parts = job.rewrite(single_runs, compact_alone, Run)
        if runs:
            large_spans = tuple(span for span in spans if any(run.span == span for run in runs))
            compaction = CompactionWork(
                job.source, job.target, tuple(runs), large_spans, secrets.token_bytes(SECRET_BYTES), now_ms, share
            )
            with convert_errors(), watch_progress(spark, progress):
                rows = compaction.frame(spark).toArrow().to_pylist()
            by_run = {row["run"]: REWRITTEN.unpack(row["rewritten"]) for row in rows}
            parts += [(run.span, by_run[number]) for number, run in enumerate(runs)]
            shuffled_bytes = sum(row["shuffled"] for row in rows)
        replaced = publish(writer, spans, parts, "compacted by a job", is_clean=True)
    return CompactReport(replaced, shuffled_bytes)


def _divide_runs(all_runs: Sequence[Run], alone_records: int) -> tuple[list[Run], list[Run]]:
    """Return two lists: one run per log that a single task compacts, largest first; and all runs of larger logs."""
    runs_by_span: dict[ReplaceSpan, list[Run]] = {}
    for run in all_runs:
        runs_by_span.setdefault(run.span, []).append(run)
    sizes = {span: sum(run.split.size_bytes for run in runs) for span, runs in runs_by_span.items()}
    small = {span for span, size in sizes.items() if span.end - span.start <= alone_records and size <= ALONE_BYTES}
    single_runs = [
        Run(span, span.start, span.end, Split((), Isolation.READ_COMMITTED))
        for span in sorted(small, key=sizes.__getitem__, reverse=True)
    ]
    return single_runs, [run for run in all_runs if run.span not in small]


@dataclass(frozen=True, slots=True)
class CompactionWork:
    """The three steps of a compaction of large logs, with the data that the tasks need. Can be pickled."""

    source: ReadSource
    target: WriteTarget
    runs: tuple[Run, ...]
    spans: tuple[ReplaceSpan, ...]
    secret: bytes = field(repr=False)
    now_ms: int
    share: float  # memory of a task in proportion to MEMORY_BYTES

    def __reduce__(self) -> tuple[object, ...]:
        plan = _PLAN.pack((self.runs, self.spans))
        return _work, (self.source, self.target, plan, self.secret, self.now_ms, self.share)

    @property
    def buckets(self) -> list[tuple[int, int]]:
        """For each span, the number of its first bucket, and the number of hash bits that choose one of its buckets."""
        buckets, first, bucket_records = [], 0, max(int(BUCKET_RECORDS * self.share), 1)
        for span in self.spans:
            bits = max((span.end - span.start - 1) // bucket_records, 0).bit_length()
            buckets.append((first, bits))
            first += 1 << bits
        return buckets

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the DataFrame that executes the three steps, with one row for each run.

        A row contains the number of the run, the size in bytes of its messages, and its packed ``Rewritten``.
        """
        buckets = self.buckets
        total = buckets[-1][0] + (1 << buckets[-1][1])
        merge_tasks, write_tasks = min(total, task_count(spark)), len(self.runs)
        bucket_places, run_places = partition_keys(merge_tasks), partition_keys(write_tasks)

        def hash_run(number: int) -> Iterator[pa.RecordBatch]:
            return self.hash_run(number, bucket_places)

        # Spark counts the arguments of applyInArrow's functions, so they cannot be bound methods
        def merge_bucket(messages: Any) -> Any:
            return self.merge_bucket(messages, run_places)

        def write_run(messages: Any) -> Any:
            return self.write_run(messages)

        hash_frame = frame_of_tasks(spark, write_tasks, hash_run, _HASHES_DDL)
        kept_frame = (
            hash_frame.repartition(merge_tasks, "place")
            .groupBy("place", "bucket")
            .applyInArrow(merge_bucket, _OFFSETS_DDL)
        )
        return kept_frame.repartition(write_tasks, "place").groupBy("place", "run").applyInArrow(write_run, _RESULT_DDL)

    # --- in tasks ----------------------------------------------------------------------------------------------------

    def hash_run(self, number: int, places: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Run the first pass for one run: yield messages with the latest offset of each key, each for one bucket.

        If a run has more keys than fit in the task's memory, a key can be in several messages of its bucket.
        """
        run, table, max_keys = self.runs[number], key_table(), max(int(_TABLE_KEYS * self.share), 1)
        for scanned in scan(self.source, run.split):
            keys, offsets = scanned.batch.column("key"), scanned.batch.column("offset").to_numpy()
            table.add(hash_keys(keys, self.secret), offsets)
            if len(table) >= max_keys:
                yield self._messages(number, table.rows(), places)
                table = key_table()
        yield self._messages(number, table.rows(), places)

    def _messages(self, number: int, newest: Newest, places: Sequence[int]) -> pa.RecordBatch:
        run = self.runs[number]
        first, bits = self.buckets[self.spans.index(run.span)]
        rows = [
            (first + bucket, pack_newest(part, run.start))
            for bucket, part in enumerate(split_buckets(newest, bits))
            if len(part.offsets) or not bucket  # each run needs a message, even if it keeps nothing
        ]
        return pa.RecordBatch.from_pydict(
            {
                "place": pa.array([places[bucket % len(places)] for bucket, _ in rows], pa.int32()),
                "bucket": pa.array([bucket for bucket, _ in rows], pa.int32()),
                "run": pa.array([number] * len(rows), pa.int32()),
                "blob": pa.array([blob for _, blob in rows], pa.binary()),
            }
        )

    def merge_bucket(self, messages: Any, run_places: Sequence[int]) -> Any:
        """Run the step between the passes for the messages of one bucket: return the offsets that each run keeps.

        ``run_places`` has one item for each run: the value of column ``place`` that sends a row to the run's task in
        the second pass. The result is a table with one row for each run that has a message in the bucket.
        """
        freeze_once()
        numbers = messages["run"].to_pylist()
        blobs = messages["blob"].to_pylist()
        shuffled_bytes, table = sum(len(blob) for blob in blobs), key_table()
        for number, blob in zip(numbers, blobs, strict=True):
            part = unpack_newest(blob, self.runs[number].start)
            table.add(part.hashes, part.offsets)
        kept_offsets = np.sort(table.rows().offsets)
        rows = []
        for number in sorted(set(numbers)):  # all runs are of one log, and each offset is in exactly one run
            run = self.runs[number]
            bounds: Any = np.searchsorted(kept_offsets, (run.start, run.end))
            rows.append(
                (
                    run_places[number],
                    number,
                    shuffled_bytes,
                    pack_offsets(kept_offsets[bounds[0] : bounds[1]], run.start),
                )
            )
            shuffled_bytes = 0
        columns = list(zip(*rows, strict=True))
        kinds = (pa.int32(), pa.int32(), pa.int64(), pa.binary())
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return pa.Table.from_arrays(arrays, names=["place", "run", "shuffled", "blob"])

    def write_run(self, messages: Any) -> Any:
        """Run the second pass for one run: stage new segments with only the records that are kept.

        Return one row: the number of the run, the size in bytes of its messages, and the packed ``Rewritten``.
        """
        freeze_once()
        number = messages["run"][0].as_py()
        run, blobs = self.runs[number], messages["blob"].to_pylist()
        kept_offsets = np.sort(np.concatenate([unpack_offsets(blob, run.start) for blob in blobs]))
        with self.target.open() as writer:
            rewritten = writer.rewrite(run.span, (run.start, run.end), [Survivors(kept_offsets)], now_ms=self.now_ms)
        shuffled_bytes = sum(messages["shuffled"].to_pylist()) + sum(len(blob) for blob in blobs)
        return pa.table(
            {
                "run": pa.array([number], pa.int32()),
                "shuffled": pa.array([shuffled_bytes], pa.int64()),
                "rewritten": [REWRITTEN.pack(rewritten)],
            }
        )


_PLAN: Final = Message(tuple[tuple[Run, ...], tuple[ReplaceSpan, ...]])


def _work(
    source: ReadSource, target: WriteTarget, plan: str, secret: bytes, now_ms: int, share: float
) -> CompactionWork:
    """Return an unpickled CompactionWork. In the pickle, the plan is the text of a message."""
    runs, spans = _PLAN.unpack(plan)
    return CompactionWork(source, target, runs, spans, secret, now_ms, share)


class Survivors(RecordFilter):
    """Filter that keeps only the records with the given offsets, an ascending array of int64."""

    fields: ClassVar[Fields] = Fields.OFFSET | Fields.VALUE

    def __init__(self, offsets: Any) -> None:
        self._offsets = offsets

    def observe(self, records: RecordColumns) -> int:
        """Return the number of records. The filter stores nothing."""
        return records.count

    def judge(self, records: RecordColumns, verdicts: bytearray) -> None:
        """Write one verdict per record: DROP for offsets not in the filter. A kept tombstone gets DROP_AT_HORIZON."""
        if not records.count:
            return
        offsets = np.frombuffer(records.offset, np.int64)
        bounds: Any = np.searchsorted(self._offsets, (offsets[0], offsets[-1] + 1))
        kept_offsets = self._offsets[bounds[0] : bounds[1]]
        rows: Any = np.searchsorted(offsets, kept_offsets)
        rows = rows[offsets[rows] == kept_offsets]
        codes: Any = np.full(records.count, Verdict.DROP, np.uint8)
        is_tombstone = np.frombuffer(records.value_size, np.int32)[rows] < 0
        codes[rows] = np.where(is_tombstone, np.uint8(Verdict.DROP_AT_HORIZON), np.uint8(Verdict.KEEP))
        verdicts[: records.count] = codes.tobytes()
