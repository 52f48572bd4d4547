"""One bound on open descriptors and maps: the least recently used ones close, those in use stay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Final, TypeVar

from stratalog.env.forks import ends_with_fork
from stratalog.env.vfs import Vfs
from stratalog.errors import ClosedError
from stratalog.errors.system import HANDLE_ERRNOS

T = TypeVar("T")

_NO_DESCRIPTOR: Final = -1


class _Handle:
    """Something open.

    ``pins`` has one item for each pin: ``append`` and ``pop`` of a list are atomic, adding to a number is not. ``used`` is
    when it was used last, in the pool's own time. ``is_leaving``: it is closed, or about to be.
    """

    __slots__ = ("close", "descriptor", "is_leaving", "pins", "used")

    def __init__(self, close: Callable[[], None], used: int, descriptor: int = _NO_DESCRIPTOR) -> None:
        self.close, self.used, self.descriptor = close, used, descriptor
        self.pins: list[None] = []
        self.is_leaving = False


class HandlePool:
    """Opens files at need, keeps at most ``limit`` idle ones open. Thread-safe.

    More than ``limit`` stay open only while more than ``limit`` are pinned at once. If the process runs out of
    descriptors before that, idle ones close too.

    A ``limit`` above half of what the system allows the process counts as that half: not all that costs a descriptor
    goes through the pool.

    What is open already is pinned and unpinned without the lock, as every append does both. Who closes it sets
    ``is_leaving`` first and then looks for pins; who pins it adds the pin first and then looks at ``is_leaving``. So at
    least one of the two sees the other.
    """

    def __init__(self, files: Vfs, limit: int) -> None:
        self._files, self._limit = files, _allowed(limit)
        self._handles: dict[Hashable, _Handle] = {}  # changed under _lock
        self._dropped: dict[int, _Handle] = {}  # pinned when dropped; the last unpin closes them
        self._oldest: list[tuple[int, Hashable, _Handle]] = []  # the next to close at the end, unless used since
        self._now = count()
        self._lock = threading.Lock()
        self._closed = False
        ends_with_fork(self)

    def pin(self, name: Hashable, opener: Callable[[], int]) -> int:
        """The descriptor for ``name``, opened if need be, not closed before ``unpin``.

        Raises:
            ClosedError: the pool is closed.
            OSError: what ``opener`` raises.
        """
        descriptor = self.pin_open(name)
        if descriptor is not None:
            return descriptor
        with self._lock:
            handle = self._handles.get(name)
            if handle is None:
                descriptor = self._opened(opener)
                handle = _Handle(partial(self._files.close, descriptor), 0, descriptor)
                self._handles[name] = handle
            handle.pins.append(None)
            handle.used = next(self._now)
            self._shrink()
            return handle.descriptor

    def pin_open(self, name: Hashable) -> int | None:
        """As ``pin``, of what is open already; None if it is not, and then there is nothing to unpin."""
        handle = self._handles.get(name)
        if handle is None:
            return None
        handle.pins.append(None)
        if not handle.is_leaving:
            handle.used = next(self._now)
            return handle.descriptor
        with self._lock:
            self._unpinned(handle)
        return None

    def unpin(self, name: Hashable, descriptor: int) -> None:
        """Give back what ``pin`` returned; safe after ``drop``."""
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
                self._unpinned(dropped)

    @contextlib.contextmanager
    def using(self, name: Hashable, opener: Callable[[], int]) -> Iterator[int]:
        """Pin for the length of a ``with`` block."""
        descriptor = self.pin(name, opener)
        try:
            yield descriptor
        finally:
            self.unpin(name, descriptor)

    def with_room(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, a call that needs a descriptor outside the pool for itself.

        If the process or the system has none left, idle ones of the pool are closed one by one, and ``call`` is repeated.

        Raises:
            OSError: what ``call`` raises when the pool has nothing left to close.
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

    def keep(self, name: Hashable, let_go: Callable[[], None]) -> None:
        """Count something else that costs a descriptor, a map for instance; again, to say that it was used.

        ``let_go`` is called once, when the place is needed or the name is dropped: on any thread, under the pool's
        lock, so it must neither wait nor call the pool. In a closed pool it is called at once.
        """
        with self._lock:
            if self._closed:
                let_go()
                return
            handle = self._handles.setdefault(name, _Handle(let_go, 0))
            handle.used = next(self._now)
            handle.pins.append(None)  # it is not what has to go
            self._shrink()
            handle.pins.pop()
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
            self._oldest.clear()

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

    def _unpinned(self, handle: _Handle) -> None:
        handle.pins.pop()
        self._close_dropped(handle)

    def _close_dropped(self, handle: _Handle) -> None:
        """Close what was dropped, if nobody has it pinned any more."""
        if not handle.pins and self._dropped.get(handle.descriptor) is handle:
            del self._dropped[handle.descriptor]
            handle.close()

    def _shrink(self) -> None:
        while len(self._handles) > self._limit and self._close_oldest():
            pass

    def _close_oldest(self) -> bool:
        """Close the idle one that was used longest ago; False if none is idle."""
        for is_new in (False, True):
            if is_new:
                idle = [(handle.used, name, handle) for name, handle in self._handles.items() if not handle.pins]
                self._oldest = sorted(idle, key=itemgetter(0), reverse=True)
            while self._oldest:
                used, name, handle = self._oldest.pop()
                if handle.used == used and not handle.is_leaving and self._has_closed(name, handle):
                    return True
        return False

    def _has_closed(self, name: Hashable, handle: _Handle) -> bool:
        """Close one unless it is pinned; whether it was not."""
        handle.is_leaving = True
        if handle.pins:
            handle.is_leaving = False
            return False
        del self._handles[name]
        handle.close()
        return True


def _allowed(limit: int) -> int:
    try:
        import resource  # noqa: PLC0415 - Windows has none, and opens files all the same
    except ImportError:
        return limit
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit if allowed == resource.RLIM_INFINITY else min(limit, allowed // 2)
