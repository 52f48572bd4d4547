"""A client that costs little: requests are encoded once, and responses are only measured.

Both servers get the same bytes: Produce 9 and Fetch 12, uncompressed batches of magic 2.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import socket
import struct
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Final, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from stratalog import Record, open_engine

PRODUCE, FETCH, API_VERSIONS, CREATE_TOPICS = 0, 1, 18, 19
_PRODUCE_VERSION, _FETCH_VERSION = 9, 12
_HEADER: Final = struct.Struct(">hhih")
_SIZE: Final = struct.Struct(">i")
_VALUE_BYTES: Final = 100
_MAX_RECORDS: Final = 1000  # of a batch
_IN_FLIGHT: Final = 5
_BUFFER_BYTES: Final = 4 << 20
_WAIT: Final = dt.timedelta(milliseconds=500)
_TIMEOUT: Final = dt.timedelta(seconds=30)
_TOPIC_EXISTS: Final = 36


class RefusedError(ConnectionError):
    """The server answered with an error code."""


@dataclass(frozen=True, slots=True)
class Batch:
    """An encoded batch."""

    data: bytes
    records: int


class Connection:
    """One connection to a server on loopback. For one thread."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT.seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._view = memoryview(bytearray(_BUFFER_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @staticmethod
    @cache
    def batch(size_bytes: int) -> Batch:
        """Return a batch of about this size, of records with random values of 100 bytes, larger ones for 1 MiB."""
        value_bytes = max(_VALUE_BYTES, size_bytes // _MAX_RECORDS)
        count = max(size_bytes // (value_bytes + 10), 1)
        records = [Record(timestamp_ms=1_700_000_000_000, value=os.urandom(value_bytes)) for _ in range(count)]
        with tempfile.TemporaryDirectory() as folder, open_engine(folder) as engine:
            engine.create_topic("t", config={"max.message.bytes": 2 * size_bytes + 1000})
            log = engine.log("t", 0)
            log.append(records)
            with log.fetch(0, 4 * size_bytes + 1000) as found:
                return Batch(found.read(), count)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic that accepts batches of 2 MiB, unless it exists."""
        schema = load_request_schema(CREATE_TOPICS, 5)
        setting = _part(schema, "CreatableTopicConfig", name="max.message.bytes", value=str(2 << 20))
        wanted = _part(
            schema, "CreatableTopic", name=topic, num_partitions=partitions, replication_factor=1, assignments=(),
            configs=(setting,),
        )  # fmt: skip
        found = self.ask(CREATE_TOPICS, 5, topics=(wanted,), timeout=_TIMEOUT, validate_only=False)
        if found.topics[0].error_code not in {0, _TOPIC_EXISTS}:
            raise RefusedError(f"{topic} is not created: error {found.topics[0].error_code}")

    def produce(self, topic: str, data: bytes) -> None:
        """Produce one batch with acks=1; raise RefusedError if the server refuses it."""
        self._socket.sendall(produce_frame(topic, data))
        found = self._response(PRODUCE, _PRODUCE_VERSION)
        code = found.responses[0].partition_responses[0].error_code
        if code:
            raise RefusedError(f"produce: error {code}")

    def replay(self, frame: bytes, count: int) -> None:
        """Send a request so many times, five of them in flight, and drop the responses."""
        sent = 0
        for answered in range(count):
            while sent < min(count, answered + _IN_FLIGHT):
                self._socket.sendall(frame)
                sent += 1
            self.drop()

    def send(self, frame: bytes) -> None:
        """Send a request."""
        self._socket.sendall(frame)

    def drop(self) -> int:
        """Receive a response, and return its size."""
        size: int = _SIZE.unpack(self._take(_SIZE.size))[0]
        self._take(size)
        return size

    def ask(self, api: int, version: int, /, **values: Any) -> Any:
        """Send a request of named fields, and return the response."""
        self._socket.sendall(_frame(api, version, values))
        return self._response(api, version)

    def _response(self, api: int, version: int) -> Any:
        size = _SIZE.unpack(self._take(_SIZE.size))[0]
        schema: Any = load_response_schema(api, version)
        start = _SIZE.size + (1 if schema.__flexible__ and api != API_VERSIONS else 0)
        return entity_reader(schema)(bytes(self._take(size)), start)[0]

    def _take(self, size: int) -> memoryview:
        got = 0
        while got < size:
            count = self._socket.recv_into(self._view[got:size])
            if not count:
                raise ConnectionResetError("the server closed the connection")
            got += count
        return self._view[:size]


def produce_frame(topic: str, data: bytes) -> bytes:
    """Return a Produce request of one batch for partition 0, acks=1."""
    schema = load_request_schema(PRODUCE, _PRODUCE_VERSION)
    records = _part(schema, "PartitionProduceData", index=0, records=data)
    topics = (_part(schema, "TopicProduceData", name=topic, partition_data=(records,)),)
    values = {"transactional_id": None, "acks": 1, "timeout": _TIMEOUT, "topic_data": topics}
    return _frame(PRODUCE, _PRODUCE_VERSION, values)


def fetch_frame(topic: str, offset: int, max_bytes: int) -> bytes:
    """Return a Fetch request of one partition, which waits for a first byte."""
    schema = load_request_schema(FETCH, _FETCH_VERSION)
    wanted = _part(schema, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = (_part(schema, "FetchTopic", topic=topic, partitions=(wanted,)),)
    values = {"max_wait": _WAIT, "min_bytes": 1, "max_bytes": max_bytes, "topics": topics, "forgotten_topics_data": ()}
    return _frame(FETCH, _FETCH_VERSION, values)


def batches_in(response_bytes: int, batch_bytes: int) -> int:
    """Return the number of batches in a Fetch response: the rest of the response is smaller than any batch."""
    return response_bytes // batch_bytes


def _frame(api: int, version: int, values: dict[str, Any]) -> bytes:
    schema: Any = load_request_schema(api, version)
    out = io.BytesIO()
    out.write(bytes(_SIZE.size) + _HEADER.pack(api, version, 7, 5) + b"bench" + (b"\0" if schema.__flexible__ else b""))
    writer: Any = entity_writer(schema)
    writer(out, schema(**values))
    frame = bytearray(out.getvalue())
    _SIZE.pack_into(frame, 0, len(frame) - _SIZE.size)
    return bytes(frame)


def _part(schema: Any, kind: str, /, **values: Any) -> Any:
    return getattr(sys.modules[schema.__module__], kind)(**values)
