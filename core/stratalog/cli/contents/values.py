"""Conversion of bytes and structures to unambiguous text and JSON."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Final

from stratalog.cli.output import moment, printable
from stratalog.errors import InvalidRecordError, UnsupportedCompressionError
from stratalog.spi.codecs import CodecTable

SHOWN_CHARACTERS: Final = 1000  # limit for one value on a terminal; a pipe or a file has no limit
_WHITE: Final = str.maketrans("", "", "\t\n\r")
_PLAIN_STOPS: Final = frozenset(' "={}[],')


def codec_name(codecs: CodecTable, codec_id: int) -> str:
    """Return the name of a batch's codec; ``unknown (ID)`` if no codec with this id can be opened."""
    try:
        return codecs.name_of(codec_id)
    except UnsupportedCompressionError:
        return f"unknown ({codec_id})"


class Style(StrEnum):
    """Style in which bytes are shown.

    AUTO shows printable UTF-8 as text, and TEXT shows all UTF-8 as text. Both show other bytes as hex digits, or as
    base64 in JSON output. JSON parses the bytes as JSON. HEX and BASE64 never show text. AVRO is only for values of
    topics whose schema the console knows.
    """

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    AVRO = "avro"


def as_text(data: bytes, style: Style) -> str | None:
    """Return the bytes as text; None if the style does not show these bytes as text."""
    if style in {Style.HEX, Style.BASE64}:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if style is not Style.AUTO or text.translate(_WHITE).isprintable() else None


def put_bytes(target: dict[str, object], name: str, data: bytes | None, style: Style = Style.AUTO) -> None:
    """Add bytes to a JSON object: text and null as ``name``, other bytes as ``name_base64`` or ``name_hex``.

    Only ``Style.HEX`` uses ``name_hex``. With ``Style.JSON``, the parsed JSON is added as ``name``; raise
    InvalidRecordError if the bytes are not JSON.
    """
    text = None if data is None else as_text(data, style)
    if data is not None and style is Style.JSON:
        try:
            target[name] = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InvalidRecordError(f"the {name} is not JSON: {error}") from error
    elif data is None or text is not None:
        target[name] = text
    elif style is Style.HEX:
        target[f"{name}_hex"] = data.hex()
    else:
        target[f"{name}_base64"] = base64.b64encode(data).decode()


def bytes_of(source: Mapping[str, object], name: str) -> bytes | None:
    """Return the bytes that ``put_bytes`` added to a JSON object as ``name``; None for null, and if there are none.

    A value that is not a string is encoded as JSON. Raise InvalidRecordError if the digits are invalid, or if a text
    cannot be encoded as UTF-8.
    """
    for suffix, decode in (("hex", bytes.fromhex), ("base64", base64.b64decode)):
        encoded = source.get(f"{name}_{suffix}")
        if encoded is not None:
            try:
                return decode(str(encoded))
            except ValueError as error:
                raise InvalidRecordError(f"{name}_{suffix} is not {suffix}: {error}") from error
    value = source.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"{name} is not Unicode text: {error}") from error


def size_of(data: bytes | None) -> int:
    """Return the number of bytes of a key or a value; -1 for null."""
    return -1 if data is None else len(data)


def bytes_text(data: bytes | None, style: Style = Style.AUTO, limit_characters: int | None = None) -> str:
    """Return bytes as ``null``, ``"text"``, a JSON object or array, or ``0xhex``.

    A long value is cut after ``limit_characters`` characters. If ``limit_characters`` is None, the limit is
    ``SHOWN_CHARACTERS`` on a terminal, and a pipe or a file gets the whole value. With ``Style.BASE64``, the result is
    the base64 digits of the whole value.
    """
    if data is None:
        return "null"
    if style is Style.BASE64:
        return base64.b64encode(data).decode()
    text = as_text(data, style)
    limit = limit_characters or (SHOWN_CHARACTERS if sys.stdout.isatty() else max(2 * len(data), 1))
    if text is None:
        is_cut, shown_text = len(data) > limit // 2, f"0x{data[: limit // 2].hex()}"
    else:
        is_cut, cut_text = len(text) > limit, text[:limit]
        is_bare = style is Style.JSON or _is_json(text)
        shown_text = printable(cut_text if is_bare else json.dumps(cut_text, ensure_ascii=False))
    return f"{shown_text}... ({len(data):,} bytes)" if is_cut else shown_text


def _is_json(text: str) -> bool:
    """Return True if ``text`` is a JSON object or array, which differ from ``null``, quoted text and hex digits."""
    if not (text.startswith("{") and text.endswith("}")) and not (text.startswith("[") and text.endswith("]")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def to_json_value(value: object, *, brief: bool = False) -> object:
    """Return a value in a form that JSON can represent.

    A dataclass becomes a JSON object, to which ``put_bytes`` adds fields whose value is bytes. A UUID becomes base64 as
    in Kafka, and the zero UUID becomes null. ``brief`` omits fields that have their default value.
    """
    if is_dataclass(value) and not isinstance(value, type):
        json_object: dict[str, object] = {}
        for field in fields(value):
            content = getattr(value, field.name)
            if brief and content == field.default:
                continue
            if isinstance(content, bytes):
                put_bytes(json_object, field.name, content)
            else:
                json_object[field.name] = to_json_value(content, brief=brief)
        return json_object
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=") if value.int else None
    return [to_json_value(item, brief=brief) for item in value] if isinstance(value, tuple | list) else value


def to_json_object(structure: object, *, brief: bool = False) -> dict[str, object]:
    """Return a dataclass as a JSON object, converted by ``to_json_value``."""
    json_value = to_json_value(structure, brief=brief)
    assert isinstance(json_value, dict)
    return json_value


def pairs(value: Mapping[str, object]) -> str:
    """Return a JSON object as one line of ``name=value`` pairs. Text is in quotes unless it is a simple word."""
    return " ".join(f"{name.removesuffix('_ms')}={_word(name, item)}" for name, item in value.items())


def lines(value: Mapping[str, object], indent: str) -> Iterator[str]:
    """Yield a JSON object as lines of text.

    The first line shows the object without its lists of objects. Then each element of these lists has a line that
    begins with ``indent`` and the name of the list.
    """
    lists = {
        name: item
        for name, item in value.items()
        if isinstance(item, list) and item and all(isinstance(element, Mapping) for element in item)
    }
    yield pairs({name: item for name, item in value.items() if name not in lists})
    for name, items in lists.items():
        for item in items:
            yield f"{indent}{name}: {pairs(item)}"


def _word(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{pairs(value)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_word('', item) for item in value)}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return moment(value) if name.endswith("timestamp_ms") else str(value)
    text = str(value)
    is_bare = text.isprintable() and text and not _PLAIN_STOPS.intersection(text)
    return text if is_bare else printable(json.dumps(text, ensure_ascii=False))
