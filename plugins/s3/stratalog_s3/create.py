"""How a create-only-if-absent is made, by protocol. fsspec promises nothing of the kind."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from stratalog.spi import Capability


class CreateStrategy(Enum):
    """Who decides which of several racers made an object.

    NATIVE: the store, in one conditional request. LINK: the file system, by a hard link to a finished file. NONE:
    nobody: look first, then write. That is good for one writer, and the store does not declare CREATE.
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
    """CREATE if the protocol has a strategy that is atomic."""
    atomic = STRATEGIES.get(protocol, CreateStrategy.NONE) is not CreateStrategy.NONE
    return Capability.CREATE if atomic else Capability.NONE
