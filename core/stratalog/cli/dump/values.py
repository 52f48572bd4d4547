"""Bytes and structures as unambiguous text."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Final

from stratalog.cli.dump.sheet import moment
from stratalog.cli.output import printable

SHOWN_CHARACTERS: Final = 1000
_WHITE: Final = str.maketrans("", "", "\t\n\r")
_PLAIN_STOPS: Final = frozenset(' "={}[],')


class Style(StrEnum):
    """Style of bytes: AUTO shows printable UTF-8 as text, TEXT shows all UTF-8 as text, HEX shows no text."""

    AUTO = "auto"
    TEXT = "text"
    HEX = "hex"


def as_text(data: bytes, style: Style) -> str | None:
    """Return the bytes as text, or None if they are shown as bytes."""
    if style is Style.HEX:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if style is Style.TEXT or text.translate(_WHITE).isprintable() else None


def put_bytes(target: dict[str, object], name: str, data: bytes | None, style: Style = Style.AUTO) -> None:
    """Add bytes to a JSON object: text as ``name``, other bytes as ``name_base64`` (HEX: ``name_hex``)."""
    text = None if data is None else as_text(data, style)
    if data is None or text is not None:
        target[name] = text
    elif style is Style.HEX:
        target[f"{name}_hex"] = data.hex()
    else:
        target[f"{name}_base64"] = base64.b64encode(data).decode()


def shown(data: bytes | None, style: Style = Style.AUTO) -> str:
    """Return bytes as ``null``, ``"text"`` or ``0xhex``; long values are cut."""
    if data is None:
        return "null"
    text = as_text(data, style)
    if text is None:
        whole, cut = data.hex(), data[: SHOWN_CHARACTERS // 2].hex()
        begin = f"0x{cut}"
    else:
        whole, cut = text, text[:SHOWN_CHARACTERS]
        begin = printable(json.dumps(cut, ensure_ascii=False))
    return begin if len(cut) == len(whole) else f"{begin}... ({len(data):,} bytes)"


def plain(value: object, *, brief: bool = False) -> object:
    """Convert a value for JSON: structures to objects, UUIDs to Kafka's base64 (zero to null), bytes as ``put_bytes``.

    ``brief`` leaves out fields that have their default value.
    """
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, object] = {}
        for field in fields(value):
            content = getattr(value, field.name)
            if brief and content == field.default:
                continue
            if isinstance(content, bytes):
                put_bytes(found, field.name, content)
            else:
                found[field.name] = plain(content, brief=brief)
        return found
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=") if value.int else None
    return [plain(item, brief=brief) for item in value] if isinstance(value, tuple | list) else value


def plain_object(structure: object, *, brief: bool = False) -> dict[str, object]:
    """Convert a structure as ``plain`` does, and return the object."""
    found = plain(structure, brief=brief)
    assert isinstance(found, dict)
    return found


def pairs(value: Mapping[str, object]) -> str:
    """Return an object as one line of ``name=value``; simple words have no quotes, other text has."""
    return " ".join(f"{name.removesuffix('_ms')}={_word(name, item)}" for name, item in value.items())


def lines(value: Mapping[str, object], indent: str) -> Iterator[str]:
    """Yield an object as lines of text; each element of a list of objects has a line after the first line."""
    lists = {name: item for name, item in value.items() if _is_list_of_objects(item)}
    yield pairs({name: item for name, item in value.items() if name not in lists})
    for name, items in lists.items():
        assert isinstance(items, list)
        for item in items:
            yield f"{indent}{name}: {pairs(item)}"


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


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
        text = moment(value) if name.endswith("timestamp_ms") else str(value)
        return text.replace(" ", "T")
    text = str(value)
    bare = text.isprintable() and text and not _PLAIN_STOPS.intersection(text)
    return text if bare else printable(json.dumps(text, ensure_ascii=False))
