"""Settings, ``[plugins.replica]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.errors import ConfigError
from stratalog.spi import Section, key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSection(Section):
    """Who leads, and where. Which node that is, and in which epoch, is decided elsewhere: by people, or by a quorum."""

    title: ClassVar[str] = "Service replica"

    listen: str = key("listen", "", doc="A leader's: HOST:PORT where followers are answered.")
    leader: str = key("leader", "", doc="A follower's: HOST:PORT of the leader.")
    epoch: int = key("epoch", 0, at_least=0, doc="The leader epoch: one more whenever another node begins to lead.")
    node: str = key("node", "follower", doc="A follower's: its name, by which the leader counts it.")
    acks: int = key("acks", 1, at_least=1, doc="A leader's: how many followers must hold what readers are shown.")
    poll_ms: int = key("poll.ms", 100, at_least=1, doc="A follower's: how long it rests when there is nothing new.")
    max_bytes: int = key("max.bytes", 1 << 20, at_least=1, doc="A follower's: one fetch, unless a batch is larger.")


def address_of(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair; ConfigError if it is none."""
    host, mark, port = text.rpartition(":")
    if not mark or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigError(f"[plugins.replica]: {text!r} is no HOST:PORT")
    return host.strip("[]"), int(port)
