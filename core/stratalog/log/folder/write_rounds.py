"""Progress of writers that number their writes: the file of write rounds, a small file in the log's folder.

A write round is one numbered write: a set of records that becomes visible in one step. A writer repeats a numbered
write only if the file does not have the number, so no write is done twice. Before the write, the file stores it as
pending, with the offsets that its records will have. After a crash, the write is complete or undone. When the log is
opened for writing, a pending write counts as written if the log ends at or above the end offset of the write. Kafka
ignores the file.

docs/formats/marks.md describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from stratalog.model.names import MARKS_FILE
from stratalog.model.notes import integer, parse_json, readable, text
from stratalog.spi.segment_store import LogFiles

FORMAT_VERSION: Final = 1
MAX_MARKS: Final = 64  # maximum number of stored writers; the writer with the oldest last write is removed first


@dataclass(frozen=True, slots=True)
class Pending:
    """A numbered write that was begun. It counts as written if the log end is at or above ``end_offset``."""

    writer: str
    number: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Contents of the file of write rounds: each writer and the number of its last write, the latest writer last.

    ``pending`` is a numbered write that was begun, and whose result is not stored yet; None if there is none.
    """

    rounds: tuple[tuple[str, int], ...] = ()
    pending: Pending | None = None

    def number_of(self, writer: str) -> int:
        """Return the number of the last write of ``writer``, -1 if there is none."""
        return dict(self.rounds).get(writer, -1)


def read_marks(files: LogFiles) -> Marks:
    """Return the contents of the file of write rounds, empty if there is no file.

    Raises the same errors as ``parse_marks``.
    """
    data = files.read_small(MARKS_FILE)
    return Marks() if data is None else parse_marks(data, files.path(MARKS_FILE))


def parse_marks(data: bytes, path: str) -> Marks:
    """Return the contents of the file of write rounds from its bytes. Errors name ``path``.

    Raises:
        CorruptCheckpointError: the file is malformed, or a later release wrote it.
    """
    return parse_json(data, path, "the file of write rounds", FORMAT_VERSION, _marks_from)


def begin_round(files: LogFiles, pending: Pending) -> None:
    """Store durably that the numbered write ``pending`` begins."""
    _write(files, read_marks(files).rounds, pending)


def end_round(files: LogFiles, log_end: int) -> Marks:
    """Store durably the outcome of the pending write, and return the new contents of the file.

    The pending write was written if ``log_end`` is at or above its end offset. Without a pending write, the file does
    not change.
    """
    marks = read_marks(files)
    pending = marks.pending
    if pending is None:
        return marks
    rounds = marks.rounds
    if log_end >= pending.end_offset:
        other_rounds = [mark for mark in rounds if mark[0] != pending.writer]
        rounds = (*other_rounds, (pending.writer, pending.number))[-MAX_MARKS:]
    return _write(files, rounds, None)


def _write(files: LogFiles, rounds: Iterable[tuple[str, int]], pending: Pending | None) -> Marks:
    marks = Marks(tuple(rounds), pending)
    body: dict[str, Any] = {"version": FORMAT_VERSION, "marks": [list(mark) for mark in marks.rounds]}
    if pending is not None:
        body["pending"] = [pending.writer, pending.number, pending.base_offset, pending.end_offset]
    files.replace_small(MARKS_FILE, readable(json.dumps(body).encode(), parse_marks, files.path(MARKS_FILE)))
    return marks


def _marks_from(body: Any) -> Marks:
    rounds = tuple((text(writer), _number(number)) for writer, number in body["marks"])
    pending_fields = body.get("pending")
    if pending_fields is None:
        return Marks(rounds)
    writer, number, base_offset, end_offset = pending_fields
    return Marks(rounds, Pending(text(writer), _number(number), _number(base_offset), _number(end_offset)))


def _number(value: Any) -> int:
    number = integer(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number
