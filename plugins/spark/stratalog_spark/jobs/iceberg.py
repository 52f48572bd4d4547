"""Exported files as an Iceberg table: what each run wrote becomes one snapshot, which no file is copied for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from stratalog.errors import ConfigError, PluginImportError
from stratalog_spark.jobs.ledger import Ledger

_RUN: Final = "stratalog.run"
_EXPORT: Final = "stratalog.export"


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A table by its catalog's name in pyiceberg's configuration, namespace and name: ``CATALOG.NAMESPACE.TABLE``.

    Attributes:
        name: all three; a namespace may have dots.
        properties: of the catalog, over those that pyiceberg finds in its file and its environment. Never shown.
    """

    name: str
    properties: Mapping[str, str]

    def __repr__(self) -> str:
        return f"IcebergTable({self.name!r})"

    def catch_up(self, ledger: Ledger) -> int:
        """Add the files of all runs that are done and not in the table yet, in one snapshot each; how many runs.

        The table is made when there are files. A snapshot names its run, so that none is added twice.

        Raises:
            ConfigError: the table holds an export of another destination, or its schema does not fit.
            PluginImportError: pyiceberg is not installed.
        """
        catalog, identifier = self._catalog()
        table = catalog.load_table(identifier) if catalog.table_exists(identifier) else None
        if table is not None and table.properties.get(_EXPORT) not in {None, ledger.url}:
            raise ConfigError(
                f"Iceberg table {self.name} holds the export to {table.properties[_EXPORT]}, not {ledger.url}"
            )
        known, added = max(_runs(table), default=0), 0
        for number, files in ledger.done(after=known):
            if not files:
                continue
            if table is None:
                table = self._create(catalog, identifier, ledger, files[0])
            try:
                table.add_files([ledger.address(name) for name in files], snapshot_properties={_RUN: str(number)})
            except ValueError as error:
                raise ConfigError(f"the files of run {number} do not fit Iceberg table {self.name}: {error}") from error
            added += 1
        return added

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
        with ledger.open(file) as opened:
            schema = import_module("pyarrow.parquet").read_schema(opened)
        return catalog.create_table(identifier, schema=schema, properties={_EXPORT: ledger.url})


def _runs(table: Any) -> Iterator[int]:
    for snapshot in table.snapshots() if table is not None else ():
        text = snapshot.summary.additional_properties.get(_RUN) if snapshot.summary is not None else None
        if text is not None:
            yield int(text)
