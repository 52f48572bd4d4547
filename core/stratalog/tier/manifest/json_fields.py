"""Strict reading of the JSON objects that a manifest is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

from stratalog.errors import CorruptManifestError

T = TypeVar("T")


def canonical(value: object) -> bytes:
    """The canonical bytes of a JSON value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256_of(data: bytes) -> str:
    """The hash by which roots name their parent and their pages, hex."""
    return hashlib.sha256(data).hexdigest()


def load_object(data: bytes, key: str) -> Fields:
    """Parse a JSON object; the caller has bounded its size.

    Raises:
        CorruptManifestError: it is none; names the key.
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number here")

    try:
        value = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptManifestError(f"not JSON ({error})", key, getattr(error, "pos", 0)) from error
    if not isinstance(value, dict):
        raise CorruptManifestError("not a JSON object", key)
    return Fields(value)


class Fields:
    """Typed access to a JSON object; TypeError, ValueError or KeyError says which field is wrong."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def check_names(self, known: Collection[str]) -> None:
        """An unknown field would be lost by the next root; a later format that adds one has another version."""
        unknown = sorted(set(self._value) - set(known))
        if unknown:
            raise ValueError(f"unknown field {unknown[0][:64]!r}")

    def replaced(self, name: str, value: object) -> dict[str, Any]:
        """All fields, one of them with another value."""
        return {**self._value, name: value}

    def get(self, name: str) -> object:
        """Whatever it holds, None if it is missing."""
        return self._value.get(name)

    def integer(self, name: str) -> int:
        """An integer."""
        return exactly(int, self._value[name], name)

    def text(self, name: str) -> str:
        """A text."""
        return exactly(str, self._value[name], name)

    def items(self, name: str) -> list[Any]:
        """A list."""
        return exactly(list, self._value[name], name)


def exactly(kind: type[T], value: object, name: str) -> T:
    """``value``, which must be of this very type: True is no number."""
    if type(value) is not kind:
        raise TypeError(f"{name} is not of type {kind.__name__}")
    return value
