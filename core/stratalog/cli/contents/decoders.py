"""Decoders of records: of Kafka's internal topics, and of all other topics, whose keys and values are plain bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from stratalog.cli.contents.values import Style, bytes_text, lines, pairs, put_bytes, to_json_object
from stratalog.cli.output import printable
from stratalog.errors import InvalidRecordError
from stratalog.model.messages.consumer_protocol import ASSIGNMENT, PROTOCOL_TYPE, SUBSCRIPTION
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC, GroupMember, GroupMetadata, parse_offsets_record
from stratalog.model.messages.structures import Schema
from stratalog.model.messages.transactions_topic import (
    TRANSACTIONS_TOPIC,
    TransactionState,
    TransactionStatus,
    parse_transaction_record,
)
from stratalog.model.records import Record

_INDENT: Final = "|     "


INTERNAL_TOPICS: Final = {"offsets": OFFSETS_TOPIC, "transactions": TRANSACTIONS_TOPIC}
"""Kafka's internal topics, by the value of ``--decoder`` that decodes their records."""

STYLES: Final = (Style.TEXT.value, Style.JSON.value, Style.HEX.value, Style.BASE64.value)
"""Values of ``--key-decoder``: styles of plain bytes."""

DECODERS: Final = (*INTERNAL_TOPICS, *STYLES)
"""Values of ``--decoder``."""

RecordDecoder: TypeAlias = Callable[[Record], "_Plain | _Meaning"]
"""Function that decodes a record. Callers print the first line of the result after the record's offset and time."""


def decoder_of(
    topic: str, decoder: str | None, key_decoder: str | None = None, default_style: Style = Style.AUTO
) -> RecordDecoder:
    """Return the decoder of a topic's records.

    Args:
        topic: name of the topic; "" if unknown. Kafka's internal topics have decoders of their own.
        decoder: one of ``DECODERS`` for any topic; None selects the decoder of ``topic``.
        key_decoder: one of ``STYLES``; None means the style of values. Ignored if an internal topic is decoded.
        default_style: style of keys and values if ``decoder`` is None and ``topic`` is not internal.
    """
    decoded_topic = topic if decoder is None else INTERNAL_TOPICS.get(decoder)
    if decoded_topic == OFFSETS_TOPIC:
        return partial(_decode_record, _offsets)
    if decoded_topic == TRANSACTIONS_TOPIC:
        return partial(_decode_record, _transactions)
    style = Style(decoder) if decoder else default_style
    return partial(_show_bytes, style, Style(key_decoder) if key_decoder else style)


def internal_topic(path: Path) -> str:
    """Return the internal topic of the log folder that contains the file ``path``; "" if the topic is not internal.

    Only the start of the folder's name is compared. Therefore folders with a suffix such as ``-delete`` are recognized.
    """
    folder = Path(os.path.abspath(path)).parent.name  # noqa: PTH100 - does not resolve links
    return next((topic for topic in INTERNAL_TOPICS.values() if folder.startswith(f"{topic}-")), "")


@dataclass(frozen=True, slots=True)
class _Plain:
    """Contents of a record that are shown as bytes. ``error`` is the reason why they cannot be decoded, or ""."""

    record: Record
    style: Style = Style.AUTO
    key_style: Style = Style.AUTO
    error: str = ""

    def item(self) -> dict[str, object]:
        """Return key, value and headers as a JSON object."""
        contents: dict[str, object] = {}
        put_bytes(contents, "key", self.record.key, self.key_style)
        put_bytes(contents, "value", self.record.value, self.style)
        headers = []
        for name, value in self.record.headers:
            header: dict[str, object] = {"key": name}
            put_bytes(header, "value", value, self._header_style)
            headers.append(header)
        contents["headers"] = headers
        return {**contents, "error": self.error} if self.error else contents

    def lines(self) -> Iterator[str]:
        """Yield one line with key, value and headers, and a second line with ``error`` if it is not ""."""
        headers = "".join(
            f"  {printable(name)}: {bytes_text(value, self._header_style)}" for name, value in self.record.headers
        )
        yield f"{bytes_text(self.record.key, self.key_style)} = {bytes_text(self.record.value, self.style)}{headers}"
        if self.error:
            yield f"{_INDENT}cannot be read: {self.error}"

    @property
    def _header_style(self) -> Style:
        return Style.AUTO if self.style is Style.JSON else self.style


def _show_bytes(style: Style, key_style: Style, record: Record) -> _Plain:
    contents = _Plain(record, style, key_style)
    if Style.JSON in {style, key_style}:
        try:
            contents.item()
        except InvalidRecordError as error:
            return _Plain(record, error=str(error))
    return contents


@dataclass(frozen=True, slots=True)
class _Meaning:
    """Decoded record of an internal topic. ``value`` is None for a tombstone, and ``error`` is always ""."""

    kind: str
    key: object
    value: object | None
    version: int | None
    error: str = ""

    def item(self) -> dict[str, object]:
        """Return a JSON object with the field ``decoded``, an object with type, key, value and version of the value."""
        value = None if self.value is None else _value(self.value, brief=False)
        decoded = {"type": self.kind, "key": to_json_object(self.key), "value": value, "value_version": self.version}
        return {"decoded": decoded}

    def lines(self) -> Iterator[str]:
        """Yield a line with type, key and value, then a line for each object in the lists of the value."""
        head = f"{self.kind.lower()} {pairs(to_json_object(self.key))}: "
        if self.value is None:
            yield f"{head}tombstone"
            return
        value_lines = lines(_value(self.value, brief=True), _INDENT)
        yield f"{head}{next(value_lines)} (v{self.version})"
        yield from value_lines


def _decode_record(read: Callable[[Record], _Meaning | None], record: Record) -> _Plain | _Meaning:
    """Return the contents that ``read`` decodes, or the record's bytes if ``read`` returns None or raises an error."""
    try:
        return read(record) or _Plain(record)
    except InvalidRecordError as error:
        return _Plain(record, error=str(error))


def _offsets(record: Record) -> _Meaning | None:
    parsed = parse_offsets_record(record.key, record.value)
    return None if parsed is None else _Meaning(parsed.kind.name, parsed.key, parsed.value, parsed.value_version)


def _transactions(record: Record) -> _Meaning | None:
    parsed = parse_transaction_record(record.key, record.value)
    return None if parsed is None else _Meaning("TRANSACTION_STATE", parsed.key, parsed.value, parsed.value_version)


def _value(value: object, *, brief: bool) -> dict[str, object]:
    if isinstance(value, bytes):
        raw: dict[str, object] = {}
        put_bytes(raw, "bytes", value, Style.HEX)
        return raw
    item = to_json_object(value, brief=brief)
    if isinstance(value, GroupMetadata) and value.protocol_type == PROTOCOL_TYPE:
        item["members"] = [_member(member, brief=brief) for member in value.members]
    if isinstance(value, TransactionState) and value.status in set(TransactionStatus):
        item["status" if brief else "status_name"] = TransactionStatus(value.status).name
    return item


def _member(member: GroupMember, *, brief: bool) -> dict[str, object]:
    """Return a member as a JSON object. Its subscription and assignment are parsed if they have Kafka's schema."""
    item = to_json_object(member, brief=brief)
    schemas: tuple[tuple[str, bytes, Schema[Any]], ...] = (  # Any: a schema for each name
        ("subscription", member.subscription, SUBSCRIPTION),
        ("assignment", member.assignment, ASSIGNMENT),
    )
    for name, data, schema in schemas:
        try:
            content, version = schema.parse(data)
        except InvalidRecordError:
            continue  # clients may write any bytes: show the bytes
        item.pop(name, None)
        item.pop(f"{name}_base64", None)
        item[name] = {"version": version, **to_json_object(content, brief=brief)}
    return item
