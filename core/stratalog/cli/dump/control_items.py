"""Conversion of control records (transaction markers, records of a KRaft quorum) to JSON and text."""

from __future__ import annotations

from stratalog.cli.contents.values import pairs, to_json_object
from stratalog.errors import InvalidRecordError
from stratalog.model.messages.control import ControlRecord, EndMarker, parse_control


def control_item(key: bytes | None, value: bytes | None) -> dict[str, object]:
    """Return a control record as a JSON object: ``type`` and the record's fields, or ``error`` if it cannot be read.

    ``type`` is the name of the record type; the number if the type is unknown; None if the record cannot be read.
    """
    try:
        record = parse_control(key, value)
    except InvalidRecordError as error:
        return {"type": None, "error": str(error)}
    if record is None:
        return {"type": int.from_bytes((key or b"")[2:4], "big", signed=True)}
    return control_object(record)


def control_object(record: ControlRecord) -> dict[str, object]:
    """Return a parsed control record as a JSON object."""
    if isinstance(record, EndMarker):
        return {"type": record.kind.name, "coordinator_epoch": record.coordinator_epoch}
    return {"type": record.kind.name, **to_json_object(record)}


def control_text(item: dict[str, object]) -> str:
    """Return the text of a control record. ``item`` is the record as a JSON object."""
    fields = pairs({name: value for name, value in item.items() if name != "type"})
    type_name = item["type"] if isinstance(item["type"], str) else f"control type {item['type']}"
    return f"{type_name} {fields}".rstrip()
