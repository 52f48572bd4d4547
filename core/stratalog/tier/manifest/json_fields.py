"""Strict parsing of the JSON objects of a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any, NoReturn

from stratalog.errors import CorruptManifestError
from stratalog.spi.stored import exactly


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a JSON value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hex. A root contains such hashes of the previous root and of its pages."""
    return hashlib.sha256(data).hexdigest()


def load_object(data: bytes, key: str) -> JsonFields:
    """Return the fields of a JSON object. The caller must check the size of ``data`` before.

    Raises:
        CorruptManifestError: the bytes are not a JSON object; the error names the key.
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not allowed as a number")

    try:
        value = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptManifestError(f"this is not JSON ({error})", key, getattr(error, "pos", 0)) from error
    if not isinstance(value, dict):
        raise CorruptManifestError("this is not a JSON object", key)
    return JsonFields(value)


class JsonFields:
    """Typed access to the fields of a JSON object.

    ``integer``, ``text`` and ``items`` raise KeyError if the field is missing, and TypeError if it has another type.
    The errors name the field.
    """

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def check_names(self, allowed: Collection[str]) -> None:
        """Raise ValueError if the object has a field that is not in ``allowed``."""
        # An unknown field must not be ignored: the next root would not contain it.
        unknown = sorted(set(self._value) - set(allowed))
        if unknown:
            raise ValueError(f"unknown field {unknown[0][:64]!r}")

    def replace(self, name: str, value: object) -> dict[str, Any]:
        """Return all fields, with ``value`` in place of the value of field ``name``."""
        return {**self._value, name: value}

    def get(self, name: str) -> object:
        """Return the value of a field, None if it is missing."""
        return self._value.get(name)

    def integer(self, name: str) -> int:
        """Return the value of a field that must be an integer."""
        return exactly(int, self._value[name], name)

    def text(self, name: str) -> str:
        """Return the value of a field that must be a string."""
        return exactly(str, self._value[name], name)

    def items(self, name: str) -> list[Any]:
        """Return the value of a field that must be a list."""
        return exactly(list, self._value[name], name)
