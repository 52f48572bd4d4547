"""Iceberg tables by name. Each run of an export becomes one snapshot of its table, and no file is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import pyarrow.parquet as pq

from stratalog.errors import ConfigError, PluginImportError
from stratalog_spark.exporting.ledger import Ledger
from stratalog_spark.lake.iceberg_table import IcebergLakeTable

_RUN: Final = "stratalog.run"
_EXPORT: Final = "stratalog.export"


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """An Iceberg table, named ``CATALOG.NAMESPACE.TABLE``. The configuration of pyiceberg defines the catalog.

    Attributes:
        name: all three parts; a namespace may contain dots.
        properties: properties of the catalog, which override pyiceberg's file and environment. They are never printed.
    """

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"IcebergTable({self.name!r})"

    def catch_up(self, ledger: Ledger) -> int:
        """Add the files of all completed runs that are not in the table yet, one snapshot for each run.

        Return the number of added runs. The table is created with the first run that has files. The table and each
        snapshot store the number of the run, so no run is added twice.

        Raises:
            ConfigError: ``name`` is not of the form CATALOG.NAMESPACE.TABLE, the table contains an export of another
                destination, or the files do not fit its schema.
            PluginImportError: pyiceberg is not installed.
        """
        catalog, identifier = self._catalog()
        table = catalog.load_table(identifier) if catalog.table_exists(identifier) else None
        if table is not None and table.properties.get(_EXPORT) not in {None, ledger.url}:
            raise ConfigError(
                f"Iceberg table {self.name} contains the export to {table.properties[_EXPORT]}, not {ledger.url}"
            )
        last_run, added_runs = max(_runs(table), default=0), 0
        for number, files in ledger.completed_runs(after=last_run):
            if not files:
                continue
            if table is None:
                table = self._create(catalog, identifier, ledger, next(iter(files)))
            try:
                with table.transaction() as transaction:
                    transaction.set_properties({_RUN: str(number)})  # snapshots expire
                    transaction.add_files(
                        [ledger.address(name) for name in files], snapshot_properties={_RUN: str(number)}
                    )
            except ValueError as error:
                raise ConfigError(f"the files of run {number} do not fit Iceberg table {self.name}: {error}") from error
            added_runs += 1
        return added_runs

    def open_table(self) -> IcebergLakeTable:
        """Implement ``TableTarget.open_table``. Raise ConfigError or PluginImportError like ``catch_up``."""
        catalog, identifier = self._catalog()
        return IcebergLakeTable(self.name, catalog, identifier)

    def quarantine(self) -> IcebergTable:
        """Return an IcebergTable with the name ``CATALOG.NAMESPACE.TABLE_quarantine``. The table need not exist yet."""
        return IcebergTable(f"{self.name}_quarantine", self.properties)

    def _catalog(self) -> tuple[Any, tuple[str, ...]]:
        catalog, *identifier = self.name.split(".")
        if len(identifier) < 2 or not all(identifier):
            raise ConfigError(f"Iceberg table {self.name!r} is not of the form CATALOG.NAMESPACE.TABLE")
        try:
            load = import_module("pyiceberg.catalog").load_catalog
        except ImportError as error:
            raise PluginImportError("Iceberg needs pyiceberg", "spark", "stratalog[iceberg]") from error
        return load(catalog, **self.properties), tuple(identifier)

    def _create(self, catalog: Any, identifier: tuple[str, ...], ledger: Ledger, file: str) -> Any:
        catalog.create_namespace_if_not_exists(identifier[:-1])
        with ledger.open(file) as stream:
            schema = pq.read_schema(stream)
        return catalog.create_table(identifier, schema=schema, properties={_EXPORT: ledger.url})


def _runs(table: Any) -> Iterator[int]:
    """Yield the numbers of the runs that the table contains. Yield nothing if ``table`` is None."""
    if table is not None and _RUN in table.properties:
        yield int(table.properties[_RUN])
    for snapshot in table.snapshots() if table is not None else ():
        text = snapshot.summary.additional_properties.get(_RUN) if snapshot.summary is not None else None
        if text is not None:
            yield int(text)
