"""``stratalog dump`` of Kafka's internal topics, with decoded records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_runs import printed_items
from stratalog import Record
from stratalog.cli.app import run
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.model.messages.consumer_protocol import (
    ASSIGNMENT,
    SUBSCRIPTION,
    Assignment,
    Subscription,
    TopicPartitions,
)
from stratalog.model.messages.offsets_topic import (
    CommitKey,
    GroupKey,
    GroupMember,
    GroupMetadata,
    MemberKey,
    OffsetCommit,
    OffsetsType,
    offsets_key,
    offsets_value,
)
from stratalog.model.messages.transactions_topic import (
    TRANSACTION_KEY,
    TRANSACTION_STATE,
    TransactionKey,
    TransactionPartitions,
    TransactionState,
)
from stratalog.reading.open_reader import open_host
from stratalog.spi.formats import BatchHeader

Item = dict[str, Any]
STAMP = 1_700_000_000_000
COMMIT_KEY = offsets_key(OffsetsType.OFFSET_COMMIT, CommitKey(group="g", topic="t", partition=1))
GROUP_KEY = offsets_key(OffsetsType.GROUP_METADATA, GroupKey(group="g"))
COMMIT = offsets_value(
    OffsetsType.OFFSET_COMMIT, OffsetCommit(offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=STAMP), 3
)
SHARE_KEY = offsets_key(OffsetsType.SHARE_GROUP_MEMBER_METADATA, MemberKey(group="g", member="m"))


def member(protocol_type: str, subscription: bytes) -> GroupMetadata:
    assignment = Assignment(partitions=(TopicPartitions(topic="t", partitions=(0, 1)),), user_data=b"\xff")
    group_member = GroupMember(
        member="m-1",
        client_id="c",
        client_host="/h",
        session_timeout_ms=45_000,
        subscription=subscription,
        assignment=ASSIGNMENT.encode(assignment, 1),
    )
    return GroupMetadata(
        protocol_type=protocol_type, generation=4, protocol="range", leader="m-1", members=(group_member,)
    )


class Dumped:
    """Exit code, JSON items and text output of a dump."""

    def __init__(self, code: int, items: list[Item], people: str) -> None:
        self.code, self.items, self.people = code, items, people

    @property
    def records(self) -> list[Item]:
        return [record for item in self.items if item["kind"] == "batch" for record in item["records"]]


Shown = Callable[..., Dumped]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Return a function that dumps a log with the given keys and values, in a folder of the given name."""

    def call(
        folder: str, *pairs: tuple[bytes | None, bytes | None], options: tuple[str, ...] = ("--values",)
    ) -> Dumped:
        host = open_host(Settings(), (), None)
        form = host.components(TopicConfig()).formats.of(2, "", 0)
        records = [Record(timestamp_ms=STAMP, key=key, value=value) for key, value in pairs]
        (tmp_path / folder).mkdir()
        log = tmp_path / folder / "00000000000000000000.log"
        log.write_bytes(form.encode(records, BatchHeader(), None, None))
        host.close()
        code = run(["dump", str(log), "--json", *options])
        items = printed_items(capsys)
        assert run(["dump", str(log), *options]) == code
        return Dumped(code, items, capsys.readouterr().out)

    return call


@pytest.mark.parametrize("folder", ["__consumer_offsets-7", f"__consumer_offsets-7.{'0' * 32}-delete"])
def test_commits_and_tombstones_by_the_folders_name(shown: Shown, folder: str) -> None:
    dumped = shown(folder, (COMMIT_KEY, COMMIT), (COMMIT_KEY, None))
    assert dumped.code == 0
    key = {"group": "g", "topic": "t", "partition": 1}
    value = {
        "offset": 5,
        "leader_epoch": 2,
        "metadata": "m",
        "commit_timestamp_ms": STAMP,
        "expire_timestamp_ms": -1,
    }
    assert [record["decoded"] for record in dumped.records] == [
        {"type": "OFFSET_COMMIT", "key": key, "value": value, "value_version": 3},
        {"type": "OFFSET_COMMIT", "key": key, "value": None, "value_version": None},
    ]
    commit, tombstone = dumped.people.splitlines()[-2:]
    assert commit.endswith(
        "offset_commit group=g topic=t partition=1: "
        "offset=5 leader_epoch=2 metadata=m commit_timestamp=2023-11-14T22:13:20.000Z (v3)"
    )
    assert tombstone.endswith("offset_commit group=g topic=t partition=1: tombstone")


def test_the_folder_decides_nothing_without_values_or_for_other_topics(shown: Shown) -> None:
    assert "decoded" not in shown("__consumer_offsets-0", (COMMIT_KEY, COMMIT), options=("--deep",)).records[0]
    record = shown("orders-0", (COMMIT_KEY, COMMIT)).records[0]
    assert "decoded" not in record
    assert "key_base64" in record


def test_a_decoder_that_is_asked_for(shown: Shown) -> None:
    options = ("--decoder", "offsets")
    assert shown("orders-0", (COMMIT_KEY, COMMIT), options=options).records[0]["decoded"]["type"] == "OFFSET_COMMIT"
    bytes_alone = shown("__consumer_offsets-0", (b"k", b"v"), options=("--decoder", "hex")).records[0]
    assert (bytes_alone["key_hex"], bytes_alone["value_hex"]) == ("6b", "76")


def test_members_with_their_subscriptions(shown: Shown) -> None:
    subscription = Subscription(topics=("t", "u"), user_data=b"text", rack="r")
    value = offsets_value(OffsetsType.GROUP_METADATA, member("consumer", SUBSCRIPTION.encode(subscription, 3)), 3)
    dumped = shown("__consumer_offsets-0", (GROUP_KEY, value))
    (group_member,) = dumped.records[0]["decoded"]["value"]["members"]
    assert group_member["subscription"] == {
        "version": 3,
        "topics": ["t", "u"],
        "user_data": "text",
        "owned_partitions": [],
        "generation": -1,
        "rack": "r",
    }
    assert group_member["assignment"] == {
        "version": 1,
        "partitions": [{"topic": "t", "partitions": [0, 1]}],
        "user_data_base64": "/w==",
    }
    assert "members: member=m-1" in dumped.people


@pytest.mark.parametrize(("protocol_type", "subscription"), [("connect", b"\0\1"), ("consumer", b"\0")])
def test_members_whose_bytes_mean_something_else(shown: Shown, protocol_type: str, subscription: bytes) -> None:
    value = offsets_value(OffsetsType.GROUP_METADATA, member(protocol_type, subscription), 3)
    dumped = shown("__consumer_offsets-0", (GROUP_KEY, value))
    assert dumped.code == 0
    (group_member,) = dumped.records[0]["decoded"]["value"]["members"]
    assert group_member["subscription_base64"] in {"AAE=", "AA=="}


def test_messages_that_cannot_be_decoded_are_shown_as_bytes(shown: Shown) -> None:
    dumped = shown(
        "__consumer_offsets-0", (COMMIT_KEY, COMMIT[:-1]), (None, b"v"), (b"\0\x63later", b"v"), (SHARE_KEY, b"\0\0x")
    )
    truncated, keyless, later, share = dumped.records
    assert dumped.code == 1
    assert "inside its fields" in truncated["error"]
    assert "key_base64" in truncated
    assert (keyless["key"], keyless["value"]) == (None, "v")
    assert "error" in keyless
    assert "decoded" not in later
    assert "error" not in later
    assert share["decoded"]["value"] == {"bytes_hex": "000078"}
    assert dumped.items[-1]["kind"] == "corrupt"
    assert "and 1 more" in dumped.items[-1]["corrupt"]
    assert "cannot be read: an offset commit ends" in dumped.people


@pytest.mark.parametrize(("version", "previous"), [(0, -1), (1, 8)])
def test_transactions(shown: Shown, version: int, previous: int) -> None:
    state = TransactionState(
        producer_id=9,
        producer_epoch=1,
        timeout_ms=60_000,
        status=2,
        partitions=(TransactionPartitions(topic="t", partitions=(0, 3)),),
        last_update_timestamp_ms=STAMP,
        start_timestamp_ms=STAMP,
        previous_producer_id=previous,
    )
    key = TRANSACTION_KEY.encode(TransactionKey(transactional_id="tx"), 0)
    dumped = shown("__transaction_state-3", (key, TRANSACTION_STATE.encode(state, version)), (key, None))
    first, tombstone = (record["decoded"] for record in dumped.records)
    assert (first["type"], first["key"], first["value_version"]) == (
        "TRANSACTION_STATE",
        {"transactional_id": "tx"},
        version,
    )
    assert (first["value"]["status"], first["value"]["status_name"]) == (2, "PREPARE_COMMIT")
    assert first["value"]["partitions"] == [{"topic": "t", "partitions": [0, 3]}]
    assert first["value"]["previous_producer_id"] == previous
    assert tombstone["value"] is None
    assert "status=PREPARE_COMMIT" in dumped.people
    assert ("previous_producer_id=8" in dumped.people) is (previous == 8)
