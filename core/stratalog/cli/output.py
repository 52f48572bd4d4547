"""Output of commands: tables and progress bars for people, one JSON object a line for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from stratalog.model.names import TopicPartition

_KIB = 1024
_PIPED_WIDTH = 240  # characters; a pipe has no width at which to wrap


class Output:
    """Output of one command: results on stdout, progress and notes on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else _PIPED_WIDTH
        self._out = Console(file=sys.stdout, highlight=False, width=width)
        self._notes = Console(file=sys.stderr, highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows with named columns; with ``--json``, print one object a row, with the column names as keys."""
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
        """Print one JSON object on a line of its own."""
        sys.stdout.write(json.dumps(values, default=str) + "\n")

    def line(self, text: str) -> None:
        """Print a line of text; print nothing with ``--json``."""
        if not self.as_json:
            sys.stdout.write(text + "\n")

    def flush(self) -> None:
        """Flush stdout, for commands that run for a long time."""
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a line on stderr; print nothing with ``--json``."""
        if not self.as_json:
            self._notes.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: float) -> Iterator[Steps]:
        """Show a progress bar if stderr is a terminal."""
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
        """Show a progress bar over all logs; several threads may report finished logs, in any order."""
        with self.progress(what, 0) as steps:
            yield lambda _log, done, total: steps.reached(done, total)


class Steps:
    """Progress of a command, shown as a bar."""

    def __init__(self, bar: Progress, what: str, total: float) -> None:
        self._bar, self._total = bar, total
        self._task = bar.add_task(what, total=total)
        self._lock, self._most = Lock(), 0.0

    def add(self, steps: float) -> None:
        """Increase the total number of steps."""
        self._total += steps
        self._bar.update(self._task, total=self._total)

    def advance(self, steps: float = 1) -> None:
        """Report finished steps."""
        self._bar.advance(self._task, steps)

    def reached(self, done: float, total: float) -> None:
        """Report ``done`` of ``total`` steps; ignore a smaller number than another thread has reported."""
        with self._lock:
            self._most = max(self._most, done)
            self._bar.update(self._task, total=total, completed=self._most)


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped for the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def moment(timestamp_ms: int) -> str:
    """Return a timestamp in ISO 8601, UTC, as options take it; ``-`` for -1, the number if it is outside the calendar."""
    if timestamp_ms < 0:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    try:
        found = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def shown(value: object) -> str:
    """Return a table cell: numbers have thousands separators, and None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def size_text(size_bytes: float) -> str:
    """Return a size for people, for example ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < _KIB:
            return f"{size_bytes:,.0f} {unit}" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= _KIB
    return f"{size_bytes:,.1f} TiB"
