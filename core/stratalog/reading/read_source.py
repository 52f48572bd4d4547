"""The source of a read: a value with the location and options of a directory or tier, to pass between processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from stratalog.config.settings_sources import Settings, read_settings
from stratalog.model.arguments import checked
from stratalog.reading.open_reader import open_settled
from stratalog.reading.reader import Reader
from stratalog.tier.manifest.history import AsOf

_PEEK_BYTES: Final = 1 << 16
_PEEK_CHUNK_BYTES: Final = 1 << 17


@checked
@dataclass(frozen=True, slots=True)
class ReadSource:
    """The arguments of ``open_reader`` for a directory or a tier. Can be pickled.

    ``tier_options`` may contain credentials. They are part of the pickled value, but ``repr`` does not show them. Leave
    them out if each process has credentials in its environment.
    """

    location: str
    tier: str | None = None
    tier_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    as_of: AsOf | None = None
    config: str | Mapping[str, object] | None = None

    def settings(self) -> Settings:
        """Return the settings of ``config`` and this process's environment; raise the errors of ``read_settings``."""
        return read_settings(self.config, os.environ)

    def open(self, *, peek: bool = False, topics: Collection[str] | None = None) -> Reader:
        """Call ``open_reader`` with the location and options of the source; return the reader, or raise the error.

        Args:
            peek: True if the caller only searches for offsets and timestamps. Then the reader reads small chunks and
                does not prefetch.
            topics: show only these topics of a tier that is read alone, and list only their objects; None shows all.
        """
        settings = self.settings()
        if peek:
            limits = settings.limits
            smaller = replace(
                limits,
                read_bytes=min(limits.read_bytes, _PEEK_BYTES),
                fetch_chunk_bytes=min(limits.fetch_chunk_bytes, _PEEK_CHUNK_BYTES),
                prefetch_bytes=0,
            )
            settings = replace(settings, limits=smaller)
        return open_settled(
            self.location,
            settings,
            tier=self.tier,
            tier_options=self.tier_options,
            as_of=self.as_of,
            topics=topics,
        )
