"""Topic settings of the policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from stratalog.spi import Section, key

INT64: Final = "int64"
TEXT: Final = "text"
ENCODINGS: Final = (INT64, TEXT)
OFF: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSection(Section):
    """Settings of ``latest_by_header``: the header that holds the version."""

    title: ClassVar[str] = "Compaction by a header"

    name: str = key("latest_by_header.name", "version", doc="The header that holds a record's version.")
    encoding: str = key(
        "latest_by_header.encoding",
        INT64,
        choices=ENCODINGS,
        doc="Versions are 8 bytes, the highest first (int64), or decimal (text).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlSection(Section):
    """Settings of ``ttl``: the expiry of a topic's records."""

    title: ClassVar[str] = "Expiry of records"

    after_ms: int = key("ttl.ms", OFF, at_least=OFF, doc="A record expires so long after its timestamp; -1 is never.")
    header: str = key(
        "ttl.header", "", doc="A header that holds when (ms since 1970) its record expires; none if empty."
    )
    encoding: str = key(
        "ttl.header.encoding",
        TEXT,
        choices=ENCODINGS,
        doc="That header is decimal (text), or 8 bytes, the highest first (int64).",
    )
