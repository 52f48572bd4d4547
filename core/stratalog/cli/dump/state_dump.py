"""Dump of small state files: checkpoints, properties, producer snapshots, topics, notes, marks of bulk writers.

A mark is the name of a bulk writer and the number of its last finished write.

The functions raise CorruptCheckpointError (``dump_snapshot``: CorruptSnapshotError) if the file is malformed or from a
later release, and ConfigError if it is larger than ``limits.checkpoint.bytes``. ``dump_offsets``, ``dump_epochs``,
``dump_partition_metadata`` and ``dump_meta_properties`` first show the lines before the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from stratalog.cli.dump.file_dump import FileDump
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


def dump_offsets(file: FileDump) -> None:
    """Show a checkpoint of a log directory: an offset for each log."""
    _dump_lines(file, "offsets of logs", "log_offset", ("topic", "partition", "offset"), parse_offsets)


def dump_epochs(file: FileDump) -> None:
    """Show ``leader-epoch-checkpoint``."""
    _dump_lines(file, "leader epochs", "leader_epoch", ("epoch", "start_offset"), parse_epochs)


def _dump_lines(
    file: FileDump, description: str, kind: str, columns: Sequence[str], parse: Callable[[bytes, str], object]
) -> None:
    data = file.content(description)
    with file.sheet(kind, columns) as sheet:
        sheet.rows(_good_lines(data, len(columns)))
    parse(data, file.label)  # raises an error if a line was not shown


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


def dump_partition_metadata(file: FileDump) -> None:
    """Show ``partition.metadata``: version and topic id."""
    data = file.content("partition metadata")
    pairs = (line.partition(":") for line in data.decode("utf-8", "replace").splitlines())
    with file.sheet("property", _PROPERTY_COLUMNS) as sheet:
        sheet.rows((key, value.strip()) for key, _, value in pairs)
    parse_topic_id(data, file.label)


def dump_meta_properties(file: FileDump) -> None:
    """Show ``meta.properties``, a Java properties file. Each line must be ``KEY=VALUE``, and the version known."""
    text = file.content("meta.properties").decode("latin-1")  # the encoding of Java properties files
    version, position = "0", 0
    with file.sheet("property", _PROPERTY_COLUMNS) as sheet:
        for line in text.splitlines(keepends=True):
            stripped = line.strip()
            if stripped and stripped[0] not in "#!":
                pair = _PAIR.match(stripped)
                if pair is None:
                    raise CorruptCheckpointError("the line must be KEY=VALUE", file.label, position)
                key, value = _unescape(pair["key"]), _unescape(pair["value"])
                version = value if key == "version" else version
                sheet.row((key, value))
            position += len(line)
    if version not in VERSIONS:
        raise CorruptCheckpointError(f"meta.properties has the unknown version {version!r}", file.label)


def _unescape(text: str) -> str:
    def unescape_code(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(unescape_code, text)


def dump_clean_shutdown(file: FileDump) -> None:
    """Show ``.kafka_cleanshutdown``, the file of a clean shutdown. Since Kafka 3.7, it contains the broker epoch."""
    data = file.content("the broker stopped cleanly")
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        epoch = None  # Kafka, too, accepts any other content
    with file.sheet("clean_shutdown", ("broker_epoch",)) as sheet:
        sheet.row((epoch if isinstance(epoch, int) else None,))


def dump_topics(file: FileDump) -> None:
    """Show the topics file of an engine: topic ids and explicit settings."""
    entries = parse_topics(file.content("topics"), file.label)
    with file.sheet("topic", ("topic", "topic_id", "config")) as sheet:
        for topic, entry in sorted(entries.items()):
            config = dict(entry.config)
            text = " ".join(f"{name}={value}" for name, value in sorted(config.items()))
            sheet.row((topic, str(entry.topic_id), config if file.run.output.as_json else text))


# --- producers ---------------------------------------------------------------------------------------------------


def dump_snapshot(file: FileDump) -> None:
    """Show the producers of a producer snapshot. A value of -1 means that the producer has no such value."""
    entries = decode_snapshot(file.content("producers"), file.label)
    with file.sheet("producer", ProducerEntry._fields) as sheet:
        sheet.rows(entries)


# --- notes and marks ---------------------------------------------------------------------------------------------


def dump_tier_note(file: FileDump) -> None:
    """Show ``stratalog-tier.json``: the state of a log in the tier, or in a log directory the URI of its tier."""
    data = file.content("note about a tier")
    content = _object(data, file.label)
    if "tier" in content:
        fields = {"version": content.get("version"), "tier": content["tier"]}
    else:
        parse_note(data, file.label)  # checks the content
        fields = {name: value for name, value in content.items() if name not in {"identity", "crc32"}}
    file.properties("tier_note", fields)


def dump_note(file: FileDump) -> None:
    """Show a note about an unfinished attach, restore or move, or about an object of a tier.

    The content is shown unchanged. An empty file is valid, because some notes have no content.
    """
    data = file.content("note")
    content = _object(data, file.label) if data else {}
    file.item("note", {"content": content})
    file.property_lines(content)


def dump_marks(file: FileDump) -> None:
    """Show ``stratalog-marks.json``: the last finished write of each bulk writer, then the write in progress."""
    marks = parse_marks(file.content("marks of writers"), file.label)
    with file.sheet("mark", _MARK_COLUMNS) as sheet:
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
