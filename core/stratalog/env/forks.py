"""Objects and file locks that a forked child must not use: they belong to the process that opened them.

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

_INSTANCES: Final = weakref.WeakSet[Any]()  # Any: objects of any class
_LOCKS: Final = set[int]()  # descriptors that hold file locks; a child would also hold the locks

closes_with_fork: Final = _LOCKS.add
"""Close a descriptor in every child that is forked from now on: only the parent then holds the file lock."""

stays_with_fork: Final = _LOCKS.discard
"""Undo ``closes_with_fork`` before the descriptor is closed. Do nothing for any other descriptor."""


def ends_with_fork(instance: object) -> None:
    """Make ``instance`` unusable in every child that is forked from now on.

    In the child, a ``with`` statement and each use of an attribute of ``instance`` raise ClosedError, before any code
    of the class runs. Only special attributes such as ``__class__`` can be read, and ``close()`` does nothing.

    Args:
        instance: an instance of a Python class that allows weak references. Only a weak reference is kept.
    """
    _INSTANCES.add(instance)


@functools.cache
def _make_closed_class(kind: Any) -> type[Any]:  # Any: a class, which mypy regards as unhashable
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


def _refuse(instance: object, name: str) -> object:
    if name == "close":
        return lambda: None  # the parent closes the object
    if name.startswith("__"):  # isinstance, copy and others read these
        return object.__getattribute__(instance, name)
    raise _refusal(instance)


def _refuse_to_enter(instance: object) -> NoReturn:
    raise _refusal(instance)


def _refusal(instance: object) -> ClosedError:
    return ClosedError(f"the {type(instance).__name__} was opened before a fork: open another one in the child process")


def _describe(instance: object) -> str:
    return f"<{type(instance).__name__}, opened before a fork>"


def _end() -> None:
    for instance in list(_INSTANCES):
        kind: Any = type(instance)
        instance.__class__ = _make_closed_class(kind)
    _INSTANCES.clear()
    for descriptor in _LOCKS:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _LOCKS.clear()


if hasattr(os, "register_at_fork"):  # systems without it have no fork
    os.register_at_fork(after_in_child=_end)
