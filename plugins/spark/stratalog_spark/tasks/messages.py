"""Messages between Spark's driver and its tasks: values of declared types as JSON text, checked when they are read.

A message contains its kind and the version of this encoding. ``unpack`` creates only values of the types that the kind
declares. Unlike the unpickling of a text, it runs no code that the text names.
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

from stratalog.errors import StorageError
from stratalog.reading import Split

VERSION: Final = 1
_MARK: Final = "stratalog-message"
_SCALARS: Final = (bool, int, float, str)

T = TypeVar("T")


class MessageError(StorageError):
    """A message between Spark's driver and a task cannot be read. Install the same release on all machines."""

    advice = "install the same release of stratalog on the driver and the workers"


class _Codec(NamedTuple):
    """Two functions that convert a value to JSON and back.

    ``decode`` raises ValueError, TypeError or KeyError for invalid input.
    """

    encode: Callable[[Any], object]
    decode: Callable[[Any], Any]


class Message(Generic[T]):
    """One kind of message.

    Args:
        hint: type of the value. Possible types are text, numbers, bytes and enums, and tuples, lists, mappings, unions,
            named tuples and dataclasses of possible types. ``object`` is any JSON value. If a class has the methods
            ``to_message`` and ``from_message``, these methods convert its values to bytes and back.

    Attributes:
        kind: name of the type, which each message contains.
    """

    def __init__(self, hint: type[T]) -> None:
        self._hint: Any = hint
        self.kind = hint.__name__ if get_origin(hint) is None else str(hint)

    def pack(self, value: T) -> str:
        """Return the text of a value. Raise MessageError if the value is not of the declared type."""
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
            value: T = _codec(self._hint).decode(self._check_envelope(text))
        except (ValueError, TypeError, KeyError, RecursionError, StorageError) as error:
            raise MessageError(f"a message is not of kind {self.kind}, version {VERSION} ({error})") from error
        return value

    def _check_envelope(self, text: str) -> object:
        message = json.loads(text)
        if not isinstance(message, dict) or set(message) != {_MARK, "kind", "value"}:
            raise ValueError("this is not a message of stratalog")
        if (message[_MARK], message["kind"]) != (VERSION, self.kind):
            raise ValueError(f"the message has version {message[_MARK]!r} and kind {message['kind']!r}")
        body: object = message["value"]
        return body


@cache
def _codec(hint: Any) -> _Codec:
    """Return the codec of a type."""
    if hint in _SPECIAL:
        return _SPECIAL[hint]
    if get_origin(hint) is not None:
        return _generic_codec(get_origin(hint), get_args(hint))
    if hint in _SCALARS:
        return _Codec(lambda value: _check_type(hint, value), lambda value: _check_type(hint, value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Codec(lambda value: _check_type(hint, value).value, hint)
    if isinstance(hint, type) and issubclass(hint, tuple):
        return _tuple_codec(tuple(get_type_hints(hint).values()), lambda items: hint(*items))
    if hasattr(hint, "from_message"):
        return _Codec(
            lambda value: _encode_bytes(value.to_message()), lambda encoded: hint.from_message(_decode_bytes(encoded))
        )
    if isinstance(hint, type) and is_dataclass(hint):
        return _dataclass_codec(hint)
    raise TypeError(f"{hint} cannot be a message")


def _generic_codec(origin: Any, arguments: tuple[Any, ...]) -> _Codec:
    if origin in {Union, UnionType}:
        return _union_codec(arguments)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return _tuple_codec(arguments, tuple)
    if origin in {tuple, list, collections.abc.Sequence}:
        return _list_codec(arguments[0], list if origin is list else tuple)
    if origin in {dict, collections.abc.Mapping}:
        return _mapping_codec(*arguments)
    raise TypeError(f"{origin} cannot be a message")


def _check_type(kind: type[T], value: Any) -> T:
    """Return the value if its type is exactly ``kind``; otherwise raise TypeError. For example, True is not an int."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is not of type {kind.__name__}")
    checked: T = value
    return checked


def _union_codec(arms: tuple[Any, ...]) -> _Codec:
    """Return a codec that encodes None as null, and any other value as a list: the number of its type, and the value.

    The type is the first type in ``arms``, not counting None, that accepts the value.
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
        raise TypeError(f"{value!r:.80} has none of the declared types")

    def decode(encoded: Any) -> Any:
        if encoded is None and has_none:
            return None
        number, value = _check_type(list, encoded)
        if not 0 <= _check_type(int, number) < len(codecs):
            raise ValueError(f"there is no type with index {number}, only {len(codecs)} types")
        return codecs[number].decode(value)

    return _Codec(encode, decode)


def _tuple_codec(arguments: Sequence[Any], make: Callable[[list[Any]], Any]) -> _Codec:
    codecs = [_codec(argument) for argument in arguments]

    def encode(value: Any) -> object:
        return [codec.encode(item) for codec, item in zip(codecs, value, strict=True)]

    def decode(encoded: Any) -> Any:
        return make([codec.decode(item) for codec, item in zip(codecs, _check_type(list, encoded), strict=True)])

    return _Codec(encode, decode)


def _list_codec(argument: Any, make: Callable[[list[Any]], Any]) -> _Codec:
    codec = _codec(argument)
    return _Codec(
        lambda value: [codec.encode(item) for item in value],
        lambda encoded: make([codec.decode(item) for item in _check_type(list, encoded)]),
    )


def _mapping_codec(key: Any, value: Any) -> _Codec:
    pairs = _list_codec(tuple[key, value], list)
    return _Codec(lambda mapping: pairs.encode(mapping.items()), lambda encoded: dict(pairs.decode(encoded)))


def _dataclass_codec(kind: type) -> _Codec:
    hints = get_type_hints(kind)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(kind)}

    def encode(value: Any) -> object:
        _check_type(kind, value)
        return {name: codec.encode(getattr(value, name)) for name, codec in codecs.items()}

    def decode(encoded: Any) -> Any:
        if set(_check_type(dict, encoded)) != set(codecs):
            raise ValueError(f"wrong fields of {kind.__name__}: {', '.join(map(repr, encoded))}")
        return kind(**{name: codec.decode(encoded[name]) for name, codec in codecs.items()})

    return _Codec(encode, decode)


def _check_json(value: Any) -> object:
    """Return a JSON value after a check that it contains only JSON's types."""
    if isinstance(value, Mapping):
        return {_check_type(str, name): _check_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_check_json(item) for item in value]
    if value is None or type(value) in _SCALARS:
        scalar: object = value
        return scalar
    raise TypeError(f"{value!r:.80} is not a JSON value")


def _encode_bytes(value: Any) -> str:
    return base64.b64encode(_check_type(bytes, value)).decode()


def _decode_bytes(encoded: Any) -> bytes:
    return base64.b64decode(_check_type(str, encoded), validate=True)


_SPECIAL: Final[Mapping[Any, _Codec]] = {
    bytes: _Codec(_encode_bytes, _decode_bytes),
    object: _Codec(_check_json, _check_json),
}

SPLIT: Final = Message(Split)
