"""Objects and file locks that only the process that opened them may use, not a forked child.

A forked child has no threads of its parent, and a lock that such a thread holds is never released in the child. Parent
and child would also write to the same files at the same positions. In a child, the parent's objects therefore raise
ClosedError, and the child must open its own objects.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types
import weakref
from typing import Any, Final, NoReturn

from stratalog.errors import ClosedError

_OWNED: Final = weakref.WeakSet[Any]()  # Any: objects of any class
_LOCKS: Final = set[int]()  # descriptors that hold file locks; a child would also hold the locks

closes_with_fork: Final = _LOCKS.add
"""Close a descriptor in every child that is forked from now on: only the parent then holds the file lock."""

stays_with_fork: Final = _LOCKS.discard
"""Undo ``closes_with_fork`` before the descriptor is closed. Do nothing for any other descriptor."""


def ends_with_fork(owned: object) -> None:
    """Make ``owned`` unusable in every child that is forked from now on.

    In the child, a ``with`` statement and each use of an attribute of ``owned`` raise ClosedError, before any code of
    the class runs. Only special attributes such as ``__class__`` can be read, and ``close()`` does nothing.

    Args:
        owned: an instance of a Python class that allows weak references. Only a weak reference is kept.
    """
    _OWNED.add(owned)


@functools.cache
def _ended(kind: Any) -> type[Any]:  # Any: a class, which mypy regards as unhashable
    """Return a subclass of ``kind`` whose objects raise ClosedError when used; it becomes their class in a child."""
    members = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__getattribute__": _refuse,
        "__enter__": _refuse_to_enter,
        "__repr__": _describe,
    }
    return types.new_class(kind.__name__, (kind,), {}, lambda namespace: namespace.update(members))


def _refuse(owned: object, name: str) -> object:
    if name == "close":
        return _nothing
    if name.startswith("__"):  # isinstance, copy and others read these
        return object.__getattribute__(owned, name)
    raise _refusal(owned)


def _refuse_to_enter(owned: object) -> NoReturn:
    raise _refusal(owned)


def _refusal(owned: object) -> ClosedError:
    return ClosedError(f"the {type(owned).__name__} was opened before a fork: open another one in the child process")


def _describe(owned: object) -> str:
    return f"<{type(owned).__name__}, opened before a fork>"


def _nothing() -> None:
    """Do nothing: the parent closes the object."""


def _end() -> None:
    for owned in list(_OWNED):
        kind: Any = type(owned)
        owned.__class__ = _ended(kind)
    _OWNED.clear()
    for descriptor in _LOCKS:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):  # systems without it have no fork
    os.register_at_fork(after_in_child=_end)
