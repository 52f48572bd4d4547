"""Notes: small files and objects that a later reader has to understand, so each is parsed before it is stored."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import StorageError


def readable(data: bytes, parse: Callable[[bytes, str], object], place: str) -> bytes:
    """Return ``data``, the bytes of a note, if its reader's own parser takes them.

    Args:
        data: what is about to be stored.
        parse: of readers; called with the bytes and their place.
        place: path or key, for errors.

    Raises:
        StorageError: no reader would take the note. It must not be stored: the log could not be opened any more.
    """
    try:
        parse(data, place)
    except StorageError as error:
        raise StorageError(f"a note is not stored, as it could not be read again; report this: {error}") from error
    return data
