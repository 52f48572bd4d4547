"""A client that needs little processor time: it encodes each request once, and checks responses without decoding them.

Both servers get the same bytes: Produce version 9 and Fetch version 12, uncompressed batches of magic 2.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from harness import WrongOutcomeError
from stratalog import Record, open_engine
from stratalog.env.closing import Closeable

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 18, 19, 20
_PRODUCE_VERSION, _FETCH_VERSION, _LIST_OFFSETS_VERSION = 9, 12, 7
_HEADER: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">i")
_VALUE_BYTES: Final = 100
_MAX_RECORDS: Final = 1000  # largest number of records in a batch
_IN_FLIGHT: Final = 5
_BUFFER_BYTES: Final = 4 << 20
_WAIT: Final = dt.timedelta(milliseconds=500)
_TIMEOUT: Final = dt.timedelta(seconds=30)
_TOPIC_EXISTS: Final = 36
_STARTING: Final = frozenset({3, 5, 6})  # the broker has not created the log yet: no topic, no leader, not the leader
_PAUSE_S: Final = 0.005
_PRODUCED: Final = struct.Struct(">hq")  # error code, base offset
_FETCHED: Final = struct.Struct(">hqqqbi")  # error code, three offsets, aborted transactions, preferred replica
_PRODUCED_AT: Final = 12  # position of these fields, without the name of the topic
_FETCHED_AT: Final = 22
_TOPIC_SETTINGS: Final = {"max.message.bytes": str(2 << 20), "retention.ms": "-1", "file.delete.delay.ms": "0"}
_BASE_OFFSET: Final = struct.Struct(">q")


class RefusedError(WrongOutcomeError):
    """The server answered with an error code, or without the wanted records."""


@dataclass(frozen=True, slots=True)
class Batch:
    """An encoded batch."""

    data: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """An encoded request, and the check of each response to it.

    Attributes:
        frame: bytes of the request.
        check: raises RefusedError if a response is not the expected one; its argument is the response without its size.
    """

    frame: bytes
    check: Callable[[memoryview], None]


def prepare_client() -> None:
    """Do the work that the first connection of a process does once: encode a batch, and import the schemas."""
    Connection.batch(100)
    for api, version in ((CREATE_TOPICS, 5), (LIST_OFFSETS, _LIST_OFFSETS_VERSION)):
        load_request_schema(api, version)
        load_response_schema(api, version)


class Connection(Closeable):
    """One connection to a server on loopback. Not thread-safe."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT.seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._view = memoryview(bytearray(_BUFFER_BYTES))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @staticmethod
    @cache
    def batch(size_bytes: int) -> Batch:
        """Return a batch of about ``size_bytes``, of records with random values.

        Values have 100 bytes. They are larger if the batch would have more than 1,000 records.
        """
        value_bytes = max(_VALUE_BYTES, size_bytes // _MAX_RECORDS)
        count = max(size_bytes // (value_bytes + 10), 1)
        records = [Record(timestamp_ms=1_700_000_000_000, value=os.urandom(value_bytes)) for _ in range(count)]
        with tempfile.TemporaryDirectory() as folder, open_engine(folder) as engine:
            engine.create_topic("t", config={"max.message.bytes": 2 * size_bytes + 1000})
            log = engine.log("t", 0)
            log.append(records)
            with log.fetch(0, 4 * size_bytes + 1000) as fetched:
                return Batch(fetched.read(), count)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic that accepts batches of 2 MiB and keeps old records, unless it exists; wait for its log."""
        schema = load_request_schema(CREATE_TOPICS, 5)
        settings = tuple(
            _part(schema, "CreatableTopicConfig", name=name, value=value) for name, value in _TOPIC_SETTINGS.items()
        )
        new_topic = _part(
            schema, "CreatableTopic", name=topic, num_partitions=partitions, replication_factor=1, assignments=(),
            configs=settings,
        )  # fmt: skip
        response = self.ask(CREATE_TOPICS, 5, topics=(new_topic,), timeout=_TIMEOUT, validate_only=False)
        if response.topics[0].error_code not in {0, _TOPIC_EXISTS}:
            raise RefusedError(f"{topic} is not created: error {response.topics[0].error_code}")
        schema = load_request_schema(LIST_OFFSETS, _LIST_OFFSETS_VERSION)
        bounds = _part(schema, "ListOffsetsPartition", partition_index=0, timestamp=-1)
        requested_topics = (_part(schema, "ListOffsetsTopic", name=topic, partitions=(bounds,)),)
        deadline = time.perf_counter() + _TIMEOUT.seconds
        while True:  # a broker answers before it has created the log
            offsets = self.ask(
                LIST_OFFSETS, _LIST_OFFSETS_VERSION, replica_id=-1, isolation_level=0, topics=requested_topics
            )
            code = offsets.topics[0].partitions[0].error_code
            if not code:
                return
            if code not in _STARTING or time.perf_counter() > deadline:
                raise RefusedError(f"{topic} cannot be read: error {code}")
            time.sleep(_PAUSE_S)  # noqa: TID251 - the other process has no event to wait for

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        response = self.ask(DELETE_TOPICS, 4, topic_names=(topic,), timeout=_TIMEOUT)
        if response.responses[0].error_code:
            raise RefusedError(f"{topic} is not deleted: error {response.responses[0].error_code}")

    def produce(self, topic: str, data: bytes) -> None:
        """Produce one batch with acks=1; raise RefusedError if the server refuses it."""
        self.replay(produce_exchange(topic, data), 1)

    def replay(self, exchange: Exchange, count: int) -> None:
        """Send a request ``count`` times with up to five requests in flight, and check each response."""
        sent = 0
        for answered in range(count):
            while sent < min(count, answered + _IN_FLIGHT):
                self._socket.sendall(exchange.frame)
                sent += 1
            exchange.check(self._receive())

    def exchange(self, exchange: Exchange) -> int:
        """Send a request, check its response, and return the size of the response."""
        self._socket.sendall(exchange.frame)
        response = self._receive()
        exchange.check(response)
        return len(response)

    def ask(self, api: int, version: int, /, **values: Any) -> Any:
        """Send a request, given by the names and values of its fields, and return the response."""
        self._socket.sendall(_frame(api, version, values))
        return self._response(api, version)

    def _response(self, api: int, version: int) -> Any:
        schema: Any = load_response_schema(api, version)
        start = _SIZE.size + (1 if schema.__flexible__ and api != API_VERSIONS else 0)
        return entity_reader(schema)(bytes(self._receive()), start)[0]

    def _receive(self) -> memoryview:
        """Receive a response, and return a view of it without its size. The view is valid until the next call."""
        return self._take(_SIZE.unpack(self._take(_SIZE.size))[0])

    def _take(self, size_bytes: int) -> memoryview:
        received_bytes = 0
        while received_bytes < size_bytes:
            count = self._socket.recv_into(self._view[received_bytes:size_bytes])
            if not count:
                raise ConnectionResetError("the server closed the connection")
            received_bytes += count
        return self._view[:size_bytes]


def produce_exchange(topic: str, data: bytes) -> Exchange:
    """Return a Produce request of one batch for partition 0, acks=1. Each response must report a higher offset."""
    schema = load_request_schema(PRODUCE, _PRODUCE_VERSION)
    records = _part(schema, "PartitionProduceData", index=0, records=data)
    topics = (_part(schema, "TopicProduceData", name=topic, partition_data=(records,)),)
    values = {"transactional_id": None, "acks": 1, "timeout": _TIMEOUT, "topic_data": topics}
    position, last = _PRODUCED_AT + len(topic), -1

    def check(response: memoryview) -> None:
        nonlocal last
        code, offset = _PRODUCED.unpack_from(response, position)
        if code or offset <= last:
            raise RefusedError(f"produce to {topic}: error {code}, offset {offset} after {last}")
        last = offset

    return Exchange(_frame(PRODUCE, _PRODUCE_VERSION, values), check)


def fetch_exchange(topic: str, offset: int, max_bytes: int, expected_bytes: int | None = None) -> Exchange:
    """Return a Fetch request of one partition. The server waits until at least one byte is available.

    Args:
        topic: the topic; the partition is 0.
        offset: the first offset of a batch.
        max_bytes: largest size of the batches in a response.
        expected_bytes: size of the batches in each response, the first of which begins at ``offset``; None accepts any
            response without an error.
    """
    schema = load_request_schema(FETCH, _FETCH_VERSION)
    partition = _part(schema, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = (_part(schema, "FetchTopic", topic=topic, partitions=(partition,)),)
    values = {"max_wait": _WAIT, "min_bytes": 1, "max_bytes": max_bytes, "topics": topics, "forgotten_topics_data": ()}
    position = _FETCHED_AT + len(topic)

    def check(response: memoryview) -> None:
        code = _FETCHED.unpack_from(response, position)[0]
        if code:
            raise RefusedError(f"fetch of {topic} at {offset}: error {code}")
        if expected_bytes is None:
            return
        size, first = _records_size(response, position + _FETCHED.size)
        if size != expected_bytes or _BASE_OFFSET.unpack_from(response, first)[0] != offset:
            raise RefusedError(f"fetch of {topic} at {offset}: {size} bytes and not {expected_bytes}")

    return Exchange(_frame(FETCH, _FETCH_VERSION, values), check)


def _records_size(response: memoryview, position: int) -> tuple[int, int]:
    """Return the number of bytes of the batches of a Fetch response, and the position of the first one."""
    size = shift = 0
    while response[position] & 0x80:
        size |= (response[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return (size | response[position] << shift) - 1, position + 1


def count_batches(response_bytes: int, batch_bytes: int) -> int:
    """Return the number of batches of ``batch_bytes`` in a Fetch response of ``response_bytes``.

    The rest of the response must be smaller than a batch.
    """
    return response_bytes // batch_bytes


def _frame(api: int, version: int, values: dict[str, Any]) -> bytes:
    schema: Any = load_request_schema(api, version)
    buffer = io.BytesIO()
    buffer.write(
        bytes(_SIZE.size) + _HEADER.pack(api, version, 7, 5) + b"bench" + (b"\0" if schema.__flexible__ else b"")
    )
    writer: Any = entity_writer(schema)
    writer(buffer, schema(**values))
    frame = bytearray(buffer.getvalue())
    _SIZE.pack_into(frame, 0, len(frame) - _SIZE.size)
    return bytes(frame)


def _part(schema: Any, kind: str, /, **values: Any) -> Any:
    return getattr(sys.modules[schema.__module__], kind)(**values)
