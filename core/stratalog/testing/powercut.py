"""Simulated power loss of whole log directories, including folders and checkpoints.

``testing.powerloss`` tests the files of a single folder more thoroughly.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stratalog.testing.faults import FaultyVfs


class _Change(NamedTuple):
    """Atomic change of a folder, as in a journal: ``old`` is removed and ``new`` is added, each unless None."""

    old: str | None
    new: str | None
    node: int


@dataclass(slots=True)
class _Folder:
    """Durable names of a folder with their nodes, and the later changes in order."""

    durable: dict[str, int] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def left(self, chance: random.Random) -> dict[str, int]:
        """Return names that may be on disk after a power loss: each pending change is applied or lost as a whole."""
        names = dict(self.durable)
        for old, new, node in self.pending:
            if chance.random() < 0.5:
                continue
            if old is not None:
                names.pop(old, None)
            if new is not None:
                names[new] = node
        return names


class PowerCutVfs(FaultyVfs):
    """The real file system, which records what is durable: bytes after a file's sync, names after a folder's sync.

    ``leave`` writes one of the possible states of the disk after a power loss. A rename is atomic: a durable file has
    either its old or its new name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._nodes: dict[int, int] = {}  # node of each existing inode; the file system reuses inode numbers
        self._bytes: dict[int, bytes] = {}  # durable bytes of each node
        self._folders: dict[int, _Folder] = {}

    # --- the port ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file; a new one has no durable bytes."""
        descriptor = super().open(path, write=write, create=create)
        if create:
            self._made(path)
        return descriptor

    def sync(self, descriptor: int) -> None:
        """Make the file's bytes durable."""
        super().sync(descriptor)
        status = os.fstat(descriptor)
        self._bytes[self._node(status.st_ino)] = os.pread(descriptor, status.st_size, 0)

    def sync_folder(self, path: str) -> None:
        """Make the folder's names durable."""
        super().sync_folder(path)
        with os.scandir(path) as entries:
            self._folder(path).durable = {entry.name: self._node(entry.inode()) for entry in entries}
        self._folder(path).pending = []

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder."""
        node = self._node_at(old)
        super().rename(old, new)
        if node is None:
            return
        (before, gone), (after, come) = os.path.split(old), os.path.split(new)
        if before == after:
            self._folder(before).pending.append(_Change(gone, come, node))
        else:
            self._folder(after).pending.append(_Change(None, come, node))
            self._folder(before).pending.append(_Change(gone, None, node))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        super().link(old, new)
        folder, name = os.path.split(new)
        self._folder(folder).pending.append(_Change(None, name, self._node(Path(new).stat().st_ino)))

    def remove(self, path: str) -> None:
        """Delete a file."""
        node = self._node_at(path)
        super().remove(path)
        self._gone(path, node)

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        there = self._node_at(path)
        super().make_folder(path)
        if there is None:
            self._folders[self._made(path)] = _Folder()

    def remove_folder(self, path: str) -> None:
        """Delete a folder."""
        node = self._node_at(path)
        super().remove_folder(path)
        self._gone(path, node)

    # --- after a power loss ------------------------------------------------------------------------------------------

    def leave(self, folder: str, target: Path, chance: random.Random) -> None:
        """Write to ``target`` one state of ``folder`` that a power loss may leave.

        Each change of names since the last sync is applied or lost. Each file has its durable bytes. Bytes written
        later are present, missing, torn, or zeros.
        """
        self._leave(self._node(Path(folder).stat().st_ino), Path(folder), target, chance)

    def _leave(self, node: int, folder: Path | None, target: Path, chance: random.Random) -> None:
        target.mkdir(parents=True)
        paths = {self._node(path.stat().st_ino): path for path in sorted(folder.iterdir())} if folder else {}
        known = self._folders.get(node, _Folder())
        names = known.left(chance)
        noted = {*known.durable.values(), *(change.node for change in known.pending)}
        for found, path in paths.items():  # not created through this file system
            if found not in noted and chance.random() < 0.5:
                names[path.name] = found
        for name, found in sorted(names.items()):
            now = paths.get(found)
            if found in self._folders or (now is not None and now.is_dir()):
                self._leave(found, now, target / name, chance)
            else:
                (target / name).write_bytes(self._left_of(found, now, chance))

    def _left_of(self, node: int, path: Path | None, chance: random.Random) -> bytes:
        durable = self._bytes.get(node, b"")
        if path is None:
            return durable
        written = path.read_bytes()
        fate = chance.randrange(4)
        if fate == 0:
            return written
        if not written.startswith(durable):  # changed in place, for example through a map, or truncated
            return durable
        fresh = written[len(durable) :]
        cut = chance.randrange(len(fresh) + 1)
        return durable + (b"", fresh[:cut], bytes(cut))[fate - 1]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _node(self, inode: int) -> int:
        if inode not in self._nodes:
            self._nodes[inode] = next(self._numbers)
        return self._nodes[inode]

    def _node_at(self, path: str) -> int | None:
        """Return the node that a path names now, or None if the path does not exist."""
        try:
            return self._node(Path(path).stat().st_ino)
        except FileNotFoundError:
            return None

    def _folder(self, path: str) -> _Folder:
        return self._folders.setdefault(self._node(Path(path).stat().st_ino), _Folder())

    def _made(self, path: str) -> int:
        """Record a new file or folder; it gets a new node even if it reuses the inode number of a removed one."""
        folder, name = os.path.split(path)
        inode = Path(path).stat().st_ino
        self._nodes.pop(inode, None)
        node = self._node(inode)
        self._folder(folder).pending.append(_Change(None, name, node))
        return node

    def _gone(self, path: str, node: int | None) -> None:
        folder, name = os.path.split(path)
        if node is not None:
            self._folder(folder).pending.append(_Change(name, None, node))
