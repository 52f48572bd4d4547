"""Dump of small JSON files: notes about tiers, marks of bulk writers, and notes about unfinished operations.

A mark is the name of a bulk writer and the number of its last finished write.
"""

from __future__ import annotations

import json
from typing import Any, Final

from stratalog.cli.dump.context import Context
from stratalog.cli.dump.sheet import properties
from stratalog.cli.dump.source import Source
from stratalog.errors import CorruptCheckpointError
from stratalog.log.folder.tier_note import parse_note
from stratalog.log.folder.write_rounds import parse_marks

_MARK_COLUMNS: Final = ("writer", "number", "pending", "base_offset", "end_offset")


def dump_tier_note(context: Context, source: Source) -> None:
    """Show ``stratalog-tier.json``: the state of a log in the tier, or in a log directory the URI of its tier.

    Raises:
        CorruptCheckpointError: the file is malformed, has a wrong checksum, or was written by a later release.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    data = context.content(source, "note about a tier")
    content = _object(data, source.label)
    if "tier" in content:
        fields = {"version": content.get("version"), "tier": content["tier"]}
    else:
        parse_note(data, source.label)  # checks the content
        fields = {name: value for name, value in content.items() if name not in {"identity", "crc32"}}
    context.properties(source, "tier_note", fields)


def dump_note(context: Context, source: Source) -> None:
    """Show a note about an unfinished attach, restore or move, or about an object of a tier.

    The content is shown unchanged. An empty file is valid, because some notes have no content.

    Raises:
        CorruptCheckpointError: the content is not a JSON object.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    data = context.content(source, "note")
    content = _object(data, source.label) if data else {}
    context.item(source.label, "note", {"content": content})
    properties(context.output, content)


def dump_marks(context: Context, source: Source) -> None:
    """Show ``stratalog-marks.json``: the last finished write of each bulk writer, then the write in progress.

    Raises:
        CorruptCheckpointError: the file is malformed, or was written by a later release.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    marks = parse_marks(context.content(source, "marks of writers"), source.label)
    with context.sheet(source, "mark", _MARK_COLUMNS) as sheet:
        sheet.rows((writer, number, False, None, None) for writer, number in marks.rounds)
        pending = marks.pending
        if pending is not None:
            sheet.row((pending.writer, pending.number, True, pending.base_offset, pending.end_offset))


def _object(data: bytes, label: str) -> dict[str, Any]:  # Any: JSON
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptCheckpointError(f"the content is not valid JSON: {error}", label, position) from error
    if not isinstance(content, dict):
        raise CorruptCheckpointError("the content must be a JSON object", label)
    return content
