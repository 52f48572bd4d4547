"""Import of exported Parquet files: each row becomes a record of a topic, exactly once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from stratalog import Progress, TopicPartition
from stratalog.errors import ConfigError
from stratalog.writing import BulkWriter, Published, StagedSegment, WriteMark, WriteTarget
from stratalog_spark.columns.row_columns import convert_rows
from stratalog_spark.exporting.ledger import Ledger, Plan, Target
from stratalog_spark.tasks.run_tasks import ByteCount, run_tasks

_NAME: Final = re.compile(r"(?:.*/)?(?P<topic>.+)-(?P<partition>\d+)-(?P<start>\d{20})-\d{20}(?:-\d+)?\.parquet")
_ROWS: Final = 1 << 14  # maximum number of rows that are encoded together
_BATCH_BYTES: Final = 16 << 20  # maximum size of rows that are encoded together; a single row may be larger
_COLUMNS: Final = ("key", "value", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Result of an import.

    ``published`` has one item for each run of the export and each log in the run. If an earlier import has published
    these records, the item has ``duplicate=True``, and its two offsets are equal.
    """

    published: tuple[Published, ...]

    @property
    def rows(self) -> int:
        """Number of records that this import added."""
        return sum(entry.end_offset - entry.base_offset for entry in self.published)


@dataclass(frozen=True, slots=True)
class _Files:
    """Exported files of one offset range of a log, one file for each date, and the log into which they are imported.

    ``topic`` is the name of the topic in the export.
    """

    topic: str
    log: TopicPartition
    start: int
    names: tuple[str, ...]


def import_topics(
    spark: SparkSession,
    source: str,
    target: WriteTarget | str,
    *,
    topics: Iterable[str] | None = None,
    names: Mapping[str, str] | None = None,
    config: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Import the output of ``export`` with ``schema="raw"`` into a directory or a tier.

    Records keep their partitions and their order, and get new offsets. Each run of the export becomes one commit for
    each log. The commit stores the number of the run, so a repeated call imports only the runs that are not imported
    yet.

    Args:
        spark: a session, classic or Connect.
        source: the destination of the export.
        target: a directory that no engine has open, or a tier to which no engine writes.
        topics: topics of the export to import; None means all topics.
        names: new names of topics, by their names in the export.
        config: settings of the topics that the import creates.
        options: options for fsspec and the source; never printed.
        progress: called with two sizes of Parquet files in bytes: imported by completed tasks, and of all files of the
            runs that have been started.

    Raises:
        ConfigError: ``source`` contains no export, the export lacks a requested topic, or its values are not raw.
        TopicExistsError: a topic exists with another number of partitions.
        FencedEpochError, LogDirLockedError: an engine or another writer uses the target.
        StorageError, OSError: the source cannot be read, or the target cannot be written.
        SparkJobError: a task failed; earlier runs of the export are imported. A task fails if a record has a timestamp
            before 1970: ``export`` writes such records, but a topic does not accept them.
    """
    write_target = WriteTarget(target) if isinstance(target, str) else target
    source_folder = Target(source, tuple((options or {}).items()))
    ledger = Ledger(source_folder)
    plan, _ = ledger.last()
    if plan is None:
        raise ConfigError(f"{source} contains no export")
    if plan.style.get("schema") != "raw" or plan.style.get("layout") != "hive":
        raise ConfigError(
            f"{source} has values as columns, or is an Iceberg table: only an export with raw values can be imported"
        )
    source_address = ledger.address("").rstrip("/").encode()  # absolute, valid in each working directory
    requested_topics = None if topics is None else frozenset(topics)
    published, count = list[Published](), ByteCount(progress)

    def work(group: _Files) -> list[StagedSegment]:
        return _stage(source_folder, write_target, group)

    with write_target.open() as writer:
        _make_topics(writer, plan, requested_topics, names or {}, config)
        for number, file_sizes in ledger.completed_runs(after=0):
            groups = list(_groups(file_sizes, requested_topics, names or {}))
            with count.count_tasks(sum(file_sizes[name] for name in group.names) for group in groups) as steps:
                group_segments = run_tasks(spark, groups, work, task=_Files, result=list[StagedSegment], progress=steps)
            for topic, log in sorted({(group.topic, group.log) for group in groups}):
                # several topics of an export may get the same new name, in one call or in different calls
                mark = WriteMark(
                    f"import-{hashlib.sha256(source_address + b' ' + topic.encode()).hexdigest()[:32]}", number
                )
                log_segments = [
                    part
                    for group, parts in zip(groups, group_segments, strict=True)
                    if (group.topic, group.log) == (topic, log)
                    for part in parts
                ]
                published.append(writer.append(log, log_segments, mark))
    return ImportReport(tuple(published))


def _make_topics(
    writer: BulkWriter,
    plan: Plan,
    requested_topics: frozenset[str] | None,
    names: Mapping[str, str],
    config: Mapping[str, object] | None,
) -> None:
    counts: dict[str, int] = {}
    for log in plan.ends:
        if requested_topics is None or log.topic in requested_topics:
            counts[log.topic] = max(counts.get(log.topic, 0), log.partition + 1)
    missing = sorted((requested_topics or frozenset()) - counts.keys())
    if missing:
        raise ConfigError(f"there is no topic {', '.join(missing)} in this export")
    existing = writer.topics()
    for topic, partitions in sorted(counts.items()):
        name = names.get(topic, topic)
        if existing.get(name) != partitions:
            writer.create_topic(name, partitions, config)


def _groups(
    files: Iterable[str], requested_topics: frozenset[str] | None, names: Mapping[str, str]
) -> Iterator[_Files]:
    """Yield the files of each exported offset range, in the order of log and start offset.

    ``requested_topics`` are topics of the export; None means all topics. ``names`` are new names of topics. Raise
    ConfigError for a file name that no export creates.
    """
    names_by_range: dict[tuple[str, int, int], list[str]] = {}
    for name in files:
        parts = _NAME.fullmatch(name)
        if parts is None:
            raise ConfigError(f"{name} is not a file name of an export")
        if requested_topics is None or parts["topic"] in requested_topics:
            names_by_range.setdefault((parts["topic"], int(parts["partition"]), int(parts["start"])), []).append(name)
    for (topic, partition, start), group in sorted(names_by_range.items()):
        yield _Files(topic, TopicPartition(names.get(topic, topic), partition), start, tuple(sorted(group)))


def _stage(files: Target, target: WriteTarget, group: _Files) -> list[StagedSegment]:
    """Stage the records of one range in order. Called in a task, which holds the whole range in memory."""
    fs, folder = files.open()
    tables = []
    for name in group.names:
        with fs.open(f"{folder}/{name}", "rb") as stream:
            tables.append(pq.ParquetFile(stream).read(columns=[*_COLUMNS, "offset"]))
    with target.open() as writer, writer.stage(group.log) as stage:
        for batch in merge_in_order(tables):
            stage.add(convert_rows(batch))
        return stage.finish()


def merge_in_order(tables: Sequence[Any]) -> Iterator[Any]:
    """Yield the rows of all tables in the order of offsets, as ``pyarrow.RecordBatch`` of at most 16 MiB or one row.

    The rows of each table must be in the order of their offsets. The tables are not joined first, because pyarrow can
    join at most 2 GiB.
    """
    offsets = [table.column("offset").to_numpy() for table in tables]
    sorted_offsets = np.sort(np.concatenate(offsets))
    starts, position = [0] * len(tables), 0
    while position < len(sorted_offsets):
        count, size_bytes = 2 * _ROWS, _BATCH_BYTES + 1
        while size_bytes > _BATCH_BYTES and count > 1:
            count //= 2
            last = sorted_offsets[min(position + count, len(sorted_offsets)) - 1]
            ends = [int(np.searchsorted(table_offsets, last, side="right")) for table_offsets in offsets]
            pieces = [table.slice(start, end - start) for table, start, end in zip(tables, starts, ends, strict=True)]
            size_bytes = sum(piece.nbytes for piece in pieces)
        yield from pa.concat_tables(pieces).sort_by("offset").select(list(_COLUMNS)).combine_chunks().to_batches()
        starts, position = ends, position + count
