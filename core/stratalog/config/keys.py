"""Settings as frozen dataclasses: each field carries its key, default, bounds and sentence in one place."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self

from stratalog.errors import ConfigError, UnknownSettingError

LONG_MAX: Final = (1 << 63) - 1
INT_MAX: Final = (1 << 31) - 1
_KEY: Final = "stratalog.key"
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """What is known of one setting: its name, default, bounds, choices and sentence."""

    name: str
    default: object
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    check: Callable[[Any], str] | None = None


def key(
    name: str,
    default: Any,
    *,
    doc: str,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], str] | None = None,
) -> Any:
    """A dataclass field for the setting ``name``.

    Args:
        name: as users write it, ``segment.bytes`` for instance.
        default: of the field's type; a mutable one is given as a callable that makes it.
        doc: one sentence; it becomes the reference page.
        at_least: lower bound, inclusive.
        at_most: upper bound, inclusive.
        choices: the words allowed; for a tuple field each item is one of them.
        check: returns "" or what is wrong with a value that passed the other checks.
    """
    setting = Key(name, default, doc, at_least, at_most, choices, check)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={_KEY: setting})
    return dataclasses.field(default=default, metadata={_KEY: setting})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Base of every group of settings. Values come in by ``from_mapping``, checked, whatever the source."""

    title: ClassVar[str] = ""

    @classmethod
    def keys(cls) -> dict[str, Key]:
        """All settings, by name."""
        return {found.name: found for _, found, _ in _described(cls)}

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], source: str) -> Self:
        """Settings from names to values; text is converted to the setting's type.

        Args:
            values: names as users write them; a missing one takes its default.
            source: where they come from (a file, "environment", a call), for error texts.

        Raises:
            UnknownSettingError: a name is unknown; the nearest one is in the text.
            ConfigError: a value has the wrong type or is out of bounds, or two values contradict each other.
        """
        return cls().replaced(values, source)

    def replaced(self, values: Mapping[str, object], source: str) -> Self:
        """A copy with some settings changed; errors as ``from_mapping``."""
        described = {found.name: (attribute, found, kind) for attribute, found, kind in _described(type(self))}
        changes: dict[str, Any] = {}
        for name, value in values.items():
            if name not in described:
                nearest = difflib.get_close_matches(name, described, n=1)
                raise UnknownSettingError(name, source, nearest[0] if nearest else "")
            attribute, found, kind = described[name]
            changes[attribute] = _checked(found, _converted(found, kind, value, source), source)
        changed = dataclasses.replace(self, **changes)
        wrong = changed.contradiction()
        if wrong:
            raise ConfigError(f"{wrong} source={source}")
        return changed

    def contradiction(self) -> str:
        """What is wrong with the settings taken together, or ""."""
        return ""

    def to_mapping(self, *, only_changed: bool = False) -> dict[str, object]:
        """Names to values, as ``from_mapping`` takes them; ``only_changed`` leaves out defaults."""
        plain = type(self)()
        result: dict[str, object] = {}
        for attribute, found, _ in _described(type(self)):
            value = getattr(self, attribute)
            if not only_changed or value != getattr(plain, attribute):
                result[found.name] = ",".join(value) if isinstance(value, tuple) else value
        return result


def _described(section: type[Section]) -> list[tuple[str, Key, Any]]:
    hints = typing.get_type_hints(section)
    return [
        (field.name, field.metadata[_KEY], hints[field.name])
        for field in dataclasses.fields(section)
        if _KEY in field.metadata
    ]


def _converted(found: Key, kind: Any, value: object, source: str) -> object:
    origin = typing.get_origin(kind)
    if origin in {types.UnionType, typing.Union}:
        if value is None:
            return None
        kind = next(choice for choice in typing.get_args(kind) if choice is not types.NoneType)
        origin = typing.get_origin(kind)
    try:
        if origin is tuple:
            items = value.split(",") if isinstance(value, str) else list(typing.cast(typing.Iterable[object], value))
            return tuple(str(item).strip() for item in items if str(item).strip())
        if origin is dict:
            return dict(typing.cast(Mapping[str, object], value))
        return _SCALARS[kind](value)
    except (TypeError, ValueError, KeyError):
        wanted = getattr(kind, "__name__", str(kind))
        raise ConfigError(f"{found.name}={value!r} is not of type {wanted} source={source}") from None


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(value)


def _to_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(value)
    return int(value)


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    return float(value)


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


_SCALARS: Final[dict[Any, Callable[[object], object]]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
}


def _checked(found: Key, value: object, source: str) -> object:
    wrong = ""
    items = value if isinstance(value, tuple) else (value,)
    if found.choices and any(item not in found.choices for item in items):
        wrong = f"must be {'some' if isinstance(value, tuple) else 'one'} of {', '.join(found.choices)}"
    elif isinstance(value, int | float) and found.at_least is not None and value < found.at_least:
        wrong = f"must be at least {found.at_least}"
    elif isinstance(value, int | float) and found.at_most is not None and value > found.at_most:
        wrong = f"must be at most {found.at_most}"
    elif found.check is not None and value is not None:
        wrong = found.check(value)
    if wrong:
        raise ConfigError(f"{found.name}={value!r} {wrong} source={source}")
    return value
