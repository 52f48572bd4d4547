"""The client of one connection: its address, principal and permissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from stratalog_gateway.error_codes import Code
from stratalog_gateway.security.endpoints import Endpoint
from stratalog_gateway.security.resources import DENIED, SUPPORTED, Operation, ResourceType

ANONYMOUS: Final = "User:ANONYMOUS"


class Permissions(Protocol):
    """Permissions of principals. Thread-safe."""

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if a principal may perform an operation on a resource from the IP address ``host``."""

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Return True if a principal may perform an operation on at least one resource of a type."""


class Client:
    """IP address, principal and permissions of the client of a connection. Not thread-safe.

    Each operation is allowed if ``permissions`` is None.

    Attributes:
        principal: the authenticated principal; ``User:ANONYMOUS`` until the client is authenticated.
        send_now: sends bytes to the client without waiting, and returns those that do not fit into the socket's buffer.
            Any thread may call it while the client's request is being handled. None if that is not possible.
    """

    __slots__ = ("_permissions", "endpoint", "host", "principal", "send_now")

    def __init__(self, host: str, endpoint: Endpoint, permissions: Permissions | None = None) -> None:
        self.host, self.endpoint, self._permissions = host, endpoint, permissions
        self.principal = ANONYMOUS
        self.send_now: Callable[[bytes], memoryview] | None = None

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return True if the client may perform an operation on a resource."""
        permissions = self._permissions
        return permissions is None or permissions.allows(self.principal, self.host, operation, kind, name)

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Return True if the client may perform an operation on at least one resource of a type."""
        permissions = self._permissions
        return permissions is None or permissions.allows_any(self.principal, self.host, operation, kind)

    def refusal(self, operation: Operation, kind: ResourceType, name: str) -> Code:
        """Return ``Code.NONE`` if the client may perform an operation on a resource, otherwise the error code."""
        return Code.NONE if self.allows(operation, kind, name) else DENIED[kind]

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return the operations that the client may perform on a resource, as the bit field of the protocol."""
        return sum(1 << operation for operation in SUPPORTED[kind] if self.allows(operation, kind, name))
