"""Codec of Produce requests and responses, versions 3 to 13. Unlike kio, it does not copy the records.

Source: apache/kafka ProduceRequest.json, ProduceResponse.json.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from stratalog.spi import extension
from stratalog_gateway.wire.messages import Header
from stratalog_gateway.wire.primitives import I16, I32, Reader, put_count, put_string

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_TOPIC_IDS: Final = 13
_UUID_BYTES: Final = 16
_KERNEL: Final = extension("stratalog_gateway.wire.codecs_c")
_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_RESULT: Final = struct.Struct(">ihqqq")
_NO_ERRORS: Final = {True: b"\1\0", False: I32.pack(0) + I16.pack(-1)}  # no record errors, no message; by ``flexible``


class ProducedRecords(NamedTuple):
    """Batches of one partition, as a view of the request. ``records`` is empty if the client sends null."""

    partition: int
    records: memoryview


class ProduceRequest(NamedTuple):
    """A decoded Produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str | bytes, list[ProducedRecords]]]  # a name, or the 16 bytes of an id


class ProduceResult(NamedTuple):
    """Result for one partition. ``record_errors`` contains each invalid record's index in the batch, and a message."""

    partition: int
    error: int
    base_offset: int = -1
    append_time_ms: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()


def decode_produce(header: Header, data: memoryview) -> ProduceRequest:
    """Return the body of the request ``data``. Raise MalformedRequestError if the body is malformed."""
    version = header.version
    fields = None if _KERNEL is None else _KERNEL.decode_produce(version, data, header.body_at, ProducedRecords)
    if fields is not None:
        return ProduceRequest(*fields)
    read = Reader(data, header.body_at, flexible=version >= FIRST_FLEXIBLE)
    read.skip_tags()
    transactional_id = read.string()
    acks, timeout_ms = read.unpack(_ACKS_TIMEOUT)
    topics: list[tuple[str | bytes, list[ProducedRecords]]] = []
    for _ in range(read.count()):
        topic = bytes(read.raw(_UUID_BYTES)) if version >= FIRST_WITH_TOPIC_IDS else read.string() or ""
        partitions = []
        for _ in range(read.count()):
            number, size = read.number(I32), read.size()
            partitions.append(ProducedRecords(number, read.raw(max(size, 0))))
            read.skip_tags()
        read.skip_tags()
        topics.append((topic, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce(
    version: int, topics: Sequence[tuple[str | bytes, list[ProduceResult]]], correlation_id: int, throttle_ms: int = 0
) -> bytes:
    """Return the frame of a response, including the size."""
    if _KERNEL is not None:
        frame: bytes | None = _KERNEL.encode_produce(version, correlation_id, topics, throttle_ms)
        if frame is not None:
            return frame
    flexible = version >= FIRST_FLEXIBLE
    tags = b"\0" if flexible else b""
    pieces = [I32.pack(correlation_id), tags, put_count(len(topics), flexible=flexible)]
    for topic, partitions in topics:
        encoded_topic = topic if isinstance(topic, bytes) else put_string(topic, flexible=flexible)
        pieces += (encoded_topic, put_count(len(partitions), flexible=flexible))
        for result in partitions:
            fixed = _RESULT.pack(*result[:5])
            pieces.append(fixed if version >= 5 else fixed[:-8])
            if version >= 8 and result.message is None and not result.record_errors:
                pieces.append(_NO_ERRORS[flexible])
            elif version >= 8:
                pieces.append(put_count(len(result.record_errors), flexible=flexible))
                for index, message in result.record_errors:
                    pieces += (I32.pack(index), put_string(message, flexible=flexible), tags)
                pieces.append(put_string(result.message, flexible=flexible))
            pieces.append(tags)
        pieces.append(tags)
    pieces += (I32.pack(throttle_ms), tags)
    body = b"".join(pieces)
    return I32.pack(len(body)) + body
