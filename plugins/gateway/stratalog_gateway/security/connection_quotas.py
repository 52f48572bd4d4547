"""Limits of connections: the total number, the number for one IP address, and new connections per second.

Source: apache/kafka ConnectionQuotas in SocketServer.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.security.quotas import Quotas, Rate, monotonic_ms
from stratalog_gateway.security.security_settings import SecuritySection

_LOGGER: Final = logging.getLogger(__name__)


class ConnectionQuotas:
    """Counts and limits of the connections of all listeners. Thread-safe.

    Connections use at most 3/8 of the file descriptors that the process may open, because the files of the engine need
    up to 1/2 of the descriptors. ``quotas`` contains the limits of new connections per second of each IP address.

    Raises:
        ConfigError: an item of ``max.connections.per.ip.overrides`` is not of the form ADDRESS:NUMBER.
    """

    def __init__(self, settings: SecuritySection, quotas: Quotas, clock: Clock) -> None:
        self._total, self._per_ip = _total(settings.connections), settings.connections_per_ip
        self._overrides = _overrides(settings.connections_per_ip_overrides)
        self._creation_rate = Rate(settings.connection_rate)
        self._quotas, self._clock, self._lock = quotas, clock, threading.Lock()
        self._open_count, self._open_count_by_host = 0, Counter[str]()  # under _lock

    def pause_ms(self) -> int:
        """Count a new connection.

        Return the time (ms) until the listener may accept the next connection; 0 below the limit.
        """
        return self._creation_rate.record(1, monotonic_ms(self._clock))

    def acquire(self, host: str) -> str:
        """Count a connection, and return "".

        If a limit is reached, only return the limit as text: "max.connections=2000".
        """
        if self._quotas.refuses_connection(host):
            return "connection_creation_rate"
        with self._lock:
            if self._open_count >= self._total:
                return f"max.connections={self._total}"
            host_limit = self._overrides.get(host, self._per_ip)
            if self._open_count_by_host[host] >= host_limit:
                return f"max.connections.per.ip={host_limit}"
            self._open_count += 1
            self._open_count_by_host[host] += 1
        return ""

    def release(self, host: str) -> None:
        """Subtract a connection that was counted by ``acquire`` and has ended."""
        with self._lock:
            self._open_count -= 1
            self._open_count_by_host[host] -= 1
            if not self._open_count_by_host[host]:
                del self._open_count_by_host[host]


def _total(requested: int) -> int:
    """Return ``requested``.

    If the process may open too few files for this number, log a warning, and return a lower number.
    """
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = requested if open_files == resource.RLIM_INFINITY else max(open_files * 3 // 8, 1)
    if limit < requested:
        _LOGGER.warning(
            "max.connections is %d instead of %d: raise the limit of open files (ulimit -n)", limit, requested
        )
    return min(limit, requested)


def _overrides(texts: Iterable[str]) -> Mapping[str, int]:
    limits = {}
    for text in texts:
        host, colon, number = text.strip().rpartition(":")
        try:
            address = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
        except ValueError:
            address = ""
        if not colon or not address or not number.isdecimal():
            raise ConfigError(f"max.connections.per.ip.overrides: {text} is not of the form ADDRESS:NUMBER")
        limits[address] = int(number)
    return limits
