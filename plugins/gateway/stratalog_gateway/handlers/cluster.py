"""DescribeCluster and FindCoordinator."""

from __future__ import annotations

from typing import Any, Final

from stratalog_gateway.error_codes import Code
from stratalog_gateway.handlers.request import Request
from stratalog_gateway.security.resources import CLUSTER_NAME, NOT_REQUESTED, Operation, ResourceType

_GROUP: Final = 0
_KEYS: Final = {_GROUP: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}  # by the type of a coordinator's key
_BROKERS: Final = 1  # endpoint type


def cluster_operations(request: Request) -> int:
    """Return the operations on the cluster that the client may perform, as the bit field of the protocol.

    Return NOT_REQUESTED if the request does not ask for the operations; 0 if the client has no right to describe the
    cluster.
    """
    operations = request.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)
    if operations == NOT_REQUESTED or request.client.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return operations
    return 0


def describe_cluster(request: Request) -> Any:
    """Return the response with the only broker."""
    node, make, (host, port) = request.node, request.make, request.client.endpoint.address
    broker = make.part(
        "DescribeClusterBroker", broker_id=node.settings.node_id, host=host, port=port, rack=None, is_fenced=False
    )
    return make(
        endpoint_type=_BROKERS,
        cluster_id=node.settings.cluster_id,
        controller_id=node.settings.node_id,
        brokers=(broker,),
        cluster_authorized_operations=cluster_operations(request),
    )


def find_coordinator(request: Request) -> Any:
    """Return the response with this broker as the coordinator of each requested group or transactional id."""
    make = request.make
    if not make.has("coordinators"):
        return make(**_coordinator(request, request.body.key))
    return make(
        coordinators=tuple(
            make.part("Coordinator", key=key, **_coordinator(request, key)) for key in request.body.coordinator_keys
        )
    )


def _coordinator(request: Request, key: str) -> dict[str, object]:
    kind = _KEYS.get(request.field("key_type", _GROUP))
    error: int = Code.INVALID_REQUEST
    message: str | None = "only groups and transactional ids have a coordinator"
    if kind is not None:
        error, message = request.client.refusal(Operation.DESCRIBE, kind, key), None
    host, port = ("", -1) if error else request.client.endpoint.address
    return {
        "error_code": error, "error_message": message, "node_id": -1 if error else request.node.settings.node_id,
        "host": host, "port": port,
    }  # fmt: skip
