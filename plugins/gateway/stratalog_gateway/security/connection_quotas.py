"""Limits of connections: their total number, the number for one address, and new connections per second.

Source: apache/kafka ConnectionQuotas in SocketServer.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.security.quotas import Quotas, Rate
from stratalog_gateway.security.security_settings import SecuritySection

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Counts:
    total: int
    by_host: Counter[str]


class ConnectionQuotas:
    """Counts and limits the connections of all listeners. Thread-safe.

    Connections use at most three eighths of the file descriptors that the process may open. The engine uses up to half
    of the descriptors for its files, so even a flood of connections leaves these descriptors to the engine.

    Args:
        settings: the limits.
        quotas: limits of new connections per second and address.
        clock: source of the time.

    Raises:
        ConfigError: an item of ``max.connections.per.ip.overrides`` is not of the form ADDRESS:NUMBER.
    """

    def __init__(self, settings: SecuritySection, quotas: Quotas, clock: Clock) -> None:
        self._total, self._per_ip = _total(settings.connections), settings.connections_per_ip
        self._overrides = _overrides(settings.connections_per_ip_overrides)
        self._created = Rate(settings.connection_rate)
        self._quotas, self._clock, self._lock = quotas, clock, threading.Lock()
        self._counts = _Counts(0, Counter())  # under _lock

    def pause_ms(self) -> int:
        """Count a new connection, and return the time (ms) before the next one may be accepted."""
        return self._created.record(1, self._clock.now_ms())

    def refusal(self, host: str) -> str:
        """Count a connection, unless a limit refuses it. Return this limit as text; "" if the connection is counted."""
        if self._quotas.refuses_connection(host):
            return "connection_creation_rate"
        with self._lock:
            if self._counts.total >= self._total:
                return f"max.connections={self._total}"
            most = self._overrides.get(host, self._per_ip)
            if self._counts.by_host[host] >= most:
                return f"max.connections.per.ip={most}"
            self._counts.total += 1
            self._counts.by_host[host] += 1
        return ""

    def closed(self, host: str) -> None:
        """Stop counting an accepted connection, because it has ended."""
        with self._lock:
            self._counts.total -= 1
            self._counts.by_host[host] -= 1
            if not self._counts.by_host[host]:
                del self._counts.by_host[host]


def _total(wanted: int) -> int:
    """Return ``wanted``, or less (and log a warning) if the process may open too few files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if allowed == resource.RLIM_INFINITY else max(allowed * 3 // 8, 1)
    if most < wanted:
        _LOGGER.warning("max.connections is %d instead of %d: raise the limit of open files (ulimit -n)", most, wanted)
    return min(most, wanted)


def _overrides(texts: Iterable[str]) -> Mapping[str, int]:
    found = {}
    for text in texts:
        host, colon, number = text.strip().rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            address = ""
        if not colon or not address or not number.isdecimal():
            raise ConfigError(f"max.connections.per.ip.overrides: {text} is not of the form ADDRESS:NUMBER")
        found[address] = int(number)
    return found
