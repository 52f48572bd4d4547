"""Output of commands: tables and progress bars for people, and one JSON object per line for programs."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Literal, TypeAlias, TypeVar

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from stratalog.cli.signal_handlers import signal_handler
from stratalog.errors.system import log_dir_error

TitledTable: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[object]]]
"""Title, columns and rows of a table."""

T = TypeVar("T")
Columns: TypeAlias = Mapping[str, Callable[[T], object]]
"""Columns of a table, by name. Each function returns the cell of an item in its column."""

_LIVE_LINES = 5  # lines of a table in addition to its rows
_KIB = 1024
_BAR_WIDTH = 16  # characters: the whole line fits into 80
_BAR_FITS = 70  # characters: a narrower terminal shows the numbers without a bar
_AGAIN = "run the command again for the rest"
_PIPED_WIDTH = 240  # characters of a line if stdout is not a terminal
_BETWEEN = 3  # characters between two columns of a table; the left and the right edge have one character each
_FOLDED = 24  # characters: a narrower column of folded text is hard to read


class _RateColumn(ProgressColumn):
    """Column of a progress bar that shows bytes per second, in binary units such as KiB/s."""

    def render(self, task: Task) -> Text:
        """Return the rate, "" before it is known."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{size_text(speed)}/s")


BYTE_COLUMNS = (
    DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
    _RateColumn(table_column=Column(no_wrap=True)),
    TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
)
"""Columns of a progress bar in bytes: finished and total bytes, rate, and remaining time."""


class _Console(Console):
    """Console that raises BrokenPipeError if the reader of its output has exited. rich would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    """Output of one command: results on stdout, progress and notes on stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        width = None if sys.stdout.isatty() else _PIPED_WIDTH
        self._out = _Console(file=sys.stdout, highlight=False, width=width)
        self._notes = _Console(file=sys.stderr, highlight=False)

    @property
    def width(self) -> int:
        """Number of characters that fit into a line of stdout."""
        return self._out.width

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print rows with named columns. With ``--json``, print one object for each row, with these names as keys."""
        if self.as_json:
            for row in rows:
                self.item(dict(zip(columns, row, strict=True)))
            return
        cells = [list(row) for row in rows]
        self.line(title)
        if self._out.is_terminal and cells:
            self._print_fitting(*_drop_empty_columns(columns, cells))
            return
        self._out.print(_table(columns, cells))
        if not cells:
            self.note("nothing to show")

    def table_of(self, title: str, columns: Columns[T], items: Iterable[T]) -> None:
        """Print a table with a row for each item. The functions in ``columns`` return the cells of an item."""
        self.table(title, tuple(columns), [[value(item) for value in columns.values()] for item in items])

    def _print_fitting(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table that fits into the lines of the terminal.

        If the table is too wide, its headings are wrapped between words. If it is still too wide, its widest column is
        folded, or each row becomes a block with a line for each value, as in psql with ``x auto``.
        """
        room = self._out.width - _BETWEEN * len(columns) + 1
        if sum(_widths(columns, rows)) <= room:
            self._out.print(_table(columns, rows))
            return
        widths = _widths([max(column.split("_"), key=len) for column in columns], rows)
        excess = sum(widths) - room
        if excess <= 0 or max(widths) - excess >= _FOLDED:
            self._out.print(_table(columns, rows, widths=widths))
            return
        width = max(map(len, columns))
        for row in rows:
            self.line("")
            for column, value in zip(columns, row, strict=True):
                if text := printable(cell_text(value)):
                    self.line(f" {column.replace('_', ' '):{width}}  {text}")
        self.line("")

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
    def live(self) -> Iterator[Callable[[str, Sequence[TitledTable]], None]]:
        """Return a context manager that yields a function. The function shows a heading and tables.

        On a terminal, each call replaces the output of the previous call, and omits rows that do not fit on the screen.
        In a pipe or a file, each call appends all rows.
        """
        if not self._out.is_terminal:
            yield self._print_tables
            return
        with Live(console=self._out, auto_refresh=False, vertical_overflow="crop") as screen:

            def show(heading: str, tables: Sequence[TitledTable]) -> None:
                lines = self._out.height - _LIVE_LINES * len(tables) - 1
                parts: list[RenderableType] = [Text(printable(heading))]
                for title, columns, rows in tables:
                    row_limit = max(lines // len(tables), 1)
                    omitted = f", {len(rows) - row_limit} more not shown" if len(rows) > row_limit else ""
                    parts += [Text(f"{title}{omitted}"), _table(columns, rows[:row_limit], no_wrap=True)]
                screen.update(Group(*parts), refresh=True)

            yield show

    def _print_tables(self, heading: str, tables: Sequence[TitledTable]) -> None:
        self.line(heading)
        for title, columns, rows in tables:
            self.table(title, columns, rows)
        self.flush()

    @contextmanager
    def progress(self, label: str, total: float) -> Iterator[Steps]:
        """Return a context manager that shows a progress bar if stderr is a terminal, and yields its ``Steps``.

        The number of finished steps is added to a KeyboardInterrupt as a note.
        """
        with self._bar(TaskProgressColumn(), TimeRemainingColumn()) as bar:
            steps = Steps(bar, label, total)
            try:
                yield steps
            except KeyboardInterrupt as stop:
                stop.add_note(f"{label}: {steps.done:,.0f} of {steps.total:,.0f} done; {_AGAIN}")
                raise

    @contextmanager
    def bytes_progress(self, label: str, advice: str = _AGAIN) -> Iterator[ByteProgress]:
        """Return a context manager that shows progress in bytes on one line if stderr is a terminal.

        The context manager yields the ``Progress`` callback for the work. Ctrl-C stops all threads that call the
        callback. The number of finished bytes and ``advice`` are added to a KeyboardInterrupt as a note.
        """
        with self._bar(*BYTE_COLUMNS) as bar:
            progress = ByteProgress(bar, label)

            def interrupt(number: int, frame: FrameType | None) -> None:
                progress.stop()  # Python raises KeyboardInterrupt only in the main thread
                signal.default_int_handler(number, frame)

            with signal_handler(signal.SIGINT, interrupt):
                try:
                    yield progress
                except KeyboardInterrupt as stop:
                    progress_text = f"{size_text(progress.done_bytes)} of {size_text(progress.total_bytes)}"
                    stop.add_note(f"{label}: {progress_text} done; {advice}")
                    raise

    def _bar(self, *columns: ProgressColumn) -> Bar:
        return Bar(
            TextColumn("{task.description}"),
            *([BarColumn(_BAR_WIDTH)] if self._notes.width >= _BAR_FITS else []),
            *columns,
            console=self._notes,
            transient=True,
            disable=self.as_json or not self._notes.is_terminal,
        )


def _drop_empty_columns(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """Return the columns, and their cells in all rows, without the columns whose cells are all empty."""
    filled_indexes = [index for index in range(len(columns)) if any(cell_text(row[index]) for row in rows)]
    return [columns[index] for index in filled_indexes], [[row[index] for index in filled_indexes] for row in rows]


def _widths(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int]:
    """Return the number of characters that each column needs for its heading and its cells."""
    cells = [[cell_len(printable(cell_text(row[index]))) for row in rows] for index in range(len(headings))]
    return [max(len(heading), *sizes) for heading, sizes in zip(headings, cells, strict=True)]


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    no_wrap: bool = False,
    widths: Sequence[int] | None = None,
) -> Table:
    """Return a table for the terminal.

    With ``no_wrap``, each row is one line, and long texts in the first and the last column are cut. With ``widths``,
    headings are wrapped to these numbers of characters, and only the widest column is folded.
    """
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_numeric = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        justify: Literal["right", "left"] = "right" if is_numeric else "left"
        cells = [printable(cell_text(row[index])) for row in rows]
        is_cut = index == 0 or (index == len(columns) - 1 and not is_numeric)
        heading = column.replace("_", " ")
        table.add_column(
            heading if widths is None else "\n".join(textwrap.wrap(heading, widths[index])),
            justify=justify,
            overflow="ellipsis" if no_wrap else "fold",
            no_wrap=no_wrap if widths is None else index != widths.index(max(widths)),
            min_width=max(map(len, [column, *cells])) if no_wrap and not is_cut else None,
        )
    for row in rows:
        table.add_row(*(Text(printable(cell_text(value))) for value in row))
    return table


class Steps:
    """Progress of a command in steps, shown as a bar; ``done`` of ``total`` steps are finished."""

    def __init__(self, bar: Bar, label: str, total: float) -> None:
        self._bar, self.total, self.done = bar, total, 0.0
        self._task = bar.add_task(label, total=total)

    def add(self, steps: float) -> None:
        """Increase the total number of steps by ``steps``."""
        self.total += steps
        self._bar.update(self._task, total=self.total)

    def advance(self, steps: float = 1) -> None:
        """Report ``steps`` further finished steps."""
        self.done += steps
        self._bar.advance(self._task, steps)


class ByteProgress:
    """Progress of a command in bytes, shown as a bar: a ``Progress`` for the library's functions."""

    def __init__(self, bar: Bar, label: str) -> None:
        self._bar, self._task = bar, bar.add_task(label, total=None)
        self.done_bytes = self.total_bytes = 0
        self._stopped = False

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Show the finished bytes and the total; after ``stop``, raise KeyboardInterrupt instead."""
        if self._stopped:
            raise KeyboardInterrupt
        self.done_bytes, self.total_bytes = done_bytes, total_bytes
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)

    def stop(self) -> None:
        """Make all later calls of this object, on all threads, raise KeyboardInterrupt."""
        self._stopped = True


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped for the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def moment(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 text in UTC. The options for times accept this text.

    Return ``-`` for -1. Return the number as text if it is another negative number, or a time after the year 9999.
    """
    if timestamp_ms < 0:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    try:
        time = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def cell_text(value: object) -> str:
    """Return a table cell as text: numbers with thousands separators, floats with one decimal, None as ""."""
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


def write_file(path: Path, text: str) -> None:
    """Replace a file by ``text`` atomically, or write ``text`` to a device; raise LogDirError if this fails."""
    try:
        path = path.resolve()  # the target of a symbolic link is replaced
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise log_dir_error(error, str(path)) from error
