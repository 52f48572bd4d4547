"""Checks of the fields of records, for both classes ``Record``: the one in Python and the compiled one."""

from __future__ import annotations

from operator import index
from typing import Any, TypeAlias

from stratalog.errors import InvalidRecordError, WrongTypeError
from stratalog.model.batches import TimestampType

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


def checked_fields(
    offset: Any,
    timestamp_ms: Any,
    timestamp_type: Any,
    key: Any,
    value: Any,
    headers: Any,
    leader_epoch: Any,
    partition: Any,
) -> tuple[int, int, TimestampType, bytes | None, bytes | None, Headers, int, int]:
    """Return the fields of a record in their exact types. The arguments may have any type.

    Raises:
        WrongTypeError: a field is of a wrong type; the text names the field.
        InvalidRecordError: a number does not fit 64 bits (offset, timestamp) or 32 bits; the text names the field.
    """
    if not isinstance(timestamp_type, TimestampType):
        raise _wrong_type("timestamp_type", "a TimestampType", timestamp_type)
    return (
        integer("offset", offset, 64),
        integer("timestamp_ms", timestamp_ms, 64),
        timestamp_type,
        _content("key", key),
        _content("value", value),
        _check_headers(headers),
        integer("leader_epoch", leader_epoch, 32),
        integer("partition", partition, 32),
    )


def integer(name: str, value: Any, bits: int) -> int:
    """Return ``value`` as an exact int, not as a subclass."""
    if isinstance(value, bool):
        raise _wrong_type(name, "an int", value)
    try:
        number = int(index(value))
    except TypeError:
        raise _wrong_type(name, "an int", value) from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise InvalidRecordError(f"{name} {number} does not fit {bits} bits")
    return number


def _content(name: str, value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if not isinstance(value, bytes):
        raise _wrong_type(name, "bytes or None", value)
    return b"".join((value,))  # not bytes(value), because a subclass could override its result


def _check_headers(headers: Any) -> Headers:
    if not isinstance(headers, tuple | list):
        raise _wrong_type("headers", "a tuple of pairs", headers)
    return tuple(map(_check_header, headers))


def _check_header(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise WrongTypeError(f"a header must be a pair of name and value, not {header!r}")
    name, value = header
    if not isinstance(name, str):
        raise _wrong_type("a header's name", "a str", name)
    return name if type(name) is str else str.__str__(name), _content("a header's value", value)


def _wrong_type(name: str, expected: str, value: object) -> WrongTypeError:
    return WrongTypeError(f"{name} is {expected}, not {type(value).__name__}")


def name_bytes(name: str, index: int) -> bytes:
    """Return the UTF-8 bytes of a header's name.

    Raises:
        InvalidRecordError: the name is not Unicode text. The error's ``record_errors`` names the record by ``index``.
    """
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        text = f"header name {name!r} is not Unicode text"
        raise InvalidRecordError(text, ((index, text),)) from error


def too_large(index: int) -> InvalidRecordError:
    """Return the error for the record at ``index``, which does not fit into one arena of 2 GiB."""
    text = "keys, values and headers need more than 2 GiB"
    return InvalidRecordError(text, ((index, text),))


def no_record(item: object) -> WrongTypeError:
    """Return the error for an item that is not a ``Record``."""
    return WrongTypeError(f"a Record is needed, not {type(item).__name__}")
