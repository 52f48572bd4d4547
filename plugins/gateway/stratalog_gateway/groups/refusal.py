"""Error for a request of a member that is refused with one of Kafka's error codes."""

from __future__ import annotations


class RefusedMemberError(Exception):
    """The coordinator refuses a request of a member.

    Attributes:
        code: error code of Kafka's protocol.
        message: text for the client.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message
