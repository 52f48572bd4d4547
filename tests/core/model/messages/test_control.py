from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.control import (
    ControlRecord,
    ControlType,
    EndMarker,
    Endpoint,
    KraftVersion,
    KraftVoter,
    KraftVoters,
    LeaderChange,
    QuorumVoter,
    SnapshotFooter,
    SnapshotHeader,
    control_key,
    control_value,
    parse_control,
)
from vectors import VECTORS as CHECKED

VECTORS = {vector["name"]: vector for vector in CHECKED["vectors"]}
ABORT_KEY, COMMIT_KEY = bytes.fromhex("00000000"), bytes.fromhex("00000001")
VALUE = bytes.fromhex("000000000007")


def quorum_voters(voters: list[Any], version: int) -> tuple[QuorumVoter, ...]:
    if not version:
        return tuple(QuorumVoter(voter_id=number) for number in voters)
    return tuple(QuorumVoter(voter_id=number, directory_id=uuid.UUID(directory)) for number, directory in voters)


def record_of(name: str, inputs: dict[str, Any]) -> ControlRecord:
    """Return the record that a test vector describes."""
    if name.startswith("control_leader_change"):
        version = inputs["version"]
        voters, granting = (quorum_voters(inputs[field], version) for field in ("voters", "granting_voters"))
        return LeaderChange(leader_id=inputs["leader_id"], voters=voters, granting_voters=granting, version=version)
    if name == "control_snapshot_header_v0":
        return SnapshotHeader(last_contained_log_timestamp_ms=inputs["last_contained_log_timestamp"])
    if name == "control_snapshot_footer_v0":
        return SnapshotFooter()
    if name == "control_kraft_version_v0":
        return KraftVersion(kraft_version=inputs["kraft_version"])
    return KraftVoters(
        voters=tuple(
            KraftVoter(
                voter_id=voter["id"],
                directory_id=uuid.UUID(voter["directory_id"]),
                endpoints=tuple(Endpoint(name=name, host=host, port=port) for name, host, port in voter["endpoints"]),
                min_version=voter["min_version"],
                max_version=voter["max_version"],
            )
            for voter in inputs["voters"]
        )
    )


@pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if vector["format"] == "control-value"])
def test_values_are_those_of_kafka(name: str) -> None:
    record = record_of(name, VECTORS[name]["inputs"])
    value = bytes.fromhex(VECTORS[name]["hex"])
    assert control_value(record) == value
    assert parse_control(control_key(record.kind), value) == record


@pytest.mark.parametrize(
    ("kind", "name"), [(ControlType.ABORT, "v2_abort_marker"), (ControlType.COMMIT, "v2_commit_marker")]
)
def test_marker_records_are_those_of_kafka(kind: ControlType, name: str) -> None:
    (record,) = VECTORS[name]["inputs"]["records"]
    marker = EndMarker(kind, 7)
    assert (control_key(kind).hex(), control_value(marker).hex()) == (record["key"], record["value"])
    assert parse_control(bytes.fromhex(record["key"]), bytes.fromhex(record["value"])) == marker


ids = st.integers(-(1 << 31), (1 << 31) - 1)
shorts = st.integers(-(1 << 15), (1 << 15) - 1)
named_voters = st.builds(QuorumVoter, voter_id=ids, directory_id=st.uuids())
voter_lists = st.lists(named_voters, max_size=4).map(tuple)
endpoints = st.builds(Endpoint, name=st.text(max_size=200), host=st.text(max_size=9), port=st.integers(0, 65535))
kraft_voters = st.builds(
    KraftVoter,
    voter_id=ids,
    directory_id=st.uuids(),
    endpoints=st.lists(endpoints, max_size=3).map(tuple),
    min_version=shorts,
    max_version=shorts,
)
records = st.one_of(
    st.builds(EndMarker, st.sampled_from([ControlType.ABORT, ControlType.COMMIT]), ids),
    st.builds(LeaderChange, leader_id=ids, voters=voter_lists, granting_voters=voter_lists, version=st.just(1)),
    st.builds(SnapshotHeader, last_contained_log_timestamp_ms=st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(SnapshotFooter),
    st.builds(KraftVersion, kraft_version=shorts),
    st.builds(KraftVoters, voters=st.lists(kraft_voters, max_size=3).map(tuple)),
)


@given(records)
def test_records_come_back_as_written(record: ControlRecord) -> None:
    assert parse_control(control_key(record.kind), control_value(record)) == record


@given(records)
def test_a_value_that_is_cut_anywhere_is_refused(record: ControlRecord) -> None:
    value = control_value(record)
    for size in range(len(value)):
        with pytest.raises(InvalidRecordError):
            parse_control(control_key(record.kind), value[:size])


@given(st.sampled_from(ControlType), st.binary(max_size=60))
def test_forged_bytes_get_a_typed_error_or_a_record(kind: ControlType, value: bytes) -> None:
    try:
        record = parse_control(control_key(kind), value)
    except InvalidRecordError:
        return
    assert record is not None
    assert record.kind is kind


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
    assert parse_control(key, value) == EndMarker(kind, 7)


def test_tagged_fields_of_later_releases_are_passed_over() -> None:
    """A reader skips tags that it does not know (KIP-482)."""
    header = SnapshotHeader(last_contained_log_timestamp_ms=5)
    tagged = control_value(header)[:-1] + bytes.fromhex("02" + "0003aabbcc" + "0700")
    assert parse_control(control_key(ControlType.SNAPSHOT_HEADER), tagged) == header


@pytest.mark.parametrize("number", [7, 99, -1])
def test_an_unknown_type_is_none(number: int) -> None:
    """Kafka calls such a type UNKNOWN, and readers ignore the record."""
    assert parse_control(b"\0\0" + number.to_bytes(2, "big", signed=True), VALUE) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE),
        (b"", VALUE),
        (ABORT_KEY[:3], VALUE),
        (bytes.fromhex("ffff0000"), VALUE),
        (ABORT_KEY, None),
        (ABORT_KEY, b""),
        (ABORT_KEY, VALUE[:5]),
        (ABORT_KEY, bytes.fromhex("ffff00000007")),
        (control_key(ControlType.LEADER_CHANGE), bytes.fromhex("0002") + bytes(20)),
        (control_key(ControlType.SNAPSHOT_FOOTER), bytes.fromhex("ffff00")),
        (control_key(ControlType.KRAFT_VOTERS), bytes.fromhex("000000" + "00")),
        (control_key(ControlType.KRAFT_VERSION), bytes.fromhex("00000001" + "8080808080")),
    ],
)
def test_records_that_cannot_be_parsed_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InvalidRecordError):
        parse_control(key, value)
