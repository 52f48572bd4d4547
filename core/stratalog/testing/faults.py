"""A real file system that fails where a test wants it to, and a place for a segment store over it."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stratalog.config.engine_settings import Limits
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.env.vfs import PosixVfs
from stratalog.spi.codecs import CodecTable
from stratalog.spi.providers import OpenContext, Provider
from stratalog.spi.segment_store import SegmentStore

Rule = Callable[[str, str], None]
"""Told of an operation and a path; what it raises makes the operation fail."""


class FaultyVfs(PosixVfs):
    """The real file system, which notes what is done to it and fails where it is told to.

    ``rule`` is asked before each operation. ``room_bytes`` is what still fits on the disk, None for no end.
    """

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.rule: Rule | None = None
        self.room_bytes: int | None = None
        self._paths: dict[int, str] = {}

    @property
    def open_paths(self) -> list[str]:
        """Of the descriptors that are open, locks included."""
        return sorted(self._paths.values())

    def names(self, *operations: str) -> list[tuple[str, str]]:
        """What was done, with the last part of each path."""
        return [(what, path.rpartition("/")[2]) for what, path in self.done if what in operations]

    def _note(self, operation: str, path: str) -> None:
        self.done.append((operation, path))
        if self.rule is not None:
            self.rule(operation, path)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file."""
        self._note("create" if create else "open", path)
        descriptor = super().open(path, write=write, create=create)
        self._paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        del self._paths[descriptor]
        super().close(descriptor)

    def read(self, descriptor: int, position: int, size_bytes: int) -> bytes:
        """Read."""
        self._note("read", self._paths[descriptor])
        return super().read(descriptor, position, size_bytes)

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        """Read."""
        self._note("read", self._paths[descriptor])
        return super().read_into(descriptor, position, into)

    def write(self, descriptor: int, position: int, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write what there is room for."""
        self._note("write", self._paths[descriptor])
        if self.room_bytes is None:
            return super().write(descriptor, position, parts)
        data = b"".join(parts)[: self.room_bytes]
        self.room_bytes -= len(data)
        return super().write(descriptor, position, [data])

    def send(self, descriptor: int, position: int, size_bytes: int, to: int) -> int:
        """Send to a socket."""
        self._note("send", self._paths[descriptor])
        return super().send(descriptor, position, size_bytes, to)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut or extend a file."""
        self._note("truncate", self._paths[descriptor])
        super().truncate(descriptor, size_bytes)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space; a part of it stays if there is too little room, as on real disks."""
        self._note("allocate", self._paths[descriptor])
        if self.room_bytes is not None and size_bytes > self.room_bytes:
            super().truncate(descriptor, self.room_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(descriptor, size_bytes)

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Take disk space behind a file's end."""
        self._note("reserve", self._paths[descriptor])
        if self.room_bytes is not None and size_bytes > self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(descriptor, position, size_bytes)

    def map(self, descriptor: int, size_bytes: int, *, write: bool = False) -> mmap.mmap:
        """Map a file."""
        self._note("map", self._paths[descriptor])
        return super().map(descriptor, size_bytes, write=write)

    def sync(self, descriptor: int) -> None:
        """Make bytes durable."""
        self._note("sync", self._paths[descriptor])
        super().sync(descriptor)

    def sync_folder(self, path: str) -> None:
        """Make names durable."""
        self._note("sync folder", path)
        super().sync_folder(path)

    def rename(self, old: str, new: str) -> None:
        """Rename."""
        self._note("rename", new)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._note("remove", path)
        super().remove(path)

    def make_folder(self, path: str) -> None:
        """Make a folder."""
        self._note("make folder", path)
        super().make_folder(path)

    def remove_folder(self, path: str) -> None:
        """Delete a folder."""
        self._note("remove folder", path)
        super().remove_folder(path)

    def lock(self, path: str) -> int | None:
        """Take a lock."""
        self._note("lock", path)
        descriptor = super().lock(path)
        if descriptor is not None:
            self._paths[descriptor] = path
        return descriptor


def failing(operation: str, code: int, *, path: str = "", times: int = 1) -> Rule:
    """A rule that lets ``operation`` fail for paths that end with ``path``, the first ``times`` times."""
    left = [times]

    def rule(what: str, where: str) -> None:
        if what == operation and where.endswith(path) and left[0] > 0:
            left[0] -= 1
            raise OSError(code, os.strerror(code))

    return rule


@dataclass(slots=True)
class StoreBench:
    """One place for a log directory, over a file system that can be made to fail.

    Calling it opens a store there: it is a StoreOpener for SegmentStoreContract.

    Attributes:
        provider: of the store.
        location: where.
        files: the file system.
        limits: the bounds the store is told.
        handles: the descriptor pool, closed by ``close``.
    """

    provider: Provider[SegmentStore]
    location: str
    files: FaultyVfs = field(default_factory=FaultyVfs)
    limits: Limits = field(default_factory=Limits)
    handles: HandlePool = field(init=False)

    def __post_init__(self) -> None:
        self.handles = HandlePool(self.files, self.limits.open_files)

    def __call__(self, *, read_only: bool = False) -> SegmentStore:
        """Open a store."""
        return self.provider.open(
            OpenContext(
                env=Env(files=self.files),
                limits=self.limits,
                handles=self.handles,
                codecs=CodecTable(),
                location=self.location,
                read_only=read_only,
            )
        )

    def acquired(self) -> SegmentStore:
        """Open a store that holds the place."""
        store = self()
        store.acquire()
        return store

    def close(self) -> None:
        """Close the pool.

        Raises:
            AssertionError: something still has a descriptor.
        """
        self.handles.close()
        left = self.files.open_paths
        assert left == [], f"left open: {', '.join(left)}"
