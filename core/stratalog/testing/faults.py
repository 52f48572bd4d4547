"""File system with injected failures, and a segment store on it for tests."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from stratalog.config.engine_settings import Limits
from stratalog.env import Env
from stratalog.env.handles import HandlePool
from stratalog.env.posix_vfs import PosixVfs
from stratalog.spi.providers import Provider
from stratalog.spi.segment_store import SegmentStore
from stratalog.testing.contexts import open_context

Method = TypeVar("Method", bound=Callable[..., Any])
Rule = Callable[[str, str], None]
"""Function that gets the name and the path of an operation. If it raises an exception, the operation fails."""


def _recorded(operation: str, method: Method, path_at: int = 0) -> Method:
    """Return a method of FaultyVfs that records an operation, and then calls ``method``.

    Argument ``path_at`` is the recorded path, or the descriptor of an open file with this path.
    """

    @functools.wraps(method)
    def recorded(self: FaultyVfs, *arguments: Any, **options: Any) -> Any:
        place = arguments[path_at]
        self._note(operation, self._paths[place] if isinstance(place, int) else place)
        return method(self, *arguments, **options)

    return cast(Method, recorded)


class FaultyVfs(PosixVfs):
    """The real file system, which records operations; a test can make these operations fail.

    Each overridden method except ``close`` first appends the name and the path of its operation to ``done``, and calls
    ``rule``. ``open`` with ``create`` is recorded as "create", ``read_into`` as "read", and ``rename`` and ``link`` with
    the new path. Other operations, such as ``stat``, are not recorded and do not fail.

    Attributes:
        done: name and path of each recorded operation so far.
        rule: function that is called before each recorded operation, and may raise an OSError; None for no failures.
        room_bytes: number of bytes that ``write`` can still write. A reservation of more bytes fails. None sets no
            limit.
    """

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.rule: Rule | None = None
        self.room_bytes: int | None = None
        self._paths: dict[int, str] = {}

    @property
    def open_paths(self) -> list[str]:
        """Paths of all open descriptors, including locks, sorted."""
        return sorted(self._paths.values())

    def names(self, *operations: str) -> list[tuple[str, str]]:
        """Return the name and the file name of each recorded operation with one of these names, in order."""
        return [(recorded, path.rpartition("/")[2]) for recorded, path in self.done if recorded in operations]

    def _note(self, operation: str, path: str) -> None:
        self.done.append((operation, path))
        if self.rule is not None:
            self.rule(operation, path)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a file, and return its descriptor; recorded as "create" if ``create`` is True, otherwise as "open"."""
        self._note("create" if create else "open", path)
        descriptor = super().open(path, write=write, create=create)
        self._paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor; not recorded, and cannot be made to fail."""
        del self._paths[descriptor]
        super().close(descriptor)

    read = _recorded("read", PosixVfs.read)
    read_into = _recorded("read", PosixVfs.read_into)
    send = _recorded("send", PosixVfs.send)
    truncate = _recorded("truncate", PosixVfs.truncate)
    map = _recorded("map", PosixVfs.map)
    sync = _recorded("sync", PosixVfs.sync)
    sync_folder = _recorded("sync folder", PosixVfs.sync_folder)
    rename = _recorded("rename", PosixVfs.rename, path_at=1)
    link = _recorded("link", PosixVfs.link, path_at=1)
    remove = _recorded("remove", PosixVfs.remove)
    make_folder = _recorded("make folder", PosixVfs.make_folder)
    remove_folder = _recorded("remove folder", PosixVfs.remove_folder)
    set_modified = _recorded("set modified", PosixVfs.set_modified)

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write the bytes that fit into ``room_bytes``, and return their number; recorded as "write".

        The call decreases ``room_bytes`` by this number.
        """
        self._note("write", self._paths[descriptor])
        if self.room_bytes is None:
            return super().write(descriptor, position, data)
        fits = memoryview(data)[: self.room_bytes]
        self.room_bytes -= len(fits)
        return super().write(descriptor, position, fits)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve disk space for a file of ``size_bytes``; recorded as "allocate".

        If ``size_bytes`` exceeds ``room_bytes``, the call raises OSError (ENOSPC). Before that, a file that is smaller
        than ``room_bytes`` grows to ``room_bytes``: a full disk can reserve a part of the space.
        """
        self._note("allocate", self._paths[descriptor])
        if self.room_bytes is not None and size_bytes > self.room_bytes:
            super().truncate(descriptor, max(super().size_bytes(descriptor), self.room_bytes))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().allocate(descriptor, size_bytes)

    def reserve(self, descriptor: int, position: int, size_bytes: int) -> None:
        """Reserve disk space; recorded as "reserve". Raise ENOSPC if ``size_bytes`` exceeds ``room_bytes``."""
        self._note("reserve", self._paths[descriptor])
        if self.room_bytes is not None and size_bytes > self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(descriptor, position, size_bytes)

    def lock(self, path: str) -> int | None:
        """Lock a file, and return its descriptor, or None if the lock is held; recorded as "lock"."""
        self._note("lock", path)
        descriptor = super().lock(path)
        if descriptor is not None:
            self._paths[descriptor] = path
        return descriptor


def failing(operation: str, code: int, *, path: str = "", times: int = 1) -> Rule:
    """Return a rule for ``FaultyVfs.rule``: the first ``times`` matching operations raise OSError with errno ``code``.

    An operation matches if its recorded name is ``operation`` and its path ends with ``path``.
    """
    remaining = [times]

    def rule(recorded: str, recorded_path: str) -> None:
        if recorded == operation and recorded_path.endswith(path) and remaining[0] > 0:
            remaining[0] -= 1
            raise OSError(code, os.strerror(code))

    return rule


@dataclass(slots=True)
class StoreBench:
    """Opener of stores over one log directory, on a file system with injected failures.

    Calling the object opens a store of this directory. The object is a StoreOpener for SegmentStoreContract.

    Attributes:
        handles: descriptor pool; ``close`` closes it.
    """

    provider: Provider[SegmentStore]
    location: str
    files: FaultyVfs = field(default_factory=FaultyVfs)
    limits: Limits = field(default_factory=Limits)
    handles: HandlePool = field(init=False)

    def __post_init__(self) -> None:
        self.handles = HandlePool(self.files, self.limits.open_files)

    def __call__(self, *, read_only: bool = False) -> SegmentStore:
        """Return a new open store of the directory. The store does not hold the lock. The caller closes the store."""
        context = open_context(location=self.location, read_only=read_only, env=Env(files=self.files))
        return self.provider.open(replace(context, limits=self.limits, handles=self.handles))

    def acquired(self) -> SegmentStore:
        """Return a new open store that holds the lock of the directory. The caller closes the store."""
        store = self()
        store.acquire()
        return store

    def close(self) -> None:
        """Close the descriptor pool. Raise AssertionError if a descriptor is still open."""
        self.handles.close()
        open_paths = self.files.open_paths
        assert open_paths == [], f"left open: {', '.join(open_paths)}"
