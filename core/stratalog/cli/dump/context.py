"""State that all parts of a dump share: options, output, and whether a file is corrupt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.cli.contents.decoders import Decoder
from stratalog.cli.dump.sheet import item
from stratalog.cli.dump.source import Source, whole
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
        decoder: decoder given by ``--decoder``; if None, the folder of each file selects one.
        limit: maximum number of batches of a log, and of entries of an index; None shows all.
        wrong: True if a file is corrupt.
    """

    host: ComponentHost
    output: Output
    deep: bool
    values: bool
    decoder: Decoder | None
    limit: int | None = None
    wrong: bool = False

    @property
    def components(self) -> Components:
        """Formats, codecs and indexes with the default settings of a topic."""
        return self.host.components(TopicConfig())

    @property
    def as_json(self) -> bool:
        """True if the output is JSON."""
        return self.output.as_json

    def title(self, label: str, what: str) -> None:
        """Print the title of the next file; print nothing if the output is JSON."""
        self.output.line(f"{label}: {what}")

    def content(self, source: Source, what: str) -> bytes:
        """Print the title of a small file, and return its content; raise ConfigError if the file is too large."""
        self.title(source.label, f"{what}, {source.size_bytes} bytes")
        return whole(source, self.components.limits.checkpoint_bytes)

    def corrupt(self, label: str, error: CorruptionError, more: Mapping[str, object] | None = None) -> None:
        """Report a corrupt file, which sets the exit code to 1. ``more`` are further fields of the JSON output."""
        self.wrong = True
        self.output.note(f"corrupt: {error}")
        if self.as_json:
            problem = {"corrupt": str(error), "position": error.position, **(more or {})}
            item(self.output, label, "corrupt", problem)
