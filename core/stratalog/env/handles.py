"""One bound on open descriptors: the least recently used ones close, those in use stay."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from stratalog.env.files import Vfs


@dataclass(slots=True)
class _Handle:
    descriptor: int
    pins: int = 0


class HandlePool:
    """Opens files at need, keeps at most ``limit`` idle ones open. Thread-safe.

    More than ``limit`` stay open only while more than ``limit`` are pinned at once.
    """

    def __init__(self, files: Vfs, limit: int) -> None:
        self._files, self._limit = files, limit
        self._handles: OrderedDict[Hashable, _Handle] = OrderedDict()  # least recently used first; under _lock
        self._dropped: dict[int, _Handle] = {}  # pinned when dropped; the last unpin closes them
        self._lock = threading.Lock()

    def pin(self, name: Hashable, opener: Callable[[], int]) -> int:
        """The descriptor for ``name``, opened if need be, not closed before ``unpin``."""
        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = _Handle(opener())
            self._handles.move_to_end(name)
            handle.pins += 1
            self._shrink()
            return handle.descriptor

    def unpin(self, name: Hashable, descriptor: int) -> None:
        """Give back what ``pin`` returned; safe after ``drop``."""
        with self._lock:
            handle = self._handles.get(name)
            if handle is not None and handle.descriptor == descriptor:
                handle.pins -= 1
                self._shrink()
                return
            handle = self._dropped.get(descriptor)
            if handle is None:
                return
            handle.pins -= 1
            if handle.pins == 0:
                del self._dropped[descriptor]
                self._files.close(descriptor)

    @contextlib.contextmanager
    def using(self, name: Hashable, opener: Callable[[], int]) -> Iterator[int]:
        """Pin for the length of a ``with`` block."""
        descriptor = self.pin(name, opener)
        try:
            yield descriptor
        finally:
            self.unpin(name, descriptor)

    def drop(self, name: Hashable) -> None:
        """Forget a name, because its file goes or is renamed; closes now, or when the last pin goes."""
        with self._lock:
            handle = self._handles.pop(name, None)
            if handle is None:
                return
            if handle.pins:
                self._dropped[handle.descriptor] = handle
            else:
                self._files.close(handle.descriptor)

    def close(self) -> None:
        """Close every idle descriptor; pinned ones close when they are unpinned."""
        with self._lock:
            names = list(self._handles)
        for name in names:
            self.drop(name)

    @property
    def open_count(self) -> int:
        """Descriptors open now."""
        with self._lock:
            return len(self._handles) + len(self._dropped)

    def _shrink(self) -> None:
        while len(self._handles) > self._limit:
            idle = next((name for name, handle in self._handles.items() if not handle.pins), None)
            if idle is None:
                return
            self._files.close(self._handles.pop(idle).descriptor)
