"""Requests to a broker that client libraries do not offer: appends of given bytes, and transaction markers.

Source: apache/kafka ProduceRequest.json (version 7), WriteTxnMarkersRequest.json (version 1).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from struct import Struct, calcsize, unpack_from
from typing import Final, NamedTuple

from stratalog.env.clock import SystemClock
from stratalog.env.closing import Closeable

ANSWER_SECONDS: Final = 30
CLIENT: Final = b"oracle"
_NOT_YET: Final = frozenset({3, 5, 6})  # UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER
_LOOK_AGAIN_MS: Final = 50
_PRODUCE: Final = 0
_WRITE_MARKERS: Final = 27
_HEAD: Final = Struct(">hhih")


class Answer(NamedTuple):
    """Reply to a request: Kafka's error code (0 is none), and the base offset of an append (-1 if not known)."""

    code: int
    base_offset: int = -1


class KafkaWire(Closeable):
    """One connection to a broker, for one thread. All requests use partition 0.

    A broker that has just started may not lead its partitions yet. Requests are repeated until it does.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), ANSWER_SECONDS)
        self._number = 0

    def produce(self, topic: str, data: bytes) -> Answer:
        """Append a batch unchanged, and return the response."""
        body = _text(b"any") + Struct(">hii").pack(-1, ANSWER_SECONDS * 1000, 1)
        body += _text(topic.encode()) + Struct(">iii").pack(1, 0, len(data)) + data
        return self._until_led(lambda: _produced(self._ask(_PRODUCE, 7, body), topic))

    def end_transaction(
        self, topic: str, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int
    ) -> Answer:
        """Append a transaction marker, as a transaction coordinator does."""
        name = topic.encode()
        body = b"\0\2" + Struct(">qh?").pack(producer_id, producer_epoch, commit)  # tags of the header; one marker
        body += bytes((2, len(name) + 1)) + name + b"\2" + bytes(4) + b"\0"
        body += Struct(">i").pack(coordinator_epoch) + b"\0\0"
        return self._until_led(lambda: _marked(self._ask(_WRITE_MARKERS, 1, body), topic))

    def _until_led(self, ask: Callable[[], Answer]) -> Answer:
        clock = SystemClock()
        end_ns = clock.monotonic_ns() + ANSWER_SECONDS * 1_000_000_000
        while (answer := ask()).code in _NOT_YET and clock.monotonic_ns() < end_ns:
            clock.sleep_ms(_LOOK_AGAIN_MS)
        return answer

    def _ask(self, kind: int, version: int, body: bytes) -> bytes:
        self._number += 1
        request = _HEAD.pack(kind, version, self._number, len(CLIENT)) + CLIENT + body
        self._socket.sendall(len(request).to_bytes(4, "big") + request)
        answer = self._receive(int.from_bytes(self._receive(4), "big"))
        assert int.from_bytes(answer[:4], "big") == self._number
        return answer[4:]

    def _receive(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            part = self._socket.recv(size_bytes - len(data))
            assert part, "the broker hung up: it could not read the request, and its output says why"
            data += part
        return bytes(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _produced(answer: bytes, topic: str) -> Answer:
    _, code, base_offset = unpack_from(">ihq", answer, 4 + 2 + len(topic.encode()) + 4)
    return Answer(code, base_offset)


def _marked(answer: bytes, topic: str) -> Answer:
    _, code = unpack_from(">ih", answer, 1 + 1 + calcsize(">q") + 1 + 1 + len(topic.encode()) + 1)
    return Answer(code)


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text
