"""Strategies to create an object only if the key does not exist, by protocol. fsspec alone has no atomic create."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from stratalog.spi import Capability


class CreateStrategy(Enum):
    """Strategy that decides which of several concurrent writers creates an object.

    NATIVE: the store decides, by one conditional request. LINK: the file system decides, by a hard link to a complete
    file. NONE: a writer checks for the object and then writes. Several writers may succeed, and the store does not
    declare ``Capability.CREATE``.
    """

    NATIVE = auto()
    LINK = auto()
    NONE = auto()


STRATEGIES: Final[Mapping[str, CreateStrategy]] = MappingProxyType(
    {
        "s3": CreateStrategy.NATIVE,  # If-None-Match: *
        "s3a": CreateStrategy.NATIVE,
        "gs": CreateStrategy.NATIVE,  # ifGenerationMatch=0
        "gcs": CreateStrategy.NATIVE,
        "abfs": CreateStrategy.NATIVE,  # If-None-Match: *
        "abfss": CreateStrategy.NATIVE,
        "az": CreateStrategy.NATIVE,
        "memory": CreateStrategy.NATIVE,  # dict.setdefault
        "file": CreateStrategy.LINK,
    }
)


def create_capability(protocol: str) -> Capability:
    """Return ``Capability.CREATE`` if the protocol's strategy is atomic, otherwise ``Capability.NONE``."""
    atomic = STRATEGIES.get(protocol, CreateStrategy.NONE) is not CreateStrategy.NONE
    return Capability.CREATE if atomic else Capability.NONE
