"""Where a store is: URIs taken apart, and keys that cannot leave their place."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from stratalog.spi import ConfigError

MAX_KEY_BYTES: Final = 1024  # S3's bound
MAX_NAME_BYTES: Final = 255  # of file systems
_GOES_ON: Final = "+"  # ends the name of a folder that is the beginning of a longer one
_CUT: Final = re.compile(r"(?:(?<=/)|\A)([^/]{254})\+/", re.ASCII)
_S3: Final = frozenset({"s3", "s3a"})
_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A URI without secrets: ``scheme``, ``bucket`` ("" for ``file``) and ``prefix`` (no slash at either end)."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        path = "/".join(part for part in (self.bucket, self.prefix) if part)
        return f"{self.scheme}://{'' if self.bucket else '/'}{path}"

    def name(self, key: str) -> str:
        """The object's full name inside the bucket, for a key relative to the URI."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def key(self, name: str) -> str:
        """The key relative to the URI, for a full name that starts with the prefix."""
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name


def parse_location(uri: str) -> Location:
    """Take a tier's URI apart; slashes at its end do not matter.

    Raises:
        ConfigError: it is no URI, holds credentials, names no bucket, or has an empty or climbing part.
    """
    found = _URI.match(uri)
    if not found:
        raise ConfigError("a tier is named by a URI like s3://bucket/prefix or file:///folder")
    scheme, rest = found["scheme"].lower(), found["rest"]
    authority, _, path = rest.partition("/")
    if _holds_credentials(scheme, authority, path):
        raise ConfigError(f"a {scheme} URI holds no credentials: give them as tier options or in the environment")
    if any(mark in rest for mark in "?#\\\0") or "::" in rest:
        raise ConfigError(f"a {scheme} URI has no query, fragment, backslash or second URI in it")
    if scheme == "file":
        if authority not in {"", "localhost"}:
            raise ConfigError("a file URI has an absolute path, three slashes: file:///folder")
        authority = ""
    elif not authority:
        raise ConfigError(f"a {scheme} URI names a bucket: {scheme}://bucket/prefix")
    prefix = path.strip("/")
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        raise ConfigError(f"the prefix {prefix!r} has an empty, '.' or '..' part")
    if scheme == "file" and not prefix:
        raise ConfigError("a file URI names a folder: file:///folder")
    return Location(scheme, authority, prefix)


def _holds_credentials(scheme: str, authority: str, path: str) -> bool:
    """Whether a URI looks as if it does; a secret may hold a slash, and the rest of it is taken for a path then."""
    user, mark, _ = authority.partition("@")
    if mark:
        return ":" in user or scheme in _S3
    _, colon, port = authority.partition(":")
    if scheme in _S3:
        return bool(colon) and not authority.startswith("arn:")  # no bucket's name has one
    return bool(colon) and not port.isdigit() and "@" in path


@functools.lru_cache(256)
def check_key(key: str) -> str:
    """Return ``key`` if it may name an object.

    Raises:
        ConfigError: it is empty or longer than 1,024 bytes, or has an empty, ``.`` or ``..`` part, or characters that
            cannot be printed: as a file's name it could leave the store's folder.
    """
    parts = key.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not _sound(key):
        raise ConfigError(f"object key {key[:80]!r} is not allowed")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys may start with it: "" or whole parts and the beginning of one; errors as for keys."""
    parts = prefix.split("/")
    if any(part in {"", ".", ".."} for part in parts[:-1]) or parts[-1] == ".." or not _sound(prefix):
        raise ConfigError(f"key prefix {prefix[:80]!r} is not allowed")
    return prefix


def place_of(key: str) -> str:
    """Return the path of an object below the folder of a store on a file system, where a name has at most 255 bytes.

    A longer part of the key becomes a folder of its first 254 characters and ``+``, and the rest in it.

    Raises:
        ConfigError: the path would be read back as another key, or the rest would be ``.`` or ``..``.
    """
    if len(key) < MAX_NAME_BYTES:
        return key
    place = "/".join(_cut(part) for part in key.split("/"))
    if key_at(place) != key:
        raise ConfigError(f"object key {key[:80]!r} is not allowed on a file system")
    return place


def key_at(place: str) -> str:
    """Return the key of the object that ``place_of`` has put there."""
    return place if len(place) < MAX_NAME_BYTES else _CUT.sub(r"\1", place)


def _cut(part: str) -> str:
    pieces = []
    while len(part) > MAX_NAME_BYTES and part.isascii():  # the system refuses long names of other characters
        pieces.append(part[: MAX_NAME_BYTES - 1] + _GOES_ON)
        part = part[MAX_NAME_BYTES - 1 :]
    if pieces and part in {".", ".."}:
        raise ConfigError(f"object key part {pieces[0][:80]!r} is not allowed on a file system")
    return "/".join([*pieces, part])


def _sound(text: str) -> bool:
    return (not text or text.isprintable()) and "\\" not in text and len(text.encode()) <= MAX_KEY_BYTES
