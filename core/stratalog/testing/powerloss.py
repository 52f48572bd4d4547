"""Real file system that simulates what a power loss may leave of one folder.

It is stricter than any real file system. Bytes are durable after a sync of their file. Names (created, renamed,
removed) are durable after a sync of their folder. Before that, each change may or may not have reached the disk, in
any order. A write may be cut at a sector, lack sectors in its middle, or have extended the file without its bytes.
"""

from __future__ import annotations

import contextlib
import mmap
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from stratalog.env.vfs import PosixVfs

SECTOR_BYTES: Final = 512
_AT_A_SECTOR: Final = 0.5  # share of cuts at a sector boundary
_WITH_A_HOLE: Final = 0.3  # share of damaged writes with a missing sector before later ones

Image: TypeAlias = dict[str, bytes]
"""Contents of the folder after the power loss: bytes by file name."""


@dataclass(eq=False, slots=True)
class _Write:
    """One write: bytes at a position; if ``data`` is None, a new file size of ``position``."""

    position: int
    data: bytes | None

    def apply(self, to: bytearray) -> None:
        end = self.position if self.data is None else self.position + len(self.data)
        if self.data is None:
            del to[end:]
        if len(to) < end:
            to.extend(bytes(end - len(to)))
        if self.data is not None:
            to[self.position : end] = self.data


_Fate: TypeAlias = Callable[[_Write], Sequence[_Write]]
"""Function that returns the part of a write that reached the disk."""


@dataclass(eq=False, slots=True)
class _File:
    """One file: its current bytes, its durable bytes, and the changes since."""

    path: str
    now: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[_Write] = field(default_factory=list)
    mapped: bool = False

    def change(self, write: _Write) -> None:
        """Apply and record a change."""
        write.apply(self.now)
        self.pending.append(write)

    def refresh(self) -> None:
        """Record bytes that were written through a map, which causes no calls."""
        if self.mapped:
            with contextlib.suppress(FileNotFoundError):
                data = Path(self.path).read_bytes()
                if data != self.now:
                    self.change(_Write(len(data), None))
                    self.change(_Write(0, data))


@dataclass(eq=False, slots=True)
class _Naming:
    """Change of names: ``old`` is removed unless None, then ``new`` names the file unless None."""

    old: str | None
    new: str | None
    file: _File

    def apply(self, to: dict[str, _File]) -> None:
        if self.old is not None:
            to.pop(self.old, None)
        if self.new is not None:
            to[self.new] = self.file


class PowerLossVfs(PosixVfs):
    """The real file system, which tracks what is durable in one folder. Syncs are only recorded, not carried out.

    Args:
        folder: the watched folder; its files at construction count as durable.
        before: called with the operation's name before each change and sync in the folder; it may call ``images``.
    """

    def __init__(self, folder: Path, before: Callable[[str], None] | None = None) -> None:
        self._folder, self._before = str(folder), before
        self._opened: dict[int, _File] = {}
        self._names: dict[str, _File] = {}
        self._pending: list[_Naming] = []
        for path in folder.iterdir() if folder.is_dir() else ():
            data = path.read_bytes()
            self._names[path.name] = _File(str(path), bytearray(data), data)
        self._durable = dict(self._names)

    # --- after a power loss ------------------------------------------------------------------------------------------

    def images(self, chance: random.Random, samples: int) -> Iterator[Image]:
        """Yield states that a power loss at this point may leave: the extreme ones, and ``samples`` random ones."""
        for file in {*self._names.values(), *self._durable.values()}:
            file.refresh()
        for keeps_names in (True, False):
            for fate in (_kept, _lost):
                yield self._image(fate, float(keeps_names))
        yield self._image(_longer_alone, 1)
        for _ in range(samples):
            yield self._image(partial(_by_chance, chance), chance.random(), chance)

    def _image(self, fate: _Fate, names_share: float, chance: random.Random | None = None) -> Image:
        """Return one state of the disk.

        ``names_share`` is the share of the changes of names that reached the disk. Without ``chance`` it is 0 or 1.
        """
        names = dict(self._durable)
        for naming in self._pending:
            if names_share > (0 if chance is None else chance.random()):
                naming.apply(names)
        image = {}
        for name, file in names.items():
            data = bytearray(file.durable)
            for write in file.pending:
                for left in fate(write):
                    left.apply(data)
            image[name] = bytes(data)
        return image

    # --- the port ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file."""
        if create:
            self._note("create", path)
        descriptor = super().open(path, write=write, create=create)
        name = self._name(path)
        if name is not None:
            if create:
                self._names[name] = _File(path)
                self._pending.append(_Naming(None, name, self._names[name]))
            if name in self._names:
                self._opened[descriptor] = self._names[name]
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self._opened.pop(descriptor, None)
        super().close(descriptor)

    def write(self, descriptor: int, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write bytes."""
        file = self._watched("write", descriptor)
        if file is not None:
            file.change(_Write(position, b"".join(parts)))
        return super().write(descriptor, position, parts)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut or extend a file."""
        file = self._watched("truncate", descriptor)
        if file is not None:
            file.change(_Write(size_bytes, None))
        super().truncate(descriptor, size_bytes)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space."""
        file = self._watched("allocate", descriptor)
        if file is not None and len(file.now) < size_bytes:
            file.change(_Write(size_bytes, None))
        super().allocate(descriptor, size_bytes)

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space behind a file's end, which a power loss does not change."""
        self._watched("reserve", descriptor)
        super().reserve(descriptor, position, size_bytes)

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Map a file."""
        if write and descriptor in self._opened:
            self._opened[descriptor].mapped = True
        return super().map(descriptor, size_bytes, write=write)

    def sync(self, descriptor: int) -> None:
        """Make the file's bytes durable."""
        file = self._watched("sync", descriptor)
        if file is not None:
            file.durable, file.pending = bytes(file.now), []

    def sync_folder(self, path: str) -> None:
        """Make the folder's names durable."""
        if path == self._folder:
            self._before_change("sync folder")
            self._durable, self._pending = dict(self._names), []

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        before, after = self._note("rename", old), self._name(new)
        super().rename(old, new)
        if before is not None and after is not None:
            file = self._names[after] = self._names.pop(before)
            file.path = new
            self._pending.append(_Naming(before, after, file))

    def link(self, old: str, new: str) -> None:
        """Give a file a second name."""
        before, after = self._note("link", old), self._name(new)
        super().link(old, new)
        if before is not None and after is not None:
            self._names[after] = self._names[before]
            self._pending.append(_Naming(None, after, self._names[after]))

    def remove(self, path: str) -> None:
        """Delete a file."""
        name = self._note("remove", path)
        if name in self._names:
            self._names[name].refresh()
        super().remove(path)
        if name is not None:
            self._pending.append(_Naming(name, None, self._names.pop(name)))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _name(self, path: str) -> str | None:
        """Return the name of a file in the watched folder, or None for other files."""
        folder, _, name = path.rpartition("/")
        return name if folder == self._folder else None

    def _note(self, what: str, path: str) -> str | None:
        name = self._name(path)
        if name is not None:
            self._before_change(what)
        return name

    def _watched(self, what: str, descriptor: int) -> _File | None:
        file = self._opened.get(descriptor)
        if file is not None:
            self._before_change(what)
            file.refresh()
        return file

    def _before_change(self, what: str) -> None:
        if self._before is not None:
            self._before(what)


class LazySync(PowerLossVfs):
    """Broken file system whose ``sync`` does nothing; a power loss test must fail with it."""

    def sync(self, descriptor: int) -> None:
        """Do nothing."""
        del descriptor


class LazyNames(PowerLossVfs):
    """Broken file system whose ``sync_folder`` does nothing; a power loss test must fail with it."""

    def sync_folder(self, path: str) -> None:
        """Do nothing."""
        del path


def _kept(write: _Write) -> Sequence[_Write]:
    return [write]


def _lost(write: _Write) -> Sequence[_Write]:
    del write
    return []


def _longer_alone(write: _Write) -> Sequence[_Write]:
    """Return a write that extends the file with zeros instead of its bytes."""
    return [write if write.data is None else _Write(write.position, bytes(len(write.data)))]


def _by_chance(chance: random.Random, write: _Write) -> Sequence[_Write]:
    """Return all, none or a part of the write: the bytes before a cut, or all bytes except one sector."""
    fate = chance.choice((_kept, _kept, _lost, _longer_alone, None, None))
    if fate is not None or not write.data:
        return (fate or _kept)(write)
    data = write.data
    cut = chance.randrange(len(data) + 1)
    if chance.random() < _AT_A_SECTOR:
        cut = cut // SECTOR_BYTES * SECTOR_BYTES
    hole = bytes(len(data[cut : cut + SECTOR_BYTES]))
    rest = data[cut + SECTOR_BYTES :]
    return [_Write(write.position, data[:cut] + (hole + rest if chance.random() < _WITH_A_HOLE else b""))]
