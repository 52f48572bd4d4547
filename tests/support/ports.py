"""Ports for servers that do not support port 0, or that restart on the same port."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

# These ports are below the ones that Linux, macOS and Windows use for outgoing connections. Otherwise, an outgoing
# connection could take the port of a server during its restart.
_PORTS: Final = range(10_000, 30_000)


def free_ports(count: int) -> list[int]:
    """Return different free ports of the loopback address."""
    chance = random.SystemRandom()  # several test processes search for free ports at the same time
    with contextlib.ExitStack() as open_sockets:  # all open at the same time, and therefore different
        ports = list[int]()
        while len(ports) < count:
            port = chance.choice(_PORTS)
            with contextlib.suppress(OSError):
                open_sockets.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
        return ports
