"""Making the next thing while the last one is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


def made_ahead(items: Iterator[T], name: str, goes_on: Callable[[T], bool]) -> Generator[T, None, None]:
    """The items, in order, some of them made on a thread beside while the caller uses the one before.

    It pays where both sides spend their time outside Python's lock. The thread begins when it is first needed and ends with
    the generator, which its user closes; where none can be started, the caller's does the work.

    Args:
        items: used by one thread at a time, and by nobody else until the generator has ended.
        name: of the thread.
        goes_on: told of each item whether the next one is to be made before it is asked for.

    Raises:
        BaseException: what making an item raises, when it comes to that item.
    """
    maker = _Maker(items, name)
    try:
        while (item := maker.take()) is not None:
            if goes_on(item[0]):
                maker.ask()
            yield item[0]
    finally:
        maker.close()


class _Maker(Generic[T]):
    """Makes items, and has a thread for those that it is asked for."""

    def __init__(self, items: Iterator[T], name: str) -> None:
        self._items, self._name = items, name
        self._asked = SimpleQueue[bool]()
        self._made = SimpleQueue[tuple[T] | BaseException | None]()
        self._thread: threading.Thread | None = None
        self._owed = False  # whether an item was asked for and not yet taken

    def ask(self) -> None:
        """Have the next item made beside."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or the system has no more
                return
            self._thread = thread
        self._owed = True
        self._asked.put(True)

    def take(self) -> tuple[T] | None:
        """The next item, None at the end; raises what making it raised."""
        found = self._made.get() if self._owed else self._next()
        self._owed = False
        if not isinstance(found, BaseException):
            return found
        try:
            raise found
        finally:
            del found  # which refers to this frame

    def close(self) -> None:
        """Let the thread finish what it is making, and end."""
        self._asked.put(False)
        if self._thread is not None and self._thread is not threading.current_thread():  # collectors run anywhere
            self._thread.join()

    def _run(self) -> None:
        while self._asked.get():
            self._made.put(self._next())

    def _next(self) -> tuple[T] | BaseException | None:
        try:
            return (next(self._items),)
        except StopIteration:
            return None
        except BaseException as error:  # noqa: BLE001 - it is raised where the item is taken
            return error
