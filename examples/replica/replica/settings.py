"""Settings of ``[plugins.replica]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.errors import ConfigError
from stratalog.spi import Section, key


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSection(Section):
    """Role and addresses of a node. Operators or a quorum choose the leader and its epoch."""

    title: ClassVar[str] = "Service replica"

    listen: str = key("listen", "", doc="For a leader: HOST:PORT on which it listens for followers.")
    leader: str = key("leader", "", doc="For a follower: HOST:PORT of the leader.")
    epoch: int = key("epoch", 0, at_least=0, doc="Leader epoch. Increase it by one at each change of the leader.")
    node: str = key("node", "follower", doc="For a follower: its name, which must be unique.")
    followers: tuple[str, ...] = key(
        "followers",
        (),
        doc="For a leader: names of the assigned followers. Fetches of other nodes are answered, and do not count.",
    )
    min_in_sync: int = key(
        "min.insync.replicas",
        2,
        at_least=1,
        doc="For a leader: number of replicas, the leader included, that must be in sync before records are committed.",
    )
    lag_ms: int = key(
        "replica.lag.time.max.ms",
        30_000,
        at_least=1,
        doc="For a leader: a follower that has not caught up for this time is no longer in sync.",
    )
    poll_ms: int = key("poll.ms", 100, at_least=1, doc="For a follower: pause after a fetch without new records.")
    max_bytes: int = key(
        "max.bytes", 1 << 20, at_least=1, doc="For a follower: maximum size of one fetch, unless a batch is larger."
    )


def address_of(text: str) -> tuple[str, int]:
    """Return the host and the port of ``HOST:PORT``; raise ConfigError for other text."""
    host, mark, port = text.rpartition(":")
    if not mark or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigError(f"[plugins.replica]: {text!r} is not of the form HOST:PORT")
    return host.strip("[]"), int(port)
