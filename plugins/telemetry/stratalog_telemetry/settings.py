"""Settings of the service ``metrics``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.spi import Section, key


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection(Section):
    """Settings of ``[plugins.metrics]``."""

    title: ClassVar[str] = "Service metrics"

    host: str = key("host", "127.0.0.1", doc="Address on which the service listens.")
    port: int = key(
        "port", 9308, at_least=0, at_most=0xFFFF, doc="Port on which the service listens; 0 chooses a free port."
    )
