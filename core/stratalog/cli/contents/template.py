"""Templates of records, in the syntax of kcat's option ``-f``.

Like kcat, stratalog writes the bytes of keys and values unchanged. Source: ``kcat -h``, and kcat's format.c.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from stratalog.cli.contents.values import size_of
from stratalog.errors import ConfigError
from stratalog.model.records import Record

Part: TypeAlias = Callable[[Record], bytes]

TOKENS: Final = (
    "%t topic, %p partition, %o offset, %T timestamp (ms), %k key, %s value, %h headers (name=value, with commas), %K "
    "and %S size of key and value (-1: null), %R size of the value in 4 bytes, %% percent sign, \\n \\r \\t \\xHH"
)
_TOKEN: Final = re.compile(rb"%(.?)|((?:[^%\\]|\\x[0-9a-fA-F]{1,2}|\\[0-7]{1,3}|\\.|\\$)+)", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_NAMED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class Template:
    """A parsed template. The constructor raises ConfigError if a token is unknown.

    ``null`` is printed for a null key or value; by default nothing, as in kcat without ``-Z``. A null value of a header
    is printed as ``NULL``.
    """

    def __init__(self, text: bytes, topic: str, null: bytes = b"") -> None:
        parts = _parts(topic.encode(), null)
        self._parts = list[Part]()
        for token, literal in _TOKEN.findall(text):
            if literal:
                self._parts.append(partial(_write_literal, unescape(literal)))
            elif token in parts:
                self._parts.append(parts[token])
            else:
                raise ConfigError(f"--format has the unknown token %{token.decode(errors='replace')}: use {TOKENS}")

    def __call__(self, record: Record) -> bytes:
        """Return a record as bytes, without a line break at the end."""
        return b"".join([part(record) for part in self._parts])


def _write_literal(text: bytes, record: Record) -> bytes:
    del record
    return text


def _parts(topic: bytes, null: bytes) -> Mapping[bytes, Part]:
    def contents(value: bytes | None) -> bytes:
        return null if value is None else value

    def headers(record: Record) -> bytes:
        return b",".join(
            b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers
        )

    return {
        b"t": lambda _: topic,
        b"p": lambda record: b"%d" % record.partition,
        b"o": lambda record: b"%d" % record.offset,
        b"T": lambda record: b"%d" % record.timestamp_ms,
        b"k": lambda record: contents(record.key),
        b"s": lambda record: contents(record.value),
        b"K": lambda record: b"%d" % size_of(record.key),
        b"S": lambda record: b"%d" % size_of(record.value),
        b"R": lambda record: struct.pack(">i", size_of(record.value)),
        b"h": headers,
        b"%": lambda _: b"%",
    }


def unescape(text: bytes) -> bytes:
    r"""Return the text with the escapes ``\n``, ``\r``, ``\t``, ``\xHH`` and ``\OOO`` (octal) replaced by their bytes.

    The ``\`` before another character is removed.
    """

    def byte(match: re.Match[bytes]) -> bytes:
        hexadecimal, octal, character = match.groups()
        if character is not None:
            return _NAMED.get(character, character)
        return bytes([(int(hexadecimal, 16) if hexadecimal else int(octal, 8)) & 0xFF])

    return _ESCAPE.sub(byte, text)
