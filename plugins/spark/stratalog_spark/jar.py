"""The jar with Spark's catalog, and the settings of a session that uses the jar."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stratalog.errors import PluginImportError

CATALOG: Final = "spark.sql.catalog.stratalog"
_JAR: Final = Path(__file__).parent / "jars" / "stratalog-spark.jar"
_LISTS: Final = {"spark.jars": str(_JAR), "spark.sql.extensions": "stratalog.spark.StratalogExtensions"}


def catalog_jar() -> Path:
    """Return the path of the jar, for ``--jars`` of ``spark-submit``.

    Raises:
        PluginImportError: the installed package has no jar.
    """
    if not _JAR.exists():
        raise PluginImportError(
            "this package has no jar with Spark's catalog, because it was built without Maven: install a released wheel, "
            "or run `mvn -f plugins/spark/jvm package` in a checkout",
            "spark",
            "",
        )
    return _JAR


def catalog_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings to add to the user's for the catalog ``stratalog``; {} if the package has no jar.

    If a setting is a list, the result contains the extended list.

    Raises:
        PluginImportError: the package has no jar, but ``settings`` contains a setting of the catalog.
    """
    if not _JAR.exists():
        if any(name.startswith(CATALOG) for name in settings):
            catalog_jar()
        return {}
    added_settings = {name: ",".join(filter(None, (settings.get(name), value))) for name, value in _LISTS.items()}
    if CATALOG not in settings:
        added_settings[CATALOG] = "stratalog.spark.StratalogCatalog"
    return added_settings
