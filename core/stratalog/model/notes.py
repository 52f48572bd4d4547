"""Notes: small files and objects. Each note is parsed before it is stored, to make sure that readers accept it."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import StorageError


def readable(data: bytes, parse: Callable[[bytes, str], object], place: str) -> bytes:
    """Return ``data``, the contents of a small file or object, if the parser accepts it. Call it before storing.

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
