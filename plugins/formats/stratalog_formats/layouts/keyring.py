"""Key-encryption keys by their ids, in a file that only the engine's user may read.

The file is TOML. It contains the id of the key for new data, and all keys, each with 32 bytes in base64. An old key
must stay in the file as long as the key of any segment is encrypted with it::

    active = "2026-11"

    [keys]
    2026-11 = "..."
    2025-11 = "..."
"""

from __future__ import annotations

import base64
import binascii
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from stratalog.errors import ConfigError
from stratalog.spi import Vfs

KEY_BYTES: Final = 32
MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Keys:
    """Contents of the key file. Its repr shows no keys, because a traceback may show the values of local names."""

    active: str | None
    texts: Mapping[str, object] = field(repr=False)


class KeyRing:
    """The keys of one file. The file is read at each call, so a key rotation needs no restart.

    The object's ``repr`` shows no keys, and the object cannot be pickled.
    """

    def __init__(self, path: str, files: Vfs) -> None:
        self._path, self._files = path, files

    def active(self) -> tuple[str, bytes]:
        """Return the key for new data, and its id, as (id, key).

        Raises:
            ConfigError: no file is configured, the file cannot be read or is malformed, other users can read or replace
                the file, or the file has no valid active key. Neither the error's text nor a local variable in its
                traceback contains a key.
        """
        keys = self._load()
        if keys.active is None:
            raise ConfigError(f"{self._path} names no active key: set active to the name of one of its keys")
        return keys.active, self._key(keys, keys.active)

    def key(self, key_id: str) -> bytes:
        """Return the key with this id.

        Raises:
            ConfigError: the file has no valid key with this id, or the file cannot be used (see ``active``).
        """
        return self._key(self._load(), key_id)

    def _key(self, keys: _Keys, key_id: str) -> bytes:
        if key_id not in keys.texts:
            raise ConfigError(
                f"{self._path} has no key {key_id!r}: add the key, which is needed to read data that it encrypted"
            )
        key = _decode_key(keys.texts[key_id])
        if key is None:
            raise ConfigError(f"key {key_id!r} of {self._path} is not base64 of {KEY_BYTES} bytes")
        return key

    def _load(self) -> _Keys:
        if not self._path:
            raise ConfigError("encryption needs keys: set keys.file in [plugins.encrypted] to the key file")
        try:
            keys = _parse_keys(self._read())
        except OSError as error:
            raise ConfigError(f"the key file {self._path} cannot be read: {error.strerror}") from error
        if keys is None:
            raise ConfigError(f"the key file {self._path} is not valid TOML")
        return keys

    def _read(self) -> bytes:
        status = self._files.stat(self._path)
        if status is not None and not status.is_private:
            path = shlex.quote(self._path)
            raise ConfigError(f"other users can read or replace the key file {self._path}: run chmod 600 {path}")
        descriptor = self._files.open(self._path)
        try:
            return self._files.read(descriptor, 0, MAX_FILE_BYTES)
        finally:
            self._files.close(descriptor)

    def __repr__(self) -> str:
        return f"KeyRing({self._path!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key ring cannot be sent to another process: send the path of its file")


def _parse_keys(data: bytes) -> _Keys | None:
    """Parse the file. Return None if it is not TOML, because an error would show the file's contents."""
    try:
        tree = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    active, keys = tree.get("active"), tree.get("keys")
    return _Keys(active if isinstance(active, str) else None, keys if isinstance(keys, dict) else {})


def _decode_key(text: object) -> bytes | None:
    """Decode a key. Return None if the text is invalid, because an error would show the text."""
    try:
        key = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None
