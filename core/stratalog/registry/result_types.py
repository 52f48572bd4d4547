"""The types of the results of a component's methods, from the signatures of the classes in ``stratalog.spi``."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.segment_info import AbortedTransaction

_NONE: Final = type(None)
_SERIES: Final = (Iterator, Iterable, Sequence, list)  # the items of such results are checked
_ENTRIES: Final = (OffsetPosition, TimestampOffset, AbortedTransaction)
_SPECIAL: Final = ("__len__", "__getitem__")
# Names that the modules of ``stratalog.spi`` import for type checkers only. Values of these types are not checked.
_UNCHECKED: Final = types.SimpleNamespace(RecordBatch=object)
_ONLY_FOR_CHECKERS: Final[dict[str, Any]] = {"pyarrow": _UNCHECKED, "Engine": object}


@dataclass(frozen=True, slots=True)
class ResultType:
    """The type of a method's results.

    Attributes:
        allowed: classes of the results.
        items: classes of the items if the result is an iterator or a list; () if items are not checked.
        is_lazy: True if the result is an iterator. The component then runs while the items are read.
        text: the type in the words of the signature, for error texts.
    """

    allowed: tuple[type[Any], ...]
    items: tuple[type[Any], ...]
    is_lazy: bool
    text: str


def members_of(part: type[object]) -> Iterator[tuple[str, Any]]:
    """Yield the names and definitions of the public methods and properties of a class of ``stratalog.spi``.

    Of the special methods, only ``__len__`` and ``__getitem__`` are included.
    """
    for name, member in inspect.getmembers_static(part):
        is_public = not name.startswith("_") or name in _SPECIAL
        if is_public and (isinstance(member, property) or inspect.isfunction(member)):
            yield name, member


def attributes_of(part: type[object]) -> frozenset[str]:
    """Return the names of the attributes that a class of ``stratalog.spi`` declares, such as ``magic``."""
    return frozenset(name for base in part.__mro__ for name in vars(base).get("__annotations__", ()))


@cache
def result_type(function: Any) -> ResultType:  # Any: a method or the getter of a property
    """Return the type of the results of a method, from its signature."""
    hint = typing.get_type_hints(function, localns=_ONLY_FOR_CHECKERS).get("return", object)
    allowed = _classes(hint)
    series = next((part for part in _alternatives(hint) if typing.get_origin(part) in _SERIES), None)
    items = () if series is None else _classes(typing.get_args(series)[0])
    is_lazy = series is not None and issubclass(Iterator, typing.get_origin(series))
    return ResultType(allowed, items, is_lazy, str(inspect.signature(function).return_annotation))


def _alternatives(hint: Any) -> tuple[Any, ...]:  # Any: type hints have no common type
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(part for argument in typing.get_args(hint) for part in _alternatives(argument))
    return (hint,)


def _classes(hint: Any) -> tuple[type[Any], ...]:  # Any: as above
    classes = list[type[Any]]()
    for part in _alternatives(hint):
        if isinstance(part, typing.TypeVar):  # the only type variable is the type of an index's entries
            classes += _ENTRIES
            continue
        origin = _NONE if part is None else typing.get_origin(part) or part
        classes += [float, int] if origin is float else [origin]
    return tuple(classes)
