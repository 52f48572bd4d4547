"""Fetch requests and responses, versions 4 to 18. A response consists of pieces, to avoid copies of fetched bytes.

Source: apache/kafka FetchRequest.json, FetchResponse.json.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratalog import Transfer
from stratalog.spi import extension
from stratalog_gateway.wire.messages import Header
from stratalog_gateway.wire.primitives import I32, I64, NO_TAGS, Reader, put_count, put_string

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_SESSIONS: Final = 7
_UUID_BYTES: Final = 16
_NO_REPLICA: Final = b"\xff\xff\xff\xff"  # preferred read replica
_COPIED_BYTES: Final = 16 << 10  # smaller batches are copied between the fields instead of being sent as a piece
READ_BYTES: Final = 64 << 10  # batches of at most this size are sent from memory, together with the fields
_RESULT: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_KERNEL: Final = extension("stratalog_gateway.wire.codecs_c")
_of: Final = tuple.__new__  # creates a named tuple from a tuple of all fields; faster than a call of its class


class _Forms(NamedTuple):
    """Formats of the numbers in the messages of one version. Numbers that the gateway ignores are padding bytes."""

    limits: struct.Struct
    """Replica, maximum wait, minimum bytes, maximum bytes, isolation level; from version 7 on, session id and epoch."""
    partition: struct.Struct
    """Partition, leader epoch (version 9 and later), offset, last epoch (12 and later), log start, maximum bytes."""
    head: struct.Struct
    """Size, correlation id, throttle time; from version 7 on, error code and session id."""


_FORMS: Final = {
    4: _Forms(*map(struct.Struct, (">4xiiib", ">iqi", ">iii"))),
    5: _Forms(*map(struct.Struct, (">4xiiib", ">iq8xi", ">iii"))),
    7: _Forms(*map(struct.Struct, (">4xiiibii", ">iq8xi", ">iiihi"))),
    9: _Forms(*map(struct.Struct, (">4xiiibii", ">iiq8xi", ">iiihi"))),
    12: _Forms(*map(struct.Struct, (">4xiiibii", ">iiqi8xi", ">iixihi"))),
    15: _Forms(*map(struct.Struct, (">iiibii", ">iiqi8xi", ">iixihi"))),
}


class WantedPartition(NamedTuple):
    """One partition of a request.

    ``leader_epoch`` is the current leader epoch that the client knows. ``last_epoch`` is the epoch of the last record
    that the client has fetched. Both are -1 if the client does not send them.
    """

    topic: str | bytes  # a name, or the 16 bytes of an id
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """A decoded request. ``forgotten`` contains topics and partitions to remove from the session.

    ``has_ids`` is True if the version of the request has ids of topics instead of names.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    partitions: list[WantedPartition]
    forgotten: list[tuple[str | bytes, int]]
    has_ids: bool


Piece = bytes | bytearray | memoryview | Transfer
"""A part of a response: bytes in memory, or batches to send from their file."""


class FetchResult(NamedTuple):
    """Result for one partition. If the client's log diverges, ``diverging`` contains an epoch and its end offset."""

    topic: str | bytes
    partition: int
    error: int
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    aborted: Sequence[tuple[int, int]] = ()  # producer id, first offset
    batches: Transfer | None = None
    diverging: tuple[int, int] | None = None


def decode_fetch(header: Header, data: memoryview) -> FetchRequest:
    """Return the body of the request ``data``. Raise MalformedRequestError if the body is malformed."""
    version = header.version
    fields = None if _KERNEL is None else _KERNEL.decode_fetch(version, data, header.body_at, WantedPartition)
    if fields is not None:
        return _of(FetchRequest, fields)
    forms = _forms(version)
    read = Reader(data, header.body_at, flexible=version >= FIRST_FLEXIBLE)
    read.skip_tags()
    max_wait_ms, min_bytes, max_bytes, isolation, *session = read.unpack(forms.limits)
    partitions: list[WantedPartition] = []
    forgotten: list[tuple[str | bytes, int]] = []
    for _ in range(read.count()):
        topic = _topic(read, version)
        for _ in range(read.count()):
            values = read.unpack(forms.partition)
            read.skip_tags()
            if version < FIRST_FLEXIBLE:
                partition, *epoch, offset, limit_bytes = values
                values = partition, *(epoch or (-1,)), offset, -1, limit_bytes
            partitions.append(_of(WantedPartition, (topic, *values)))
        read.skip_tags()
    if session:
        for _ in range(read.count()):
            topic = _topic(read, version)
            forgotten += [(topic, read.number(I32)) for _ in range(read.count())]
            read.skip_tags()
    session_id, session_epoch = session or (0, -1)
    has_ids = version >= FIRST_WITH_TOPIC_IDS
    return _of(
        FetchRequest,
        (max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, partitions, forgotten, has_ids),
    )


@functools.cache
def _forms(version: int) -> _Forms:
    """Return the formats of a version. They are stored at the version that last changed them."""
    return _FORMS[max(first for first in _FORMS if first <= version)]


def _topic(read: Reader, version: int) -> str | bytes:
    return bytes(read.raw(_UUID_BYTES)) if version >= FIRST_WITH_TOPIC_IDS else read.string() or ""


def encode_fetch(
    header: Header, results: Sequence[FetchResult], *, error: int = 0, session_id: int = 0, throttle_ms: int = 0
) -> list[Piece]:
    """Return the frame of the response to a request, as pieces. Send them one after the other."""
    version, correlation_id = header.version, header.correlation_id
    if _KERNEL is not None:
        encoded: list[Piece] | None = _KERNEL.encode_fetch(
            version, correlation_id, results, error, session_id, throttle_ms, _COPIED_BYTES, READ_BYTES
        )
        if encoded is not None:
            return encoded
    forms = _forms(version)
    flexible = version >= FIRST_FLEXIBLE
    tags = b"\0" if flexible else b""
    results_by_topic: dict[str | bytes, list[FetchResult]] = {}
    for result in results:
        results_by_topic.setdefault(result.topic, []).append(result)
    in_session = (error, session_id) if version >= _FIRST_WITH_SESSIONS else ()
    buffer = first = bytearray(forms.head.pack(0, correlation_id, throttle_ms, *in_session))
    buffer += put_count(len(results_by_topic), flexible=flexible)
    pieces: list[Piece] = []
    before_bytes = 0
    for topic, partitions in results_by_topic.items():
        buffer += topic if isinstance(topic, bytes) else put_string(topic, flexible=flexible)
        buffer += put_count(len(partitions), flexible=flexible)
        for result in partitions:
            batches = result.batches
            size = 0 if batches is None else batches.size_bytes
            _put_result(buffer, version, result, tags)
            buffer += put_count(size, flexible=flexible)
            if batches is not None and size >= _COPIED_BYTES:
                pieces += (buffer, batches.read() if size <= READ_BYTES else batches)
                before_bytes += len(buffer) + size
                buffer = bytearray()
            elif batches is not None:
                buffer += batches.read()
            if flexible:
                buffer += NO_TAGS if result.diverging is None else _diverging(*result.diverging)
        buffer += tags
    buffer += tags
    pieces.append(buffer)
    I32.pack_into(first, 0, before_bytes + len(buffer) - I32.size)
    return pieces


def frame_bytes(pieces: Sequence[Piece]) -> int:
    """Return the size of a frame that ``encode_fetch`` returned."""
    first = pieces[0]
    assert isinstance(first, bytearray)
    size: int = I32.unpack_from(first)[0]
    return I32.size + size


def _put_result(buffer: bytearray, version: int, result: FetchResult, tags: bytes) -> None:
    """Append the fields of a partition before its batches."""
    fixed = _RESULT.pack(*result[1:6])
    buffer += fixed if version >= 5 else fixed[:-8]
    buffer += put_count(len(result.aborted), flexible=bool(tags))
    for producer_id, first_offset in result.aborted:
        buffer += _ABORTED.pack(producer_id, first_offset) + tags
    if version >= 11:
        buffer += _NO_REPLICA


def _diverging(epoch: int, end_offset: int) -> bytes:
    """Return the tagged fields of a partition with a diverging epoch. The diverging epoch is the field with tag 0."""
    return b"\x01\x00\x0d" + I32.pack(epoch) + I64.pack(end_offset) + NO_TAGS
