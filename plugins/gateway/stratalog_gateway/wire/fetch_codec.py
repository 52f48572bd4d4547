"""Fetch requests and responses, versions 4 to 18. A response consists of pieces, to avoid copies of fetched bytes.

Source: apache/kafka FetchRequest.json, FetchResponse.json.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from stratalog import Transfer
from stratalog_gateway.wire.primitives import I16, I32, I64, Reader, put_count, put_string

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_SESSIONS: Final = 7
_FIRST_WITHOUT_REPLICA: Final = 15
_UUID_BYTES: Final = 16
_NO_REPLICA: Final = b"\xff\xff\xff\xff"  # preferred read replica
_COPIED_BYTES: Final = 16 << 10  # fewer bytes are copied between the fields instead of being sent as a piece
READ_BYTES: Final = 64 << 10  # so many bytes at most are sent from memory, together with the fields
_Form: TypeAlias = tuple[struct.Struct, tuple[int | None, ...]]
_PARTITION: Final[dict[int, _Form]] = {
    # by version: partition, [leader epoch], offset, [last fetched epoch], [log start], maximum bytes
    4: (struct.Struct(">iqi"), (0, None, 1, None, 2)),
    5: (struct.Struct(">iqqi"), (0, None, 1, None, 3)),
    9: (struct.Struct(">iiqqi"), (0, 1, 2, None, 4)),
    12: (struct.Struct(">iiqiqi"), (0, 1, 2, 3, 5)),
}
_LIMITS: Final = struct.Struct(">iiib")  # maximum wait, minimum and maximum bytes, isolation level
_SESSION: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


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
    """A decoded request; ``forgotten`` are topics and partitions that leave the session.

    ``has_ids`` is True if the version of the request names topics by their ids.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    wanted: list[WantedPartition]
    forgotten: list[tuple[str | bytes, int]]
    has_ids: bool


Piece = bytes | bytearray | memoryview | Transfer
"""A part of a response: bytes in memory, or batches to send from their file."""


class FetchResult(NamedTuple):
    """The result for one partition. ``diverging`` has an epoch and its end offset if the client's log diverges."""

    topic: str | bytes
    partition: int
    error: int
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    aborted: Sequence[tuple[int, int]] = ()  # producer id, first offset
    batches: Transfer | None = None
    diverging: tuple[int, int] | None = None


def decode_fetch(version: int, data: memoryview, at: int) -> FetchRequest:
    """Return the request whose body begins at position ``at``; raise MalformedRequestError if it is not valid."""
    read = Reader(data, at, flexible=version >= FIRST_FLEXIBLE)
    if version < _FIRST_WITHOUT_REPLICA:
        read.number(I32)
    max_wait_ms, min_bytes, max_bytes, isolation = read.unpack(_LIMITS)
    session_id, session_epoch = read.unpack(_SESSION) if version >= _FIRST_WITH_SESSIONS else (0, -1)
    form, places = _partition_form(version)
    wanted, forgotten = list[WantedPartition](), list[tuple[str | bytes, int]]()
    for _ in range(read.count()):
        topic = _topic(read, version)
        for _ in range(read.count()):
            values = read.unpack(form)
            read.skip_tags()
            fields = [-1 if place is None else values[place] for place in places]
            wanted.append(WantedPartition(topic, *fields))
        read.skip_tags()
    for _ in range(read.count() if version >= _FIRST_WITH_SESSIONS else 0):
        topic = _topic(read, version)
        forgotten += [(topic, read.number(I32)) for _ in range(read.count())]
        read.skip_tags()
    has_ids = version >= FIRST_WITH_TOPIC_IDS
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, wanted, forgotten, has_ids
    )


@functools.cache
def _partition_form(version: int) -> _Form:
    """Return the form of a wanted partition, and for each field of ``WantedPartition`` after ``topic`` its index there.

    An index is None if the version does not have the field.
    """
    return _PARTITION[max(first for first in _PARTITION if first <= version)]


def _topic(read: Reader, version: int) -> str | bytes:
    return bytes(read.raw(_UUID_BYTES)) if version >= FIRST_WITH_TOPIC_IDS else read.string() or ""


def encode_fetch(
    version: int,
    results: Iterable[FetchResult],
    correlation_id: int,
    *,
    error: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
) -> list[Piece]:
    """Return a response frame as pieces to send one after the other."""
    flexible = version >= FIRST_FLEXIBLE
    tags = b"\0" if flexible else b""
    grouped: dict[str | bytes, list[FetchResult]] = {}
    for found in results:
        grouped.setdefault(found.topic, []).append(found)
    pieces: list[Piece] = []
    out = bytearray(I32.pack(0) + I32.pack(correlation_id) + tags + I32.pack(throttle_ms))  # the first is the size
    if version >= _FIRST_WITH_SESSIONS:
        out += I16.pack(error) + I32.pack(session_id)
    out += put_count(len(grouped), flexible=flexible)
    for topic, partitions in grouped.items():
        out += topic if isinstance(topic, bytes) else put_string(topic, flexible=flexible)
        out += put_count(len(partitions), flexible=flexible)
        for found in partitions:
            _put_result(out, version, found, tags)
            batches = found.batches
            size = 0 if batches is None else batches.size_bytes
            out += put_count(size, flexible=flexible)
            if batches is None or size < _COPIED_BYTES:
                out += b"" if batches is None else batches.read()
            else:
                pieces += (out, batches.read() if size <= READ_BYTES else batches)
                out = bytearray()
            out += _diverging(found) if flexible else b""
        out += tags
    out += tags
    pieces.append(out)
    first = pieces[0]
    assert isinstance(first, bytearray)
    I32.pack_into(first, 0, sum(map(size_bytes, pieces)) - I32.size)
    return pieces


def size_bytes(piece: Piece) -> int:
    """Return the number of bytes of a piece of a response."""
    return piece.size_bytes if isinstance(piece, Transfer) else len(piece)


def _put_result(out: bytearray, version: int, found: FetchResult, tags: bytes) -> None:
    """Append the fields of a partition before its batches."""
    fixed = _RESULT.pack(found.partition, found.error, found.high_watermark, found.last_stable, found.log_start)
    out += fixed if version >= 5 else fixed[:-8]
    out += put_count(len(found.aborted), flexible=bool(tags))
    for producer_id, first_offset in found.aborted:
        out += _ABORTED.pack(producer_id, first_offset) + tags
    if version >= 11:
        out += _NO_REPLICA


def _diverging(found: FetchResult) -> bytes:
    """Return the encoded tagged fields of a partition: field 0 is the diverging epoch, if there is one."""
    if found.diverging is None:
        return b"\0"
    epoch, end_offset = found.diverging
    return b"\x01\x00\x0d" + I32.pack(epoch) + I64.pack(end_offset) + b"\0"
