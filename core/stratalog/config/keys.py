"""Settings as frozen dataclasses: each field holds its name, default, bounds and description."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, ClassVar, Final, Self, SupportsIndex

from stratalog.errors import ConfigError, UnknownSettingError

LONG_MAX: Final = (1 << 63) - 1
LONG_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 31) - 1
_KEY: Final = "stratalog.key"
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """Definition of one setting. The fields are the arguments of ``key``."""

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
    """Return a dataclass field that defines the setting ``name``.

    Args:
        name: name of the setting as users write it, such as ``segment.bytes``.
        default: default value, of the field's type; for a mutable value, a callable that creates it.
        doc: description of the setting, printed on the reference page.
        at_least: smallest allowed number; None allows every signed 64-bit integer down to ``LONG_MIN``.
        at_most: largest allowed number; None allows every signed 64-bit integer up to ``LONG_MAX``.
        choices: allowed words; () allows all words. If the value is a tuple, each item must be an allowed word.
        check: function that is called with a value after all other checks. It returns an error text, or "" if the value
            is valid.
    """
    setting = Key(name, default, doc, at_least, at_most, choices, check)
    if callable(default):
        return dataclasses.field(default_factory=default, metadata={_KEY: setting})
    return dataclasses.field(default=default, metadata={_KEY: setting})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Base class of groups of settings. A subclass is a frozen dataclass; ``key`` defines each of its settings."""

    title: ClassVar[str] = ""

    @classmethod
    def keys(cls) -> dict[str, Key]:
        """Return the definitions of all settings of this class, by setting name, such as ``segment.bytes``."""
        return {name: setting for name, (_, setting, _) in _definitions(cls)[0].items()}

    @classmethod
    def from_mapping(cls, values: Mapping[str, object], source: str) -> Self:
        """Return settings with the values of a mapping. Text is converted to the setting's type.

        If the type of a setting includes None, both None and "" mean None.

        Args:
            values: values by setting name, or nested tables. A missing setting gets its default.
            source: origin of the values (a file, "environment", a call), for error texts.

        Raises:
            UnknownSettingError: a name is not the name of a setting. The text suggests a similar name if there is one.
            ConfigError: a value has the wrong type or is not allowed, a name occurs twice or is not text, or two
                settings contradict each other.
        """
        return cls().replaced(values, source)

    def replaced(self, values: Mapping[str, object], source: str) -> Self:
        """Return a copy of these settings, changed to ``values``. Without values, return this object.

        See ``from_mapping`` for arguments and errors.
        """
        changed = self.merged(values, source)
        contradiction = changed.contradiction()
        if contradiction:
            raise ConfigError(f"{contradiction} source={source}")
        return changed

    def merged(self, values: Mapping[str, object], source: str) -> Self:
        """Return a copy of these settings, changed to ``values``. Without values, return this object.

        Contradictions between settings are not checked.

        Use this method for stored values: if a later version changes a default, the default can contradict a stored
        value, and this is not an error. See ``from_mapping`` for arguments and other errors.
        """
        definitions, tables = _definitions(type(self))
        changes: dict[str, Any] = {}
        for name, value in flat_names(values, source, tables).items():
            if name not in definitions:
                nearest = difflib.get_close_matches(name, definitions, n=1)
                raise UnknownSettingError(name, source, nearest[0] if nearest else "")
            attribute, setting, kind = definitions[name]
            changes[attribute] = _check_value(setting, _convert(setting, kind, value, source), source)
        return dataclasses.replace(self, **changes) if changes else self

    def contradiction(self) -> str:
        """Return an error text if two settings contradict each other, or ""."""
        return ""

    def to_mapping(self, *, only_changed: bool = False) -> dict[str, object]:
        """Return a mapping of setting names to values for ``from_mapping``. ``only_changed`` omits default values.

        The value of a setting with several words is one text with commas, as in Kafka. If a word contains a comma, or
        begins or ends with a space, the value is a list instead.
        """
        defaults = type(self)()
        result: dict[str, object] = {}
        for name, (attribute, _, _) in _definitions(type(self))[0].items():
            value = getattr(self, attribute)
            if not only_changed or value != getattr(defaults, attribute):
                result[name] = _join_words(value) if isinstance(value, tuple) else value
        return result


def flat_names(values: Mapping[str, object], source: str, tables: Iterable[str] = ()) -> dict[str, object]:
    """Return a mapping without nested tables: ``{"log": {"dirs": x}}`` becomes ``{"log.dirs": x}``.

    ``tables`` are the names of settings whose values are tables. These values are not changed. ``source`` is the origin
    of ``values``, for error texts.

    Raises:
        ConfigError: ``values`` has both ``{"log": {"dirs": x}}`` and ``{"log.dirs": y}``, or a name is not text.
    """
    table_names, result = frozenset(tables), dict[str, object]()
    for name, value in _leaves(values, "", table_names, source):
        if name in result:
            raise ConfigError(f"{name} is given twice source={source}")
        result[name] = value
    return result


def _leaves(
    values: Mapping[str, object], prefix: str, table_names: frozenset[str], source: str
) -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        if not isinstance(name, str):
            raise ConfigError(
                f"the name of a setting must be text, not {name!r}{f' in {prefix[:-1]}' if prefix else ''} "
                f"source={source}"
            )
        if isinstance(value, Mapping) and prefix + name not in table_names:
            yield from _leaves(value, f"{prefix}{name}.", table_names, source)
        else:
            yield prefix + name, value


def _join_words(words: tuple[str, ...]) -> str | list[str]:
    return list(words) if any("," in word or word != word.strip() for word in words) else ",".join(words)


def _definitions(section: type[Section]) -> tuple[Mapping[str, tuple[str, Key, Any]], frozenset[str]]:
    return _look_up_definitions(
        typing.cast(Hashable, section)
    )  # mypy confuses the __hash__ of instances with the __hash__ of the class


@functools.cache  # slow without the cache, and called for each topic that an engine opens
def _look_up_definitions(section: Any) -> tuple[Mapping[str, tuple[str, Key, Any]], frozenset[str]]:
    """Return a mapping of setting names to (field, definition, type), and the names of settings that are tables."""
    hints = typing.get_type_hints(section)
    settings = ((field, field.metadata[_KEY]) for field in dataclasses.fields(section) if _KEY in field.metadata)
    definitions = {setting.name: (field.name, setting, hints[field.name]) for field, setting in settings}
    tables = (name for name, (_, _, kind) in definitions.items() if typing.get_origin(_strip_none(kind)) is dict)
    return definitions, frozenset(tables)


def _strip_none(kind: Any) -> Any:
    """Return ``T`` for a setting of type ``T | None``, and any other type unchanged."""
    if kind in _SCALARS or typing.get_origin(kind) not in {types.UnionType, typing.Union}:
        return kind
    return next(choice for choice in typing.get_args(kind) if choice is not types.NoneType)


def _convert(setting: Key, kind: Any, value: object, source: str) -> object:
    base_type = _strip_none(kind)
    if base_type is not kind and (value is None or value == ""):
        return None
    origin = typing.get_origin(base_type)
    try:
        if origin is tuple:
            return _to_words(value)
        if origin is dict:
            return _to_table(value)
        return _SCALARS[base_type](value)
    except (TypeError, ValueError, OverflowError, KeyError):
        expected = "a list of text" if origin is tuple else f"of type {getattr(base_type, '__name__', base_type)}"
        raise ConfigError(f"{setting.name}={value!r} is not {expected} source={source}") from None


def _to_words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    if isinstance(value, list | tuple):  # not stripped: a folder name may begin or end with a space
        return tuple(word for item in value if (word := _to_str(os.fspath(item))).strip())
    raise TypeError(value)


def _to_table(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(value)
    return {_to_str(name): item for name, item in value.items()}


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(value)


def _to_int(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError(value)
    return int(value) if isinstance(value, str) else operator.index(typing.cast(SupportsIndex, value))


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(value)
    number = float(value)
    if not math.isfinite(number):  # NaN passes every comparison with a bound
        raise ValueError(value)
    return number


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _to_number_or_name(value: object) -> int | str:
    try:
        return _to_int(value)
    except ValueError:  # text that is not a number
        return _to_str(value)


_SCALARS: Final[dict[Any, Callable[[object], object]]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
    int | str: _to_number_or_name,
}


def _check_value(setting: Key, value: object, source: str) -> object:
    if value is None:
        return None
    reason = ""
    items = value if isinstance(value, tuple) else (value,)
    at_least = LONG_MIN if setting.at_least is None else setting.at_least
    at_most = LONG_MAX if setting.at_most is None else setting.at_most
    if setting.choices and any(item not in setting.choices for item in items):
        reason = f"must be {'some' if isinstance(value, tuple) else 'one'} of {', '.join(setting.choices)}"
    elif isinstance(value, int | float) and value < at_least:
        reason = f"must be at least {at_least}"
    elif isinstance(value, int | float) and value > at_most:
        reason = f"must be at most {at_most}"
    elif setting.check is not None:
        reason = setting.check(value)
    if reason:
        raise ConfigError(f"{setting.name}={value!r} {reason} source={source}")
    return value
