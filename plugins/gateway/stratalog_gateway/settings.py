"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.errors import ConfigError
from stratalog.spi import key
from stratalog_gateway.security.endpoints import Endpoint, is_loopback, is_unspecified, parse_endpoints
from stratalog_gateway.security.security_settings import SecuritySection


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySection(SecuritySection):
    """Settings of ``[plugins.gateway]``. A setting that Kafka's broker also has uses Kafka's name."""

    title: ClassVar[str] = "Service gateway"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    host: str = key("host", "127.0.0.1", doc="Address on which the gateway listens, unless listeners is set.")
    port: int = key("port", 9092, at_least=0, at_most=0xFFFF,
        doc="Port on which the gateway listens; 0 chooses a free port.")
    advertised_host: str = key("advertised.host", "",
        doc="Host that the gateway advertises to clients; empty means the host of the listener.")
    insecure: bool = key("insecure", False,
        doc="Allow a listener without authentication at an address that is not a loopback address.")
    node_id: int = key("node.id", 1, at_least=0, at_most=(1 << 31) - 1, doc="Number of the only broker of the cluster.")
    cluster_id: str = key("cluster.id", "",
        doc="Cluster id that the gateway returns to clients; empty means the id that a broker stored in the log "
        "directory, or `stratalog` if there is none.")
    auto_create: bool = key("auto.create.topics.enable", True,
        doc="Create a topic if a client asks for the metadata of an unknown one.")
    partitions: int = key("num.partitions", 1, at_least=1,
        doc="Number of partitions of a new topic if the client does not choose one.")
    min_session_ms: int = key("group.min.session.timeout.ms", 6000, at_least=1,
        doc="Minimum session timeout of the members of groups.")
    max_session_ms: int = key("group.max.session.timeout.ms", 1_800_000, at_least=1,
        doc="Maximum session timeout of the members of groups.")
    consumer_session_ms: int = key("group.consumer.session.timeout.ms", 45_000, at_least=1,
        doc="Session timeout of members that use the consumer protocol.")
    consumer_heartbeat_ms: int = key("group.consumer.heartbeat.interval.ms", 5_000, at_least=1,
        doc="Heartbeat interval that the gateway returns to members that use the consumer protocol.")
    retention_minutes: int = key("offsets.retention.minutes", 10_080, at_least=1,
        doc="The committed offsets of a group are deleted this number of minutes after its last member left; if the "
        "group never had members, after the commit.")
    retention_check_ms: int = key("offsets.retention.check.interval.ms", 600_000, at_least=1,
        doc="Interval of the search for expired offsets.")
    transaction_max_ms: int = key("transaction.max.timeout.ms", 900_000, at_least=1,
        doc="Maximum timeout of the transactions of producers.")
    request_bytes: int = key("socket.request.max.bytes", 100 << 20, at_least=1024, at_most=1 << 30,
        doc="Maximum size of a request.")
    send_buffer_bytes: int = key("socket.send.buffer.bytes", 102_400, at_least=-1, at_most=1 << 30,
        doc="Size of the send buffer of each connection, at most that of the system (net.core.wmem_max on Linux). With "
        "-1, the system changes the size as needed, which serves distant clients faster, and may cost more processor "
        "time.")
    idle_ms: int = key("connections.max.idle.ms", 600_000, at_least=100,
        doc="A connection is closed if its client neither sends nor receives for this time.")

    refresh_ms: int = key("read.only.refresh.ms", 1000, at_least=10,
        doc="Interval at which a read-only gateway reads the new commits of the writer.")
    # fmt: on

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints of ``listeners``.

        If it is empty, return one PLAINTEXT endpoint at ``host`` and ``port``.
        """
        if not self.listeners:
            host = f"[{self.host}]" if ":" in self.host else self.host
            endpoints = parse_endpoints((f"PLAINTEXT://{host}:{self.port}",), self.advertised_listeners, {})
        else:
            endpoints = parse_endpoints(self.listeners, self.advertised_listeners, self._protocols())
        for endpoint in endpoints if self.advertised_host else ():
            endpoint.advertised_host = self.advertised_host
        return endpoints

    def _protocols(self) -> dict[str, str]:
        pairs = (text.partition(":") for text in self.protocol_map)
        return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}

    def authenticates(self, endpoint: Endpoint) -> bool:
        """Return True if the listener requires SASL or a client certificate."""
        is_certified = endpoint.protocol.has_tls and self.client_auth == "required"
        return endpoint.protocol.has_sasl or is_certified

    def contradiction(self) -> str:
        """Return the reason why a listener needs ``insecure``.

        Return "" if no listener needs it, or if ``insecure`` is set.
        """
        for endpoint in () if self.insecure else self.endpoints():
            if not is_loopback(endpoint.host) and not self.authenticates(endpoint):
                return f"host {endpoint.host} is not a loopback address, and clients are not authenticated"
        return ""

    def check_advertised(self) -> None:
        """Raise ConfigError if a listener advertises an unspecified address, such as 0.0.0.0. Kafka refuses 0.0.0.0."""
        for endpoint in self.endpoints():
            if is_unspecified(endpoint.advertised_host):
                raise ConfigError(
                    f"clients on other machines cannot connect to the advertised address {endpoint.uri}"
                ).advised("set advertised.host (--advertised-host) to the name of this machine that clients use")
