"""Types and checks for the handlers of requests: requests, responses and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from stratalog import Transfer
from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code, ErrorCodeOf, RefusedError, client_text, own_code
from stratalog_gateway.groups.classic_coordinator import ClassicGroupCoordinator
from stratalog_gateway.groups.consumer_coordinator import ConsumerGroupCoordinator
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.resources import NOT_REQUESTED, Operation, ResourceType
from stratalog_gateway.wire.fetch_codec import Piece
from stratalog_gateway.wire.messages import Header, Maker

_REQUEST_FIELDS: Final = {  # name of the field that requests the authorized operations, by the type of the resources
    ResourceType.TOPIC: "include_topic_authorized_operations",
    ResourceType.GROUP: "include_authorized_operations",
    ResourceType.CLUSTER: "include_cluster_authorized_operations",
}


class Groups(NamedTuple):
    """All groups, and the coordinators of both protocols."""

    table: GroupTable
    classic: ClassicGroupCoordinator
    consumer: ConsumerGroupCoordinator


class Request(NamedTuple):
    """A decoded request. ``body`` is kio's message, and ``make`` builds the response."""

    header: Header
    body: Any
    make: Maker
    client: Client
    node: Node
    groups: Groups

    def field(self, name: str, default: Any) -> Any:
        """Return a field of the body, or ``default`` if the version of the request lacks the field."""
        return getattr(self.body, name, default)

    def authorized_operations(self, kind: ResourceType, name: str) -> int:
        """Return the operations that the client may perform on a resource, as the bit field of the protocol.

        Return NOT_REQUESTED if the request does not contain the request for authorized operations on this type of
        resources.
        """
        return self.client.operations(kind, name) if self.field(_REQUEST_FIELDS[kind], False) else NOT_REQUESTED


Handler = Callable[[Request], Any]


class Response(NamedTuple):
    """Response to a request.

    Attributes:
        pieces: parts of the frame, to send in this order; empty if the client gets no response.
        transfers: the transfers among the pieces.
        throttle_ms: time after the response in which the gateway reads no requests of the connection.
        is_last: True if the connection is closed after the response.
        is_short: True for the response to a Produce request that waited neither for a sync nor for a quota.
    """

    pieces: Sequence[Piece]
    transfers: Sequence[Transfer] = ()
    throttle_ms: int = 0
    is_last: bool = False
    is_short: bool = False

    def release(self) -> None:
        """Release the transfers. Call this method after the pieces were sent."""
        for transfer in self.transfers:
            transfer.release()


REFUSALS: Final = {  # Kafka's texts
    Code.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    Code.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    Code.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")  # the rule of Engine.create_topic
ISOLATIONS: Final = {0: "read_uncommitted", 1: "read_committed"}


def require(client: Client, operation: Operation, kind: ResourceType, name: str) -> None:
    """Raise RefusedError if a client has no right to perform an operation on a resource."""
    code = client.refusal(operation, kind, name)
    if code:
        raise RefusedError(code, REFUSALS[code])


def require_group(request: Request) -> None:
    """Raise RefusedError if the request names no group, or the client has no right to read the group."""
    require(request.client, Operation.READ, ResourceType.GROUP, request.body.group_id)
    if not request.body.group_id:
        raise RefusedError(Code.INVALID_GROUP_ID)


def answer_partitions(request: Request, kind: str, answer: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
    """Return a message of the class ``kind`` for each topic of a request.

    The message contains the result of ``answer``, called with topic and partition, for each partition of the topic.
    """
    return tuple(
        request.make.part(kind, name=topic.name, partitions=tuple(answer(topic, item) for item in topic.partitions))
        for topic in request.body.topics
    )


def code_answer(request: Request, kind: str, codes: Mapping[tuple[str, int], int]) -> Callable[[Any, Any], Any]:
    """Return a function for ``answer_partitions``: its results of the class ``kind`` have only an error code."""
    return lambda topic, item: request.make.part(
        kind, partition_index=item.partition_index, error_code=codes[topic.name, item.partition_index]
    )


def is_topic_name(text: str) -> bool:
    """Return True if Kafka accepts a text as the name of a topic."""
    return _NAME.match(text) is not None


def check_topic_name(text: str) -> None:
    """Raise RefusedError if Kafka does not accept a text as the name of a topic."""
    if not is_topic_name(text):
        raise RefusedError(Code.INVALID_TOPIC, f"topic name {text!r} is not allowed")


class Outcome:
    """Context manager that handles one item of a request, and afterwards has the error code and message for the item.

    A RefusedError or StorageError ends the ``with`` block, and sets both attributes. Other errors are raised.

    Attributes:
        code: Kafka's error code, 0 if the block has no error.
        message: text of the error; None if the block has no error.
    """

    def __init__(self, code_of: ErrorCodeOf = own_code) -> None:
        self._code_of = code_of
        self.code: int = Code.NONE
        self.message: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, RefusedError | StorageError):
            return False
        self.code, self.message = self._code_of(error), client_text(error)
        return True

    def part(self, make: Maker, kind: str, /, **values: object) -> Any:
        """Return the message for the item, of kio's class ``kind``, with error code and message."""
        return make.part(kind, error_code=self.code, error_message=self.message, **values)
