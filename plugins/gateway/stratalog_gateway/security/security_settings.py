"""Settings of security and quotas. A setting that Kafka's broker also has uses Kafka's name.

Source: apache/kafka SocketServerConfigs, BrokerSecurityConfigs, SslConfigs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.spi import Section, key

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
_INT_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySection(Section):
    """Settings of listeners, authentication, permissions and quotas. Paths are relative to the working directory."""

    # One entry for each setting, not one line for each argument:
    # fmt: off
    listeners: tuple[str, ...] = key("listeners", (),
        doc="Listeners, each NAME://HOST:PORT; NAME is PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, or a name in "
        "listener.security.protocol.map. Empty means PLAINTEXT at host and port.")
    advertised_listeners: tuple[str, ...] = key("advertised.listeners", (),
        doc="Addresses that the gateway advertises to clients, each NAME://HOST:PORT; a listener that is not named "
        "advertises its own address.")
    protocol_map: tuple[str, ...] = key("listener.security.protocol.map", (),
        doc="Security protocols of listeners with other names, each NAME:PROTOCOL.")
    mechanisms: tuple[str, ...] = key("sasl.enabled.mechanisms", (SCRAM_SHA_256, SCRAM_SHA_512), choices=MECHANISMS,
        doc="SASL mechanisms that clients may use.")
    users_file: str = key("users.file", "",
        doc="File with the users of PLAIN and SCRAM and their salted keys; `stratalog users` writes it. Read again "
        "when it changes.")
    max_reauth_ms: int = key("connections.max.reauth.ms", 0, at_least=0,
        doc="Time after which a client must authenticate again, or its connection is closed; 0 means no limit. The "
        "expiry of a token is a limit, too.")
    sasl_bytes: int = key("sasl.server.max.receive.size", 524_288, at_least=1024, at_most=_INT_MAX,
        doc="Maximum size of a request before the client is authenticated.")
    failure_delay_ms: int = key("connection.failed.authentication.delay.ms", 100, at_least=0, at_most=60_000,
        doc="Delay between a failed authentication and the close of the connection.")
    jwks_url: str = key("sasl.oauthbearer.jwks.endpoint.url", "",
        doc="Keys of the issuer of tokens for OAUTHBEARER, as a JSON Web Key Set: an https, http or file URL.")
    expected_audience: tuple[str, ...] = key("sasl.oauthbearer.expected.audience", (),
        doc="Accepted audiences: a token must have one of them. If the setting is empty, all audiences are accepted.")
    expected_issuer: str = key("sasl.oauthbearer.expected.issuer", "",
        doc="Issuer that a token must have. If it is empty, all issuers are accepted.")
    subject_claim: str = key("sasl.oauthbearer.sub.claim.name", "sub", doc="Claim of a token that names the principal.")
    clock_skew_s: int = key("sasl.oauthbearer.clock.skew.seconds", 30, at_least=0, at_most=3600,
        doc="Maximum difference in seconds between the clocks of the issuer and of this machine.")
    keystore: str = key("ssl.keystore.location", "",
        doc="PEM file with the private key of the listeners and the certificate chain. Read again when it changes.")
    key_password: str = key("ssl.key.password", "", doc="Password of an encrypted private key.")
    truststore: str = key("ssl.truststore.location", "",
        doc="PEM file with the certificates of the authorities that sign client certificates. Read again when it "
        "changes.")
    client_auth: str = key("ssl.client.auth", "none", choices=("none", "requested", "required"),
        doc="Authentication by a client certificate, on TLS listeners without SASL. requested and required need "
        "ssl.truststore.location.")
    tls_versions: tuple[str, ...] = key("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), choices=("TLSv1.2", "TLSv1.3"),
        doc="Accepted versions of TLS.")
    cipher_suites: tuple[str, ...] = key("ssl.cipher.suites", (),
        doc="Cipher suites of TLS 1.2 by OpenSSL's names; empty means OpenSSL's choice.")
    principal_rules: str = key("ssl.principal.mapping.rules", "DEFAULT",
        doc="Rules that convert the subject of a client certificate to the name of a principal, as in Kafka, such as "
        "RULE:^CN=(.*?),.*$/$1/L,DEFAULT.")
    acls_file: str = key("acls.file", "",
        doc="File of ACLs, as JSON. Read again when it changes; CreateAcls and DeleteAcls write it. If the setting is "
        "empty, every client may do everything.")
    super_users: str = key("super.users", "",
        doc="Principals that may do everything, separated by semicolons: User:admin;User:CN=ops.")
    allow_everyone: bool = key("allow.everyone.if.no.acl.found", False,
        doc="Allow every client to use a resource that no ACL covers.")
    quotas_file: str = key("quotas.file", "",
        doc="File of quotas of users, clients and IP addresses, as JSON. Read again when it changes.")
    connections: int = key("max.connections", 2000, at_least=1,
        doc="Maximum number of connections. Further connections are closed immediately. If the process may open fewer "
        "files, the maximum is lower, and a warning is logged.")
    connections_per_ip: int = key("max.connections.per.ip", _INT_MAX, at_least=0, at_most=_INT_MAX,
        doc="Maximum number of connections of one IP address. Further connections are closed immediately.")
    connections_per_ip_overrides: tuple[str, ...] = key("max.connections.per.ip.overrides", (),
        doc="Maximum number of connections for single IP addresses, each ADDRESS:NUMBER.")
    connection_rate: int = key("max.connection.creation.rate", _INT_MAX, at_least=1, at_most=_INT_MAX,
        doc="Maximum number of new connections in a second. Further connections wait.")
    # fmt: on
