"""Rules for arguments: the values that a type annotation accepts, and the errors for other values."""

from __future__ import annotations

import enum
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final, NamedTuple

from stratalog.errors import ConfigError, WrongTypeError

LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1
_MOST_SHOWN: Final = 80
_CALLABLE: Final[Any] = Callable


@dataclass(frozen=True, slots=True)
class Between:
    """The range of an integer, both ends included."""

    least: int
    most: int


class Rule(NamedTuple):
    """The check that belongs to one annotation.

    Attributes:
        sure: Python source of an expression. If the expression is true for a value, the value needs no further check.
            ``{0}`` stands for the argument.
        check: function of the argument's description and value, which returns the value in its exact type. If the
            annotation does not accept the value, the function raises WrongTypeError or ConfigError.
        words: the annotation in words, for error texts.
    """

    sure: str
    check: Callable[[str, Any], Any]
    words: str


def rule_of(annotation: Any, namespace: Mapping[str, Any]) -> Rule | None:
    """Return the rule of an annotation, or None if the annotation accepts any value.

    Args:
        annotation: a type, or its source text. A type that is imported only for type checkers accepts any value.
        namespace: global names of the module that contains the annotation.
    """
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        kind = typing.get_type_hints(holder, dict(namespace), include_extras=True)["it"]
    except NameError:  # imported only for type checkers: a type of an optional library
        return None
    return _rule(kind)


def integer(name: str, value: Any, at_least: int = LONG_MIN, at_most: int = LONG_MAX) -> int:
    """Return ``value`` as an int in [at_least, at_most]. Any value with ``__index__`` is an integer, except a bool.

    Raises:
        WrongTypeError: the value is not an integer.
        ConfigError: the value is out of range.
    """
    if isinstance(value, bool):
        raise wrong_type(name, "an integer", value)
    try:
        number = int(index(value))
    except TypeError:
        raise wrong_type(name, "an integer", value) from None
    if not at_least <= number <= at_most:
        description = f"{number}" if number.bit_length() <= 128 else f"a number of {number.bit_length()} bits"
        raise ConfigError(f"{name} must be from {at_least} to {at_most}, not {description}")
    return number


def wrong_type(name: str, words: str, value: object) -> WrongTypeError:
    """Return the error that the argument ``name`` must be ``words`` (such as "an integer"), not ``value``."""
    try:
        description = repr(value)
    except Exception:  # noqa: BLE001 - the repr of any object may raise anything
        description = "..."
    description = description if len(description) <= _MOST_SHOWN else f"{description[:_MOST_SHOWN]}..."
    return WrongTypeError(f"{name} must be {words}, not {description} of type {type(value).__name__}")


def _rule(kind: Any) -> Rule | None:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        ranges = [item for item in inner[1:] if isinstance(item, Between)]
        return _integer_rule(ranges[0]) if ranges else _rule(inner[0])
    if origin in {typing.Union, types.UnionType}:
        return _union_rule(inner)
    if origin is typing.Literal:
        return _instance_rule(tuple({type(word) for word in inner}), " or ".join(map(repr, inner)))
    if origin is not None:
        return _collection_rule(origin, inner)
    return _plain_rule(kind)


def _plain_rule(kind: Any) -> Rule | None:
    if kind is int:
        return _integer_rule(Between(LONG_MIN, LONG_MAX))
    if kind is str:
        return Rule("type({0}) is str and {0}.isascii()", _text, "text")
    if kind is bool:
        return _instance_rule((bool,), "True or False")
    if kind is bytes:
        return _instance_rule((bytes,), "bytes")
    if kind is float:
        return _instance_rule((float, int), "a number")
    if kind is types.NoneType:
        return _instance_rule((types.NoneType,), "None")
    if kind is _CALLABLE or _is_callback(kind):
        return Rule("callable({0})", _callable, "a function")
    if not isinstance(kind, type) or kind is object or getattr(kind, "_is_protocol", False):
        return None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple_rule(kind)
    article = "an" if kind.__name__[:1] in "AEIOU" else "a"
    return _instance_rule((kind,), f"{article} {kind.__name__}")


def _integer_rule(between: Between) -> Rule:
    at_least, at_most = between.least, between.most

    def check(name: str, value: Any) -> int:
        return integer(name, value, at_least, at_most)

    return Rule(f"type({{0}}) is int and {at_least} <= {{0}} <= {at_most}", check, "an integer")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} is not Unicode text: {value!r:.{_MOST_SHOWN}}") from None
    return value


def _path(name: str, value: Any) -> str:
    """Return ``value`` if it can be a path; otherwise raise an error. A path need not be valid UTF-8."""
    if not isinstance(value, str):
        raise wrong_type(name, "text", value)
    try:
        is_one = b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        is_one = False
    if not is_one:
        raise ConfigError(f"{name} is not a path: {value!r:.{_MOST_SHOWN}}")
    return value


def _is_callback(kind: Any) -> bool:
    """Return True if ``kind`` is a protocol with a ``__call__`` method, such as ``Progress``."""
    return getattr(kind, "_is_protocol", False) and "__call__" in vars(kind)


def _callable(name: str, value: Any) -> Any:
    if not callable(value):
        raise wrong_type(name, "a function", value)
    return value


def _instance_rule(kinds: tuple[type[Any], ...], words: str) -> Rule:
    numbers = bool not in kinds

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kinds) or (numbers and isinstance(value, bool)):
            raise wrong_type(name, words, value)
        return value

    return Rule("False", check, words)


def _union_rule(inner: Sequence[Any]) -> Rule | None:
    is_path = os.PathLike in {typing.get_origin(member) or member for member in inner}
    rules = [Rule("False", _path, "text") if member is str and is_path else _rule(member) for member in inner]
    if None in rules:
        return None
    member_rules = [rule for rule in rules if rule is not None]
    if len(member_rules) == 1 + (types.NoneType in inner):
        return _optional(
            next(rule for member, rule in zip(inner, member_rules, strict=True) if member is not types.NoneType)
        )
    words = " or ".join(rule.words for rule in member_rules)
    sure = ["{0} is None"] if types.NoneType in inner else []
    sure += [f"({rule.sure})" for rule in member_rules if rule.sure != "False"]

    def check(name: str, value: Any) -> Any:
        out_of_range: ConfigError | None = None
        for rule in member_rules:
            try:
                return rule.check(name, value)
            except WrongTypeError:
                continue
            except ConfigError as error:
                out_of_range = error
        raise out_of_range or wrong_type(name, words, value)

    return Rule(" or ".join(sure) or "False", check, words)


def _optional(rule: Rule) -> Rule:
    def check(name: str, value: Any) -> Any:
        return None if value is None else rule.check(name, value)

    return Rule(f"{{0}} is None or {rule.sure}", check, f"{rule.words} or None")


def _collection_rule(origin: Any, inner: Sequence[Any]) -> Rule | None:
    if not isinstance(origin, type):
        return None
    if origin is _CALLABLE:
        return Rule("callable({0})", _callable, "a function")
    if issubclass(origin, Mapping):
        return _mapping_rule(inner)
    if origin is tuple and Ellipsis not in inner:
        return _row_rule(tuple, inner, f"a tuple of {len(inner)}")
    if issubclass(origin, Iterable):
        return _list_rule(origin, inner[0] if inner else object)
    return _instance_rule((origin,), f"of type {origin.__name__}")


def _mapping_rule(inner: Sequence[Any]) -> Rule:
    of_key, of_value = _element_rule(inner[0]), _element_rule(inner[1])

    def check(name: str, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise wrong_type(name, "a mapping", value)
        return {
            key if of_key is None else of_key.check(f"a key in {name}", key): item
            if of_value is None
            else of_value.check(f"a value in {name}", item)
            for key, item in value.items()
        }

    return Rule("False", check, "a mapping")


def _list_rule(origin: type[Any], element: Any) -> Rule:
    rule = _element_rule(element)
    words = "a list" if rule is None else f"a list in which each item is {rule.words}"
    expected = origin if origin in {Sequence, Collection, list, tuple} else Iterable

    def check(name: str, value: Any) -> Any:
        if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, expected):
            raise wrong_type(name, words, value)
        if rule is None:
            return value
        return [rule.check(f"an item of {name}", item) for item in value]

    return Rule("type({0}) is list or type({0}) is tuple" if rule is None else "False", check, words)


def _element_rule(kind: Any) -> Rule | None:
    """Return the rule for the elements of a collection; None for other objects, whose checks would be slow."""
    is_class = isinstance(kind, type) and typing.get_origin(kind) is None
    if is_class and kind not in {int, str, bytes, bool} and not issubclass(kind, tuple | enum.Enum):
        return None
    return _rule(kind)


def _named_tuple_rule(kind: Any) -> Rule:
    hints = typing.get_type_hints(kind, include_extras=True)
    kinds, names = [hints[field] for field in kind._fields], kind._fields
    article = "an" if kind.__name__[:1] in "AEIOU" else "a"
    return _row_rule(lambda fields: kind(*fields), kinds, f"{article} {kind.__name__}", names)


def _row_rule(make: Callable[[list[Any]], Any], kinds: Sequence[Any], words: str, names: Sequence[str] = ()) -> Rule:
    rules = [_rule(kind) for kind in kinds]
    labels = names or [f"item {number}" for number in range(1, len(rules) + 1)]

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(rules):
            raise wrong_type(name, words, value)
        fields = [
            item if rule is None else rule.check(f"{label} of {name}", item)
            for label, rule, item in zip(labels, rules, value, strict=True)
        ]
        return make(fields)

    return Rule("False", check, words)
