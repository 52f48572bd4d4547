"""Export of topics to Parquet. Each run exports the records since the previous run, each record exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from pyspark.sql import SparkSession

from stratalog import Isolation, Progress, Reader, TopicPartition
from stratalog.errors import ConfigError, OffsetOutOfRangeError
from stratalog.reading import MissingRange, OffsetRange, ReadSource, Split, plan_splits, scan
from stratalog_spark.exporting.export_rows import ExportRows, value_style
from stratalog_spark.exporting.iceberg import IcebergTable
from stratalog_spark.exporting.ledger import Ledger, Plan, Target
from stratalog_spark.parquet.parquet_files import PeriodWriter, clear_invalid_times, period_folders
from stratalog_spark.read.plan import plan_segments
from stratalog_spark.read.ranges import partitions_of_topics
from stratalog_spark.tasks.run_tasks import ByteCount, group_by_size, run_tasks, source_of, task_count

SCHEMAS: Final = ("raw", "json", "avro")
PERIODS: Final = ("date", "hour", "none")
# dictionaries for repeated values, delta encoding for ascending numbers
_PARQUET: Final = {
    "use_dictionary": ["key", "partition", "timestampType", "leaderEpoch"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["partition", "offset", "timestamp", "topic"],
    "coerce_timestamps": "us",
}
_File = tuple[str, int, int]
"""An exported file: its name below the destination, its number of rows, and its size in bytes."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Result of one call of ``export``: of an interrupted run that the call completed, and of a new run.

    Attributes:
        run: number of the last run that the call completed; 0 if there was nothing to do.
        resumed: number of earlier incomplete runs that the call completed first: 0 or 1.
        rows: number of rows that the call wrote, including those of the resumed run.
        size_bytes: size of all files that the call wrote.
        files: names of these files below the destination.
        malformed: number of rows whose value could not be parsed; their column ``malformed`` contains the value.
        lost: number of offsets whose records were deleted before their export.
        ends: exclusive end offset up to which each partition is exported now.
    """

    run: int
    resumed: int
    rows: int
    size_bytes: int
    files: tuple[str, ...]
    malformed: int
    lost: int
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Range:
    """Range of a log that a task exports. The names of its files contain ``start`` and ``end``.

    ``split`` describes where the records are stored.
    """

    log: TopicPartition
    start: int
    end: int
    split: Split


@dataclass(frozen=True, slots=True)
class _Exported:
    """Result of the export of one range: files, number of malformed values, and number of lost offsets."""

    files: list[_File]
    malformed: int
    lost: int


def export(
    spark: SparkSession,
    source: ReadSource | str,
    destination: str,
    *,
    topics: Iterable[str] | None = None,
    schema: str = "raw",
    fields: Any = None,
    avro_schemas: Mapping[int | None, object] | None = None,
    partition_by: str = "date",
    compression: str = "zstd",
    isolation: str = "read_committed",
    fail_on_loss: bool = True,
    options: Mapping[str, object] | None = None,
    iceberg: IcebergTable | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write new records of topics as Parquet files: ``topic=T/date=YYYY-MM-DD/T-PARTITION-START-END.parquet``.

    Each record is in exactly one file, even after failures and repeated calls. Each run first writes a plan of its
    offsets to the destination. The plan determines the file names. If a call fails, the next call first writes the same
    files. Run only one export at a time to a destination. On a local disk and on S3, a second concurrent export does no
    damage.

    Args:
        spark: a session, classic or Connect.
        source: a directory or the URI of a tier, or a source with credentials.
        destination: a folder, or a URI of an fsspec file system; all workers must reach it.
        topics: topics to export; None means all topics.
        schema: ``raw`` exports the value unchanged. ``json`` and ``avro`` export it as a struct; if a value cannot be
            parsed, the column ``malformed`` contains it.
        fields: for ``json``: a ``pyarrow.Schema`` of the fields. If it is None, the first run infers the schema from
            about 1,000 records, and all later runs use this schema.
        avro_schemas: for ``avro``: see ``AvroValues``.
        partition_by: ``date`` or ``hour`` of the record's timestamp, in UTC, or ``none``.
        compression: codec of the Parquet files: ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``.
        isolation: isolation level. ``read_uncommitted`` may export records of transactions that are aborted later.
        fail_on_loss: True to raise an error if records were deleted before their export. False to count them in
            ``lost``.
        options: options for fsspec and the destination; they may be credentials, and are never printed.
        iceberg: table to which each run adds its files, as one snapshot. Folders are then named ``T/YYYY-MM-DD``, and a
            column contains the topic.
        progress: called with two sizes of ``.log`` files in bytes: exported by completed tasks, and of all tasks.

    Raises:
        ConfigError: an argument is invalid, or differs from the earlier exports to this destination.
        OffsetOutOfRangeError: records were deleted before their export, and ``fail_on_loss`` is True; or a log ends
            before the offsets of an incomplete run.
        UnknownTopicError: a topic does not exist.
        PluginImportError: fastavro or pyiceberg is needed, and is not installed.
        StorageError, OSError: the source cannot be read, or the destination cannot be written.
        SparkJobError: a task failed; run the export again.
    """
    for name, value, choices in (("schema", schema, SCHEMAS), ("partition_by", partition_by, PERIODS)):
        if value not in choices:
            raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}")
    read_source, target = source_of(source), Target(destination, tuple((options or {}).items()))
    ledger = Ledger(target)
    run = _Run(spark, read_source, target, ledger, fail_on_loss=fail_on_loss, progress=progress)
    with read_source.open(peek=True) as reader:
        partitions = partitions_of_topics(reader, topics)
        last, is_done = ledger.last()
        style: dict[str, object] = {
            "schema": schema,
            "partition_by": partition_by,
            "compression": compression,
            "isolation": isolation,
            "layout": "hive" if iceberg is None else "iceberg",
        }
        ids = {partition.topic: str(reader.log(*partition).topic_id) for partition in partitions}
        resumed = 0
        if last is not None:
            ledger.check(last, style, ids)
            style = dict(last.style)
            if not is_done:
                run.carry_out(last, reader)
                resumed = 1
        else:
            style |= value_style(reader, partitions, schema, fields, avro_schemas)
        plan = run.next_plan(last, style, ids, reader, partitions)
    if plan is None:
        plan = last
    else:
        plan = ledger.begin(plan)  # if a concurrent run has stored its plan first, this is that plan
        with read_source.open(peek=True) as reader:
            run.carry_out(plan, reader)
    if iceberg is not None and plan is not None:
        iceberg.catch_up(ledger)
    return run.report(plan, resumed)


class _Run:
    """The runs that one call of ``export`` carries out, and the sum of their results."""

    def __init__(
        self,
        spark: SparkSession,
        source: ReadSource,
        target: Target,
        ledger: Ledger,
        *,
        fail_on_loss: bool,
        progress: Progress | None,
    ) -> None:
        self._spark, self._source, self._target, self._ledger = spark, source, target, ledger
        self._fail_on_loss, self._byte_count = fail_on_loss, ByteCount(progress)
        self._exported: list[_Exported] = []
        self._lost_offsets = self._number = 0  # lost offsets below the log start; the tasks count others

    def next_plan(
        self,
        last: Plan | None,
        style: Mapping[str, object],
        ids: Mapping[str, str],
        reader: Reader,
        partitions: Sequence[TopicPartition],
    ) -> Plan | None:
        """Return a plan for the records after the plan ``last``; None if there are no such records.

        If records were deleted before their export, raise OffsetOutOfRangeError. If ``fail_on_loss`` is False, count
        their offsets as lost instead.
        """
        exported_ends, isolation = {} if last is None else dict(last.ends), str(style["isolation"])
        ranges, ends = list[OffsetRange](), dict(exported_ends)
        for partition in partitions:
            offsets = reader.log(*partition).offsets()
            first, end = exported_ends.get(partition, offsets.log_start), offsets.bound(Isolation.of(isolation))
            if first < offsets.log_start:
                if self._fail_on_loss:
                    raise OffsetOutOfRangeError(str(partition), first, offsets.log_start, end)
                self._lost_offsets += offsets.log_start - first
                first = offsets.log_start
            if first < end:
                ranges.append(OffsetRange(partition, first, end))
            ends[partition] = max(first, end)  # partitions without records, too: an import creates all partitions
        if not ranges:
            return None
        splits = plan_splits(reader, ranges, isolation=isolation, usual_splits=task_count(self._spark))
        number = 1 if last is None else last.number + 1
        return Plan(
            number, style, {**({} if last is None else last.topic_ids), **ids}, tuple(_plan_ranges(splits)), ends
        )

    def carry_out(self, plan: Plan, reader: Reader) -> None:
        """Write all files of a plan, mark the plan as done, and add the results to the report.

        Raises:
            ConfigError: a topic was deleted and created again after the plan was made.
            OffsetOutOfRangeError: records of the plan cannot be read now; see ``_check_available``.
            SparkJobError: a task failed; the plan is not marked as done.
        """
        source, target, style, allow_loss = self._source, self._target, dict(plan.style), not self._fail_on_loss

        def work(ranges: list[_Range]) -> list[_Exported]:
            return [_write(source, target, log_range, style, allow_loss=allow_loss) for log_range in ranges]

        self._ledger.check(plan, {}, {log.topic: str(reader.log(*log).topic_id) for log, _, _ in plan.ranges})
        self._lost_offsets += _check_available(plan, reader, allow_loss=allow_loss)
        tasks = list(_tasks(plan, reader, task_count(self._spark)))
        with self._byte_count.count_tasks(
            sum(log_range.split.size_bytes for log_range in task) for task in tasks
        ) as progress:
            parts = run_tasks(self._spark, tasks, work, task=list[_Range], result=list[_Exported], progress=progress)
        exported_ranges = [exported for part in parts for exported in part]
        files = sorted(file for exported in exported_ranges for file in exported.files)
        self._ledger.finish(plan, [{"name": name, "rows": rows, "bytes": size} for name, rows, size in files])
        self._exported += exported_ranges
        self._number = plan.number

    def report(self, plan: Plan | None, resumed: int) -> ExportReport:
        """Return the sum of the results of all plans. ``plan`` is the last plan of the destination, if there is one."""
        files = [file for exported in self._exported for file in exported.files]
        return ExportReport(
            run=self._number,
            resumed=resumed,
            rows=sum(rows for _, rows, _ in files),
            size_bytes=sum(size for _, _, size in files),
            files=tuple(sorted(name for name, _, _ in files)),
            malformed=sum(exported.malformed for exported in self._exported),
            lost=self._lost_offsets + sum(exported.lost for exported in self._exported),
            ends={} if plan is None else dict(plan.ends),
        )


def _plan_ranges(splits: Iterable[Split]) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield the ranges of a plan: for each split, each log in the split with start and end offset (exclusive)."""
    for split in splits:
        for log, pieces in groupby(split.pieces, key=lambda piece: piece.log):
            log_pieces = list(pieces)
            yield log, log_pieces[0].start, log_pieces[-1].end


def _check_available(plan: Plan, reader: Reader, *, allow_loss: bool) -> int:
    """Return the number of offsets of a plan that are below the log start offsets.

    Raise OffsetOutOfRangeError if the end of a range is above the end offset of its log. If ``allow_loss`` is False,
    raise it also if a range begins below the log start.
    """
    lost = 0
    for log, start, end in plan.ranges:
        offsets = reader.log(*log).offsets()
        bound = offsets.bound(Isolation.of(str(plan.style["isolation"])))
        if end > bound or (start < offsets.log_start and not allow_loss):
            raise OffsetOutOfRangeError(str(log), start if start < offsets.log_start else end, offsets.log_start, bound)
        lost += max(min(end, offsets.log_start) - start, 0)
    return lost


def _tasks(plan: Plan, reader: Reader, tasks: int) -> Iterator[list[_Range]]:
    """Yield the input of each task: ranges of a plan, with their splits. Small ranges share a task."""
    isolation = Isolation.of(str(plan.style["isolation"]))
    ranges = []
    for log, start, end in plan.ranges:
        pieces = plan_segments(reader, [OffsetRange(log, start, end)], isolation)
        ranges.append(_Range(log, start, end, Split(tuple(pieces), isolation)))
    least_bytes = -(-sum(log_range.split.size_bytes for log_range in ranges) // max(tasks, 1))
    return group_by_size(ranges, lambda log_range: log_range.split.size_bytes, least_bytes)


def _write(
    source: ReadSource, target: Target, log_range: _Range, style: Mapping[str, object], *, allow_loss: bool
) -> _Exported:
    """Export one range. Called in a task."""
    lost_ranges: list[MissingRange] = []
    partition_by, hive = str(style["partition_by"]), style["layout"] == "hive"

    def name(period: int | None) -> str:
        folders = [("topic", log_range.log.topic), *period_folders(period, partition_by)]
        folder_names = [f"{key}={value}" if hive else value for key, value in folders]
        return "/".join([*folder_names, f"{log_range.log}-{log_range.start:020}-{log_range.end:020}"])

    options = {"compression": style["compression"], **_PARQUET}
    rows = ExportRows(style)
    scanned = scan(source, log_range.split, on_loss=lost_ranges.append if allow_loss else None)
    with PeriodWriter(target.put, name, partition_by=partition_by, column="timestamp", options=options) as writer:
        for batch in map(rows.convert, scanned):
            writer.write(batch if hive else clear_invalid_times(batch))
        files = [(file.name, file.rows, file.size_bytes) for file in writer.finish()]
    return _Exported(files, rows.malformed, sum(loss.end - loss.start for loss in lost_ranges))
