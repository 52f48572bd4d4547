"""The public API of contract version 1 as text: names and signatures of ``stratalog.spi``, its hooks and test kit.

After an addition, run this file to rewrite ``tests/data/contract-1.txt``. A removed or changed line breaks plugins.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stratalog import spi, testing
from stratalog.model import prepared_py
from stratalog.spi import hooks
from stratalog.testing import contracts

FILE: Final = Path(__file__).parents[1] / "data" / "contract-1.txt"
_OBJECT: Final = frozenset(dir(object))


def surface() -> str:
    """Return one line for each name, method, attribute and hook, sorted within its class."""
    names = sorted(name for name in vars(hooks) if name.startswith(f"{hooks.PROJECT}_"))
    lines = [f"group {hooks.CONTRACT_GROUP}"]
    lines += [f"hook {name}{inspect.signature(getattr(hooks, name))}" for name in names]
    lines += [f"stratalog.testing.contracts.{name}" for name in sorted(contracts.__all__)]
    for module in (spi, testing):
        for name in sorted(module.__all__):
            lines += _lines(f"{module.__name__}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def _lines(label: str, member: Any) -> Iterator[str]:
    if inspect.isclass(member) and typing.get_origin(member) is None:
        member = getattr(prepared_py, member.__name__, member)  # the compiled twin has no signatures
        yield f"{label} class({', '.join(base.__name__ for base in member.__bases__)})"
        yield from (f"{label}.{line}" for line in _members(member))
    elif inspect.isfunction(member):
        yield f"{label}{inspect.signature(member)}"
    elif isinstance(member, int | str):
        yield f"{label} = {member!r}"
    else:
        yield label


def _members(found: type[Any]) -> Iterator[str]:
    if issubclass(found, enum.Enum):
        yield from (f"{item.name} = {item.value!r}" for item in found)
        return
    if dataclasses.is_dataclass(found):
        yield from (f"{field.name}: {field.type}{_default(field)}" for field in dataclasses.fields(found))
    yield from (f"{name}: {found.__annotations__[name]}" for name in getattr(found, "_fields", ()))
    for name, member in inspect.getmembers_static(found):
        if name.startswith("_") or name in _OBJECT:
            continue
        word = "abstract " if getattr(member, "__isabstractmethod__", False) else ""
        if isinstance(member, property):
            yield f"{name} {word}property -> {_type_of(member)}"
        elif isinstance(member, classmethod | staticmethod):
            yield f"{name} {type(member).__name__}{inspect.signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"{name} {word}{inspect.signature(member)}"


def _type_of(member: property) -> object:
    assert member.fget is not None
    return inspect.signature(member.fget).return_annotation


def _default(field: dataclasses.Field[Any]) -> str:
    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return " (has a default)" if has_default else ""


if __name__ == "__main__":
    FILE.write_text(surface(), encoding="utf-8")
