"""A request of a member that is refused with one of Kafka's codes."""

from __future__ import annotations


class RefusedMemberError(Exception):
    """The coordinator refuses a request of a member."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message
