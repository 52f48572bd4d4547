"""How far writers in numbered rounds have come in one log: a small file in its folder.

A round is noted before it is carried out, with the offsets that it will have, and carried out by one step that a crash does
or undoes as a whole. So whoever opens the log to write knows which it was, before anybody appends: a log that ends where
the round would have ended has it. Kafka ignores the file, as any plain file in a log's folder.

docs/formats/marks.md draws it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stratalog.errors import CorruptCheckpointError
from stratalog.model.names import MARKS_FILE
from stratalog.model.notes import readable
from stratalog.spi.segment_store import LogFiles

FORMAT_VERSION: Final = 1
MAX_MARKS: Final = 64  # writers that are remembered; the one that has been silent for longest is forgotten first


@dataclass(frozen=True, slots=True)
class Pending:
    """A round that was begun: whether it was carried out shows by where the log ends."""

    writer: str
    number: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Marks:
    """The contents of the file: the last round of each writer, the one that wrote last at the end."""

    rounds: tuple[tuple[str, int], ...] = ()
    pending: Pending | None = None

    def number_of(self, writer: str) -> int:
        """The number of a writer's last round, -1 if it has none here."""
        return dict(self.rounds).get(writer, -1)


def read_marks(files: LogFiles) -> Marks:
    """What is noted, nothing if there is no file; errors as ``parse_marks``."""
    data = files.read_small(MARKS_FILE)
    return Marks() if data is None else parse_marks(data, files.path(MARKS_FILE))


def parse_marks(data: bytes, path: str) -> Marks:
    """The contents of the file; ``path`` is for errors.

    Raises:
        CorruptCheckpointError: the file is malformed, or of a later release.
    """
    try:
        body = json.loads(data)
        version = body["version"]
        if version == FORMAT_VERSION:
            return _marks_from(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"the marks of writers are malformed: {error!r}", path) from error
    raise CorruptCheckpointError(f"marks of version {version!r} are not supported by this release", path)


def begin_round(files: LogFiles, pending: Pending) -> None:
    """Note that a round is about to be carried out; durable on return."""
    _write(files, read_marks(files).rounds, pending)


def end_round(files: LogFiles, log_end: int) -> Marks:
    """Settle a round that was begun, by where the log ends; nothing to do without one. Durable on return."""
    found = read_marks(files)
    pending = found.pending
    if pending is None:
        return found
    rounds = found.rounds
    if log_end >= pending.end_offset:
        others = [mark for mark in rounds if mark[0] != pending.writer]
        rounds = (*others, (pending.writer, pending.number))[-MAX_MARKS:]
    return _write(files, rounds, None)


def _write(files: LogFiles, rounds: Iterable[tuple[str, int]], pending: Pending | None) -> Marks:
    made = Marks(tuple(rounds), pending)
    body: dict[str, Any] = {"version": FORMAT_VERSION, "marks": [list(mark) for mark in made.rounds]}
    if pending is not None:
        body["pending"] = [pending.writer, pending.number, pending.base_offset, pending.end_offset]
    files.replace_small(MARKS_FILE, readable(json.dumps(body).encode(), parse_marks, files.path(MARKS_FILE)))
    return made


def _marks_from(body: Any) -> Marks:
    rounds = tuple((_text(writer), _whole(number)) for writer, number in body["marks"])
    begun = body.get("pending")
    if begun is None:
        return Marks(rounds)
    writer, number, base_offset, end_offset = begun
    return Marks(rounds, Pending(_text(writer), _whole(number), _whole(base_offset), _whole(end_offset)))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value
