"""JSON files that are replaced as a whole."""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path

from stratalog.errors import ConfigError
from stratalog.spi import Env, Vfs


def replace_json(path: Path, contents: object) -> None:
    """Replace a file durably by JSON.

    Only the owner can read the file. After a crash, the old or the new file is complete.

    If ``path`` is a symbolic link, the target of the link is replaced.
    """
    files, path = Env().files, path.resolve()
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    descriptor = files.open(temporary, write=True, create=True)
    try:
        _write_all(files, descriptor, json.dumps(contents, indent=2).encode() + b"\n", str(path))
        files.sync(descriptor)
        files.rename(temporary, str(path))
    except OSError:
        files.remove(temporary)
        raise
    finally:
        files.close(descriptor)
    files.sync_folder(str(path.parent))


def _write_all(files: Vfs, descriptor: int, data: bytes, path: str) -> None:
    if files.write(descriptor, 0, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def read_field(path: Path, version: int, field: str, kind: type[list[object] | dict[str, object]]) -> object:
    """Return the field ``field`` of the JSON object in a file.

    Raises:
        ConfigError: the file contains no JSON object, its field "version" does not have the value ``version``, or the
            field ``field`` is missing or not of type ``kind``.
    """
    try:
        contents = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error})") from error
    if not isinstance(contents, dict) or contents.get("version") != version:
        raise ConfigError(f'{path} is not an object with "version": {version}')
    if not isinstance(contents.get(field), kind):
        raise ConfigError(f"{path}: {field} is missing, or is not {'a list' if kind is list else 'an object'}")
    value: object = contents[field]
    return value
