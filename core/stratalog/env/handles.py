"""A pool of open descriptors and maps.

Above its limit, the pool closes the least recently used descriptors and maps that are not pinned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final, TypeVar

from stratalog.env.forks import ends_with_fork
from stratalog.env.lock_order import LockRank
from stratalog.env.vfs import Vfs
from stratalog.errors import ClosedError
from stratalog.errors.system import HANDLE_ERRNOS

T = TypeVar("T")

_NO_DESCRIPTOR: Final = -1


class _Handle:
    """An open descriptor or map.

    ``pins`` has one item for each pin: ``append`` and ``pop`` of a list are atomic, incrementing a number is not.
    ``last_use`` is the time of the last use, as a count of the pool's uses. ``is_leaving`` is True if the handle is
    closed or about to close.
    """

    __slots__ = ("close", "descriptor", "is_leaving", "last_use", "pins")

    def __init__(self, close: Callable[[], None], last_use: int, descriptor: int = _NO_DESCRIPTOR) -> None:
        self.close, self.last_use, self.descriptor = close, last_use, descriptor
        self.pins: list[None] = []
        self.is_leaving = False


class HandlePool:
    """A pool that opens files on demand and keeps at most ``limit`` of them open. Thread-safe.

    A handle is an open descriptor or map; it is idle while it is not pinned. More than ``limit`` handles are open only
    while more than ``limit`` handles are pinned. If the process has no descriptor left, the pool closes idle handles.

    If ``limit`` is above half of the process's descriptor limit, that half is the limit, because the process also has
    descriptors outside of the pool.

    Open handles are pinned and unpinned without the lock, because every append does both. A closing thread sets
    ``is_leaving`` first and then checks for pins. A pinning thread adds its pin first and then checks ``is_leaving``.
    At least one of the two threads therefore sees the other.
    """

    def __init__(self, files: Vfs, limit: int) -> None:
        self._files, self._limit = files, _limit_for_process(limit)
        self._handles: dict[Hashable, _Handle] = {}  # changed under _lock
        self._dropped: dict[int, _Handle] = {}  # by descriptor; pinned when dropped, and closed by the last unpin
        # Handles in descending order of their last use: the last item is closed next, unless it was used since.
        self._oldest: list[tuple[int, Hashable, _Handle]] = []
        self._now = count()
        self._lock = LockRank.LEAF.lock()
        self._closed = False
        ends_with_fork(self)

    def pin(self, name: Hashable, opener: Callable[[], int]) -> int:
        """Pin the descriptor of ``name``, and return it. Call ``opener`` to open the file if it is not open.

        Raises:
            ClosedError: the pool is closed.
            OSError: raised by ``opener``.
        """
        descriptor = self.pin_open(name)
        if descriptor is not None:
            return descriptor
        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                descriptor = self._open(opener)
                handle = _Handle(partial(self._files.close, descriptor), 0, descriptor)
                self._handles[name] = handle
            handle.pins.append(None)
            handle.last_use = next(self._now)
            self._shrink()
            return handle.descriptor

    def pin_open(self, name: Hashable) -> int | None:
        """Pin the descriptor of ``name``, and return it. If it is not open, pin nothing, and return None."""
        handle = self._handles.get(name)
        if handle is None:
            return None
        handle.pins.append(None)
        if not handle.is_leaving:
            handle.last_use = next(self._now)
            return handle.descriptor
        with self._lock:
            self._unpin(handle)
        return None

    def unpin(self, name: Hashable, descriptor: int) -> None:
        """Undo one ``pin`` or ``pin_open`` that returned ``descriptor``, even after ``drop`` or ``close``."""
        handle = self._handles.get(name)
        if handle is not None and handle.descriptor == descriptor:
            handle.pins.pop()
            if handle.is_leaving or len(self._handles) > self._limit:
                with self._lock:
                    self._close_dropped(handle)
                    self._shrink()
            return
        with self._lock:
            dropped = self._dropped.get(descriptor)
            if dropped is not None:
                self._unpin(dropped)

    @contextlib.contextmanager
    def using(self, name: Hashable, opener: Callable[[], int]) -> Iterator[int]:
        """Return a context manager that calls ``pin``, yields the descriptor, and calls ``unpin`` at its end."""
        descriptor = self.pin(name, opener)
        try:
            yield descriptor
        finally:
            self.unpin(name, descriptor)

    def with_room(self, call: Callable[[], T]) -> T:
        """Return the result of ``call``, which opens a descriptor outside of the pool.

        If ``call`` fails because the process or the system has no descriptor left, the pool closes one idle handle and
        repeats ``call``, until ``call`` succeeds.

        Raises:
            OSError: another error of ``call``, or no descriptor is left and the pool has no idle handle.
        """
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in HANDLE_ERRNOS:
                    raise
                with self._lock:
                    if not self._close_oldest():
                        raise

    def keep(self, name: Hashable, close: Callable[[], None]) -> None:
        """Add an open resource that uses a descriptor, such as a map, to the pool. Call the method again at each use.

        ``close`` must close the resource. The pool calls ``close`` once: when the pool evicts the resource, when its
        name is dropped, or when the pool is closed; at once if the pool is closed already. The call is made on any
        thread, under the pool's lock: ``close`` must not wait, and must not call the pool. While the pool has a
        resource of this ``name``, a further call only marks the use, and ignores its argument ``close``.
        """
        with self._lock:
            if self._closed:
                close()
                return
            handle = self._handles.setdefault(name, _Handle(close, 0))
            handle.last_use = next(self._now)
            handle.pins.append(None)  # close other handles first
            self._shrink()
            handle.pins.pop()
            self._shrink()

    def drop(self, name: Hashable) -> None:
        """Remove the name of a deleted or renamed file. Close its handle now if it is idle, or at its last unpin.

        Do nothing if the pool has no handle with this name.
        """
        with self._lock:
            self._drop(name)

    def close(self) -> None:
        """Close all idle handles. Each pinned handle is closed at its last unpin. Idempotent."""
        with self._lock:
            self._closed = True
            for name in list(self._handles):
                self._drop(name)
            self._oldest.clear()

    @property
    def open_count(self) -> int:
        """Number of open descriptors and maps, including dropped ones that are still pinned."""
        with self._lock:
            return len(self._handles) + len(self._dropped)

    # --- inside: all under _lock -------------------------------------------------------------------------------------

    def _open(self, opener: Callable[[], int]) -> int:
        if self._closed:
            raise ClosedError("the descriptor pool is closed")
        while True:
            try:
                return opener()
            except OSError as error:
                if error.errno not in HANDLE_ERRNOS or not self._close_oldest():
                    raise

    def _drop(self, name: Hashable) -> None:
        handle = self._handles.get(name)
        if handle is None:
            return
        handle.is_leaving = True
        self._dropped[handle.descriptor] = handle
        del self._handles[name]
        self._close_dropped(handle)

    def _unpin(self, handle: _Handle) -> None:
        handle.pins.pop()
        self._close_dropped(handle)

    def _close_dropped(self, handle: _Handle) -> None:
        """Close ``handle`` if it was dropped and is no longer pinned."""
        if not handle.pins and self._dropped.get(handle.descriptor) is handle:
            del self._dropped[handle.descriptor]
            handle.close()

    def _shrink(self) -> None:
        while len(self._handles) > self._limit and self._close_oldest():
            pass

    def _close_oldest(self) -> bool:
        """Close the least recently used idle handle. Return False if no handle is idle."""
        for is_new in (False, True):
            if is_new:
                idle = [(handle.last_use, name, handle) for name, handle in self._handles.items() if not handle.pins]
                self._oldest = sorted(idle, key=itemgetter(0), reverse=True)
            while self._oldest:
                last_use, name, handle = self._oldest.pop()
                if handle.last_use == last_use and not handle.is_leaving and self._close_if_idle(name, handle):
                    return True
        return False

    def _close_if_idle(self, name: Hashable, handle: _Handle) -> bool:
        """Close ``handle`` unless it is pinned. Return True if it was closed."""
        handle.is_leaving = True
        if handle.pins:
            handle.is_leaving = False
            return False
        del self._handles[name]
        handle.close()
        return True


def _limit_for_process(limit: int) -> int:
    try:
        import resource  # noqa: PLC0415 - Windows has no such module, but can open files
    except ImportError:
        return limit
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if allowed == resource.RLIM_INFINITY else min(limit, allowed // 2)
