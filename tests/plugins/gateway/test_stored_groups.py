"""The state of classic groups in ``__consumer_offsets``: it survives a restart, and it expires."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway_bed import refusal
from stratalog import Engine, TopicPartition, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import DiskFullError, LogDirError, TopicExistsError
from stratalog.group_states import GroupMetadata
from stratalog.testing.faults import FaultyVfs, failing
from stratalog_gateway.error_codes import Code
from stratalog_gateway.groups.classic_coordinator import ClassicGroupCoordinator, JoinRequest
from stratalog_gateway.groups.classic_group import ClassicGroup, Joined, State
from stratalog_gateway.groups.group_table import Group, GroupTable, GroupUpkeep
from stratalog_gateway.groups.stored_groups import StoredGroups
from stratalog_gateway.node import Node
from stratalog_gateway.settings import GatewaySection

ORDERS = TopicPartition("orders", 0)
SETTINGS = GatewaySection(retention_minutes=1, retention_check_ms=1000)
MINUTE_MS = 60_000


class Bed(NamedTuple):
    engine: Engine
    table: GroupTable
    groups: ClassicGroupCoordinator
    upkeep: GroupUpkeep
    clock: ManualClock

    def passed(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.upkeep.step()

    def group(self) -> Group | None:
        with self.table.lock_group("g") as group:
            return group

    def stored(self) -> list[GroupMetadata]:
        return [
            record.value for record in self.engine.group_states().states("g") if isinstance(record.value, GroupMetadata)
        ]


@contextlib.contextmanager
def opened(directory: Path, files: FaultyVfs | None = None) -> Iterator[Bed]:
    clock = ManualClock()
    with open_engine(directory, env=Env(clock=clock, files=files or FaultyVfs())) as engine:
        with contextlib.suppress(TopicExistsError):
            engine.create_topic("__consumer_offsets", partitions=1)  # faster than Kafka's 50
        node = Node(engine, SETTINGS, clock)
        table = GroupTable(node)
        yield Bed(engine, table, ClassicGroupCoordinator(node, table), GroupUpkeep(node, table), clock)
        node.close()
        table.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with opened(tmp_path) as opened_bed:
        opened_bed.engine.create_topic("orders")
        yield opened_bed


def asked(member_id: str = "", instance: str | None = None) -> JoinRequest:
    protocols = (("range", b"subscribed"),)
    return JoinRequest(
        "g", member_id, instance, "client", "/127.0.0.1", "consumer", protocols, 10_000, 60_000, False, True
    )


def stable(bed: Bed, instance: str | None = None) -> Joined:
    member = bed.groups.join(asked(instance=instance))
    synced = bed.groups.sync("g", member.member_id, member.generation, instance, {member.member_id: b"all"})
    assert (member.error, synced.error, synced.assignment) == (0, 0, b"all")
    return member


def test_a_member_continues_its_generation_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        member = stable(bed)
    with opened(tmp_path) as bed:
        assert refusal(bed.groups.heartbeat, "g", member.member_id, member.generation, None) == Code.NONE
        assert bed.groups.sync("g", member.member_id, member.generation, None, {}).assignment == b"all"
        group = bed.group()
        assert isinstance(group, ClassicGroup)
        assert (group.state, group.protocol, list(group.members)) == (State.STABLE, "range", [member.member_id])


def test_the_session_of_a_stored_member_begins_at_the_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        member = stable(bed)
    with opened(tmp_path) as bed:
        bed.engine.create_topic("orders")
        bed.engine.alter_group_offsets("g", {ORDERS: 5})
        assert bed.group() is not None
        bed.passed(9_000)
        assert [len(metadata.members) for metadata in bed.stored()] == [1]
        bed.passed(2_000)
        assert [(len(metadata.members), metadata.generation) for metadata in bed.stored()] == [(0, 2)]
        assert refusal(bed.groups.heartbeat, "g", member.member_id, member.generation, None) == Code.UNKNOWN_MEMBER_ID


def test_the_record_has_what_kafka_stores(bed: Bed) -> None:
    member = stable(bed, "one")
    [metadata] = bed.stored()
    [stored_member] = metadata.members
    assert (metadata.protocol_type, metadata.generation, metadata.protocol, metadata.leader) == (
        "consumer",
        1,
        "range",
        member.member_id,
    )
    assert (stored_member.instance, stored_member.client_id, stored_member.client_host) == (
        "one",
        "client",
        "/127.0.0.1",
    )
    assert (stored_member.session_timeout_ms, stored_member.rebalance_timeout_ms) == (10_000, 60_000)
    assert (stored_member.subscription, stored_member.assignment) == (b"subscribed", b"all")


def test_a_static_member_with_a_new_id_is_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        stable(bed, "one")
        member = bed.groups.join(asked(instance="one"))
    with opened(tmp_path) as bed:
        assert refusal(bed.groups.heartbeat, "g", member.member_id, 1, "one") == Code.NONE


def test_the_generation_of_a_group_without_members_is_stored(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        member = stable(bed)
        assert refusal(bed.groups.leave, "g", member.member_id, None) == Code.NONE
    with opened(tmp_path) as bed:
        group = bed.group()
        assert isinstance(group, ClassicGroup)
        assert (group.state, group.members, group.protocol_type) == (State.EMPTY, {}, "consumer")
        assert bed.groups.join(asked()).generation == 3


def test_a_generation_that_cannot_be_stored_is_no_generation(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(stored_groups: StoredGroups, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        del stored_groups, group, assignments
        raise LogDirError("the log directory is offline", "/logs")

    member = bed.groups.join(asked())
    with monkeypatch.context() as patched:
        patched.setattr(StoredGroups, "store_classic", failed)
        with pytest.raises(LogDirError):
            bed.groups.sync("g", member.member_id, 1, None, {})
    assert refusal(bed.groups.heartbeat, "g", member.member_id, 1, None) == Code.REBALANCE_IN_PROGRESS
    assert bed.groups.join(asked(member.member_id)).generation == 2


def test_a_static_member_stays_if_its_replacement_cannot_be_stored(tmp_path: Path) -> None:
    files = FaultyVfs()
    with opened(tmp_path, files) as bed:
        member = stable(bed, "one")
        files.rule = failing("write", errno.ENOSPC, times=100)
        with pytest.raises(DiskFullError):
            bed.groups.join(asked(instance="one"))
        files.rule = None
        assert refusal(bed.groups.heartbeat, "g", member.member_id, 1, "one") == Code.NONE
        group = bed.group()
        assert group is not None
        assert list(group.members) == [member.member_id]
        later = bed.groups.join(asked(instance="one"))
        assert (later.error, later.generation) == (Code.NONE, 1)
        assert refusal(bed.groups.heartbeat, "g", member.member_id, 1, "one") == Code.FENCED_INSTANCE_ID


def test_members_that_have_left_do_not_return_after_a_failed_deletion_of_the_group(tmp_path: Path) -> None:
    files = FaultyVfs()
    with opened(tmp_path, files) as bed:
        member = stable(bed)
        files.rule = failing("write", errno.ENOSPC, times=100)
        assert refusal(bed.groups.leave, "g", member.member_id, None) == Code.NONE
        with pytest.raises(DiskFullError):
            bed.table.delete("g")
        files.rule = None
        assert refusal(bed.table.delete, "g") == Code.NONE
    with opened(tmp_path) as bed:
        assert (bed.group(), bed.stored()) == (None, [])


def test_the_reason_why_groups_cannot_be_loaded_is_logged_at_most_once_a_second(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients retry several times a second, and their requests must not fill the disk with messages."""

    def fail(*_: object) -> None:
        raise LogDirError("the log directory is offline", "/logs")

    monkeypatch.setattr(StoredGroups, "load", fail)
    for expected in (1, 1, 2):
        with pytest.raises(LogDirError):
            bed.groups.join(asked())
        assert caplog.text.count("a group cannot be loaded") == expected
        bed.clock.advance_ms(500)


def test_a_deleted_group_leaves_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        member = stable(bed)
        assert refusal(bed.table.delete, "g") == Code.NON_EMPTY_GROUP
        bed.groups.leave("g", member.member_id, None)
        assert [refusal(bed.table.delete, "g") for _ in range(2)] == [Code.NONE, Code.GROUP_ID_NOT_FOUND]
    with opened(tmp_path) as bed:
        assert (bed.group(), bed.stored(), bed.table.names()) == (None, [], ())


def test_offsets_expire_after_the_last_member_left(bed: Bed) -> None:
    member = stable(bed)
    bed.engine.alter_group_offsets("g", {ORDERS: 5})
    for _ in range(30):
        bed.passed(5_000)
        assert refusal(bed.groups.heartbeat, "g", member.member_id, 1, None) == Code.NONE
    bed.groups.leave("g", member.member_id, None)
    bed.passed(MINUTE_MS - 2_000)
    assert bed.engine.group_offsets("g")
    bed.passed(3_000)
    assert (bed.engine.group_offsets("g"), bed.stored(), bed.group()) == ({}, [], None)


def test_offsets_do_not_expire_in_the_check_that_removes_the_last_member(bed: Bed) -> None:
    member = stable(bed)
    bed.engine.alter_group_offsets("g", {ORDERS: 5})
    for _ in range(30):
        bed.passed(5_000)
        assert refusal(bed.groups.heartbeat, "g", member.member_id, 1, None) == Code.NONE
    bed.clock.advance_ms(10_000)
    bed.table.expire("g", MINUTE_MS)
    assert bed.engine.group_offsets("g")
    bed.passed(MINUTE_MS)
    assert not bed.engine.group_offsets("g")


def test_offsets_of_a_group_that_never_had_members_expire_after_their_commit(bed: Bed) -> None:
    bed.engine.alter_group_offsets("g", {ORDERS: 5})
    bed.passed(MINUTE_MS - 2_000)
    bed.engine.create_topic("other")
    bed.engine.alter_group_offsets("g", {TopicPartition("other", 0): 6})
    bed.passed(3_000)
    assert list(bed.engine.group_offsets("g")) == [TopicPartition("other", 0)]


def test_offsets_that_a_transaction_would_replace_are_kept(bed: Bed) -> None:
    bed.engine.alter_group_offsets("g", {ORDERS: 5})
    with bed.engine.producer(transactional_id="t") as producer:
        producer.begin_transaction()
        producer.send_offsets("g", {ORDERS: 7})
        producer.flush()
        bed.passed(2 * MINUTE_MS)
        assert bed.engine.group_offsets("g")[ORDERS].offset == 5
        producer.commit_transaction()
    assert bed.engine.group_offsets("g")[ORDERS].offset == 7


def test_a_group_that_is_not_in_memory_continues_its_generation(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation of a group without members is loaded from the log if the group is not in memory."""
    monkeypatch.setattr("stratalog_gateway.groups.group_table.MAX_GROUPS", 0)
    member = stable(bed)
    bed.groups.leave("g", member.member_id, None)
    assert bed.groups.join(asked()).generation == 3
