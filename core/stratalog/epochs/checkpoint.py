"""Kafka's checkpoint files: a version, a count, and lines of words. One grammar for all of them.

Source: apache/kafka CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from stratalog.errors import CorruptCheckpointError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import EpochEntry

VERSION: Final = 0
_INTEGER: Final = re.compile(r"[+-]?[0-9]+\Z")
_MAX_DIGITS: Final = 20


def parse_lines(data: bytes, words: int, file: str) -> list[list[str]]:
    """The entry lines of a checkpoint, each split into ``words`` words.

    An empty file, or one with a version alone, has no entries. ``file`` is for error texts.

    Raises:
        CorruptCheckpointError: bad version, count or line; the position is the line's (bytes).
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("the checkpoint is not UTF-8", file, error.start) from None
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    version = _header(lines, 0, file)
    if version != VERSION:
        raise CorruptCheckpointError(f"checkpoint version {version} is unknown", file, 0)
    if len(lines) == 1:
        return []
    expected = _header(lines, 1, file)
    entries: list[list[str]] = []
    position = len(lines[0]) + len(lines[1]) + 2
    for line in lines[2:]:
        found = re.split(r"\s+", line.rstrip())
        if len(found) != words or not found[0]:
            raise CorruptCheckpointError(f"a line of {words} words is expected, not {line[:80]!r}", file, position)
        entries.append(found)
        position += len(line) + 1
    if len(entries) != expected:
        raise CorruptCheckpointError(f"{expected} entries are announced, {len(entries)} are there", file, position)
    return entries


def parse_offsets(data: bytes, file: str) -> dict[TopicPartition, int]:
    """A checkpoint of a log directory: topic, partition, offset a line. Errors as ``parse_lines``."""
    return {
        TopicPartition(topic, _integer(partition, file)): _integer(offset, file)
        for topic, partition, offset in parse_lines(data, 3, file)
    }


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The bytes of such a checkpoint."""
    return _format(f"{log.topic} {log.partition} {offset}" for log, offset in sorted(offsets.items()))


def parse_epochs(data: bytes, file: str) -> list[EpochEntry]:
    """``leader-epoch-checkpoint``: epoch, start offset a line. Errors as ``parse_lines``."""
    return [EpochEntry(_integer(epoch, file), _integer(start, file)) for epoch, start in parse_lines(data, 2, file)]


def format_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The bytes of such a checkpoint."""
    return _format(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def _format(lines: Iterable[str]) -> bytes:
    listed = list(lines)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(listed)), *listed)).encode()


def _header(lines: list[str], index: int, file: str) -> int:
    if not _INTEGER.match(lines[index]) or len(lines[index]) > _MAX_DIGITS:
        position = 0 if index == 0 else len(lines[0]) + 1
        raise CorruptCheckpointError(f"a number is expected, not {lines[index][:80]!r}", file, position)
    return int(lines[index])


def _integer(text: str, file: str) -> int:
    if not _INTEGER.match(text) or len(text) > _MAX_DIGITS:
        raise CorruptCheckpointError(f"a number is expected, not {text[:80]!r}", file)
    return int(text)
