"""Locations of stores: parsed URIs, and keys that cannot leave their store."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from stratalog.errors import ConfigError

MAX_KEY_BYTES: Final = 1024  # S3's limit
MAX_NAME_BYTES: Final = 255  # limit of file systems
_GOES_ON: Final = "+"  # last character of a folder's name that is the first part of a longer name
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
        """Return the object's full name inside the bucket, for a key relative to the URI."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def key(self, name: str) -> str:
        """Return the key relative to the URI, for a full name that starts with the prefix."""
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name


def parse_location(uri: str) -> Location:
    """Parse a tier's URI. Trailing slashes are ignored.

    Raises:
        ConfigError: ``uri`` is not a URI, contains credentials, a query, a fragment, a backslash or a second URI, names
            no bucket or folder, or has an empty, ``.`` or ``..`` part.
    """
    found = _URI.match(uri)
    if not found:
        raise ConfigError("the tier must be a URI such as s3://bucket/prefix or file:///folder")
    scheme, rest = found["scheme"].lower(), found["rest"]
    authority, _, path = rest.partition("/")
    if _holds_credentials(scheme, authority, path):
        raise ConfigError(f"a {scheme} URI must not contain credentials: put them into the environment")
    if any(mark in rest for mark in "?#\\\0") or "::" in rest:
        raise ConfigError(f"a {scheme} URI must not contain a query, a fragment, a backslash or a second URI")
    if scheme == "file":
        if authority not in {"", "localhost"}:
            raise ConfigError("a file URI must have an absolute path with three slashes: file:///folder")
        authority = ""
    elif not authority:
        raise ConfigError(f"a {scheme} URI must name a bucket: {scheme}://bucket/prefix")
    prefix = path.strip("/")
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        raise ConfigError(f"the prefix {prefix!r} has an empty, '.' or '..' part")
    if scheme == "file" and not prefix:
        raise ConfigError("a file URI must name a folder: file:///folder")
    return Location(scheme, authority, prefix)


def _holds_credentials(scheme: str, authority: str, path: str) -> bool:
    """Return True if a URI seems to contain credentials.

    If a secret contains a slash, the part of the secret after the slash is parsed as the path.
    """
    user, mark, _ = authority.partition("@")
    if mark:
        return ":" in user or scheme in _S3
    _, colon, port = authority.partition(":")
    if scheme in _S3:
        return bool(colon) and not authority.startswith("arn:")  # a bucket's name contains no colon
    return bool(colon) and not port.isdigit() and "@" in path


@functools.lru_cache(256)
def check_key(key: str) -> str:
    """Return ``key`` if it may name an object.

    Raises:
        ConfigError: the key is empty, is longer than 1,024 bytes, has an empty, ``.`` or ``..`` part, or has a
            backslash or unprintable characters. Such a key could leave the store's folder when it is used as a file
            name.
    """
    parts = key.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not _sound(key):
        raise ConfigError(f"object key {key[:80]!r} is not allowed")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys can start with it: "", or complete parts of a key and the beginning of the next part.

    Raises ConfigError for the reasons of ``check_key``.
    """
    parts = prefix.split("/")
    if any(part in {"", ".", ".."} for part in parts[:-1]) or parts[-1] == ".." or not _sound(prefix):
        raise ConfigError(f"key prefix {prefix[:80]!r} is not allowed")
    return prefix


def place_of(key: str) -> str:
    """Return the path of an object relative to the store's folder. On a file system, a name has at most 255 bytes.

    A longer part of the key is split: its first 254 characters and ``+`` name a folder, and the remaining characters name
    an entry in this folder.

    Raises:
        ConfigError: ``key_at`` would return another key for the path, or the remaining characters would be ``.`` or ``..``.
    """
    if len(key) < MAX_NAME_BYTES:
        return key
    place = "/".join(_cut(part) for part in key.split("/"))
    if key_at(place) != key:
        raise ConfigError(f"object key {key[:80]!r} is not allowed on a file system")
    return place


def key_at(place: str) -> str:
    """Return the key of the object that ``place_of`` maps to this path."""
    return place if len(place) < MAX_NAME_BYTES else _CUT.sub(r"\1", place)


def _cut(part: str) -> str:
    pieces = []
    # long names of other characters are left to the system, which refuses them
    while len(part) > MAX_NAME_BYTES and part.isascii():
        pieces.append(part[: MAX_NAME_BYTES - 1] + _GOES_ON)
        part = part[MAX_NAME_BYTES - 1 :]
    if pieces and part in {".", ".."}:
        raise ConfigError(f"object key part {pieces[0][:80]!r} is not allowed on a file system")
    return "/".join([*pieces, part])


def _sound(text: str) -> bool:
    return (not text or text.isprintable()) and "\\" not in text and len(text.encode()) <= MAX_KEY_BYTES
