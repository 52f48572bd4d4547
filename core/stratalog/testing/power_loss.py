"""Real file system that simulates the state of one folder, with its subfolders, after a power loss.

The simulation is stricter than any real file system. Bytes are durable after a sync of their file. Changes of names
(creations, renames, removals) are durable after a sync of their folder. Before the sync, each change may or may not
have reached the disk, in any order. A write can leave only its first bytes, lack a sector in its middle, or extend the
file without its bytes. A rename within one folder is atomic: the file or folder has either its old or its new name.
"""

from __future__ import annotations

import contextlib
import mmap
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

from stratalog.env.posix_vfs import PosixVfs
from stratalog.testing.torn_writes import Fate, Write, by_chance, kept, longer_alone, lost

Image: TypeAlias = dict[str, bytes]
"""Contents of the folder after the power loss: bytes by path in the folder."""


@dataclass(eq=False, slots=True)
class _File:
    """One file: its current bytes, its durable bytes, and the changes since then."""

    path: str
    now: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[Write] = field(default_factory=list)
    mapped: bool = False

    def change(self, write: Write) -> None:
        """Apply and record a change."""
        write.apply(self.now)
        self.pending.append(write)

    def refresh(self) -> None:
        """Note bytes that were written through a memory map: such writes call no method of the file system."""
        if self.mapped:
            with contextlib.suppress(FileNotFoundError):
                data = Path(self.path).read_bytes()
                if data != self.now:
                    self.change(Write(len(data), None))
                    self.change(Write(0, data))

    def state_left(self, fate: Fate) -> bytes:
        """Return the file's bytes after a power loss. ``fate`` returns the part of a write that reached the disk."""
        data = bytearray(self.durable)
        for write in self.pending:
            for part in fate(write):
                part.apply(data)
        return bytes(data)


@dataclass(eq=False, slots=True)
class _Folder:
    """One folder: its current names, its durable names, and the changes since then."""

    now: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    pending: list[_Naming] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the present state of a folder on disk. All its files and names count as durable."""
        folder = cls()
        for entry in path.iterdir() if path.is_dir() else ():
            if entry.is_dir():
                folder.now[entry.name] = cls.of(entry)
            else:
                data = entry.read_bytes()
                folder.now[entry.name] = _File(str(entry), bytearray(data), data)
        folder.durable = dict(folder.now)
        return folder

    def rename(self, old: str | None, new: str | None, node: _File | _Folder) -> None:
        """Apply and record a change of names: ``old`` is removed unless None, then ``new`` is added unless None."""
        replaced = self.now.get(new) if new is not None else None
        if isinstance(replaced, _File):
            replaced.mapped = False  # another file has its path now
        naming = _Naming(old, new, node)
        naming.apply(self.now)
        self.pending.append(naming)

    def refresh(self) -> None:
        """Refresh the files of this folder and of the folders in it."""
        for node in {*self.now.values(), *self.durable.values()}:
            node.refresh()

    def state_left(self, share: float, chance: random.Random | None) -> dict[str, _File | _Folder]:
        """Return the folder's files and folders by name after a power loss.

        ``share`` is the probability that a change of a name reached the disk. Without ``chance``, it must be 0 or 1.
        """
        names = dict(self.durable)
        for naming in self.pending:
            if share > (0 if chance is None else chance.random()):
                naming.apply(names)
        return names


@dataclass(eq=False, slots=True)
class _Naming:
    """Change of names: ``old`` is removed unless None, then ``new`` names the file or folder unless None."""

    old: str | None
    new: str | None
    node: _File | _Folder

    def apply(self, names: dict[str, _File | _Folder]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.new is not None:
            names[self.new] = self.node


class PowerLossVfs(PosixVfs):
    """The real file system, which records the durable bytes and names in one folder. Syncs do not reach the disk.

    Args:
        folder: the watched folder. Its files and subfolders at construction count as durable.
        before: called with the operation's name before each change and sync in the folder; it may call ``images`` and
            ``leave``. None calls nothing.
    """

    def __init__(self, folder: Path, before: Callable[[str], None] | None = None) -> None:
        self.before = before
        self._path, self._root = str(folder), _Folder.of(folder)
        self._open_files: dict[int, _File] = {}

    # --- after a power loss ------------------------------------------------------------------------------------------

    def images(self, chance: random.Random, samples: int) -> Iterator[Image]:
        """Yield states of the disk that a power loss at this point may leave: five extreme states, then random states.

        The first four states combine all or no writes with all or no changes of names. The fifth state has all changes
        of names, and zeros instead of the bytes of all writes. ``samples`` is the number of random states.
        """
        self._root.refresh()
        for keeps_names in (True, False):
            for fate in (kept, lost):
                yield self._image(fate, float(keeps_names))
        yield self._image(longer_alone, 1)
        for _ in range(samples):
            yield self._image(partial(by_chance, chance), chance.random(), chance)

    def leave(self, target: Path, chance: random.Random | None) -> None:
        """Create the folder ``target``, and write to it one random state that a power loss at this point may leave.

        If ``chance`` is None, the state has only the durable changes.
        """
        self._root.refresh()
        target.mkdir(parents=True)
        fate = lost if chance is None else partial(by_chance, chance)
        for path, data in self._state(fate, 0 if chance is None else chance.random(), chance):
            if data is None:
                (target / path).mkdir()
            else:
                (target / path).write_bytes(data)

    def _image(self, fate: Fate, share: float, chance: random.Random | None = None) -> Image:
        return {path: data for path, data in self._state(fate, share, chance) if data is not None}

    def _state(self, fate: Fate, share: float, chance: random.Random | None) -> Iterator[tuple[str, bytes | None]]:
        """Yield each path in one state of the disk, with the bytes of a file, or None for a folder.

        A folder comes before its contents. ``share`` is the probability that a change of a name reached the disk.
        Without ``chance``, it must be 0 or 1.
        """
        folders = [("", self._root)]
        while folders:
            prefix, folder = folders.pop()
            for name, node in folder.state_left(share, chance).items():
                if isinstance(node, _Folder):
                    folders.append((f"{prefix}{name}/", node))
                    yield prefix + name, None
                else:
                    yield prefix + name, node.state_left(fate)

    # --- the port ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file, and return its descriptor. The name of a created file is not durable before ``sync_folder``."""
        place = self._place(path)
        if create and place is not None:
            self._before_change("create")
        descriptor = super().open(path, write=write, create=create)
        if place is not None:
            folder, name = place
            if create:
                folder.rename(None, name, _File(path))
            node = folder.now.get(name)
            if isinstance(node, _File):
                self._open_files[descriptor] = node
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self._open_files.pop(descriptor, None)
        super().close(descriptor)

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write bytes, which are not durable before ``sync``; return their number."""
        file = self._begin_operation("write", descriptor)
        if file is not None:
            file.change(Write(position, bytes(data)))
        return super().write(descriptor, position, data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Set the size of a file. The new size is not durable before ``sync``."""
        file = self._begin_operation("truncate", descriptor)
        if file is not None:
            file.change(Write(size_bytes, None))
        super().truncate(descriptor, size_bytes)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space for a file of ``size_bytes``.

        A shorter file grows to this size, which is not durable before ``sync``.
        """
        file = self._begin_operation("allocate", descriptor)
        if file is not None and len(file.now) < size_bytes:
            file.change(Write(size_bytes, None))
        super().allocate(descriptor, size_bytes)

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space after a file's end. States after a power loss do not show this space."""
        self._begin_operation("reserve", descriptor)
        super().reserve(descriptor, position, size_bytes)

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Return a memory map of a file. Changes through the map are recorded before the next operation on the file."""
        if write and descriptor in self._open_files:
            self._open_files[descriptor].mapped = True
        return super().map(descriptor, size_bytes, write=write)

    def sync(self, descriptor: int) -> None:
        """Count the present bytes of the file as durable. The real disk is not synced."""
        file = self._begin_operation("sync", descriptor)
        if file is not None:
            file.durable, file.pending = bytes(file.now), []

    def sync_folder(self, path: str) -> None:
        """Count the present names in the folder as durable. The real disk is not synced."""
        folder = self._node(path)
        if isinstance(folder, _Folder):
            self._before_change("sync folder")
            folder.durable, folder.pending = dict(folder.now), []

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder. The change is not durable before ``sync_folder``.

        Between two folders, the removal of the old name and the new name are two separate changes.
        """
        before, after = self._begin_change("rename", old), self._place(new)
        super().rename(old, new)
        if before is None or after is None:
            return
        (source, old_name), (target, new_name) = before, after
        node = source.now[old_name]
        if source is target:
            source.rename(old_name, new_name, node)
        else:
            target.rename(None, new_name, node)
            source.rename(old_name, None, node)
        _move(node, new)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name, which is not durable before ``sync_folder``."""
        before, after = self._begin_change("link", old), self._place(new)
        super().link(old, new)
        if before is not None and after is not None:
            after[0].rename(None, after[1], before[0].now[before[1]])

    def remove(self, path: str) -> None:
        """Delete a file. Its removal is not durable before ``sync_folder``."""
        self._delete("remove", path, super().remove)

    def make_folder(self, path: str) -> None:
        """Make a folder with its parents. Their names are not durable before ``sync_folder``."""
        if self._place(path) is not None:
            self._before_change("make folder")
        super().make_folder(path)
        folder = self._root
        for name in self._names(path) or ():
            if name not in folder.now:
                folder.rename(None, name, _Folder())
            child = folder.now[name]
            assert isinstance(child, _Folder)
            folder = child

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder. Its removal is not durable before ``sync_folder``."""
        self._delete("remove folder", path, super().remove_folder)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _names(self, path: str) -> list[str] | None:
        """Return the names between slashes in ``path``, relative to the watched folder; None for a path outside."""
        if path == self._path:
            return []
        return path.removeprefix(f"{self._path}/").split("/") if path.startswith(f"{self._path}/") else None

    def _node(self, path: str) -> _File | _Folder | None:
        """Return the file or folder that ``path`` names; None if it is not tracked."""
        node: _File | _Folder | None = self._root
        names = self._names(path)
        for name in names or ():
            node = node.now.get(name) if isinstance(node, _Folder) else None
        return None if names is None else node

    def _place(self, path: str) -> tuple[_Folder, str] | None:
        """Return the folder and the name of ``path``, or None for the watched folder and paths outside."""
        parent, _, name = path.rpartition("/")
        folder = self._node(parent)
        return (folder, name) if isinstance(folder, _Folder) else None

    def _begin_change(self, operation: str, path: str) -> tuple[_Folder, str] | None:
        """Call ``before`` with the name of the operation; return the folder and the name of ``path``.

        Do nothing and return None if ``path`` is the watched folder or is not tracked.
        """
        if self._node(path) is None or path == self._path:
            return None
        self._before_change(operation)
        return self._place(path)

    def _delete(self, operation: str, path: str, delete: Callable[[str], None]) -> None:
        place, node = self._begin_change(operation, path), self._node(path)
        if node is not None:
            node.refresh()
        delete(path)
        if place is not None and node is not None:
            place[0].rename(place[1], None, node)
            if isinstance(node, _File):
                node.mapped = False  # another file may get its path

    def _begin_operation(self, operation: str, descriptor: int) -> _File | None:
        file = self._open_files.get(descriptor)
        if file is not None:
            self._before_change(operation)
            file.refresh()
        return file

    def _before_change(self, operation: str) -> None:
        if self.before is not None:
            self.before(operation)


class LazySync(PowerLossVfs):
    """Broken file system whose ``sync`` does nothing. A power loss test must fail with it."""

    def sync(self, descriptor: int) -> None:
        """Do nothing: no bytes become durable."""
        del descriptor


class LazyNames(PowerLossVfs):
    """Broken file system whose ``sync_folder`` does nothing. A power loss test must fail with it."""

    def sync_folder(self, path: str) -> None:
        """Do nothing: no names become durable."""
        del path


def _move(node: _File | _Folder, path: str) -> None:
    """Note a new path of a file, or of the files in a folder."""
    if isinstance(node, _File):
        node.path = path
    else:
        for name, child in node.now.items():
            _move(child, f"{path}/{name}")
