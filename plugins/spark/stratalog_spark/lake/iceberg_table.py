"""Access to Iceberg tables with pyiceberg.

Iceberg's connector for Spark is not used, because it is a jar, and because it is released later than Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any, Final

from stratalog.errors import ConfigError
from stratalog_spark.lake.columns import BUCKET, TIMESTAMP, storable_schema
from stratalog_spark.lake.table import BUCKETS, LAYOUT, FileStore, Layout, LiveFile, Mark, TableConflictError
from stratalog_spark.parquet.parquet_files import ParquetFile

_MARK: Final = "stratalog.mark"
_QUARANTINED: Final = "stratalog.quarantined"
_PERIODS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# If the table has changed, a commit must fail, because its Mark is stale. So pyiceberg must not retry the commit. Old
# metadata files are deleted, because each commit writes one.
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


class IcebergFiles(FileStore):
    """Data files in the location of an Iceberg table."""

    def open(self, name: str) -> Any:
        """Implement ``FileStore.open``."""
        return self._io().new_input(self.path(name)).open()

    def path(self, name: str) -> str:
        """Return the URI of the data file ``name``, or ``name`` itself if it is a URI or an absolute path."""
        return name if ":" in name or name.startswith("/") else f"{self.location}/data/{name}"

    def _create(self, name: str) -> Any:
        return self._io().new_output(self.path(name)).create()

    def _open_deleter(self) -> Callable[[str], object]:
        io = self._io()
        return lambda name: io.delete(self.path(name))

    def _io(self) -> Any:
        return import_module("pyiceberg.io").load_file_io(dict(self.options), self.location)


class IcebergLakeTable:
    """An Iceberg table; implements ``stratalog_spark.lake.table.LakeTable``."""

    def __init__(self, name: str, catalog: Any, identifier: tuple[str, ...]) -> None:
        self.name, self._catalog, self._identifier = f"Iceberg table {name}", catalog, identifier
        self.exists = bool(catalog.table_exists(identifier))
        self._table: Any = catalog.load_table(identifier) if self.exists else None

    @property
    def layout(self) -> Layout:
        """Settings of the table. Raises ConfigError if ``sync`` did not create the table."""
        return Layout.from_json(self._table.properties.get(LAYOUT), self.name)

    @property
    def file_schema(self) -> Any:
        """``pyarrow.Schema`` of the columns, each with its field id."""
        return import_module("pyiceberg.io.pyarrow").schema_to_pyarrow(self._table.schema())

    @property
    def columns(self) -> Any:
        """``pyarrow.Schema`` of the columns without field ids."""
        return storable_schema(self.file_schema)

    @property
    def number(self) -> int:
        """Number of the last commit of the stream; 0 before the first commit."""
        return self._mark().number

    @property
    def files(self) -> FileStore:
        """Access to the files in the location of the table."""
        return IcebergFiles(self._table.location(), dict(self._table.io.properties))

    def create(self, layout: Layout, columns: Any) -> None:
        """Implement ``LakeTable.create``. The namespace is created if it does not exist."""
        transforms = import_module("pyiceberg.transforms")
        self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        properties = {**_PROPERTIES, LAYOUT: layout.to_json()}
        try:
            with self._catalog.create_table_transaction(
                self._identifier, schema=columns, properties=properties
            ) as transaction:
                if layout.partition_by != "none":
                    with transaction.update_spec() as spec:
                        if layout.partition_by == BUCKETS:
                            spec.add_field(BUCKET, transforms.IdentityTransform(), f"{BUCKET}_identity")
                        else:
                            transforms_by_period = {"hour": transforms.HourTransform, "day": transforms.DayTransform}
                            spec.add_field(
                                TIMESTAMP,
                                transforms_by_period[layout.partition_by](),
                                f"{TIMESTAMP}_{layout.partition_by}",
                            )
        except import_module("pyiceberg.exceptions").TableAlreadyExistsError as error:
            raise TableConflictError(f"{self.name} was created by another program") from error
        self._table, self.exists = self._catalog.load_table(self._identifier), True

    def add_columns(self, columns: Any) -> None:
        """Implement ``LakeTable.add_columns``."""
        try:
            with self._table.update_schema() as update:
                update.union_by_name(columns)
        except import_module("pyiceberg.exceptions").CommitFailedException as error:
            raise TableConflictError(f"{self.name}: {error}") from error
        except (ValueError, import_module("pyiceberg.exceptions").ValidationError) as error:
            raise ConfigError(f"{self.name} cannot get the new columns: {error}") from error

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Implement ``LakeTable.ends``."""
        stored_ends = self._mark().ends
        return {partition: stored_ends[partition] for partition in partitions if partition in stored_ends}

    def find_quarantined(self, after: int) -> tuple[int, Sequence[str]]:
        """Implement ``LakeTable.find_quarantined``."""
        entry = json.loads(self._table.properties.get(_QUARANTINED, "[0, []]"))
        return (entry[0], entry[1]) if entry[0] > after else (0, ())

    def live_files(self, periods: Iterable[int | None]) -> list[LiveFile]:
        """Implement ``LakeTable.live_files``."""
        requested = set(periods)
        if not requested or self._table.current_snapshot() is None:
            return []
        scan, store = self._table.scan(row_filter=self._filter(requested)), self._table.location() + "/data/"
        files = []
        for task in scan.plan_files():
            values = list(task.file.partition)
            period = _number(values[0]) if values else 0
            if period in requested:
                name = task.file.file_path.removeprefix(store)
                files.append(LiveFile(name, task.file.file_size_in_bytes, period, task.file))
        return files

    def commit(self, added_files: Sequence[ParquetFile], removed_files: Sequence[LiveFile], mark: Mark | None) -> None:
        """Implement ``LakeTable.commit`` by one snapshot. The mark is stored as properties of the table."""
        errors = import_module("pyiceberg.exceptions")
        summary = {} if mark is None else {"stratalog.commit": str(mark.number)}
        try:
            with self._table.transaction() as transaction:
                if mark is not None:
                    transaction.set_properties(self._mark_properties(mark))
                update = transaction.update_snapshot(snapshot_properties=summary)
                with update.overwrite() if removed_files else update.merge_append() as snapshot:
                    for file in self._data_files(added_files):
                        snapshot.append_data_file(file)
                    for file in removed_files:
                        snapshot.delete_data_file(file.handle)
        except (errors.CommitFailedException, errors.ValidationException) as error:
            raise TableConflictError(f"{self.name} was changed at the same time: {error}") from error

    def _mark(self) -> Mark:
        fields = json.loads(self._table.properties.get(_MARK, '{"number": 0, "ends": {}}'))
        return Mark(fields["number"], {int(partition): end for partition, end in fields["ends"].items()})

    def _mark_properties(self, mark: Mark) -> dict[str, str]:
        ends = {**self._mark().ends, **mark.ends}
        properties = {
            _MARK: json.dumps({"number": mark.number, "ends": {str(name): end for name, end in sorted(ends.items())}})
        }
        if mark.quarantined:
            properties[_QUARANTINED] = json.dumps([mark.number, list(mark.quarantined)])
        return properties

    def _data_files(self, added_files: Sequence[ParquetFile]) -> list[Any]:
        """Return the manifest entries of new files, with the statistics from the footers of the files."""
        arrow, manifest = import_module("pyiceberg.io.pyarrow"), import_module("pyiceberg.manifest")
        record = import_module("pyiceberg.typedef").Record
        schema, spec = self._table.schema(), self._table.spec()
        plan = arrow.compute_statistics_plan(schema, self._table.properties)
        ids, store = arrow.parquet_path_to_id_mapping(schema), IcebergFiles(self._table.location(), {})
        return [
            manifest.DataFile.from_args(
                content=manifest.DataFileContent.DATA,
                file_path=store.path(file.name),
                file_format=manifest.FileFormat.PARQUET,
                partition=record(file.period) if spec.fields else record(),
                file_size_in_bytes=file.size_bytes,
                sort_order_id=None,
                spec_id=spec.spec_id,
                equality_ids=None,
                key_metadata=None,
                **arrow.data_file_statistics_from_parquet_metadata(
                    parquet_metadata=file.metadata(), stats_columns=plan, parquet_column_mapping=ids
                ).to_serialized_dict(),
            )
            for file in added_files
        ]

    def _filter(self, periods: set[int | None]) -> Any:
        """Return a pyiceberg predicate for the rows of the partitions ``periods``.

        It may also match periods between them.
        """
        expressions, partition_by = import_module("pyiceberg.expressions"), self.layout.partition_by
        if partition_by == "none":
            return expressions.AlwaysTrue()
        predicates = [expressions.IsNull(TIMESTAMP)] if None in periods else []
        numbers = sorted(number for number in periods if number is not None)
        if partition_by == BUCKETS:
            predicates.append(expressions.In(BUCKET, numbers))
        elif numbers:
            length = _PERIODS[partition_by]
            start, last = _EPOCH + numbers[0] * length, _EPOCH + (numbers[-1] * length + length - _MICROSECOND)
            lower_bound = expressions.GreaterThanOrEqual(TIMESTAMP, start.isoformat())
            predicates.append(expressions.And(lower_bound, expressions.LessThanOrEqual(TIMESTAMP, last.isoformat())))
        return predicates[0] if len(predicates) == 1 else expressions.Or(*predicates)


def _number(value: Any) -> int | None:
    """Return the value of a partition as a number. A date becomes the number of days since 1970."""
    number: int | None = (value - _EPOCH.date()).days if hasattr(value, "toordinal") else value
    return number
