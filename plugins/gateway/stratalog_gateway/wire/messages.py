"""Headers of requests, and messages that kio encodes and decodes."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import io
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stratalog_gateway.wire.primitives import I32, MalformedRequestError, Reader
from stratalog_gateway.wire.request_check import check_request

API_VERSIONS: Final = 18
_HEADER: Final = struct.Struct(">hhih")
_ERRORS: Final = {int(code): code for code in ErrorCode}
_ERROR_FIELDS: Final = frozenset({"error_code", "partition_error_code"})
_NO_ERROR: Final[Mapping[str, object]] = {"error_code": 0, "error_message": None}
_NO_DELAY: Final = dt.timedelta()
# Error messages that Kafka sends without an error, by the kio class; in other classes, the message is null.
_SUCCESS_MESSAGES: Final[Mapping[str, str]] = {
    "AclCreationResult": "",
    "DescribeAclsResponse": "",
    "DescribeClientQuotasResponse": "",
    "DescribeConfigsResult": "",
    "DescribeQuorumResponse": "",
    "DescribeUserScramCredentialsResponse": "",
    "FindCoordinatorResponse": "NONE",
}
_EMPTY: Final[Mapping[str, object]] = {  # empty values for fields without a default, by the type of the field
    "bool": False, "bytes": b"", "int16": 0, "int32": 0, "int64": 0, "string": "", "timedelta_i32": _NO_DELAY,
}  # fmt: skip
_of: Final = tuple.__new__  # creates a named tuple from a tuple of all fields; faster than a call of its class


class Header(NamedTuple):
    """Header of a request, without its tagged fields.

    ``client_id`` is "" if the client sends null. ``body_at`` is the position (bytes) after the client id. In flexible
    versions, the tagged fields of the header begin at this position; in other versions, the body.
    """

    api: int
    version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_header(data: memoryview) -> Header:
    """Return the header of a request. The header may contain an unknown API or version."""
    if len(data) < _HEADER.size:
        raise MalformedRequestError(f"a request of {len(data)} bytes has no header")
    api, version, correlation_id, size = _HEADER.unpack_from(data, 0)
    body_at = _HEADER.size + max(size, 0)
    if body_at > len(data):
        raise MalformedRequestError(f"a client id of {size} bytes is not inside the request of {len(data)} bytes")
    client_id = str(data[_HEADER.size : body_at], "utf-8", "replace")
    return _of(Header, (api, version, correlation_id, client_id, body_at))


def read_body(header: Header, data: memoryview) -> Any:
    """Return the body of a request as an instance of kio's class for its API and version."""
    schema, reader = _request(header.api, header.version)
    read = Reader(data, header.body_at, flexible=schema.__flexible__)
    read.skip_tags()
    start = read.position
    checked = check_request(schema, data, start)
    try:
        return reader(checked, start)[0]
    except Exception as error:  # the errors of kio have no common base class
        text = f"the request (api {header.api}, version {header.version}) cannot be decoded: {error!r}"
        raise MalformedRequestError(text) from error


class Maker:
    """Builder of the kio messages of one response.

    kio has a class for each version of a message. A ``Maker`` omits the fields that the version of the request lacks.
    Callers pass error codes as numbers. Without an error code, a message has no error.
    """

    def __init__(self, header: Header) -> None:
        self._root: Any = load_response_schema(header.api, header.version)
        self._module = sys.modules[self._root.__module__]

    def __call__(self, **values: object) -> Any:
        """Return the body of the response with these fields. The default of ``throttle_time`` is 0."""
        return _make_message(self._root, {"throttle_time": _NO_DELAY, **values})

    def part(self, kind: str, /, **values: object) -> Any:
        """Return a message that is part of the response. ``kind`` is the name of its kio class."""
        return _make_message(getattr(self._module, kind), values)

    def error(self, error_code: int, error_message: str | None) -> Any:
        """Return the body of a response with an error.

        As in Kafka, the other fields have their defaults, or are empty.
        """
        return self(**_empty(self._root), error_code=error_code, error_message=error_message)

    def error_part(self, kind: str, error_code: int, error_message: str | None, /, **values: object) -> Any:
        """Return a message that is part of the response, with an error.

        See ``part``. Fields without a value are empty.
        """
        fields = {**_empty(getattr(self._module, kind)), **values}
        return self.part(kind, **fields, error_code=error_code, error_message=error_message)

    def has(self, field: str) -> bool:
        """Return True if the body of the response has this field in the version of the request."""
        return field in _fields(self._root)


def encode(header: Header, message: Any) -> bytes:
    """Return the frame of a response, including the size, for the request with this header."""
    stream = io.BytesIO()
    stream.write(I32.pack(0) + I32.pack(header.correlation_id))
    if message.__flexible__ and header.api != API_VERSIONS:  # clients of all versions read the header of ApiVersions
        stream.write(b"\0")
    kind: Any = type(message)
    _writer(kind)(stream, message)
    frame = bytearray(stream.getbuffer())
    I32.pack_into(frame, 0, len(frame) - I32.size)
    return bytes(frame)


def to_ms(delta: dt.timedelta) -> int:
    """Return a duration in whole milliseconds, rounded down."""
    return delta // dt.timedelta(milliseconds=1)


def _make_message(kind: Any, values: dict[str, object]) -> Any:
    names = _fields(kind)
    fields = {name: value for name, value in {**_NO_ERROR, **values}.items() if name in names}
    for name in _ERROR_FIELDS & fields.keys():
        code = fields[name]
        assert isinstance(code, int)
        fields[name] = _ERRORS.get(code, ErrorCode.unknown_server_error)
    if fields.get("error_message", "") is None and not fields.get("error_code"):
        fields["error_message"] = _SUCCESS_MESSAGES.get(kind.__name__)
    return kind(**fields)


@functools.cache
def _request(api: int, version: int) -> tuple[Any, Callable[[bytes, int], tuple[Any, int]]]:
    schema: Any = load_request_schema(api, version)
    return schema, entity_reader(schema)


@functools.cache
def _writer(kind: Any) -> Callable[[io.BytesIO, Any], None]:
    writer: Callable[[io.BytesIO, Any], None] = entity_writer(kind)
    return writer


@functools.cache
def _empty(kind: Any) -> dict[str, object]:
    """Return an empty value for each field that has no default. The fields of the error are not included."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in {"error_code", "error_message", "throttle_time"}:
            is_null, is_array = str(field.type).endswith("| None"), str(field.type).startswith("tuple[")
            values[field.name] = None if is_null else () if is_array else _EMPTY[field.metadata["kafka_type"]]
    return values


@functools.cache
def _fields(kind: Any) -> frozenset[str]:
    return frozenset(kind.__dataclass_fields__)
