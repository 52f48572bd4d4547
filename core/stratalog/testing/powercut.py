"""What a loss of power leaves of whole log directories, folders and checkpoints included.

``testing.powerloss`` looks harder at the files of a single folder.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from stratalog.testing.faults import FaultyVfs


class PowerCutVfs(FaultyVfs):
    """The real file system, which notes what syncs made durable: bytes by a file's sync, names by its folder's.

    ``leave`` writes one of the states that a disk may be in after a loss of power.
    """

    def __init__(self) -> None:
        super().__init__()
        self._durable: dict[int, bytes] = {}  # contents by inode: names come and go
        self._names: dict[str, dict[str, int]] = {}  # of each folder, with inodes

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file; a new one has no durable bytes, even if it takes the inode of one that is gone."""
        descriptor = super().open(path, write=write, create=create)
        if create:
            self._durable.pop(os.fstat(descriptor).st_ino, None)
        return descriptor

    def sync(self, descriptor: int) -> None:
        """Make bytes durable."""
        super().sync(descriptor)
        status = os.fstat(descriptor)
        self._durable[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def sync_folder(self, path: str) -> None:
        """Make names durable."""
        super().sync_folder(path)
        with os.scandir(path) as entries:
            self._names[path] = {entry.name: entry.inode() for entry in entries}

    def leave(self, folder: str, target: Path, chance: random.Random) -> None:
        """Write to ``target`` what may be left of ``folder``.

        Names are those of its last sync, or by chance those of now. Of each file the durable bytes are there; what was
        written since is there, is not, is torn, or is zeros.
        """
        target.mkdir(parents=True)
        now = {path.name: path for path in Path(folder).iterdir()}
        durable = self._names.get(folder, {})
        names = now.keys() | durable.keys()
        for name in sorted(names):
            kept = name in durable and name in now  # a removal may be lost too, and then the bytes are hard to tell
            if not kept and (name not in now or chance.random() < 0.5):
                continue
            path = now[name]
            if path.is_dir():
                self.leave(str(path), target / name, chance)
            else:
                (target / name).write_bytes(self._left_of(path, chance))

    def _left_of(self, path: Path, chance: random.Random) -> bytes:
        written, durable = path.read_bytes(), self._durable.get(path.stat().st_ino, b"")
        fate = chance.randrange(4)
        if fate == 0:
            return written
        if not written.startswith(durable):  # changed in place, as a map is, or cut
            return durable
        fresh = written[len(durable) :]
        cut = chance.randrange(len(fresh) + 1)
        return durable + (b"", fresh[:cut], bytes(cut))[fate - 1]
