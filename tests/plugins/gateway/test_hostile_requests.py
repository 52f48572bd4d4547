"""Damaged requests: each gets a response, or its connection is closed; other connections are not affected."""

from __future__ import annotations

import datetime as dt
import os
import struct
import threading
from pathlib import Path
from random import Random
from typing import Final

import pytest
from kio.index import load_request_schema

from gateway_bed import Served, part, request, served
from stratalog import open_engine
from stratalog.env.clock import ManualClock
from stratalog.errors import StorageError
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.handlers.dispatch import APIS, Dispatcher
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.primitives import MalformedRequestError

COUNT: Final = int(os.environ.get("GATEWAY_FUZZ_COUNT", "3000"))
SEED: Final = int(os.environ.get("GATEWAY_FUZZ_SEED", "1"))


class JumpingClock(ManualClock):
    """Clock that advances by about 35 years at each wait, and does not wait."""

    def wait(self, event: threading.Event, duration_ms: int) -> bool:
        self.advance_ms(max(duration_ms, 1 << 40))
        return event.is_set()


def seeds() -> list[bytes]:
    """Return requests of every API and version with a body of zeros, which is valid for the simpler APIs."""
    return [
        struct.pack(">hhih", number, version, 7, 1) + b"c" + bytes(64)
        for number, api in APIS.items()
        for version in range(api.first, api.last + 1)
    ]


def transactional_seeds() -> list[bytes]:
    """Return valid requests of a transactional producer, in all versions whose formats differ."""
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    producer = {"transactional_id": "t", "producer_id": 7, "producer_epoch": 0}
    frames = []
    for version in (3, 5):
        init = {"transactional_id": "t", "transaction_timeout": dt.timedelta(seconds=60)}
        frames.append(request("InitProducerId", version, {**init, "producer_id": -1, "producer_epoch": -1}))
        frames.append(request("EndTxn", version, {**producer, "committed": True}))
        offsets = part("TxnOffsetCommit", version, "TxnOffsetCommitRequestPartition", **partition)
        topic = part("TxnOffsetCommit", version, "TxnOffsetCommitRequestTopic", name="orders", partitions=(offsets,))
        member = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
        frames.append(request("TxnOffsetCommit", version, {**producer, **member, "topics": (topic,)}))
    added_topic = part("AddPartitionsToTxn", 3, "AddPartitionsToTxnTopic", name="orders", partitions=(0, 1))
    old = {f"v3_and_below_{name}": value for name, value in {**producer, "topics": (added_topic,)}.items()}
    frames.append(request("AddPartitionsToTxn", 3, old))
    frames.append(request("AddOffsetsToTxn", 3, {**producer, "group_id": "g"}))
    marked_topic = part("WriteTxnMarkers", 1, "WritableTxnMarkerTopic", name="orders", partition_indexes=(0,))
    marker = part(
        "WriteTxnMarkers", 1, "WritableTxnMarker", producer_id=7, producer_epoch=0, transaction_result=True,
        topics=(marked_topic,), coordinator_epoch=0,
    )  # fmt: skip
    frames.append(request("WriteTxnMarkers", 1, {"markers": (marker,)}))
    frames.append(request("DescribeTransactions", 0, {"transactional_ids": ("t",)}))
    return frames


def mutant(chance: Random, data: bytes) -> bytes:
    """Return the request with some bytes changed, removed or added. The number of the API stays."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        position = chance.randrange(4, len(damaged))
        match chance.randrange(4):
            case 0:
                damaged[position] = chance.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 1:
                del damaged[max(position, 12) :]
            case 2:
                damaged[position:position] = chance.randbytes(chance.randint(1, 20))
            case _:
                damaged[position : position + 4] = struct.pack(">i", chance.choice((-1, 1, 5, 1 << 20, (1 << 31) - 1)))
    return bytes(damaged)


def test_damaged_requests_raise_no_other_error(tmp_path: Path) -> None:
    chance, answered_count, refused_count = Random(SEED), 0, 0  # noqa: S311 - the same mutants in each run
    frames = seeds() + 3 * transactional_seeds()
    with open_engine(tmp_path) as engine:
        for topic in ("orders", "__transaction_state", "__consumer_offsets"):
            engine.create_topic(topic)
        node = Node(engine, GatewaySection(auto_create=False), JumpingClock())
        dispatch, client = Dispatcher(node, GroupTable(node)), Client("127.0.0.1", node.settings.endpoints()[0])
        for _ in range(COUNT):
            try:
                dispatch(memoryview(mutant(chance, chance.choice(frames))), client)
                answered_count += 1
            except (MalformedRequestError, StorageError):
                refused_count += 1
        node.close()
    assert min(answered_count, refused_count) > COUNT // 20


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        bytes(4),
        b"\0\0\0\1\0",
    ],
    ids=["http", "tls", "too large", "negative", "empty", "without a header"],
)
def test_bytes_of_other_protocols_close_the_connection(gateway: Served, data: bytes) -> None:
    with gateway.wire() as wire:
        wire.send_raw(data)
        assert wire.receive() is None


@pytest.mark.parametrize(
    "body",
    [b"\0\x0f\0\5\0\0\0\7\xff\xff\0\xff\xff\xff\xff\x0f\0", b"\0\x0f\0\1\0\0\0\7\xff\xff\x7f\xff\xff\xff"],
    ids=["flexible", "before"],
)
def test_a_request_that_announces_a_huge_array_does_not_end_the_process(gateway: Served, body: bytes) -> None:
    with gateway.wire() as wire:
        wire.send(body)
        assert wire.receive() is None
    with gateway.wire() as wire:
        assert wire.ask("ApiVersions", 0).error_code == 0


def test_a_truncated_request_closes_the_connection(gateway: Served) -> None:
    frame = request("ApiVersions", 0, {})
    with gateway.wire() as wire:
        wire.send_raw(struct.pack(">i", len(frame)) + frame[:-1])
        wire.end()
        assert wire.receive() is None


def test_connections_above_the_limit_are_closed(tmp_path: Path) -> None:
    with served(tmp_path / "few", connections=1) as few, few.wire() as first:
        assert first.ask("ApiVersions", 0).error_code == 0
        with few.wire() as second:
            assert second.receive() is None
        assert first.ask("ApiVersions", 0).error_code == 0


def test_a_silent_connection_is_closed(tmp_path: Path) -> None:
    with served(tmp_path / "idle", idle_ms=100) as idle, idle.wire() as wire:
        assert wire.receive() is None


def test_every_announced_version_has_a_schema() -> None:
    for number, api in APIS.items():
        for version in range(api.first, api.last + 1):
            assert load_request_schema(number, version) is not None
