"""What a topic may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.spi import Section, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlHeaderSection(Section):
    """Where the time to live stands."""

    title: ClassVar[str] = "Records that say how long they live"

    name: str = key("ttl_header.name", "ttl-ms", doc="The header that holds how long (ms) a record lives, in decimal.")
