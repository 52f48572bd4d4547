"""Locations of stores, and checks of URIs and keys."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from stratalog.errors import ConfigError

MAX_KEY_BYTES: Final = 1024  # S3's limit
MAX_NAME_BYTES: Final = 255  # limit of file systems
_CONTINUES: Final = "+"  # last character of the name of a folder, if the name is the beginning of a longer name
_SPLIT_NAME: Final = re.compile(r"(?:(?<=/)|\A)([^/]{254})\+/", re.ASCII)
_S3_SCHEMES: Final = frozenset({"s3", "s3a"})
_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A URI without secrets. ``bucket`` is "" for ``file``. ``prefix`` neither begins nor ends with a slash."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        path = "/".join(part for part in (self.bucket, self.prefix) if part)
        return f"{self.scheme}://{'' if self.bucket else '/'}{path}"

    def name(self, key: str) -> str:
        """Return the name in the bucket of the object with this key."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def key(self, name: str) -> str:
        """Return the key of the object with this name in the bucket. The name must start with the prefix."""
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name


def parse_location(uri: str) -> Location:
    """Return the location that a tier's URI names. Slashes at the end are ignored.

    Raises:
        ConfigError: ``uri`` is not a URI, or names no bucket or folder. Or a component is empty, ``.`` or ``..``. Or it
            contains credentials, a query, a fragment, a backslash or a second URI.
    """
    match = _URI.match(uri)
    if not match:
        raise ConfigError("the tier must be a URI such as s3://bucket/prefix or file:///folder")
    scheme, remainder = match["scheme"].lower(), match["rest"]
    authority, _, path = remainder.partition("/")
    if _holds_credentials(scheme, authority, path):
        raise ConfigError(f"the {scheme} URI must not contain credentials: put them into the environment")
    if any(mark in remainder for mark in "?#\\\0") or "::" in remainder:
        raise ConfigError(f"the {scheme} URI must not contain a query, a fragment, a backslash or a second URI")
    if scheme == "file":
        if authority not in {"", "localhost"}:
            raise ConfigError("a file URI must have an absolute path with three slashes: file:///folder")
        authority = ""
    elif not authority:
        raise ConfigError(f"the {scheme} URI must name a bucket: {scheme}://bucket/prefix")
    prefix = path.strip("/")
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        raise ConfigError(f"the prefix {prefix!r} has an empty, '.' or '..' part")
    if scheme == "file" and not prefix:
        raise ConfigError("a file URI must name a folder: file:///folder")
    return Location(scheme, authority, prefix)


def _holds_credentials(scheme: str, authority: str, path: str) -> bool:
    """Return True if a URI seems to contain credentials.

    If a secret contains a slash, its second part is in ``path``.
    """
    user, mark, _ = authority.partition("@")
    if mark:
        return ":" in user or scheme in _S3_SCHEMES
    _, colon, port = authority.partition(":")
    if scheme in _S3_SCHEMES:
        return bool(colon) and not authority.startswith("arn:")  # a bucket's name contains no colon
    return bool(colon) and not port.isdigit() and "@" in path


@functools.lru_cache(256)
def check_key(key: str) -> str:
    """Return ``key`` if the key is allowed for an object.

    Raises:
        ConfigError: the key is empty, is longer than 1,024 bytes, or contains a backslash or unprintable characters. Or
            a component of the key is empty, ``.`` or ``..``.
    """
    parts = key.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not _is_allowed(key):
        raise ConfigError(f"object key {key[:80]!r} is not allowed")
    return key


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is allowed as the prefix of object keys. It may be "", and may end inside a component.

    Raises:
        ConfigError: ``prefix`` is longer than 1,024 bytes, contains a backslash or unprintable characters, or ends with
            the component ``..``. Or a component before the last ``/`` is empty, ``.`` or ``..``.
    """
    parts = prefix.split("/")
    if any(part in {"", ".", ".."} for part in parts[:-1]) or parts[-1] == ".." or not _is_allowed(prefix):
        raise ConfigError(f"key prefix {prefix[:80]!r} is not allowed")
    return prefix


def place_of(key: str) -> str:
    """Return the path of an object on a file system, relative to the store's folder. Each name has at most 255 bytes.

    A longer ASCII component of the key is split. Its first 254 characters and ``+`` become the name of a folder, and
    the remaining characters become a name in this folder.

    Raises:
        ConfigError: ``key_at`` would return another key for the path, or the second part of a split name would be ``.``
            or ``..``.
    """
    if len(key) < MAX_NAME_BYTES:
        return key
    place = "/".join(_cut(part) for part in key.split("/"))
    if key_at(place) != key:
        raise ConfigError(f"object key {key[:80]!r} is not allowed on a file system")
    return place


def key_at(place: str) -> str:
    """Return the key of the object for which ``place_of`` returns ``place``."""
    return place if len(place) < MAX_NAME_BYTES else _SPLIT_NAME.sub(r"\1", place)


def _cut(part: str) -> str:
    pieces = []
    # a long name with other characters is not split, and the system refuses it
    while len(part) > MAX_NAME_BYTES and part.isascii():
        pieces.append(part[: MAX_NAME_BYTES - 1] + _CONTINUES)
        part = part[MAX_NAME_BYTES - 1 :]
    if pieces and part in {".", ".."}:
        raise ConfigError(f"object key part {pieces[0][:80]!r} is not allowed on a file system")
    return "/".join([*pieces, part])


def _is_allowed(text: str) -> bool:
    return (not text or text.isprintable()) and "\\" not in text and len(text.encode()) <= MAX_KEY_BYTES
