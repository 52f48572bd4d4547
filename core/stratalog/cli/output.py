"""What commands print: tables and progress for people, one JSON object a line for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from stratalog.model.names import TopicPartition

_KIB = 1024
_PIPED_WIDTH = 240  # a pipe has no edge to wrap at


class Output:
    """Standard output of one command. Results go to stdout, progress and notes to stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else _PIPED_WIDTH
        self._out = Console(file=sys.stdout, highlight=False, width=width)
        self._notes = Console(file=sys.stderr, highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows with named columns; as JSON one object a row, with the column names as keys."""
        if self.as_json:
            for row in rows:
                self.item(dict(zip(columns, row, strict=True)))
            return
        table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        listed = [list(row) for row in rows]
        for index, column in enumerate(columns):
            numeric = bool(listed) and all(isinstance(row[index], int | float | None) for row in listed)
            justify: Literal["right", "left"] = "right" if numeric else "left"
            table.add_column(column.replace("_", " "), justify=justify, overflow="fold")
        for row in listed:
            table.add_row(*(Text(printable(shown(value))) for value in row))
        self.line(title)
        self._out.print(table)
        if not listed:
            self.note("nothing to show")

    def item(self, values: Mapping[str, object]) -> None:
        """One JSON object on a line of its own."""
        sys.stdout.write(json.dumps(values, default=str) + "\n")

    def line(self, text: str) -> None:
        """A line of text; left out as JSON."""
        if not self.as_json:
            sys.stdout.write(text + "\n")

    def flush(self) -> None:
        """Let whoever reads see what was printed so far; for commands that go on for long."""
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line for people only, on stderr."""
        if not self.as_json:
            self._notes.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: float) -> Iterator[Steps]:
        """A progress bar while stderr is a terminal, else nothing."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=self._notes,
            transient=True,
            disable=self.as_json or not self._notes.is_terminal,
        )
        with bar:
            yield Steps(bar, what, total)

    @contextmanager
    def logs_progress(self, what: str) -> Iterator[Callable[[TopicPartition, int, int], None]]:
        """The same, told by many threads how many of all logs are done, in any order."""
        with self.progress(what, 0) as steps:
            yield lambda _log, done, total: steps.reached(done, total)


class Steps:
    """How far a piece of work is."""

    def __init__(self, bar: Progress, what: str, total: float) -> None:
        self._bar, self._total = bar, total
        self._task = bar.add_task(what, total=total)
        self._lock, self._most = Lock(), 0.0

    def add(self, steps: float) -> None:
        """There are so many more than was known."""
        self._total += steps
        self._bar.update(self._task, total=self._total)

    def advance(self, steps: float = 1) -> None:
        """So much more is done."""
        self._bar.advance(self._task, steps)

    def reached(self, done: float, total: float) -> None:
        """So much of ``total`` is done, or more, if another thread has told that already."""
        with self._lock:
            self._most = max(self._most, done)
            self._bar.update(self._task, total=total, completed=self._most)


def printable(text: str) -> str:
    """A text on one line, without what a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: object) -> str:
    """A table cell: numbers with thousands separators, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def size_text(size_bytes: float) -> str:
    """A size for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < _KIB:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= _KIB
    return f"{size_bytes:,.1f} TiB"
