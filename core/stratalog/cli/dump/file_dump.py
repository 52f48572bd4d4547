"""State of one run of ``stratalog dump``, and output of the contents of one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.cli.dump.sheet import Sheet, cell
from stratalog.cli.dump.source import Source, read_all
from stratalog.cli.output import Output, moment
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptionError
from stratalog.reading.component_host import ComponentHost
from stratalog.segment.components import Components


@dataclass(slots=True)
class DumpRun:
    """One run of the command.

    Attributes:
        deep: True if records are shown.
        values: True if keys, values and headers of records are shown.
        decoder: value of ``--decoder``; if None, the folder name of each file selects the decoder.
        limit: maximum number of batches of a log, and of entries of an index; None means no limit.
        has_corruption: True if a file is corrupt.
    """

    host: ComponentHost
    output: Output
    deep: bool
    values: bool
    decoder: str | None
    limit: int | None = None
    has_corruption: bool = False

    @property
    def components(self) -> Components:
        """Formats, codecs and indexes with the default settings of a topic."""
        return self.host.components(TopicConfig())


@dataclass(frozen=True, slots=True)
class FileDump:
    """Output of the contents of one file. JSON output has one object for each item, without titles and properties."""

    run: DumpRun
    source: Source

    @property
    def label(self) -> str:
        """Path of the file."""
        return self.source.label

    def title(self, description: str) -> None:
        """Print the title of the file; print nothing if the output is JSON."""
        self.run.output.line(f"{self.label}: {description}")

    def item(self, kind: str, values: Mapping[str, object]) -> None:
        """Print one JSON object; print nothing if the output is text."""
        if self.run.output.as_json:
            self.run.output.item({"file": self.label, "kind": kind, **values})

    def properties(self, kind: str, values: Mapping[str, object], moments: Sequence[str] = ()) -> None:
        """Print one JSON object, or one line of text for each value. Text shows ``moments`` as date and time."""
        self.item(kind, values)
        self.property_lines(values, moments)

    def property_lines(self, values: Mapping[str, object], moments: Sequence[str] = ()) -> None:
        """Print one line for each name and value; print nothing if the output is JSON."""
        if not values:
            self.run.output.line("(empty)")
        longest = max(map(len, values), default=0)
        for name, value in values.items():
            shown_value = moment(value) if name in moments and isinstance(value, int) else value
            self.run.output.line(f"  {name.removesuffix('_ms'):<{longest}}  {cell(shown_value)}")

    def sheet(self, kind: str, columns: Sequence[str]) -> Sheet:
        """Return a sheet for rows of one kind. ``columns`` are the columns of the table, and the keys in JSON."""
        return Sheet(self.run.output, self.label, kind, columns)

    def content(self, description: str) -> bytes:
        """Print the title of a small file, and return its content; raise ConfigError if the file is too large."""
        self.title(f"{description}, {self.source.size_bytes} bytes")
        return read_all(self.source, self.run.components.limits.checkpoint_bytes)

    def corrupt(self, error: CorruptionError, fields: Mapping[str, object] | None = None) -> None:
        """Report a corrupt file; the exit code will be 1. ``fields`` are additional fields of the JSON output."""
        self.run.has_corruption = True
        self.run.output.note(f"corrupt: {error}")
        self.item("corrupt", {"corrupt": str(error), "position": error.position, **(fields or {})})
