"""Notes: small files and objects. Each note is parsed before it is stored, because later readers must understand it."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import StorageError


def readable(data: bytes, parse: Callable[[bytes, str], object], place: str) -> bytes:
    """Return ``data``, the bytes of a note, if the readers' parser accepts them.

    Args:
        data: the bytes to store.
        parse: the readers' parser; called with the bytes and their place.
        place: path or key, for errors.

    Raises:
        StorageError: the parser refused the note. The note must not be stored, because its readers would then fail.
    """
    try:
        parse(data, place)
    except StorageError as error:
        raise StorageError(
            f"a note was not stored, because it could not be read back; report this as a bug: {error}"
        ) from error
    return data
