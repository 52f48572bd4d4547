"""Plugin for Spark: the data source ``format("stratalog")``, jobs over whole topics, and ``stratalog spark``.

The import of this package does not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from stratalog.errors import PluginImportError
from stratalog.spi import Command, hookimpl

if TYPE_CHECKING:
    from stratalog_spark.exporting.export import export
    from stratalog_spark.exporting.iceberg import IcebergTable
    from stratalog_spark.exporting.imports import import_topics
    from stratalog_spark.java import catalog_jar, use_java
    from stratalog_spark.jobs.compact import compact
    from stratalog_spark.jobs.convert import convert
    from stratalog_spark.jobs.erase import erase
    from stratalog_spark.jobs.map_in_arrow import map_in_arrow
    from stratalog_spark.jobs.merge import merge
    from stratalog_spark.jobs.stats import stats
    from stratalog_spark.jobs.verify import verify
    from stratalog_spark.lake.delta_table import DeltaTable
    from stratalog_spark.lake.sync import sync
    from stratalog_spark.lake.syncer import Maintenance
    from stratalog_spark.session import local_session, register
    from stratalog_spark.source import StratalogSource

__all__ = [
    "DeltaTable", "IcebergTable", "Maintenance", "StratalogSource", "catalog_jar", "compact", "convert", "erase",
    "export", "import_topics", "local_session", "map_in_arrow", "merge", "register", "stats", "sync", "use_java",
    "verify",
]  # fmt: skip

_MODULES: Final = {
    "DeltaTable": "lake.delta_table", "IcebergTable": "exporting.iceberg", "Maintenance": "lake.syncer",
    "StratalogSource": "source", "catalog_jar": "java", "compact": "jobs.compact", "convert": "jobs.convert",
    "erase": "jobs.erase", "export": "exporting.export", "import_topics": "exporting.imports",
    "local_session": "session", "map_in_arrow": "jobs.map_in_arrow", "merge": "jobs.merge", "register": "session",
    "stats": "jobs.stats", "sync": "lake.sync", "use_java": "java", "verify": "jobs.verify",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Return a public object of this package. The first use of an object imports its module.

    Raises:
        AttributeError: there is no public object of this name.
        PluginImportError: a library that the object needs is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise PluginImportError(f"{name} needs {error.name}", "spark", "stratalog[spark]") from error
    public_object: object = getattr(module, name)
    globals()[name] = public_object
    return public_object


def _load() -> object:
    from stratalog_spark.commands.commands import spark  # noqa: PLC0415 - click is an extra, and only the command line needs it

    return spark


@hookimpl
def stratalog_commands() -> Iterable[Command]:
    """Return the command ``stratalog spark``."""
    return (Command("spark", "Spark jobs that count, check, rewrite, export and import whole topics.", _load),)
