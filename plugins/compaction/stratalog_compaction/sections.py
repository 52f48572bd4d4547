"""Topic settings of the policies ``latest_by_header`` and ``ttl``."""

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
    """Settings of ``latest_by_header``: the header that contains the version."""

    title: ClassVar[str] = "Compaction by a header"

    name: str = key("latest_by_header.name", "version", doc="Name of the header with the record's version.")
    encoding: str = key(
        "latest_by_header.encoding",
        INT64,
        choices=ENCODINGS,
        doc="Encoding of versions: int64 (8 bytes, big-endian) or text (decimal digits).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlSection(Section):
    """Settings of ``ttl``: the expiry of a topic's records."""

    title: ClassVar[str] = "Expiry of records"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    after_ms: int = key("ttl.ms", OFF, at_least=OFF,
        doc="Time from a record's timestamp to its expiry; -1 means that it does not expire.")
    header: str = key("ttl.header", "",
        doc="Name of the header with the expiry time of the record (ms since 1970). Empty: no header is read.")
    encoding: str = key("ttl.header.encoding", TEXT, choices=ENCODINGS,
        doc="Encoding of ttl.header: text (decimal digits) or int64 (8 bytes, big-endian).")
    # fmt: on
