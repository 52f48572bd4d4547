"""The gateway, which serves an engine to Kafka clients."""

from __future__ import annotations

import dataclasses
import os

from stratalog import Engine
from stratalog.errors import ConfigError
from stratalog.spi import Clock
from stratalog_gateway.faults import Faults
from stratalog_gateway.groups.group_table import GroupTable, GroupUpkeep
from stratalog_gateway.handlers.dispatch import Dispatcher
from stratalog_gateway.handlers.sasl import Dispatch
from stratalog_gateway.handshake import EndpointHandshake
from stratalog_gateway.listener import Listener
from stratalog_gateway.node import LogSource, Node
from stratalog_gateway.read_only import ReadOnlyPermissions, ReadOnlySource
from stratalog_gateway.security.authorizer import Authorizer
from stratalog_gateway.security.client import Permissions
from stratalog_gateway.security.connection_quotas import ConnectionQuotas
from stratalog_gateway.security.endpoints import Endpoint
from stratalog_gateway.settings import GatewaySection


class Gateway:
    """Kafka broker on top of an engine, from ``start`` to ``stop``. The constructor opens the listening sockets.

    Args:
        engine: stores the groups and transactions. If ``source`` is None, it also stores the logs. The caller closes
            it.
        source: topics and logs of another process, which clients can only read. If it is None, clients use the engine's
            logs.
        faults: faults that tests inject; None means no faults.

    Raises:
        ConfigError: the gateway cannot listen on an address, or a file or a setting of security is wrong. Or other
            machines can reach a listener without authentication, and ``insecure`` is not set.
        PluginImportError: a library that a SASL mechanism needs is not installed.
    """

    def __init__(
        self,
        engine: Engine,
        settings: GatewaySection,
        clock: Clock,
        source: ReadOnlySource | None = None,
        faults: Faults | None = None,
    ) -> None:
        contradiction = settings.contradiction()
        if contradiction:
            raise ConfigError(contradiction).advised("set insecure of [plugins.gateway] to allow it")
        settings.check_advertised()
        if source is not None:
            settings = dataclasses.replace(settings, auto_create=False)
        self._source = source
        log_source: LogSource = engine if source is None else source
        self._node = Node(engine, settings, clock, log_source if faults is None else faults.source(log_source))
        self._groups = GroupTable(self._node)
        if source is not None:
            source.attach(self._groups.forget_topic)
        self._upkeep = GroupUpkeep(self._node, self._groups)
        self._endpoints = settings.endpoints()
        self._quotas = ConnectionQuotas(settings, self._node.quotas, clock)
        dispatch: Dispatch = Dispatcher(self._node, self._groups)
        if faults is not None:
            self._node.quotas, dispatch = faults.quotas(self._node.quotas), faults.wrap_dispatch(dispatch)
            faults.attach(self.drop_all)
        permissions = self._permissions()
        self._listeners: list[Listener] = []
        try:
            for endpoint in self._endpoints:
                handshake = EndpointHandshake(endpoint, self._node, dispatch, permissions)
                self._listeners.append(self._listener(endpoint, handshake))
        except BaseException:
            self.stop(0)
            raise

    def _permissions(self) -> Permissions | None:
        settings, acls = self._node.settings, self._node.acls
        authorizer: Permissions | None = None
        if acls is not None:
            super_users = frozenset(name.strip() for name in settings.super_users.split(";") if name.strip())
            authorizer = Authorizer(acls, super_users, allow_everyone=settings.allow_everyone)
        return authorizer if self._source is None else ReadOnlyPermissions(authorizer)

    def _listener(self, endpoint: Endpoint, handshake: EndpointHandshake) -> Listener:
        try:
            return Listener(endpoint, handshake, self._quotas, self._node)
        except OSError as error:
            # the text of `create_server` repeats the address; errors of name resolution have negative numbers
            text = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            reason = f"cannot listen on {endpoint.host}:{endpoint.port} ({text})"
            raise ConfigError(reason).advised("choose a free address") from error

    @property
    def address(self) -> str:
        """Advertised ``HOST:PORT`` of the first listener, for ``bootstrap.servers``."""
        return self.addresses[self._endpoints[0].name]

    @property
    def addresses(self) -> dict[str, str]:
        """Advertised ``HOST:PORT`` of each listener, by the name of the listener."""
        return {endpoint.name: endpoint.uri.partition("://")[2] for endpoint in self._endpoints}

    def start(self) -> None:
        """Recover the transactions, and start to accept connections. Call this method once.

        The recovery completes prepared transactions. It aborts the open transactions of the engine's own producers.
        Open transactions of Kafka clients continue until their timeout.

        Raises:
            StorageError: the stored transactions cannot be read, or the end of a transaction cannot be stored.
        """
        self._node.engine.transactions.recover()
        if self._source is not None:
            self._source.start()
        for listener in self._listeners:
            listener.start()
        self._upkeep.start()

    def drop_all(self) -> None:
        """Close all connections. Clients can reconnect immediately."""
        for listener in self._listeners:
            listener.drop_all()

    def stop(self, wait_s: float = 5.0) -> None:
        """Close the listeners and all connections, and wait up to ``wait_s`` for each thread.

        The method is idempotent, and allowed before ``start``.
        """
        self._node.close()
        if self._source is not None:
            self._source.stop(wait_s)
        self._upkeep.stop(wait_s)
        self._groups.close()
        for listener in self._listeners:
            listener.stop(wait_s)
