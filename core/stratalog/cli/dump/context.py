"""What all parts of a dump share: what was asked for, where it goes, and what was found wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.cli.dump.decoders import Decoder
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
        host: components.
        output: where to.
        deep: whether records are shown.
        values: whether their keys, values and headers are.
        decoder: the one that was asked for; None: each file's folder tells.
        wrong: whether something was found corrupt.
    """

    host: ComponentHost
    output: Output
    deep: bool
    values: bool
    decoder: Decoder | None
    wrong: bool = False

    @property
    def parts(self) -> Components:
        """Formats, codecs and indexes."""
        return self.host.parts(TopicConfig())

    @property
    def as_json(self) -> bool:
        """Whether machines read."""
        return self.output.as_json

    def title(self, label: str, what: str) -> None:
        """Say to people which file comes now."""
        self.output.line(f"{label}: {what}")

    def content(self, source: Source, what: str) -> bytes:
        """Say which small file comes now, and read all of it; errors as ``whole``."""
        self.title(source.label, f"{what}, {source.size_bytes} bytes")
        return whole(source, self.parts.limits.checkpoint_bytes)

    def corrupt(self, label: str, error: CorruptionError, more: Mapping[str, object] | None = None) -> None:
        """Say what is wrong, and where; the exit code will be 1."""
        self.wrong = True
        self.output.note(f"corrupt: {error}")
        if self.as_json:
            said = {"corrupt": str(error), "position": error.position, **(more or {})}
            item(self.output, label, "corrupt", said)
