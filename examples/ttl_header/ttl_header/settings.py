"""Topic settings of the policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.spi import Section, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlHeaderSection(Section):
    """Name of the header that contains the lifetime."""

    title: ClassVar[str] = "Expiry of records by a header"

    name: str = key(
        "ttl_header.name", "ttl-ms", doc="Name of the header with the lifetime of a record (ms), as decimal digits."
    )
