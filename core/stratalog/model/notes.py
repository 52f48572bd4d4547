"""Notes: small files and objects. Each note is parsed before it is stored, to make sure that readers accept it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from stratalog.errors import CorruptCheckpointError, StorageError

T = TypeVar("T")


def readable(data: bytes, parse: Callable[[bytes, str], object], place: str) -> bytes:
    """Return ``data``, the contents of a small file or object, if the parser accepts it.

    Call this function before ``data`` is stored.

    Args:
        data: the bytes to store.
        parse: the parser of readers; called with ``data`` and ``place``.
        place: path or key, for errors.

    Raises:
        StorageError: the parser refused ``data``. Do not store it, because readers would fail.
    """
    try:
        parse(data, place)
    except StorageError as error:
        raise StorageError(
            f"a note was not stored, because it could not be read back; report this as a bug: {error}"
        ) from error
    return data


def parse_json(data: bytes, path: str, name: str, version: int, read: Callable[[Any], T]) -> T:
    """Return ``read(body)`` for the JSON object ``body`` in a small file. The object must have this ``version``.

    ``name`` describes the file in errors. ``read`` may raise the errors of a wrong value, such as KeyError, TypeError
    and ValueError.

    Raises:
        CorruptCheckpointError: the file is malformed, or a later release wrote it.
    """
    try:
        body = json.loads(data)
        stored_version = body["version"]
        if stored_version == version:
            return read(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{name} is malformed: {error!r}", path) from error
    raise CorruptCheckpointError(
        f"{name} of version {stored_version!r} is not supported by this release", path
    ).advised("install the release that wrote the file")


def integer(value: Any) -> int:  # Any: JSON
    """Return ``value``; raise TypeError unless it is an integer."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def text(value: Any) -> str:  # Any: JSON
    """Return ``value``; raise TypeError unless it is a text."""
    if type(value) is not str:
        raise TypeError(f"{value!r} is not text")
    return value
