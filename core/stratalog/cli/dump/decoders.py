"""What records mean: those of Kafka's internal topics, control records, and plain bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from stratalog.cli.dump.values import Style, lines, pairs, plain, put_bytes, shown
from stratalog.cli.output import printable
from stratalog.errors import InvalidRecordError
from stratalog.model.consumer_protocol import ASSIGNMENT, PROTOCOL_TYPE, SUBSCRIPTION
from stratalog.model.control import ControlRecord, EndMarker, parse_control
from stratalog.model.offsets_topic import OFFSETS_TOPIC, GroupMember, GroupMetadata, parse_offsets_record
from stratalog.model.records import Record
from stratalog.model.structures import Schema
from stratalog.model.transactions_topic import TRANSACTIONS_TOPIC, TransactionStatus, parse_transaction_record

_INDENT: Final = "|     "


class Decoder(StrEnum):
    """How keys and values are read, by the words of ``--decoder``."""

    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"
    TEXT = "text"
    HEX = "hex"


class RecordDecoder(Protocol):
    """Shows the contents of records."""

    def item(self, record: Record) -> dict[str, object]:
        """For machines; ``error`` says what cannot be read, if something cannot."""

    def lines(self, record: Record) -> Iterator[str]:
        """For people: the first line goes on behind the record's offset."""


def decoder_of(topic: str, chosen: Decoder | None) -> RecordDecoder:
    """The decoder that was chosen, else the one for the topic."""
    by_topic = {OFFSETS_TOPIC: Decoder.OFFSETS, TRANSACTIONS_TOPIC: Decoder.TRANSACTIONS}
    wanted = chosen or by_topic.get(topic)
    if wanted is Decoder.OFFSETS:
        return _Internal(_offsets)
    if wanted is Decoder.TRANSACTIONS:
        return _Internal(_transactions)
    return _Plain(Style(wanted) if wanted else Style.AUTO)


def internal_topic(path: Path) -> str:
    """The internal topic to whose folder a file belongs, or ""; the folder may be set aside, or one of a tier."""
    folder = Path(os.path.abspath(path)).parent.name  # noqa: PTH100 - a link's own place tells, not its target's
    return next((topic for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) if folder.startswith(f"{topic}-")), "")


@dataclass(frozen=True, slots=True)
class _Plain:
    """Bytes as they are."""

    style: Style

    def item(self, record: Record) -> dict[str, object]:
        """Key and value, and headers as objects."""
        found: dict[str, object] = {}
        put_bytes(found, "key", record.key, self.style)
        put_bytes(found, "value", record.value, self.style)
        headers = []
        for name, value in record.headers:
            header: dict[str, object] = {"key": name}
            put_bytes(header, "value", value, self.style)
            headers.append(header)
        return {**found, "headers": headers}

    def lines(self, record: Record) -> Iterator[str]:
        """One line."""
        headers = "".join(f"  {printable(name)}: {shown(value, self.style)}" for name, value in record.headers)
        yield f"{shown(record.key, self.style)} = {shown(record.value, self.style)}{headers}"


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a record of an internal topic says; ``value`` is None for a tombstone."""

    kind: str
    key: dict[str, object]
    value: dict[str, object] | None
    version: int | None


class _Reading(Protocol):
    """Reads a record; ``brief`` is for people."""

    def __call__(self, record: Record, *, brief: bool) -> _Meaning | None: ...


@dataclass(frozen=True, slots=True)
class _Internal:
    """Records of an internal topic; what cannot be read is shown as bytes, with the reason."""

    read: _Reading

    def item(self, record: Record) -> dict[str, object]:
        """``decoded``; for a type that nobody knows, or bytes that are none, key and value."""
        try:
            found = self.read(record, brief=False)
        except InvalidRecordError as error:
            return {**_Plain(Style.AUTO).item(record), "error": str(error)}
        if found is None:
            return _Plain(Style.AUTO).item(record)
        return {"decoded": {"type": found.kind, "key": found.key, "value": found.value, "value_version": found.version}}

    def lines(self, record: Record) -> Iterator[str]:
        """The key, and the value behind it; lists below."""
        try:
            found = self.read(record, brief=True)
        except InvalidRecordError as error:
            yield from _Plain(Style.AUTO).lines(record)
            yield f"{_INDENT}cannot be read: {error}"
            return
        if found is None:
            yield from _Plain(Style.AUTO).lines(record)
            return
        head = f"{found.kind.lower()} {pairs(found.key)}: "
        if found.value is None:
            yield f"{head}tombstone"
            return
        below = lines(found.value, _INDENT)
        yield f"{head}{next(below)} (v{found.version})"
        yield from below


def _offsets(record: Record, *, brief: bool) -> _Meaning | None:
    found = parse_offsets_record(record.key, record.value)
    if found is None:
        return None
    value: dict[str, object] | None = None
    if isinstance(found.value, bytes):
        put_bytes(value := {}, "bytes", found.value, Style.HEX)
    elif found.value is not None:
        value = _object(found.value, brief=brief)
        if isinstance(found.value, GroupMetadata) and found.value.protocol_type == PROTOCOL_TYPE:
            value["members"] = [_member(member, brief=brief) for member in found.value.members]
    return _Meaning(found.kind.name, _object(found.key), value, found.value_version)


def _member(member: GroupMember, *, brief: bool) -> dict[str, object]:
    """A member with its subscription and assignment read, where they can be."""
    shown_member = _object(member, brief=brief)
    schemas: tuple[tuple[str, bytes, Schema[Any]], ...] = (
        ("subscription", member.subscription, SUBSCRIPTION),
        ("assignment", member.assignment, ASSIGNMENT),
    )
    for name, data, schema in schemas:
        try:
            content, version = schema.parse(data)
        except InvalidRecordError:
            continue  # clients write what they like: the bytes are shown
        shown_member.pop(name, None)
        shown_member.pop(f"{name}_base64", None)
        shown_member[name] = {"version": version, **_object(content, brief=brief)}
    return shown_member


def _transactions(record: Record, *, brief: bool) -> _Meaning | None:
    found = parse_transaction_record(record.key, record.value)
    if found is None:
        return None
    value = None
    if found.value is not None:
        value = _object(found.value, brief=brief)
        if found.value.status in set(TransactionStatus):
            value["status" if brief else "status_name"] = TransactionStatus(found.value.status).name
    return _Meaning("TRANSACTION_STATE", _object(found.key), value, found.value_version)


def _object(structure: object, *, brief: bool = False) -> dict[str, object]:
    found = plain(structure, brief=brief)
    assert isinstance(found, dict)
    return found


# --- control records ---------------------------------------------------------------------------------------------


def control_item(key: bytes | None, value: bytes | None) -> dict[str, object]:
    """A control record for machines: ``type``, and what it says; ``error`` if it cannot be read.

    A type that nobody knows is a number.
    """
    try:
        found = parse_control(key, value)
    except InvalidRecordError as error:
        return {"type": None, "error": str(error)}
    if found is None:
        return {"type": int.from_bytes((key or b"")[2:4], "big", signed=True)}
    return control_object(found)


def control_object(found: ControlRecord) -> dict[str, object]:
    """The same of one that has been read."""
    if isinstance(found, EndMarker):
        return {"type": found.kind.name, "coordinator_epoch": found.coordinator_epoch}
    return {"type": found.kind.name, **_object(found)}


def control_text(item: dict[str, object]) -> str:
    """A control record for people, from what machines get."""
    rest = pairs({name: value for name, value in item.items() if name != "type"})
    return f"{item['type'] or 'control'} {rest}".rstrip()
