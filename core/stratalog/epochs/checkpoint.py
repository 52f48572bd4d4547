"""Kafka's checkpoint files: a version, a count, and lines of words. All of them have the same grammar.

Source: apache/kafka CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from stratalog.errors import CorruptCheckpointError
from stratalog.model.names import TopicPartition
from stratalog.model.notes import readable
from stratalog.model.offsets import EpochEntry

VERSION: Final = 0
_HEAD_LINES: Final = 2  # number of lines before the entries: version and count
_INTEGER: Final = re.compile(rb"[+-]?[0-9]+\Z")
_MAX_DIGITS: Final = 20
_INT_BITS: Final = 32
_LONG_BITS: Final = 64


class CheckpointLine(NamedTuple):
    """The words of one entry of a checkpoint, and the position (bytes) of its line in the file."""

    words: tuple[bytes, ...]
    position: int


def parse_lines(data: bytes, words: int, file: str) -> list[CheckpointLine]:
    """Return the entries of a checkpoint file. Each entry must have ``words`` words.

    An empty file, or a file with only a version, has no entries. ``file`` is the path of the file, for errors.

    Raises:
        CorruptCheckpointError: a line is malformed, the version is unknown, or the count is not the number of entries.
            The ``position`` of the error is the position of the line.
    """
    lines = list(_lines(data))
    if not lines:
        return []
    version = _integer(*lines[0], _INT_BITS, file)
    if version != VERSION:
        raise CorruptCheckpointError(f"checkpoint version {version} is unknown", file, 0).advised(
            "install the release that wrote the file"
        )
    if len(lines) == 1:
        return []
    expected = _integer(*lines[1], _INT_BITS, file)
    entries = [CheckpointLine(_words(line, position, words, file), position) for line, position in lines[2:]]
    if len(entries) != expected:
        raise CorruptCheckpointError(
            f"the header announces {expected} entries, but the file has {len(entries)}", file, lines[1][1]
        )
    return entries


def parse_offsets(data: bytes, file: str) -> dict[TopicPartition, int]:
    """Return the offsets in a log directory's checkpoint, which has topic, partition and offset on each line.

    If a log is listed twice, its last line is used. ``file`` is the path, for errors. Raises the errors of
    ``parse_lines``.
    """
    offsets = {}
    for (topic, partition, offset), position in parse_lines(data, 3, file):
        log = TopicPartition(_text(topic, position, file), _integer(partition, position, _INT_BITS, file))
        offsets[log] = _integer(offset, position, _LONG_BITS, file)
    return offsets


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the bytes of a checkpoint that ``parse_offsets`` reads."""
    return _format(f"{log.topic} {log.partition} {offset}" for log, offset in sorted(offsets.items()))


def check_offsets(data: bytes, before: bytes, file: str) -> None:
    """Raise StorageError if ``parse_offsets`` cannot parse an entry of ``data``, a checkpoint to be stored.

    Entries that are also in ``before``, the stored checkpoint, are not checked.
    """
    old = frozenset(before.splitlines())
    lines = [line for line in data.splitlines()[_HEAD_LINES:] if line not in old]
    readable(b"".join(line + b"\n" for line in (b"%d" % VERSION, b"%d" % len(lines), *lines)), parse_offsets, file)


def parse_epochs(data: bytes, file: str) -> list[EpochEntry]:
    """Return the entries of ``leader-epoch-checkpoint``, which has epoch and start offset on each line.

    Raises the errors of ``parse_lines``, and CorruptCheckpointError for a negative number. ``file`` is the path, for
    errors.
    """
    entries = []
    for (epoch, start), position in parse_lines(data, 2, file):
        entry = EpochEntry(_integer(epoch, position, _INT_BITS, file), _integer(start, position, _LONG_BITS, file))
        if min(entry) < 0:
            raise CorruptCheckpointError(
                f"epoch {entry.epoch} or its start offset {entry.start_offset} is negative", file, position
            )
        entries.append(entry)
    return entries


def format_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """Return the bytes of a checkpoint that ``parse_epochs`` reads."""
    return _format(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def _format(lines: Iterable[str]) -> bytes:
    all_lines = list(lines)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(all_lines)), *all_lines)).encode()


def _lines(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield each line without its line end (LF, CRLF, or the end of the file), and its position."""
    position = 0
    for line in data.split(b"\n"):
        if line or position < len(data):
            yield line.removesuffix(b"\r"), position
        position += len(line) + 1


def _words(line: bytes, position: int, count: int, file: str) -> tuple[bytes, ...]:
    words = re.split(rb"\s+", line.rstrip())
    if len(words) != count or not words[0]:
        raise CorruptCheckpointError(f"the line must have {count} words, not {line[:80]!r}", file, position)
    return tuple(words)


def _text(word: bytes, position: int, file: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise CorruptCheckpointError(f"{word[:80]!r} is not UTF-8", file, position) from None


def _integer(word: bytes, position: int, bits: int, file: str) -> int:
    limit = 1 << (bits - 1)
    if not _INTEGER.match(word) or len(word) > _MAX_DIGITS or not -limit <= int(word) < limit:
        raise CorruptCheckpointError(f"the word must be a number of {bits} bits, not {word[:80]!r}", file, position)
    return int(word)
