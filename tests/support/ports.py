"""Ports for servers that do not support port 0, or that restart on the same port."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

# Below those that Linux, macOS and Windows give to outgoing connections: one of these may come up on a port that a server
# has left for a moment, and keep it from starting again.
_PORTS: Final = range(10_000, 30_000)


def free_ports(count: int) -> list[int]:
    """Return different free ports of the loopback address."""
    chance = random.SystemRandom()  # several processes look at a time
    with contextlib.ExitStack() as held:  # together, so that they differ
        found = list[int]()
        while len(found) < count:
            port = chance.choice(_PORTS)
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
        return found
