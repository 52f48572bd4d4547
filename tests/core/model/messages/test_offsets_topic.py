from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidRecordError
from stratalog.model.messages.offsets_topic import (
    ClassicMember,
    ClassicProtocol,
    CommitKey,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    CurrentMemberAssignment,
    GroupKey,
    GroupMember,
    GroupMetadata,
    MemberKey,
    OffsetCommit,
    OffsetsKey,
    OffsetsRecord,
    OffsetsType,
    OffsetsValue,
    PartitionRacks,
    RegularExpressionKey,
    ResolvedRegularExpression,
    SubscribedTopic,
    SubscribedTopics,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    TopicIdPartitions,
    offsets_key,
    offsets_value,
    parse_offsets_record,
)
from vectors import VECTORS as CHECKED

VECTORS = {vector["name"]: vector for vector in CHECKED["vectors"]}
COMMITS = [name for name in VECTORS if name.startswith("offset_commit_value_")]
GROUPS = [name for name in VECTORS if name.startswith("group_metadata_value_")]
COMMIT_KEY = CommitKey(group="g1", topic="t", partition=3)
GROUP, MEMBER = GroupKey(group="g1"), MemberKey(group="g1", member="m")
TOPIC_ID = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)
PLACES = (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0, 7)),)


def raw(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name]["hex"])


def commit_of(inputs: dict[str, Any]) -> OffsetCommit:
    """Return the commit that a test vector describes; fields that its version lacks are -1."""
    epoch, expiry = inputs["leader_epoch"], inputs["expire_timestamp"]
    return OffsetCommit(
        offset=inputs["offset"],
        leader_epoch=-1 if epoch is None else epoch,
        metadata=inputs["metadata"],
        commit_timestamp_ms=inputs["commit_timestamp"],
        expire_timestamp_ms=-1 if expiry is None else expiry,
    )


def group_of(inputs: dict[str, Any]) -> GroupMetadata:
    """Return the group metadata that a test vector describes, without fields that its version lacks."""
    version = inputs["version"]
    members = (
        GroupMember(
            member=member["id"],
            instance=member["instance"] if version >= 3 else None,
            client_id=member["client"],
            client_host=member["host"],
            rebalance_timeout_ms=member["rebalance"] if version else -1,
            session_timeout_ms=member["session"],
            subscription=bytes.fromhex(member["subscription"]),
            assignment=bytes.fromhex(member["assignment"]),
        )
        for member in inputs["members"]
    )
    return GroupMetadata(
        protocol_type=inputs["protocol_type"],
        generation=inputs["generation"],
        protocol=inputs["protocol"],
        leader=inputs["leader"],
        state_timestamp_ms=inputs["current_state_timestamp"] if version >= 2 else -1,
        members=tuple(members),
    )


@pytest.mark.parametrize("name", COMMITS)
def test_commits_of_every_version(name: str) -> None:
    inputs = VECTORS[name]["inputs"]
    value = commit_of(inputs)
    result = parse_offsets_record(raw("offset_commit_key_v1"), raw(name))
    assert result == OffsetsRecord(OffsetsType.OFFSET_COMMIT, COMMIT_KEY, value, inputs["version"])
    assert offsets_value(OffsetsType.OFFSET_COMMIT, value, inputs["version"]) == raw(name)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_every_version(name: str) -> None:
    inputs = VECTORS[name]["inputs"]
    value = group_of(inputs)
    result = parse_offsets_record(raw("group_metadata_key_v2"), raw(name))
    assert result == OffsetsRecord(OffsetsType.GROUP_METADATA, GROUP, value, inputs["version"])
    assert offsets_value(OffsetsType.GROUP_METADATA, value, inputs["version"]) == raw(name)


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("offset_commit_key_v0", OffsetsType.OLD_OFFSET_COMMIT, COMMIT_KEY),
        ("offset_commit_key_v1", OffsetsType.OFFSET_COMMIT, COMMIT_KEY),
        ("group_metadata_key_v2", OffsetsType.GROUP_METADATA, GROUP),
        ("consumer_group_metadata_key", OffsetsType.CONSUMER_GROUP_METADATA, GROUP),
        ("consumer_group_current_assignment_key", OffsetsType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, MEMBER),
    ],
)
def test_keys_and_tombstones(name: str, kind: OffsetsType, key: OffsetsKey) -> None:
    assert parse_offsets_record(raw(name), None) == OffsetsRecord(kind, key, None, None)
    assert offsets_key(kind, key) == raw(name)


def test_values_of_the_newer_protocol_that_kafka_wrote() -> None:
    member = ConsumerGroupMember(
        instance=None,
        rack="r",
        client_id="c",
        client_host="/h",
        topics=("t",),
        regular_expression=None,
        rebalance_timeout_ms=300_000,
        assignor="uniform",
    )
    member_kind = OffsetsType.CONSUMER_GROUP_MEMBER_METADATA
    assert offsets_value(member_kind, member, 0) == raw("consumer_group_member_value_v0")
    epoch = ConsumerGroupMetadata(epoch=9)
    assert offsets_value(OffsetsType.CONSUMER_GROUP_METADATA, epoch, 0) == raw("consumer_group_metadata_value_v0")


NEWER: list[tuple[OffsetsType, OffsetsKey, OffsetsValue]] = [
    (OffsetsType.CONSUMER_GROUP_METADATA, GROUP, ConsumerGroupMetadata(epoch=9, metadata_hash=-5)),
    (
        OffsetsType.CONSUMER_GROUP_PARTITION_METADATA,
        GROUP,
        SubscribedTopics(
            topics=(
                SubscribedTopic(
                    topic_id=TOPIC_ID,
                    topic="t",
                    partition_count=2,
                    partitions=(PartitionRacks(partition=1, racks=("a", "b")),),
                ),
            )
        ),
    ),
    (
        OffsetsType.CONSUMER_GROUP_MEMBER_METADATA,
        MEMBER,
        ConsumerGroupMember(
            instance="i",
            rack=None,
            client_id="c",
            client_host="/h",
            topics=(),
            regular_expression="a.*",
            rebalance_timeout_ms=1,
            assignor=None,
            classic=ClassicMember(
                session_timeout_ms=45_000, protocols=(ClassicProtocol(name="range", metadata=b"\0\1"),)
            ),
        ),
    ),
    (
        OffsetsType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA,
        GROUP,
        TargetAssignmentMetadata(assignment_epoch=4),
    ),
    (OffsetsType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, MEMBER, TargetAssignmentMember(partitions=PLACES)),
    (
        OffsetsType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
        MEMBER,
        CurrentMemberAssignment(
            member_epoch=3, previous_member_epoch=2, state=1, assigned=PLACES, pending_revocation=()
        ),
    ),
    (
        OffsetsType.CONSUMER_GROUP_REGULAR_EXPRESSION,
        RegularExpressionKey(group="g1", regular_expression="a.*"),
        ResolvedRegularExpression(topics=("ab",), version=12, timestamp_ms=1),
    ),
]


@pytest.mark.parametrize(("kind", "key", "value"), NEWER, ids=[kind.name for kind, _, _ in NEWER])
def test_written_records_are_read_back(kind: OffsetsType, key: OffsetsKey, value: OffsetsValue) -> None:
    data = offsets_value(kind, value, 0)
    assert parse_offsets_record(offsets_key(kind, key), data) == OffsetsRecord(kind, key, value, 0)
    for end in range(len(data)):
        with pytest.raises(InvalidRecordError):
            parse_offsets_record(offsets_key(kind, key), data[:end])


def test_share_groups_keep_their_bytes() -> None:
    for kind in OffsetsType:
        if kind.name.startswith("SHARE_GROUP"):
            key: OffsetsKey = MEMBER if "MEMBER" in kind.name else GROUP
            result = parse_offsets_record(offsets_key(kind, key), b"\0\2rest")
            assert result == OffsetsRecord(kind, key, b"\0\2rest", 2)


def test_a_later_type_is_passed_over() -> None:
    assert parse_offsets_record(bytes.fromhex("00630000"), b"anything") is None
    assert parse_offsets_record(bytes.fromhex("ffff"), None) is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (None, b"", "no key"),
        (b"\0", b"", "inside its fields"),
        (raw("offset_commit_key_v1")[:-1], None, "inside its fields"),
        (raw("offset_commit_key_v1"), b"", "an offset commit ends"),
        (raw("offset_commit_key_v1"), b"\0\5" + raw("offset_commit_value_v4")[2:], "version 5"),
        (raw("offset_commit_key_v1"), b"\xff\xff", "version -1"),
        (raw("offset_commit_key_v1"), bytes.fromhex("0000000000000000002affff"), "a string is null"),
        (raw("group_metadata_key_v2"), raw("group_metadata_value_v3_empty")[:-4] + b"\xff" * 4, "an array is null"),
    ],
)
def test_bad_bytes_are_refused(key: bytes | None, value: bytes | None, said: str) -> None:
    with pytest.raises(InvalidRecordError, match=said):
        parse_offsets_record(key, value)


def test_a_message_that_does_not_fit_its_schema_is_not_written() -> None:
    commit = OffsetCommit(offset=1 << 63, metadata="", commit_timestamp_ms=0)
    with pytest.raises(InvalidRecordError, match="an offset commit cannot be written"):
        offsets_value(OffsetsType.OFFSET_COMMIT, commit, 1)
    with pytest.raises(InvalidRecordError, match="version 5"):
        offsets_value(OffsetsType.OFFSET_COMMIT, commit, 5)
    with pytest.raises(InvalidRecordError, match="OFFSET_COMMIT has no value of type GroupMetadata"):
        offsets_value(OffsetsType.OFFSET_COMMIT, group_of(VECTORS[GROUPS[0]]["inputs"]), 3)
    with pytest.raises(InvalidRecordError, match="no key of type GroupKey"):
        offsets_key(OffsetsType.OFFSET_COMMIT, GROUP)


@given(st.integers(0, 17), st.binary(max_size=40), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(number: int, key: bytes, value: bytes) -> None:
    with contextlib.suppress(InvalidRecordError):
        parse_offsets_record(number.to_bytes(2, "big") + key, value)
