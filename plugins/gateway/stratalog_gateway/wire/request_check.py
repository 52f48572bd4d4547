"""Check of the lengths in a request. It is necessary before kio decodes the request.

kio allocates an array of the announced length before it reads the elements. A request of twenty bytes that announces an
array of 2^31 elements would therefore exhaust the memory. kio also accepts null for arrays that must not be null. It
fails at unknown tagged fields, but later releases of Kafka may add tagged fields to a version (KIP-482).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, Final

from stratalog.spi import Buffer
from stratalog_gateway.wire.primitives import I8, I16, I32, NO_TAGS, MalformedRequestError, Reader

_FIXED_BYTES: Final = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "timedelta_i32": 4, "int64": 8, "timedelta_i64": 8,
    "float64": 8, "uuid": 16,
}  # fmt: skip
Step = Callable[[Reader], None]


class _UntaggingReader(Reader):
    """Reader that stores the positions of tagged fields.

    Attributes:
        tagged: start and end position (bytes) of the tagged fields of each message with tagged fields, ascending.
    """

    __slots__ = ("tagged",)

    def __init__(self, data: memoryview, position: int, *, flexible: bool) -> None:
        super().__init__(data, position, flexible=flexible)
        self.tagged: list[tuple[int, int]] = []

    def skip_tags(self) -> None:
        """Skip the tagged fields of a message, and store their positions."""
        start = self.position
        super().skip_tags()
        if self.position > start + len(NO_TAGS):
            self.tagged.append((start, self.position))


def check_request(schema: Any, data: memoryview, start: int) -> bytes:
    """Check a request. Return it without the tagged fields in its body, because kio does not know such fields.

    No information is lost: the requests that the gateway decodes with kio define no tagged fields in these versions.
    ``data`` is the whole request, whose body begins at ``start``. ``schema`` is kio's class of the request.

    Raises:
        MalformedRequestError: a value exceeds the request, or an array that must not be null is null.
    """
    read = _UntaggingReader(data, start, flexible=schema.__flexible__)
    _message_check(schema)(read)
    pieces: list[Buffer] = []
    position = 0
    for first, end in read.tagged:
        pieces += (data[position:first], NO_TAGS)
        position = end
    return b"".join((*pieces, data[position:]))


@functools.cache
def _message_check(kind: Any) -> Step:
    """Return a function that checks the next message of the class ``kind``, including its tagged fields."""
    hints = typing.get_type_hints(kind)
    steps = tuple(_field_check(hints[field.name], field.metadata) for field in dataclasses.fields(kind))

    def check(read: Reader) -> None:
        for step in steps:
            step(read)
        read.skip_tags()

    return check


def _field_check(hint: Any, metadata: Any) -> Step:
    forms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    form: Any = next(candidate for candidate in forms if candidate is not type(None))
    if typing.get_origin(form) is tuple:
        item: Any = typing.get_args(form)[0]
        element = (
            _message_check(item) if hasattr(item, "__dataclass_fields__") else _value_check(metadata["kafka_type"])
        )
        return _array_check(element, is_nullable=type(None) in forms)
    if not hasattr(form, "__dataclass_fields__"):
        return _value_check(metadata["kafka_type"])
    return _nullable_check(_message_check(form)) if type(None) in forms else _message_check(form)


def _nullable_check(message: Step) -> Step:
    """Return a function that checks a message that may be null.

    The byte before the message is negative if it is null.
    """

    def check(read: Reader) -> None:
        if read.number(I8) >= 0:
            message(read)

    return check


def _array_check(element: Step, *, is_nullable: bool) -> Step:
    def check(read: Reader) -> None:
        start = read.position
        if read.size() < 0:
            if not is_nullable:
                raise MalformedRequestError(f"an array at {start} is null")
            return
        read.position = start
        for _ in range(read.count()):
            element(read)

    return check


@functools.cache
def _value_check(kind: str) -> Step:
    """Return a function that checks a value. ``kind`` is its type in Kafka's schemas, such as ``string``."""
    if kind in {"string", "bytes"}:
        form = I16 if kind == "string" else I32
        return lambda read: _skip(read, max(read.size(form), 0))
    size = _FIXED_BYTES[kind]
    return lambda read: _skip(read, size)


def _skip(read: Reader, size: int) -> None:
    read.raw(size)
