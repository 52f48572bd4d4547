"""Access to Delta tables with the library deltalake."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from stratalog.errors import ConfigError, PluginImportError
from stratalog_spark.lake.columns import BUCKET, DATE, HOUR, storable_schema
from stratalog_spark.lake.table import BUCKETS, LAYOUT, FileStore, Layout, LiveFile, Mark, TableConflictError
from stratalog_spark.parquet.parquet_files import ParquetFile

_NUMBER: Final = "stratalog/number"  # application ids of Delta's transaction identifiers
_QUARANTINED_NUMBER: Final = "stratalog/quarantined"
_PARTITION: Final = "stratalog/partition/{}"
_QUARANTINED: Final = "stratalog.quarantined"  # in the information about a commit
_EPOCH: Final = date(1970, 1, 1)
_FIRST_HISTORY: Final = 20


def _library() -> Any:
    try:
        return import_module("deltalake")
    except ImportError as error:
        raise PluginImportError("Delta needs the library deltalake", "spark", "stratalog[delta]") from error


@dataclass(frozen=True)
class DeltaTable:
    """A Delta table for ``sync``.

    Attributes:
        uri: path or URI of the table.
        options: options of the store in the form of the library deltalake. They may be credentials, and are never
            printed.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"DeltaTable({self.uri!r})"

    def open_table(self) -> DeltaLakeTable:
        """Implement ``TableTarget.open_table``. Raise PluginImportError if deltalake is not installed."""
        return DeltaLakeTable(self.uri, self.options)

    def quarantine(self) -> DeltaTable:
        """Return a DeltaTable with the URI ``URI_quarantine``. The table need not exist yet."""
        return DeltaTable(f"{self.uri.rstrip('/')}_quarantine", self.options)


class DeltaFiles(FileStore):
    """Data files in the folder of a Delta table."""

    def open(self, name: str) -> Any:
        """Implement ``FileStore.open``."""
        return self._handler().open_input_file(name)

    def _create(self, name: str) -> Any:
        # bypass pyarrow's wrapper: it passes buffers that the library does not accept
        return self._handler()._handler.open_output_stream(name, None)  # noqa: SLF001 - see above

    def _open_deleter(self) -> Callable[[str], object]:
        delete: Callable[[str], object] = self._handler().delete_file
        return delete

    def _handler(self) -> Any:
        return import_module("deltalake.fs").DeltaStorageHandler(self.location, dict(self.options) or None)


class DeltaLakeTable:
    """A Delta table; implements ``stratalog_spark.lake.table.LakeTable``."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.name, self._uri, self._options = f"Delta table {uri}", uri, dict(options) or None
        self.exists = bool(_library().DeltaTable.is_deltatable(uri, self._options))
        self._table: Any = _library().DeltaTable(uri, storage_options=self._options) if self.exists else None

    @property
    def layout(self) -> Layout:
        """Settings of the table. Raises ConfigError if ``sync`` did not create the table."""
        return Layout.from_json(self._table.metadata().configuration.get(LAYOUT), self.name)

    @property
    def columns(self) -> Any:
        """``pyarrow.Schema`` of the columns in data files: all columns except those that partition the table."""
        partition_columns = set(self._table.metadata().partition_columns)
        return storable_schema(
            pa.schema([column for column in pa.schema(self._table.schema()) if column.name not in partition_columns])
        )

    @property
    def file_schema(self) -> Any:
        """The same schema as ``columns``, because the data files of a Delta table need no field ids."""
        return self.columns

    @property
    def number(self) -> int:
        """Number of the last commit of the stream; 0 before the first commit."""
        return self._version(_NUMBER) or 0

    @property
    def files(self) -> FileStore:
        """Access to the files in the folder of the table."""
        return DeltaFiles(self._uri, self._options or {})

    def create(self, layout: Layout, columns: Any) -> None:
        """Implement ``LakeTable.create``. The columns that partition the table are added."""
        partition_fields = _partition_fields(layout.partition_by)
        schema = pa.schema(
            [*(column for column in columns if column.name not in partition_fields), *partition_fields.values()]
        )
        errors = import_module("deltalake.exceptions")
        try:
            self._table = _library().DeltaTable.create(
                self._uri,
                schema,
                partition_by=list(partition_fields) or None,
                configuration={LAYOUT: layout.to_json()},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        except errors.SchemaMismatchError as error:
            raise ConfigError(f"{self.name} cannot have these columns: {error}") from error
        except errors.DeltaError as error:
            raise TableConflictError(f"{self.name} cannot be created: {error}") from error
        except Exception as error:  # the library raises Exception for a type that Delta does not have
            raise ConfigError(f"{self.name} cannot have these columns: {error}") from error
        self.exists = True

    def add_columns(self, columns: Any) -> None:
        """Implement ``LakeTable.add_columns``."""
        errors = import_module("deltalake.exceptions")
        current_types = {column.name: column.type for column in self.columns}
        new_columns = pa.schema([column for column in columns if current_types.get(column.name) != column.type])
        try:
            self._table.alter.add_columns(_library().Schema.from_arrow(new_columns).fields)
        except errors.CommitFailedError as error:
            raise TableConflictError(f"{self.name} was changed at the same time: {error}") from error
        except Exception as error:  # as in ``create``
            raise ConfigError(f"{self.name} cannot get the new columns: {error}") from error
        self._table.update_incremental()

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Implement ``LakeTable.ends``."""
        versions = {partition: self._version(_PARTITION.format(partition)) for partition in partitions}
        return {partition: end for partition, end in versions.items() if end is not None}

    def find_quarantined(self, after: int) -> tuple[int, Sequence[str]]:
        """Implement ``LakeTable.find_quarantined``."""
        number = self._version(_QUARANTINED_NUMBER) or 0
        if number <= after:
            return 0, ()
        for limit in (_FIRST_HISTORY, None):
            for commit in self._table.history(limit):
                if _QUARANTINED in commit:
                    return number, tuple(json.loads(commit[_QUARANTINED]))
        return 0, ()

    def live_files(self, periods: Iterable[int | None]) -> list[LiveFile]:
        """Implement ``LakeTable.live_files``."""
        requested = set(periods)
        actions, partition_by = pa.table(self._table.get_add_actions(flatten=True)), self.layout.partition_by
        files = []
        for row in actions.select(
            [name for name in actions.column_names if "." not in name or name.startswith("partition.")]
        ).to_pylist():
            period = _period(partition_by, row)
            if period in requested:
                files.append(LiveFile(unquote(row["path"]), row["size_bytes"], period))
        return files

    def commit(self, added_files: Sequence[ParquetFile], removed_files: Sequence[LiveFile], mark: Mark | None) -> None:
        """Implement ``LakeTable.commit`` by one version, which stores the mark as transaction identifiers."""
        library, partition_by = import_module("deltalake.transaction"), self.layout.partition_by
        now = time.time_ns() // 1_000_000
        changes = mark is not None
        actions = [
            library.AddAction(
                file.name, file.size_bytes, _values(partition_by, file.period), now, changes, _statistics(file)
            )
            for file in added_files
        ]
        actions += [
            library.RemoveAction(
                file.name, changes, now, size=file.size_bytes, partition_values=_values(partition_by, file.period)
            )
            for file in removed_files
        ]
        identifiers = [] if mark is None else [library.Transaction(_NUMBER, mark.number)]
        commit_info = {}
        if mark is not None:
            identifiers += [library.Transaction(_PARTITION.format(name), end) for name, end in mark.ends.items()]
            if mark.quarantined:
                identifiers.append(library.Transaction(_QUARANTINED_NUMBER, mark.number))
                commit_info[_QUARANTINED] = json.dumps(list(mark.quarantined))
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(_partition_fields(partition_by)),
                commit_properties=library.CommitProperties(custom_metadata=commit_info, app_transactions=identifiers),
            )
        except import_module("deltalake.exceptions").CommitFailedError as error:
            raise TableConflictError(f"{self.name} was changed at the same time: {error}") from error
        self._table.update_incremental()

    def _version(self, application: str) -> int | None:
        version: int | None = self._table.transaction_version(application)
        return version


def _partition_fields(partition_by: str) -> dict[str, Any]:
    day, hour, bucket = pa.field(DATE, pa.date32()), pa.field(HOUR, pa.int32()), pa.field(BUCKET, pa.int32())
    fields: dict[str, list[Any]] = {"none": [], "day": [day], "hour": [day, hour], BUCKETS: [bucket]}
    return {column.name: column for column in fields[partition_by]}


def _values(partition_by: str, period: int | None) -> dict[str, str | None]:
    """Return the values of the partition columns for a ``LiveFile.period``, by column, in Delta's encoding."""
    if partition_by == "none":
        return {}
    if partition_by == BUCKETS:
        return {BUCKET: str(period)}
    if partition_by == "day":
        return {DATE: None if period is None else str(_EPOCH + timedelta(days=period))}
    days, hour = divmod(period, 24) if period is not None else (None, None)
    return {**_values("day", days), HOUR: None if hour is None else str(hour)}


def _period(partition_by: str, row: Mapping[str, Any]) -> int | None:
    """Return the number of a partition from its values in a row: the inverse of ``_values``."""
    if partition_by == "none":
        return 0
    if partition_by == BUCKETS:
        return int(row[f"partition.{BUCKET}"])
    day = row[f"partition.{DATE}"]
    if day is None:
        return None
    days: int = (day - _EPOCH).days
    return days if partition_by == "day" else 24 * days + int(row[f"partition.{HOUR}"])


def _statistics(file: ParquetFile) -> str:
    """Return the statistics of a file's footer as JSON for Delta. Nested columns are omitted."""
    footer = file.metadata()
    low, high, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for number in range(footer.num_columns):
        chunks = [footer.row_group(group).column(number) for group in range(footer.num_row_groups)]
        name, statistics = chunks[0].path_in_schema, [chunk.statistics for chunk in chunks]
        if "." in name or any(item is None or not item.has_null_count for item in statistics):
            continue
        nulls[name] = sum(item.null_count for item in statistics)
        bounded = [item for item in statistics if item.has_min_max]
        if (
            len(bounded)
            == sum(item.null_count < chunk.num_values for item, chunk in zip(statistics, chunks, strict=True))
            and bounded
        ):
            for bounds, value in ((low, min(item.min for item in bounded)), (high, max(item.max for item in bounded))):
                bound = _encode_bound(value)
                if bound is not None:
                    bounds[name] = bound
    return json.dumps({"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def _encode_bound(value: Any) -> object:
    """Return a minimum or maximum in Delta's encoding; None unless it is an integer or a date.

    Minima and maxima of other types are not used: strings may be truncated or large, and Delta stores timestamps of
    statistics only in milliseconds.
    """
    if type(value) is int:
        return value
    return value.isoformat() if type(value) is date else None
