"""Endpoints: name, security protocol and addresses of each listener.

Source: apache/kafka EndPoint, SecurityProtocol, SocketServerConfigs.listenerListToEndPoints.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stratalog.errors import ConfigError

_FORM: Final = re.compile(r"([A-Za-z0-9_]+)://(?:\[([^\]]+)\]|([^:/\[\]]*)):(\d{1,5})\Z")


class SecurityProtocol(StrEnum):
    """Security protocol of a listener, with Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """True if connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def has_sasl(self) -> bool:
        """True if clients authenticate with SASL."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


@dataclass(slots=True)
class Endpoint:
    """Name, protocol and addresses of one listener.

    Attributes:
        port: port to listen on. The listener replaces 0 by the free port that the system has chosen.
        advertised_host: host in metadata, to which clients connect.
        advertised_port: port in metadata, to which clients connect; 0 means ``port``.
    """

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised_host: str
    advertised_port: int = 0

    @property
    def address(self) -> tuple[str, int]:
        """Advertised host and port."""
        return self.advertised_host, self.advertised_port or self.port

    @property
    def uri(self) -> str:
        """Name and advertised address as ``NAME://HOST:PORT``."""
        host, port = self.address
        return f"{self.name}://{f'[{host}]' if ':' in host else host}:{port}"


def parse_endpoints(
    listeners: Iterable[str], advertised: Iterable[str], protocols: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    """Return the endpoints of listeners, in the order of ``listeners``. Names are converted to upper case.

    Args:
        listeners: names and addresses to listen on, such as ``SASL_SSL://0.0.0.0:9093``. An empty host means 0.0.0.0.
        advertised: names and advertised addresses of listeners. A listener that is missing here advertises its own
            address.
        protocols: security protocols by the name of a listener. If a name is missing, the name must be a protocol.

    Raises:
        ConfigError: a text is not ``NAME://HOST:PORT``, two listeners have the same name, a protocol is unknown, or no
            listener has the name of an advertised address.
    """
    advertised_addresses = {name: (host, port) for name, host, port in map(_parts, advertised)}
    endpoints: dict[str, Endpoint] = {}
    for name, host, port in map(_parts, listeners):
        if name in endpoints:
            raise ConfigError(f"listeners: the name {name} is used twice")
        protocol = protocols.get(name, name)
        if protocol not in SecurityProtocol.__members__:
            raise ConfigError(f"listeners: {name} is not a security protocol ({', '.join(SecurityProtocol)})").advised(
                f"add {name}:PROTOCOL to listener.security.protocol.map"
            )
        advertised_host, advertised_port = advertised_addresses.pop(name, (host, 0))
        endpoints[name] = Endpoint(name, SecurityProtocol(protocol), host, port, advertised_host, advertised_port)
    if advertised_addresses:
        raise ConfigError(f"advertised.listeners: no listener is named {min(advertised_addresses)}")
    return tuple(endpoints.values())


def _parts(text: str) -> tuple[str, str, int]:
    match = _FORM.match(text)
    if match is None or int(match[4]) > 0xFFFF:
        raise ConfigError(f"listener {text} is not of the form NAME://HOST:PORT, such as SASL_SSL://127.0.0.1:9093")
    return match[1].upper(), match[2] or match[3] or "0.0.0.0", int(match[4])  # noqa: S104 - as in Kafka


def normalize_host(host: str) -> str:
    """Return an IP address in the form of the addresses of connections, such as ``::1``; return other names unchanged."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def is_loopback(host: str) -> bool:
    """Return True if ``host`` is ``localhost`` or a loopback address, which other machines cannot reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_unspecified(host: str) -> bool:
    """Return True if ``host`` is 0.0.0.0 or ``::``, which mean all addresses of a machine."""
    return normalize_host(host) in {"0.0.0.0", "::"}  # noqa: S104 - compared
