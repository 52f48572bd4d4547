"""Writer of micro-batches of a topic to a table of a lake."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, Final

from pyspark.sql import SparkSession

from stratalog.errors import ConfigError
from stratalog.reading import Piece, Split
from stratalog_spark.lake.columns import (
    add_missing_columns,
    quarantine_columns,
    raw_columns,
    record_columns,
    value_columns,
)
from stratalog_spark.lake.schemas import SchemaSet, parser_of
from stratalog_spark.lake.table import LakeTable, Layout, LiveFile, Mark, TableConflictError, TableTarget
from stratalog_spark.lake.tasks import Bucket, Done, Rewrite, Sorted, Work
from stratalog_spark.options.read_options import Options
from stratalog_spark.parquet.parquet_files import ParquetFile
from stratalog_spark.tasks.run_tasks import SparkJobError, group_by_size, run_tasks

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Limits for the rewriting of small files after a micro-batch. Only partitions that it changed are rewritten.

    Attributes:
        small_files: the small files of a partition of the table are rewritten when it has this number of them; 0 means
            never.
        file_bytes: target size of a file. A file is small if its size is below half of this value.
        max_bytes: maximum total size of the files that are rewritten after one micro-batch.
    """

    small_files: int = 16
    file_bytes: int = 128 << 20
    max_bytes: int = 512 << 20


@dataclass(frozen=True)
class Syncer:
    """Writer of micro-batches to a table and its quarantine.

    Together with the data files, the commit stores the end offset of each partition, and the names of the files of bad
    records. After the driver is killed, the next driver skips the records that are in the table. If the files of bad
    records are not in the quarantine, the next driver adds them.
    """

    options: Options
    target: TableTarget
    quarantine: TableTarget
    layout: Layout
    schemas: SchemaSet
    maintenance: Maintenance

    def prepare(self, partitions: Iterable[int]) -> dict[int, int]:
        """Create both tables if they do not exist, and check them. Return the offset up to which each partition was synced.

        The offsets are exclusive. A partition that was never synced is left out.

        Raises:
            ConfigError: a table has other settings, or a schema does not fit it.
            TableConflictError: another program created or changed a table at the same time.
        """
        table, quarantine = self.target.open_table(), self.quarantine.open_table()
        if not table.exists:
            columns = self._add_schema_columns(
                record_columns(bucketed=bool(self.layout.buckets)), self.schemas.loaded_schemas()
            )
            table.create(self.layout, columns)
        self._check(table, self.layout)
        self._fit(table, self.schemas.loaded_schemas())
        quarantine_layout = Layout(self.layout.topic, self.layout.topic_id, "quarantine", "none")
        if not quarantine.exists:
            quarantine.create(quarantine_layout, quarantine_columns())
        self._check(quarantine, quarantine_layout)
        return table.ends(partitions)

    def apply(self, spark: SparkSession, splits: Sequence[Split]) -> int:
        """Write the records of a micro-batch that are not in the table yet.

        Return the number of rows that the table gets.

        Bad records go to the quarantine and are not counted. With ``upsert``, only the latest record of a key is
        counted, unless it is a tombstone.

        Raises:
            ConfigError: a schema does not fit the table, or the topic was deleted and created again.
            CorruptBatchError: a log is damaged at its end, and the option ``corruptBatches`` is ``fail``.
            TableConflictError: another program changed the table at the same time.
            SparkJobError: a task failed.
        """
        table = self.target.open_table()
        self._add_quarantined(table)
        missing_splits = self._find_missing(table, splits)
        if not missing_splits:
            return 0
        results, parts, live = self._write(spark, table, missing_splits)
        files = [file for result in results for file in result.files]
        bad = [file for result in results for file in result.bad] + [file for part in parts for file in part.bad]
        ends: dict[int, int] = {}
        for piece in _pieces(missing_splits):
            ends[piece.log.partition] = max(ends.get(piece.log.partition, 0), piece.end)
        mark = Mark(table.number + 1, ends, [file.name for file in bad])
        table.commit(files, [live[name] for result in results for name in result.removed], mark)
        self._add_quarantined(table, bad)
        table.files.remove(part.name for part in parts if part.name)
        self._maintain(spark, table, {file.period for file in files})
        return sum(result.rows for result in results)

    def _check(self, table: LakeTable, layout: Layout) -> None:
        existing = table.layout
        if existing.topic == layout.topic and existing.topic_id != layout.topic_id:
            raise ConfigError(
                f"topic {existing.topic} was deleted and created again after {table.name} was created: name another "
                "table"
            )
        for name in ("topic", "schema", "partition_by", "buckets"):
            if getattr(existing, name) != getattr(layout, name):
                raise ConfigError(
                    f"{table.name} was created with {name}={getattr(existing, name)!r}, not {getattr(layout, name)!r}: "
                    "use the same value, or name another table"
                )

    def _add_schema_columns(self, columns: Any, schemas: Mapping[int | None, object]) -> Any:
        """Return ``columns`` plus the missing columns of the schemas, in the order of the schemas' ids."""
        if self.layout.schema == "raw":
            return add_missing_columns(columns, raw_columns(), "the column 'value'")
        for number in sorted(schemas, key=lambda number: -1 if number is None else number):
            kind = parser_of(self.layout.schema, schemas[number], prefixed=number is not None).type
            name = "the schema" if number is None else f"the schema with the id {number}"
            columns = add_missing_columns(columns, value_columns(kind), name)
        return columns

    def _fit(self, table: LakeTable, schemas: Mapping[int | None, object]) -> None:
        """Add the columns that the schemas need and the table does not have."""
        current = table.columns
        needed = self._add_schema_columns(current, schemas)
        if needed != current:
            table.add_columns(needed)

    def _find_missing(self, table: LakeTable, splits: Sequence[Split]) -> list[Split]:
        """Return the splits without the offsets that are already in the table.

        Raise ConfigError if the topic was created again, and CorruptBatchError if a log is damaged at its end.
        """
        ends = table.ends({piece.log.partition for piece in _pieces(splits)})
        missing = []
        for split in splits:
            pieces = []
            for piece in split.pieces:
                if topic_id_text(piece.topic_id) != self.layout.topic_id:
                    raise ConfigError(
                        f"topic {self.layout.topic} was deleted and created again after {table.name} was created: name "
                        "another table and another checkpoint"
                    )
                if piece.damage is not None and self.options.corrupt == "fail":
                    raise piece.damage.with_traceback(None)
                start = max(piece.start, ends.get(piece.log.partition, 0))
                if start < piece.end:
                    pieces.append(piece._replace(start=start))
            if pieces:
                missing.append(replace(split, pieces=tuple(pieces)))
        return missing

    def _write(
        self, spark: SparkSession, table: LakeTable, splits: Sequence[Split]
    ) -> tuple[list[Done], list[Sorted], dict[str, LiveFile]]:
        """Run the tasks. Return the results, and for a table with buckets the sorted records and its live files by name.

        If tasks find ids of unknown schemas, run all tasks again.
        """
        schemas, missing = self.schemas.loaded_schemas(), set[int]()
        parts: list[Sorted] = []
        while True:
            self._fit(table, schemas)
            work, live = self._work(table, schemas, frozenset(missing)), dict[str, LiveFile]()
            if self.layout.buckets:
                if not parts:
                    parts = run_tasks(spark, splits, work.sort, task=Split, result=Sorted)
                live = {
                    file.name: file for file in table.live_files({number for part in parts for number in part.buckets})
                }
                results = run_tasks(spark, _buckets(parts, live.values()), work.merge, task=Bucket, result=Done)
            else:
                results = run_tasks(spark, splits, work.append, task=Split, result=Done)
            unknown = {number for result in results for number in result.unknown}
            if not unknown:
                return results, parts, live
            table.files.remove(file.name for result in results for file in result.files)
            work.bad_files.remove(file.name for result in results for file in result.bad)
            new_schemas = self.schemas.find(unknown)
            schemas = {**schemas, **new_schemas}
            missing |= unknown - set(new_schemas)

    def _work(self, table: LakeTable, schemas: Mapping[int | None, object], missing: frozenset[int]) -> Work:
        quarantine, records = self.quarantine.open_table(), set(record_columns(bucketed=True).names)
        columns = table.columns
        for name in records.intersection(columns.names):
            columns = columns.remove(columns.get_field_index(name))
        return Work(
            self.options,
            self.layout,
            schemas,
            missing,
            columns,
            table.file_schema,
            table.files,
            quarantine.files,
            quarantine.file_schema,
        )

    def _add_quarantined(self, table: LakeTable, files: Sequence[ParquetFile] | None = None) -> None:
        """Add the bad records of the last commit with bad records to the quarantine, if they are not there yet.

        ``files`` contains the files with these records. It is None if an earlier driver may have written the files.
        """
        if files is not None and not files:
            return
        quarantine = self.quarantine.open_table()
        number, names = table.find_quarantined(quarantine.number)
        if number:
            new_files = files or [quarantine.files.describe(name) for name in names]
            quarantine.commit(new_files, (), Mark(number, {}))

    def _maintain(self, spark: SparkSession, table: LakeTable, periods: Iterable[int | None]) -> None:
        """Rewrite small files in the table's partitions ``periods``, within the limits of ``Maintenance``.

        If a task or the commit fails, a warning is logged, the table is unchanged, and a later micro-batch retries.
        """
        limits, remaining_bytes = self.maintenance, self.maintenance.max_bytes
        if not limits.small_files:
            return
        small = [file for file in table.live_files(periods) if 2 * file.size_bytes < limits.file_bytes]
        tasks, old_files = list[Rewrite](), list[LiveFile]()
        small.sort(key=lambda file: (-1 if file.period is None else file.period, file.name))
        for period, files in groupby(small, key=lambda file: file.period):
            period_files = list(files)
            if len(period_files) < max(limits.small_files, 2):
                continue
            for group in group_by_size(period_files, lambda file: file.size_bytes, limits.file_bytes):
                size = sum(file.size_bytes for file in group)
                if len(group) > 1 and size <= remaining_bytes:
                    remaining_bytes -= size
                    tasks.append(Rewrite(period, [file.name for file in group]))
                    old_files += group
        if not tasks:
            return
        try:
            results = run_tasks(spark, tasks, self._work(table, {}, frozenset()).rewrite, task=Rewrite, result=Done)
            new_files = [file for result in results for file in result.files]
            try:
                table.commit(new_files, old_files, None)
            except TableConflictError:
                table.files.remove(file.name for file in new_files)
                raise
        except (TableConflictError, SparkJobError) as error:
            _LOGGER.warning("small files of %s are not rewritten: %s", table.name, error)


def _pieces(splits: Iterable[Split]) -> Iterable[Piece]:
    return chain.from_iterable(split.pieces for split in splits)


def _buckets(parts: Sequence[Sorted], live: Iterable[LiveFile]) -> list[Bucket]:
    """Return one input for each bucket with new records.

    Its task merges these records and the live files of the bucket.
    """
    parts_by_bucket: dict[int, list[tuple[str, int]]] = {}
    for part in parts:
        for number, bucket in enumerate(part.buckets):
            parts_by_bucket.setdefault(bucket, []).append((part.name, number))
    files_by_bucket: dict[int | None, list[str]] = {}
    for file in live:
        files_by_bucket.setdefault(file.period, []).append(file.name)
    return [
        Bucket(number, bucket_parts, files_by_bucket.get(number, []))
        for number, bucket_parts in sorted(parts_by_bucket.items())
    ]


def topic_id_text(topic_id: object) -> str:
    """Return the id of a topic as text. The text is empty if the id is None."""
    return "" if topic_id is None else str(topic_id)
