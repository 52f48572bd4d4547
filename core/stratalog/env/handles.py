"""One bound on open descriptors and maps: the least recently used ones close, those in use stay."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from stratalog.env.files import Vfs
from stratalog.errors import ClosedError

_NO_DESCRIPTOR: Final = -1


@dataclass(slots=True)
class _Handle:
    close: Callable[[], None]
    descriptor: int = _NO_DESCRIPTOR
    pins: int = 0


class HandlePool:
    """Opens files at need, keeps at most ``limit`` idle ones open. Thread-safe.

    More than ``limit`` stay open only while more than ``limit`` are pinned at once. If the process runs out of
    descriptors before that, idle ones close too.

    A ``limit`` above half of what the system allows the process counts as that half: not all that costs a descriptor
    goes through the pool.
    """

    def __init__(self, files: Vfs, limit: int) -> None:
        self._files, self._limit = files, _allowed(limit)
        self._handles: OrderedDict[Hashable, _Handle] = OrderedDict()  # least recently used first; under _lock
        self._dropped: dict[int, _Handle] = {}  # pinned when dropped; the last unpin closes them
        self._lock = threading.Lock()
        self._closed = False

    def pin(self, name: Hashable, opener: Callable[[], int]) -> int:
        """The descriptor for ``name``, opened if need be, not closed before ``unpin``.

        Raises:
            ClosedError: the pool is closed.
            OSError: what ``opener`` raises.
        """
        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                descriptor = self._opened(opener)
                handle = self._handles[name] = _Handle(partial(self._files.close, descriptor), descriptor)
            self._handles.move_to_end(name)
            handle.pins += 1
            if len(self._handles) > self._limit:
                self._shrink()
            return handle.descriptor

    def unpin(self, name: Hashable, descriptor: int) -> None:
        """Give back what ``pin`` returned; safe after ``drop``."""
        with self._lock:
            handle = self._handles.get(name)
            if handle is not None and handle.descriptor == descriptor:
                handle.pins -= 1
                if len(self._handles) > self._limit:
                    self._shrink()
                return
            handle = self._dropped.get(descriptor)
            if handle is None:
                return
            handle.pins -= 1
            if handle.pins == 0:
                del self._dropped[descriptor]
                handle.close()

    @contextlib.contextmanager
    def using(self, name: Hashable, opener: Callable[[], int]) -> Iterator[int]:
        """Pin for the length of a ``with`` block."""
        descriptor = self.pin(name, opener)
        try:
            yield descriptor
        finally:
            self.unpin(name, descriptor)

    def keep(self, name: Hashable, let_go: Callable[[], None]) -> None:
        """Count something else that costs a descriptor, a map for instance; again, to say that it was used.

        ``let_go`` is called once, when the place is needed or the name is dropped: on any thread, under the pool's
        lock, so it must neither wait nor call the pool. In a closed pool it is called at once.
        """
        with self._lock:
            if self._closed:
                let_go()
                return
            self._handles.setdefault(name, _Handle(let_go))
            self._handles.move_to_end(name)
            self._shrink()

    def drop(self, name: Hashable) -> None:
        """Forget a name, because its file goes or is renamed; closes now, or when the last pin goes."""
        with self._lock:
            self._drop(name)

    def close(self) -> None:
        """Close every idle descriptor; pinned ones close when they are unpinned. Twice is fine."""
        with self._lock:
            self._closed = True
            for name in list(self._handles):
                self._drop(name)

    @property
    def open_count(self) -> int:
        """Descriptors and maps open now."""
        with self._lock:
            return len(self._handles) + len(self._dropped)

    # --- inside: all under _lock -------------------------------------------------------------------------------------

    def _opened(self, opener: Callable[[], int]) -> int:
        if self._closed:
            raise ClosedError("the descriptor pool is closed")
        while True:
            try:
                return opener()
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE} or not self._close_oldest():
                    raise

    def _drop(self, name: Hashable) -> None:
        handle = self._handles.pop(name, None)
        if handle is None:
            return
        if handle.pins:
            self._dropped[handle.descriptor] = handle
        else:
            handle.close()

    def _shrink(self) -> None:
        while len(self._handles) > self._limit and self._close_oldest():
            pass

    def _close_oldest(self) -> bool:
        """Close the idle one that was used longest ago; False if none is idle."""
        idle = next((name for name, handle in self._handles.items() if not handle.pins), None)
        if idle is None:
            return False
        self._handles.pop(idle).close()
        return True


def _allowed(limit: int) -> int:
    try:
        import resource  # noqa: PLC0415 - Windows has none, and opens files all the same
    except ImportError:
        return limit
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if allowed == resource.RLIM_INFINITY else min(limit, allowed // 2)
