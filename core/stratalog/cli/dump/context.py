"""State of one run of ``stratalog dump``: options, output, and a flag for corrupt files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.cli.contents.decoders import Decoder
from stratalog.cli.dump.sheet import Sheet, properties
from stratalog.cli.dump.source import Source, read_all
from stratalog.cli.output import Output
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptionError
from stratalog.reading.component_host import ComponentHost
from stratalog.segment.components import Components


@dataclass(slots=True)
class Context:
    """One run of the command.

    Attributes:
        host: opener of the components.
        output: output of the command.
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
    decoder: Decoder | None
    limit: int | None = None
    has_corruption: bool = False

    @property
    def components(self) -> Components:
        """Formats, codecs and indexes with the default settings of a topic."""
        return self.host.components(TopicConfig())

    @property
    def as_json(self) -> bool:
        """True if the output is JSON."""
        return self.output.as_json

    def title(self, label: str, description: str) -> None:
        """Print the title of the next file; print nothing if the output is JSON."""
        self.output.line(f"{label}: {description}")

    def item(self, label: str, kind: str, values: Mapping[str, object]) -> None:
        """Print one JSON object about the file ``label``; print nothing if the output is text."""
        if self.as_json:
            self.output.item({"file": label, "kind": kind, **values})

    def properties(self, source: Source, kind: str, values: Mapping[str, object], moments: Sequence[str] = ()) -> None:
        """Print one JSON object, or one line of text for each value. Text shows ``moments`` as date and time."""
        self.item(source.label, kind, values)
        properties(self.output, values, moments)

    def sheet(self, source: Source, kind: str, columns: Sequence[str]) -> Sheet:
        """Return a sheet for rows of one kind. ``columns`` are the columns of the table, and the keys in JSON."""
        return Sheet(self.output, source.label, kind, columns)

    def content(self, source: Source, description: str) -> bytes:
        """Print the title of a small file, and return its content; raise ConfigError if the file is too large."""
        self.title(source.label, f"{description}, {source.size_bytes} bytes")
        return read_all(source, self.components.limits.checkpoint_bytes)

    def corrupt(self, label: str, error: CorruptionError, fields: Mapping[str, object] | None = None) -> None:
        """Report a corrupt file; the exit code will be 1. ``fields`` are additional fields of the JSON output."""
        self.has_corruption = True
        self.output.note(f"corrupt: {error}")
        self.item(label, "corrupt", {"corrupt": str(error), "position": error.position, **(fields or {})})
