from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptSnapshotError
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from vectors import VECTORS

SNAPSHOTS = [vector for vector in VECTORS["vectors"] if vector["format"] == "producer-snapshot"]
ONE = ProducerEntry(4000, 3, 18, 120, 1, 1_700_000_000_123, 7, 95)

int16 = st.integers(-(1 << 15), (1 << 15) - 1)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
producers = st.builds(ProducerEntry, int64, int16, int32, int64, int32, int64, int32, int64)


def entries_of(vector: dict[str, Any]) -> list[ProducerEntry]:
    return [
        ProducerEntry(
            fields["producer_id"],
            fields["epoch"],
            fields["last_sequence"],
            fields["last_offset"],
            fields["offset_delta"],
            fields["timestamp"],
            fields["coordinator_epoch"],
            fields["current_txn_first_offset"],
        )
        for fields in vector["inputs"]["entries"]
    ]


def test_there_are_vectors() -> None:
    assert {len(entries_of(vector)) for vector in SNAPSHOTS} == {0, 1}


@pytest.mark.parametrize("vector", SNAPSHOTS, ids=lambda vector: vector["name"])
def test_snapshots_are_kafkas_bytes(vector: dict[str, Any]) -> None:
    assert encode_snapshot(entries_of(vector)).hex() == vector["hex"]
    assert decode_snapshot(bytes.fromhex(vector["hex"]), "f") == entries_of(vector)


@given(st.lists(producers, max_size=4))
def test_entries_come_back_as_written(entries: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries), "f") == entries


@pytest.mark.parametrize("entries", [[], [ONE], [ONE, ONE._replace(producer_id=4001)]], ids=len)
def test_every_flipped_bit_is_seen(entries: list[ProducerEntry]) -> None:
    snapshot = encode_snapshot(entries)
    for bit in range(8 * len(snapshot)):
        damaged = bytearray(snapshot)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(damaged), "f")


@pytest.mark.parametrize("size", range(10 + 2 * 46))
def test_a_cut_snapshot_is_refused(size: int) -> None:
    snapshot = encode_snapshot([ONE, ONE])
    with pytest.raises(CorruptSnapshotError) as caught:
        decode_snapshot(snapshot[:size], "00000000000000000121.snapshot")
    assert caught.value.file == "00000000000000000121.snapshot"


def sealed(count: int, body: bytes, version: int = 1) -> bytes:
    checked = count.to_bytes(4, "big", signed=True) + body
    return version.to_bytes(2, "big") + crc32c(checked).to_bytes(4, "big") + checked


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (sealed(0, b"", version=2), 0),
        (sealed(0, b"", version=0), 0),
        (sealed(-1, b""), 6),
        (sealed(1, b""), 6),
        (sealed((1 << 31) - 1, b""), 6),
        (sealed(1, bytes(47)), 6),
        (encode_snapshot([ONE]) + b"\0", 6),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused_though_its_crc_is_right(data: bytes, position: int) -> None:
    with pytest.raises(CorruptSnapshotError) as caught:
        decode_snapshot(data, "f")
    assert caught.value.position == position
