"""Messages of splits: they are received as they were sent, and damaged or forged ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from zstandard import ZstdCompressor, ZstdDecompressor

from stratalog import Isolation, TopicPartition
from stratalog.errors import CorruptBatchError, StorageError
from stratalog.model.names import TopicId
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import AbortedTransaction, FileKind, ObjectSlice, SegmentInfo
from stratalog.reading import Split, split
from stratalog.reading.split import PackedSegment, Piece
from stratalog.spi.layouts import StoredSegment

TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
LOG = TopicPartition("orders", 3)
STORED = StoredSegment(
    SegmentInfo(LOG, TOPIC_ID, 5, 9, 100, -1, 1_700_000_000_000, (EpochEntry(0, 5), EpochEntry(2, 7))),
    "single@1",
    {FileKind.LOG: ObjectSlice(f"orders-{TOPIC_ID}/3/segments/1.seg", 0, 100)},
    "ab" * 32,
)
SPLIT = Split(
    (
        Piece(
            LOG, TOPIC_ID, 5, 8, 10, 90, 5, 9, 100, PackedSegment.of(STORED), aborted=(AbortedTransaction(1, 5, 6, 7),)
        ),
        Piece(
            TopicPartition("old", 0), None, 0, 4, 0, 9, 0, 4, 9, "0.log", is_active=True, file_start=2, file_bytes=11
        ),
        Piece(LOG, TOPIC_ID, 9, 12, 0, 0, 9, 12, 0, "", records=3),
    ),
    Isolation.READ_COMMITTED,
)


def test_a_split_arrives_as_it_was() -> None:
    received = Split.from_message(SPLIT.to_message())
    assert received == SPLIT
    assert [piece.stored_segment() for piece in received.pieces] == [STORED, None, None]


def test_the_damage_at_the_end_of_a_log_arrives() -> None:
    damage = CorruptBatchError("cut", "orders-3/00.log", 17)
    sent_split = Split((Piece(LOG, None, 9, 9, 0, 0, 9, 9, 0, "", damage=damage),), Isolation.READ_UNCOMMITTED)
    received = Split.from_message(sent_split.to_message()).pieces[0].damage
    assert isinstance(received, CorruptBatchError)
    assert (received.reason, received.file, received.position) == ("cut", "orders-3/00.log", 17)


def forged(change: Callable[[list[Any]], object], *more_lines: str) -> bytes:
    """Return the message of ``SPLIT`` with a changed header and with further lines."""
    header, *lines = ZstdDecompressor().decompress(SPLIT.to_message()).decode().split("\n")
    fields = json.loads(header)
    change(fields)
    return ZstdCompressor().compress("\n".join([json.dumps(fields), *lines, *more_lines]).encode())


def kept(_: list[Any]) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SPLIT.to_message()[:-3],
        ZstdCompressor().compress(b"{}"),
        forged(kept, "{}"),
        forged(lambda fields: fields.append(1)),
        forged(lambda fields: fields.__setitem__(0, "read_all")),
        forged(lambda fields: fields[1].clear()),
        forged(lambda fields: fields[1][0].__setitem__(1, True)),
        forged(lambda fields: fields[1][0].__setitem__(2, None)),
        forged(lambda fields: fields[2].pop(0)),
        forged(lambda fields: fields[2][0].append(1)),
        forged(lambda fields: fields[2][0].__setitem__(0, -1)),
        forged(lambda fields: fields[2][0].__setitem__(1, 7)),
        forged(lambda fields: fields[2][1].__setitem__(1, None)),
        forged(lambda fields: fields[2][0].__setitem__(2, 0)),
        forged(lambda fields: fields[2][0].__setitem__(4, [[1, 2, 3]])),
        forged(lambda fields: fields[2][0].__setitem__(6, "5")),
        forged(lambda fields: fields[2][1].__setitem__(1, 0)),
    ],
)
def test_a_damaged_or_forged_message_is_refused(data: bytes) -> None:
    with pytest.raises((StorageError, TypeError, ValueError, KeyError)):
        Split.from_message(data)


def test_a_message_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_LARGEST_UNPACKED_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        Split.from_message(SPLIT.to_message())
