"""Dump of small state files: checkpoints, properties, producer snapshots, topics, notes, marks of bulk writers.

A mark is the name of a bulk writer and the number of its last finished write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from stratalog.cli.dump.context import Context
from stratalog.cli.dump.sheet import properties
from stratalog.cli.dump.source import Source
from stratalog.engine.open.directory_id import VERSIONS
from stratalog.epochs.checkpoint import parse_epochs, parse_offsets
from stratalog.errors import CorruptCheckpointError
from stratalog.log.folder.directory_state import parse_topic_id
from stratalog.log.folder.tier_note import parse_note
from stratalog.log.folder.write_rounds import parse_marks
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot
from stratalog.reading.topic_table import parse_topics

_PROPERTY_COLUMNS: Final = ("key", "value")
_MARK_COLUMNS: Final = ("writer", "number", "pending", "base_offset", "end_offset")
_PAIR: Final = re.compile(r"(?P<key>(?:[^\\=:\s]|\\.)+)\s*[=:\s]\s*(?P<value>.*)\Z")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


# --- checkpoints -------------------------------------------------------------------------------------------------


def dump_offsets(context: Context, source: Source) -> None:
    """Show a checkpoint of a log directory: an offset for each log.

    Raises:
        CorruptCheckpointError: the file is malformed. The good lines before the error have been shown.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    data = context.content(source, "offsets of logs")
    columns = ("topic", "partition", "offset")
    _lines(context, source, "log_offset", columns, data, lambda: parse_offsets(data, source.label))


def dump_epochs(context: Context, source: Source) -> None:
    """Show ``leader-epoch-checkpoint``. Raises the errors of ``dump_offsets``."""
    data = context.content(source, "leader epochs")
    columns = ("epoch", "start_offset")
    _lines(context, source, "leader_epoch", columns, data, lambda: parse_epochs(data, source.label))


def _lines(
    context: Context, source: Source, kind: str, columns: Sequence[str], data: bytes, check: Callable[[], object]
) -> None:
    damage: CorruptCheckpointError | None = None
    try:
        check()
    except CorruptCheckpointError as error:
        damage = error
    with context.sheet(source, kind, columns) as sheet:
        sheet.rows(_good_lines(data, len(columns)))
    if damage is not None:
        raise damage


def _good_lines(data: bytes, words: int) -> Iterator[list[object]]:
    """Yield the lines before the first malformed line, split into words. The last two words of a line are numbers."""
    for line in data.split(b"\n")[2:]:
        entry: list[object] = list(line.decode("utf-8", "replace").split())
        try:
            entry[-2:] = [int(str(word)) for word in entry[-2:]]
        except ValueError:
            return
        if len(entry) != words:
            return
        yield entry


# --- properties --------------------------------------------------------------------------------------------------


def dump_partition_metadata(context: Context, source: Source) -> None:
    """Show ``partition.metadata``: version and topic id.

    Raises:
        CorruptCheckpointError: the file is malformed. Its lines have been shown.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    data = context.content(source, "partition metadata")
    pairs = (line.partition(":") for line in data.decode("utf-8", "replace").splitlines())
    with context.sheet(source, "property", _PROPERTY_COLUMNS) as sheet:
        sheet.rows((key, value.strip()) for key, _, value in pairs)
    parse_topic_id(data, source.label)


def dump_meta_properties(context: Context, source: Source) -> None:
    """Show ``meta.properties``, a Java properties file.

    Raises:
        CorruptCheckpointError: a line is not ``KEY=VALUE``, or the version is unknown. Earlier lines have been shown.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    text = context.content(source, "meta.properties").decode("latin-1")  # the encoding of Java properties files
    version, position = "0", 0
    with context.sheet(source, "property", _PROPERTY_COLUMNS) as sheet:
        for line in text.splitlines(keepends=True):
            stripped = line.strip()
            if stripped and stripped[0] not in "#!":
                pair = _PAIR.match(stripped)
                if pair is None:
                    raise CorruptCheckpointError("the line must be KEY=VALUE", source.label, position)
                key, value = _unescape(pair["key"]), _unescape(pair["value"])
                version = value if key == "version" else version
                sheet.row((key, value))
            position += len(line)
    if version not in VERSIONS:
        raise CorruptCheckpointError(f"meta.properties has the unknown version {version!r}", source.label)


def _unescape(text: str) -> str:
    def unescape_code(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(unescape_code, text)


def dump_clean_shutdown(context: Context, source: Source) -> None:
    """Show ``.kafka_cleanshutdown``, the file of a clean shutdown. Since Kafka 3.7, it contains the broker epoch."""
    data = context.content(source, "the broker stopped cleanly")
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        epoch = None  # Kafka, too, accepts any other content
    with context.sheet(source, "clean_shutdown", ("broker_epoch",)) as sheet:
        sheet.row((epoch if isinstance(epoch, int) else None,))


def dump_topics(context: Context, source: Source) -> None:
    """Show the topics file of an engine: topic ids and explicit settings.

    Raises:
        CorruptCheckpointError: the file is malformed.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    entries = parse_topics(context.content(source, "topics"), source.label)
    with context.sheet(source, "topic", ("topic", "topic_id", "config")) as sheet:
        for topic, entry in sorted(entries.items()):
            config = dict(entry.config)
            sheet.row((topic, str(entry.topic_id), config if context.as_json else _settings(config)))


def _settings(config: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(config.items()))


# --- producers ---------------------------------------------------------------------------------------------------


def dump_snapshot(context: Context, source: Source) -> None:
    """Show the producers of a producer snapshot. A value of -1 means that the producer has no such value.

    Raises:
        CorruptSnapshotError: the CRC or the size is wrong. Then no entry is shown.
        ConfigError: the file is larger than ``limits.checkpoint.bytes``.
    """
    data = context.content(source, "producers")
    entries = decode_snapshot(data, source.label)
    with context.sheet(source, "producer", ProducerEntry._fields) as sheet:
        sheet.rows(entries)


# --- notes and marks ---------------------------------------------------------------------------------------------


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
