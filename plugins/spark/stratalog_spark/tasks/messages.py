"""Messages between Spark's driver and its tasks: values of declared types as JSON text, checked when they are read.

A message contains its kind and the version of this encoding. Reading a message creates only values of the types that
its kind declares. Unlike unpickling, it runs no code that the text names.
"""

from __future__ import annotations

import base64
import collections.abc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from stratalog.errors import CorruptBatchError, StorageError
from stratalog.reading import Split

VERSION: Final = 1
_MARK: Final = "stratalog-message"
_PLAIN: Final = (bool, int, float, str)

T = TypeVar("T")


class MessageError(StorageError):
    """A message between Spark's driver and a task cannot be read. Install the same release on all machines."""

    advice = "install the same release of stratalog on the driver and the workers"


class _Codec(NamedTuple):
    """Converts a value to JSON and back. ``decode`` raises ValueError, TypeError or KeyError for invalid input."""

    encode: Callable[[Any], object]
    decode: Callable[[Any], Any]


class Message(Generic[T]):
    """One kind of message.

    Args:
        kind: name of the kind, which each message contains.
        hint: type of the value: text, numbers, bytes, enums, tuples, lists, mappings, unions, named tuples and
            dataclasses of such types. ``object`` is a JSON value. A class with ``to_message`` and ``from_message`` is
            sent as the bytes that these methods convert.
    """

    def __init__(self, kind: str, hint: Any) -> None:
        self.kind, self._hint = kind, hint

    def pack(self, value: T) -> str:
        """Return the text of a value.

        Raises:
            MessageError: the value is not of the declared type.
        """
        try:
            body = _codec(self._hint).encode(value)
            return json.dumps({_MARK: VERSION, "kind": self.kind, "value": body}, separators=(",", ":"))
        except (ValueError, TypeError, AttributeError) as error:
            raise MessageError(f"a value of kind {self.kind} cannot be sent ({error})") from error

    def unpack(self, text: str) -> T:
        """Return the value of a text that ``pack`` returned.

        Raises:
            MessageError: the text is not a message of this kind and version, or the value is not of the declared type.
        """
        try:
            value: T = _codec(self._hint).decode(self._body(text))
        except (ValueError, TypeError, KeyError, RecursionError, StorageError) as error:
            raise MessageError(f"a message is not of kind {self.kind}, version {VERSION} ({error})") from error
        return value

    def _body(self, text: str) -> object:
        found = json.loads(text)
        if not isinstance(found, dict) or set(found) != {_MARK, "kind", "value"}:
            raise ValueError("not a message of stratalog")
        if (found[_MARK], found["kind"]) != (VERSION, self.kind):
            raise ValueError(f"version {found[_MARK]!r}, kind {found['kind']!r}")
        body: object = found["value"]
        return body


@cache
def _codec(hint: Any) -> _Codec:
    """Return the codec of a type."""
    if hint in _SPECIAL:
        return _SPECIAL[hint]
    if get_origin(hint) is not None:
        return _generic(get_origin(hint), get_args(hint))
    if hint in _PLAIN:
        return _Codec(lambda value: _exactly(hint, value), lambda value: _exactly(hint, value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Codec(lambda value: _exactly(hint, value).value, hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _fixed(tuple(get_type_hints(hint).values()), lambda items: hint(*items))
    if hasattr(hint, "from_message"):
        return _Codec(lambda value: _bytes(value.to_message()), lambda found: hint.from_message(_from_bytes(found)))
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass(hint)
    raise TypeError(f"{hint} cannot be a message")


def _generic(origin: Any, arguments: tuple[Any, ...]) -> _Codec:
    if origin in {Union, UnionType}:
        return _union(arguments)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return _fixed(arguments, tuple)
    if origin in {tuple, list, collections.abc.Sequence}:
        return _listed(arguments[0], list if origin is list else tuple)
    if origin in {dict, collections.abc.Mapping}:
        return _mapping(*arguments)
    raise TypeError(f"{origin} cannot be a message")


def _exactly(kind: type[T], value: Any) -> T:
    """Return the value if its type is exactly ``kind``, otherwise raise TypeError: True is not an int."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    found: T = value
    return found


def _union(arms: tuple[Any, ...]) -> _Codec:
    """Return a codec that keeps None, and encodes another value as a list: the number of its type, and the value.

    The type is the first one of ``arms``, without None, that accepts the value.
    """
    codecs = [_codec(arm) for arm in arms if arm is not NoneType]
    has_none = NoneType in arms

    def encode(value: Any) -> object:
        if value is None and has_none:
            return None
        for number, codec in enumerate(codecs):
            try:
                return [number, codec.encode(value)]
            except (TypeError, AttributeError):
                continue
        raise TypeError(f"{value!r:.80} is of none of the declared types")

    def decode(found: Any) -> Any:
        if found is None and has_none:
            return None
        number, value = _exactly(list, found)
        if not 0 <= _exactly(int, number) < len(codecs):
            raise ValueError(f"there is no type {number} of {len(codecs)}")
        return codecs[number].decode(value)

    return _Codec(encode, decode)


def _fixed(arguments: Sequence[Any], make: Callable[[list[Any]], Any]) -> _Codec:
    codecs = [_codec(argument) for argument in arguments]

    def encode(value: Any) -> object:
        return [codec.encode(item) for codec, item in zip(codecs, value, strict=True)]

    def decode(found: Any) -> Any:
        return make([codec.decode(item) for codec, item in zip(codecs, _exactly(list, found), strict=True)])

    return _Codec(encode, decode)


def _listed(argument: Any, make: Callable[[list[Any]], Any]) -> _Codec:
    codec = _codec(argument)
    return _Codec(
        lambda value: [codec.encode(item) for item in value],
        lambda found: make([codec.decode(item) for item in _exactly(list, found)]),
    )


def _mapping(key: Any, value: Any) -> _Codec:
    pairs = _listed(tuple[key, value], list)
    return _Codec(lambda found: pairs.encode(found.items()), lambda found: dict(pairs.decode(found)))


def _dataclass(kind: type) -> _Codec:
    hints = get_type_hints(kind)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(kind)}

    def encode(value: Any) -> object:
        _exactly(kind, value)
        return {name: codec.encode(getattr(value, name)) for name, codec in codecs.items()}

    def decode(found: Any) -> Any:
        if set(_exactly(dict, found)) != set(codecs):
            raise ValueError(f"fields of {kind.__name__}: {', '.join(map(repr, found))}")
        return kind(**{name: codec.decode(found[name]) for name, codec in codecs.items()})

    return _Codec(encode, decode)


def _json(value: Any) -> object:
    """Return a JSON value after a check that it contains only JSON's types."""
    if isinstance(value, Mapping):
        return {_exactly(str, name): _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if value is None or type(value) in _PLAIN:
        plain: object = value
        return plain
    raise TypeError(f"{value!r:.80} is no JSON value")


def _bytes(value: Any) -> str:
    return base64.b64encode(_exactly(bytes, value)).decode()


def _from_bytes(found: Any) -> bytes:
    return base64.b64decode(_exactly(str, found), validate=True)


def _damage(found: Any) -> CorruptBatchError:
    reason, file, position = _exactly(list, found)
    return CorruptBatchError(_exactly(str, reason), _exactly(str, file), _exactly(int, position))


_SPECIAL: Final[Mapping[Any, _Codec]] = {
    bytes: _Codec(_bytes, _from_bytes),
    object: _Codec(_json, _json),
    CorruptBatchError: _Codec(
        lambda error: [_exactly(CorruptBatchError, error).reason, error.file, error.position], _damage
    ),
}

SPLIT: Final = Message[Split]("split", Split)
