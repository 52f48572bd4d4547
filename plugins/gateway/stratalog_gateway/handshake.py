"""Preparation of a new connection: the TLS handshake, and the choice between requests with and without SASL."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from stratalog.errors import ConfigError, PluginImportError
from stratalog.spi import Clock
from stratalog_gateway.connection import Requests, send_now
from stratalog_gateway.handlers.request import Response
from stratalog_gateway.handlers.sasl import Dispatch, SaslRequests
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client, Permissions
from stratalog_gateway.security.endpoints import Endpoint
from stratalog_gateway.security.mechanisms import Mechanism, OAuthBearer, Plain, Scram
from stratalog_gateway.security.security_settings import OAUTHBEARER, PLAIN, SecuritySection
from stratalog_gateway.security.tls import TlsContext, certificate_subject, principal_mapping
from stratalog_gateway.security.users import Users
from stratalog_gateway.security.watched_files import EditedFile

_NO_CERTIFICATES: Final = "none"


class EndpointHandshake:
    """Preparation of the connections of one listener. Thread-safe."""

    def __init__(self, endpoint: Endpoint, node: Node, dispatch: Dispatch, permissions: Permissions | None) -> None:
        settings, protocol = node.settings, endpoint.protocol
        self._endpoint, self._node, self._dispatch, self._permissions = endpoint, node, dispatch, permissions
        self._tls = None
        if protocol.has_tls:  # as in Kafka, clients that authenticate with SASL need no certificate
            client_auth = _NO_CERTIFICATES if protocol.has_sasl else settings.client_auth
            self._tls = TlsContext(settings, client_auth, node.clock)
        self._mechanisms = enabled_mechanisms(settings, node.users, node.clock) if protocol.has_sasl else None
        self._principal = principal_mapping(settings.principal_rules)

    def wrap_socket(self, connection: socket.socket) -> socket.socket:
        """Return the connection; if the listener uses TLS, return a TLS socket whose handshake has not begun."""
        return connection if self._tls is None else self._tls.wrap_socket(connection)

    def perform(self, connection: socket.socket, host: str) -> Requests:
        """Perform the TLS handshake if the listener uses TLS, and return the handler of the connection's requests.

        ``host`` is the client's IP address.

        Raises:
            OSError: the handshake failed, or no rule converts the certificate to a principal.
        """
        client = Client(host, self._endpoint, self._permissions)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
            client.principal = self._principal(certificate_subject(connection))
        else:
            client.send_now = partial(send_now, connection)
        settings = self._node.settings
        if self._mechanisms is None:
            return _PlainRequests(self._dispatch, client, settings.request_bytes)
        return SaslRequests(client, self._dispatch, self._mechanisms, settings, self._node.clock)


class _PlainRequests:
    """Handler of the requests of a connection without SASL."""

    def __init__(self, dispatch: Dispatch, client: Client, limit_bytes: int) -> None:
        self._dispatch, self._client, self.limit_bytes = dispatch, client, limit_bytes

    def __call__(self, frame: memoryview) -> Response:
        return self._dispatch(frame, self._client)


def enabled_mechanisms(
    settings: SecuritySection, users: EditedFile[Users] | None, clock: Clock
) -> Mapping[str, Callable[[], Mechanism]]:
    """Return the enabled mechanisms by name, each as a function that begins an authentication.

    Raises:
        ConfigError: no mechanism is enabled, the keys of OAUTHBEARER are missing or wrong, or ``users`` is None
            although PLAIN or SCRAM is enabled.
        PluginImportError: OAUTHBEARER is enabled, and PyJWT is not installed.
    """
    if not settings.mechanisms:
        raise ConfigError("sasl.enabled.mechanisms is empty: a listener with SASL needs a mechanism")
    factories: dict[str, Callable[[], Mechanism]] = {}
    if set(settings.mechanisms) - {OAUTHBEARER}:
        if users is None:
            raise ConfigError("users.file is not set: PLAIN and SCRAM need a file of users").advised(
                "create one with `stratalog users add`"
            )
        factories = {name: partial(_make_mechanism, name, users) for name in settings.mechanisms}
    if OAUTHBEARER in settings.mechanisms:
        factories[OAUTHBEARER] = partial(OAuthBearer, _token_check(settings, clock))
    return {name: factories[name] for name in settings.mechanisms}


def _make_mechanism(name: str, users: EditedFile[Users]) -> Mechanism:
    return Plain(users.current) if name == PLAIN else Scram(name, users.current)


def _token_check(settings: SecuritySection, clock: Clock) -> Callable[[str], tuple[str, int]]:
    try:
        from stratalog_gateway.security.tokens import TokenCheck  # noqa: PLC0415 - PyJWT is an extra
    except ImportError as error:
        raise PluginImportError("PyJWT is not installed", "gateway", "stratalog[gateway-oauth]") from error
    return TokenCheck(settings, clock)
