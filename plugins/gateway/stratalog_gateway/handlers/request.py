"""A decoded request and the result of a handler, for the APIs whose messages kio encodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from stratalog import Transfer
from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.resources import Operation, ResourceType
from stratalog_gateway.wire.fetch_codec import Piece
from stratalog_gateway.wire.messages import Header, Maker


class Request(NamedTuple):
    """A request, its body as kio's message, the builder of its response, and the client that sent it."""

    header: Header
    body: Any
    make: Maker
    client: Client

    def field(self, name: str, default: Any) -> Any:
        """Return a field of the body, or ``default`` if the version of the request lacks it."""
        return getattr(self.body, name, default)


Handler = Callable[[Request], Any]


class Response(NamedTuple):
    """A response frame in pieces to send, and the transfers to release afterwards.

    Attributes:
        throttle_ms: time before the client's next request is read.
        is_last: True if the connection is closed after the response.
        is_short: True if the request waited for nothing, and the next one of the client probably does not wait either.
    """

    pieces: Sequence[Piece]
    transfers: Sequence[Transfer] = ()
    throttle_ms: int = 0
    is_last: bool = False
    is_short: bool = False

    def release(self) -> None:
        """Release the transfers. Pieces that are transfers cannot be sent afterwards."""
        for found in self.transfers:
            found.release()


_REFUSED: Final = "Authorization failed."
ISOLATIONS: Final = {0: "read_uncommitted", 1: "read_committed"}


class RefusedError(Exception):
    """A request, or one item of a request, is refused. ``code`` is an error code of Kafka."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def require(client: Client, operation: Operation, kind: ResourceType, name: str) -> None:
    """Raise RefusedError if a client may not perform an operation on a resource."""
    code = client.refusal(operation, kind, name)
    if code:
        raise RefusedError(code, _REFUSED)


Outcome = tuple[int, str | None]


def outcome(act: Callable[[], object]) -> Outcome:
    """Call ``act``. Return code and text of its RefusedError or StorageError; 0 and None if it succeeds."""
    try:
        act()
    except (RefusedError, StorageError) as error:
        return code_of(error), str(error)
    return Code.NONE, None


def code_of(error: RefusedError | StorageError) -> int:
    """Return Kafka's error code for an error."""
    return error.code if isinstance(error, RefusedError) else error.kafka_code
