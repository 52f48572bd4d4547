from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.producers.transactions import ControlType, EndMarker, marker_record, parse_marker

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "vectors.json").read_text(encoding="utf-8"))
ABORT_KEY, COMMIT_KEY = bytes.fromhex("00000000"), bytes.fromhex("00000001")
VALUE = bytes.fromhex("000000000007")


@pytest.mark.parametrize(
    ("kind", "name"), [(ControlType.ABORT, "v2_abort_marker"), (ControlType.COMMIT, "v2_commit_marker")]
)
def test_marker_records_are_those_of_kafka(kind: ControlType, name: str) -> None:
    batch = bytes.fromhex(next(vector["hex"] for vector in VECTORS["vectors"] if vector["name"] == name))
    key, value = marker_record(kind, 7)
    assert key in batch
    assert batch.endswith(value + b"\0")
    assert parse_marker(key, value) == EndMarker(kind, 7)


@given(st.sampled_from(ControlType), st.integers(-(1 << 31), (1 << 31) - 1))
def test_markers_come_back_as_written(kind: ControlType, coordinator_epoch: int) -> None:
    assert parse_marker(*marker_record(kind, coordinator_epoch)) == EndMarker(kind, coordinator_epoch)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (ABORT_KEY, VALUE, ControlType.ABORT),
        (COMMIT_KEY, VALUE, ControlType.COMMIT),
        (bytes.fromhex("00010000"), VALUE, ControlType.ABORT),
        (ABORT_KEY + b"more", bytes.fromhex("000500000007") + b"more", ControlType.ABORT),
    ],
)
def test_newer_and_longer_markers_are_read(key: bytes, value: bytes, kind: ControlType) -> None:
    assert parse_marker(key, value) == EndMarker(kind, 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE),
        (b"", VALUE),
        (ABORT_KEY[:3], VALUE),
        (bytes.fromhex("ffff0000"), VALUE),
        (bytes.fromhex("00000002"), VALUE),
        (bytes.fromhex("0000ffff"), VALUE),
        (ABORT_KEY, None),
        (ABORT_KEY, b""),
        (ABORT_KEY, VALUE[:5]),
        (ABORT_KEY, bytes.fromhex("ffff00000007")),
    ],
)
def test_what_is_no_end_marker_is_none(key: bytes | None, value: bytes | None) -> None:
    assert parse_marker(key, value) is None
