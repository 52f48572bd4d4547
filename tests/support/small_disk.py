"""A disk on which only a limited number of bytes fits."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from stratalog.env import PosixVfs


class SmallDisk(PosixVfs):
    """File system whose ``folder`` is a disk with ``room_bytes`` bytes. A write that does not fit fails."""

    def __init__(self, folder: Path, room_bytes: int = 0) -> None:
        self._folder, self.room_bytes = folder, room_bytes
        self._elsewhere = set[int]()  # descriptors

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        descriptor = super().open(path, write=write, create=create)
        if not Path(path).is_relative_to(self._folder):
            self._elsewhere.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self._elsewhere.discard(descriptor)
        super().close(descriptor)

    def used_bytes(self) -> int:
        """Return the total size of the files on the disk."""
        total = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # other threads rename and delete meanwhile
                    total += os.stat(os.path.join(folder, name)).st_size  # noqa: PTH116, PTH118 - asked at each write
        return total

    def _left(self) -> int:
        return self.room_bytes - self.used_bytes()

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        if descriptor in self._elsewhere:
            return super().write(descriptor, position, data)
        overwritten = max(0, self.size_bytes(descriptor) - position)
        fits = memoryview(data)[: max(0, self._left() + overwritten)]
        return super().write(descriptor, position, fits) if fits else 0

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        if size_bytes - self.size_bytes(descriptor) > self._left():
            raise OSError(errno.ENOSPC, "no space left on device")
        super().allocate(descriptor, size_bytes)
