"""The plugins in ``examples/``, built and inspected as a user of them would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

EXAMPLES = Path(__file__).parents[2] / "examples"


def wheel_of(name: str, folder: Path) -> tuple[set[str], str]:
    """Build the wheel of ``examples/NAME``; return its file names and the text of its entry points."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(EXAMPLES / name)], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = (archive.read(member).decode() for member in names if member.endswith("entry_points.txt"))
    return names, points


def imported_of_stratalog(name: str) -> set[str]:
    """Return the modules of stratalog that the source files of ``examples/NAME`` import."""
    lines = [line for path in (EXAMPLES / name / name).glob("*.py") for line in path.read_text().splitlines()]
    return {line.split()[1] for line in lines if line.startswith(("import stratalog", "from stratalog"))}
