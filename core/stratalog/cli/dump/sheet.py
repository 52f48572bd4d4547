"""Output of a dump: rows in columns for people, or one JSON object for each row.

Rows are printed in pages of 500, to limit the memory.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, Self

import click

from stratalog.cli.output import Output, moment, printable

PAGE_ROWS: Final = 500
_GAP: Final = "  "
_NARROWEST_NOTE: Final = 24
_ENDLESS: Final = 1 << 20  # width of a pipe, whose lines are not wrapped


def width() -> int:
    """Return the width of the terminal in characters; a very large number if stdout is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS


def cell(value: object) -> str:
    """Return a value as text, and None as ``-``. Numbers have no thousands separators, because people copy them."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


class Table:
    """Rows in aligned columns, with notes after the last column.

    A column is as wide as its widest cell so far. Rows are printed in pages, to limit the memory. If the terminal is
    too narrow, the columns in ``optional`` are omitted, one after the other. If the terminal is still too narrow, rows
    are printed as ``name=value`` pairs.
    """

    def __init__(self, output: Output, columns: Sequence[str], optional: Sequence[str] = ()) -> None:
        self._output, self._columns, self._optional = output, tuple(columns), tuple(optional)
        self._widths = [len(column) for column in columns]
        self._numeric = [True] * len(self._columns)
        self._page: list[tuple[list[str], str]] = []
        self._printed_indexes: list[int] = []
        self.count = 0

    def add(self, values: Sequence[object], notes: str = "") -> None:
        """Add one row; print the collected rows if a page is full."""
        self.count += 1
        for index, value in enumerate(values):
            self._numeric[index] &= value is None or (isinstance(value, int) and not isinstance(value, bool))
        cells = [cell(value) for value in values]
        self._widths = [max(width, len(text)) for width, text in zip(self._widths, cells, strict=True)]
        self._page.append((cells, notes))
        if len(self._page) >= PAGE_ROWS:
            self.flush()

    def flush(self) -> None:
        """Print the collected rows. Print the column names first if they are new or have changed."""
        page, self._page = self._page, []
        if not page:
            return
        line_width = width()
        column_indexes = self._fitting_columns(line_width)
        if column_indexes and column_indexes != self._printed_indexes:
            heads = self._line(column_indexes, [column.replace("_", " ") for column in self._columns])
            click.secho(heads.rstrip(), bold=True)
        self._printed_indexes = column_indexes
        for cells, notes in page:
            if column_indexes:
                self._print(self._line(column_indexes, cells), notes, line_width)
            else:
                self._print_pairs(cells, notes, line_width)

    def _print(self, line: str, notes: str, line_width: int) -> None:
        if not notes:
            self._output.line(line.rstrip())
            return
        room = line_width - len(line) - len(_GAP)
        if len(notes) <= room:
            self._output.line(line + _GAP + notes)
            return
        indent = " " * (len(line) + len(_GAP) if room >= _NARROWEST_NOTE else 2 * len(_GAP))
        wrapped = textwrap.wrap(notes, line_width, initial_indent=indent, subsequent_indent=indent)
        if room >= _NARROWEST_NOTE:
            self._output.line(line + _GAP + wrapped.pop(0).lstrip())
        else:
            self._output.line(line.rstrip())
        for text in wrapped:
            self._output.line(text)

    def _print_pairs(self, cells: Sequence[str], notes: str, line_width: int) -> None:
        pairs = [f"{name}={text}" for name, text in zip(self._columns, cells, strict=True)]
        text = " ".join([*pairs, notes]).rstrip()
        for line in textwrap.wrap(text, line_width, subsequent_indent=2 * _GAP, break_on_hyphens=False):
            self._output.line(line)

    def _fitting_columns(self, line_width: int) -> list[int]:
        """Return the indexes of the columns that fit into ``line_width``; [] if the required columns do not fit."""
        indexes = list(range(len(self._columns)))
        for name in self._optional:
            if self._total(indexes) > line_width:
                indexes.remove(self._columns.index(name))
        return indexes if self._total(indexes) <= line_width else []

    def _total(self, indexes: Sequence[int]) -> int:
        return sum(self._widths[index] + len(_GAP) for index in indexes) - len(_GAP)

    def _line(self, indexes: Iterable[int], cells: Sequence[str]) -> str:
        return _GAP.join(
            cells[index].rjust(self._widths[index]) if self._numeric[index] else cells[index].ljust(self._widths[index])
            for index in indexes
        )


class Sheet:
    """Rows of one kind of the file ``label``: a table for people, or one JSON object for each row."""

    def __init__(self, output: Output, label: str, kind: str, columns: Sequence[str]) -> None:
        self._output, self._label, self._kind, self._columns = output, label, kind, tuple(columns)
        self._table = Table(output, [column.removesuffix("_ms") for column in columns])

    def row(self, values: Sequence[object]) -> None:
        """Add one row. A table shows values of columns named ``*timestamp_ms`` as date and time."""
        if self._output.as_json:
            fields = dict(zip(self._columns, values, strict=True))
            self._output.item({"file": self._label, "kind": self._kind, **fields})
            return
        self._table.add([
            moment(value) if column.endswith("timestamp_ms") and isinstance(value, int) else value
            for column, value in zip(self._columns, values, strict=True)
        ])  # fmt: skip

    def rows(self, rows: Iterable[Sequence[object]]) -> None:
        """Add several rows; see ``row``."""
        for row in rows:
            self.row(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._table.flush()
        if error is None and not self._table.count and not self._output.as_json:
            self._output.line("(empty)")
