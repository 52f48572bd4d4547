"""Pack golden directories into the archives under ``data/``. The bytes depend only on the contents of the directories.

    python pack.py FOLDER [NAME ...]

FOLDER has the directories that ``run.sh`` and ``tiered/run.sh`` have made; without a NAME all of them are packed.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parent.parent / "data"
PACKED: Final = frozenset(
    {"logs", "expected", "dumps", "recovered", "remote", "offsets.json", "kafka-get-offsets.txt", "topics.txt"}
)


def pack(directory: Path, archive: Path) -> None:
    """Pack a directory into an archive, with sorted names and without owners.

    Only ``.log`` files keep their modification time, because retention may use it.
    """
    with (
        lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as compressed_file,
        tarfile.open(fileobj=compressed_file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(path for part in PACKED for path in _below(directory / part)):
            entry = tarfile.TarInfo(str(path.relative_to(directory.parent)))
            if path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.size, entry.mode = path.stat().st_size, 0o644
                entry.mtime = int(path.stat().st_mtime) if path.suffix == ".log" else 0
                with path.open("rb") as file:
                    tar.addfile(entry, file)


def _below(path: Path) -> list[Path]:
    return [path, *path.rglob("*")] if path.exists() else []


def main() -> None:
    """Pack the directories that the command line names, or all."""
    parser = argparse.ArgumentParser(description="Pack golden directories into tests/golden/data.")
    parser.add_argument("folder", type=Path, help="holds the directories")
    parser.add_argument("names", nargs="*", help="which; all without one")
    arguments = parser.parse_args()
    names = arguments.names or sorted(path.parent.name for path in arguments.folder.glob("*/logs"))
    for name in names:
        archive = DATA / f"{name}.tar.xz"
        pack(arguments.folder / name, archive)
        sys.stdout.write(f"{archive} {archive.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
