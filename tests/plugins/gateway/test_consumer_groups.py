"""Groups of the consumer protocol (KIP-848): members, epochs, reconciliation, and stored state."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from gateway_bed import refusal
from stratalog import Engine, TopicPartition, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import StorageError, TopicExistsError
from stratalog.group_states import ConsumerGroupMetadata, GroupKey, GroupMetadata, OffsetsRecord, OffsetsType
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.groups.assignors import NOTHING, Partitions
from stratalog_gateway.groups.classic_coordinator import ClassicGroupCoordinator, JoinRequest
from stratalog_gateway.groups.consumer_coordinator import (
    ConsumerGroupCoordinator,
    Heartbeat,
    Progress,
    match_topics,
)
from stratalog_gateway.groups.consumer_group import ConsumerGroup
from stratalog_gateway.groups.group_table import Group, GroupTable, GroupUpkeep
from stratalog_gateway.groups.stored_groups import StoredGroups
from stratalog_gateway.node import Node
from stratalog_gateway.settings import GatewaySection

SETTINGS = GatewaySection(consumer_session_ms=10_000)
REBALANCE_MS = 5_000


class Bed(NamedTuple):
    engine: Engine
    table: GroupTable
    classic: ClassicGroupCoordinator
    groups: ConsumerGroupCoordinator
    upkeep: GroupUpkeep
    clock: ManualClock

    def passed(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.upkeep.step()

    def found(self) -> Group | None:
        with self.table.lock_group("g") as group:
            return group

    def group(self) -> ConsumerGroup:
        group = self.found()
        assert isinstance(group, ConsumerGroup)
        return group

    def refusal(self, heartbeat: Heartbeat) -> int:
        with pytest.raises(RefusedError) as caught:
            self.groups.heartbeat(heartbeat)
        return caught.value.kafka_code


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Bed]:
    clock = ManualClock()
    with open_engine(directory, env=Env(clock=clock)) as engine:
        for name, partitions in (("__consumer_offsets", 1), ("orders", 4)):
            with contextlib.suppress(TopicExistsError):
                engine.create_topic(name, partitions=partitions)
        node = Node(engine, SETTINGS, clock)
        table = GroupTable(node)
        classic, groups = ClassicGroupCoordinator(node, table), ConsumerGroupCoordinator(node, table)
        yield Bed(engine, table, classic, groups, GroupUpkeep(node, table), clock)
        node.close()
        table.close()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with opened(tmp_path) as opened_bed:
        yield opened_bed


def joining(member_id: str, *topics: str, **fields: Any) -> Heartbeat:
    values = {"topics": topics or ("orders",), "rebalance_ms": REBALANCE_MS, "owned": NOTHING, **fields}
    return Heartbeat(group="g", member_id=member_id, epoch=0, **values)


def beat(progress: Progress, owned: Partitions | None = None, **fields: Any) -> Heartbeat:
    return Heartbeat(group="g", member_id=progress.member_id, epoch=progress.epoch, owned=owned, **fields)


def numbers(partitions: Partitions | None) -> set[int] | None:
    return None if partitions is None else {number for _, number in partitions}


class Client:
    """A member that releases revoked partitions at once, and sends its owned partitions only after a change."""

    def __init__(self, bed: Bed, member_id: str, **more: Any) -> None:
        self.bed, self.id, self.more = bed, member_id, more
        self.owned: Partitions = NOTHING
        self.join()

    def join(self) -> None:
        self.owned = NOTHING
        self._done(self.bed.groups.heartbeat(joining(self.id, **self.more)))

    def beat(self) -> None:
        sent = beat(self.at, self.owned)
        try:
            self._done(self.bed.groups.heartbeat(sent))
        except RefusedError as refused:
            if refused.kafka_code not in {Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH}:
                raise
            self.join()

    def leave(self) -> None:
        self.bed.groups.heartbeat(dataclasses.replace(beat(self.at), epoch=-1))

    def _done(self, progress: Progress) -> None:
        self.at = progress
        if progress.assigned is not None:
            self.owned = progress.assigned


def settle(*clients: Client) -> None:
    """Send heartbeats of all members until the group is stable."""
    for _ in range(20):
        for client in clients:
            client.beat()
        if clients[0].bed.group().state == "Stable":
            return
    raise AssertionError("the group does not become stable")


# --- members -----------------------------------------------------------------------------------------------------


def test_the_first_member_gets_all_partitions_at_once(bed: Bed) -> None:
    progress = bed.groups.heartbeat(joining("m"))
    assert (progress.member_id, progress.epoch, numbers(progress.assigned)) == ("m", 1, {0, 1, 2, 3})
    next_progress = bed.groups.heartbeat(beat(progress))
    assert (next_progress.epoch, next_progress.assigned) == (1, None)


def test_a_member_without_an_id_gets_one(bed: Bed) -> None:
    progress = bed.groups.heartbeat(joining(""))
    assert len(progress.member_id) == 36


def test_a_partition_is_given_to_a_new_member_only_after_the_old_one_gave_it_up(bed: Bed) -> None:
    first = bed.groups.heartbeat(joining("a"))
    second = bed.groups.heartbeat(joining("b"))
    assert (second.epoch, second.assigned) == (2, NOTHING)
    revocation = bed.groups.heartbeat(beat(first, first.assigned))
    assert (revocation.epoch, len(revocation.assigned or ())) == (1, 2)
    assert bed.groups.heartbeat(beat(second)).assigned is None
    assert bed.group().state == "Reconciling"
    confirmation = bed.groups.heartbeat(beat(revocation, revocation.assigned))
    assert (confirmation.epoch, confirmation.assigned) == (2, None)
    last = bed.groups.heartbeat(beat(second))
    assert last.assigned is not None
    assert revocation.assigned is not None
    assert numbers(last.assigned | revocation.assigned) == {0, 1, 2, 3}
    assert bed.group().state == "Stable"


def test_a_member_that_did_not_receive_its_new_epoch_continues(bed: Bed) -> None:
    first = bed.groups.heartbeat(joining("a"))
    bed.engine.create_topic("more")
    lost = bed.groups.heartbeat(beat(first, NOTHING, topics=("orders", "more"), rebalance_ms=REBALANCE_MS))
    assert lost.epoch == 2
    assert bed.groups.heartbeat(beat(first, first.assigned)).epoch == 2
    assert bed.refusal(beat(Progress("a", 5))) == Code.FENCED_MEMBER_EPOCH
    assert bed.refusal(beat(first)) == Code.FENCED_MEMBER_EPOCH


def test_a_silent_member_is_removed(bed: Bed) -> None:
    first, second = Client(bed, "a"), Client(bed, "b")
    settle(first, second)
    bed.passed(9_000)
    first.beat()
    bed.passed(2_000)
    settle(first)
    assert numbers(first.owned) == {0, 1, 2, 3}
    assert bed.refusal(beat(second.at)) == Code.UNKNOWN_MEMBER_ID


def test_the_upkeep_continues_after_an_exit(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, is_over = list[int](), threading.Event()

    def leave() -> None:
        steps.append(1)
        if len(steps) == 1:
            raise SystemExit(3)
        is_over.set()

    monkeypatch.setattr(bed.upkeep, "step", leave)
    bed.upkeep.start()
    assert is_over.wait(20)
    bed.upkeep.stop(20)


def test_a_member_that_does_not_give_up_its_partitions_in_time_is_removed(bed: Bed) -> None:
    first = bed.groups.heartbeat(joining("a"))
    second = Client(bed, "b")
    revocation = bed.groups.heartbeat(beat(first, first.assigned))
    bed.passed(REBALANCE_MS - 1000)
    assert bed.groups.heartbeat(beat(revocation, first.assigned)).epoch == 1
    second.beat()
    bed.passed(2_000)
    assert bed.refusal(beat(revocation, first.assigned)) == Code.UNKNOWN_MEMBER_ID
    settle(second)
    assert numbers(second.owned) == {0, 1, 2, 3}


def test_a_member_that_leaves_makes_room(bed: Bed) -> None:
    first, second = Client(bed, "a"), Client(bed, "b")
    settle(first, second)
    first.leave()
    settle(second)
    assert numbers(second.owned) == {0, 1, 2, 3}
    second.leave()
    assert bed.group().state == "Empty"
    assert bed.refusal(beat(second.at)) == Code.UNKNOWN_MEMBER_ID


def test_new_partitions_and_topics_start_the_next_epoch(bed: Bed) -> None:
    client = Client(bed, "a", topics=("orders", "later"))
    bed.engine.create_partitions("orders", 6)
    settle(client)
    assert (client.at.epoch, numbers(client.owned)) == (2, set(range(6)))
    bed.engine.create_topic("other")
    client.beat()
    assert client.at.epoch == 2
    bed.engine.create_topic("later")
    settle(client)
    assert (client.at.epoch, len(client.owned)) == (3, 7)
    bed.engine.delete_topic("later")
    settle(client)
    assert (client.at.epoch, len(client.owned)) == (4, 6)


@pytest.mark.parametrize("nothing", [{"topics": ()}, {"topics": None, "pattern": ""}], ids=str)
def test_a_member_may_join_without_topics_and_subscribe_later(bed: Bed, nothing: dict[str, Any]) -> None:
    progress = bed.groups.heartbeat(joining("a", **nothing))
    assert (progress.epoch, progress.assigned) == (1, NOTHING)
    subscribed = bed.groups.heartbeat(beat(progress, topics=("orders",)))
    assert (subscribed.epoch, numbers(subscribed.assigned)) == (2, {0, 1, 2, 3})


def test_a_regular_expression_follows_the_topics(bed: Bed) -> None:
    client = Client(bed, "a", topics=None, pattern="ord.*")
    assert numbers(client.owned) == {0, 1, 2, 3}
    bed.engine.create_topic("ordinary")
    settle(client)
    assert len(client.owned) == 5
    assert bed.refusal(joining("b", topics=None, pattern="(")) == Code.INVALID_REGULAR_EXPRESSION
    assert match_topics("__c.*|o.*s", bed.engine.topics()) == ("__consumer_offsets", "orders")  # as in Kafka


def test_a_regular_expression_follows_the_permissions_of_the_client(bed: Bed) -> None:
    bed.engine.create_topic("ordinary")
    visible_topics = {"ordinary"}
    client = Client(bed, "a", topics=None, pattern="ord.*", may_see=visible_topics.__contains__)
    assert len(client.owned) == 1
    visible_topics.add("orders")
    for _ in range(67):
        bed.passed(9_000)
        progress = bed.groups.heartbeat(beat(client.at, client.owned, may_see=visible_topics.__contains__))
        client.at, client.owned = progress, client.owned if progress.assigned is None else progress.assigned
    assert len(client.owned) == 5
    assert bed.group().epoch == 2


def test_the_assignor_that_most_members_prefer_is_used(bed: Bed) -> None:
    bed.engine.create_topic("bills", partitions=4)
    names = ("orders", "bills")
    clients = [Client(bed, name, topics=names, assignor="range") for name in ("a", "b")]
    settle(*clients)
    assert bed.group().assignor == "range"
    assert [numbers(client.owned) for client in clients] == [{0, 1}, {2, 3}]
    assert bed.refusal(joining("c", assignor="none")) == Code.UNSUPPORTED_ASSIGNOR


def test_a_static_member_keeps_its_partitions_while_it_is_away(bed: Bed) -> None:
    first, second = Client(bed, "a", instance_id="one"), Client(bed, "b")
    settle(first, second)
    assert bed.refusal(joining("c", instance_id="one")) == Code.UNRELEASED_INSTANCE_ID
    bed.groups.heartbeat(dataclasses.replace(beat(first.at), epoch=-2, instance_id="one"))
    second.beat()
    assert len(second.owned) == 2
    back = bed.groups.heartbeat(joining("c", instance_id="one"))
    assert (back.epoch, back.assigned) == (2, first.owned)
    assert bed.refusal(dataclasses.replace(beat(first.at), instance_id="one")) == Code.FENCED_INSTANCE_ID
    assert bed.group().epoch == 2


def test_a_static_member_that_is_refused_when_it_returns_is_removed_at_the_end_of_its_session(bed: Bed) -> None:
    progress = bed.groups.heartbeat(joining("a", instance_id="i"))
    bed.groups.heartbeat(beat(dataclasses.replace(progress, epoch=-2), instance_id="i"))
    assert bed.refusal(joining("b", instance_id="i", topics=None, pattern="[")) == Code.INVALID_REGULAR_EXPRESSION
    assert list(bed.group().members) == ["a"]
    bed.passed(10_000)
    assert numbers(bed.groups.heartbeat(joining("c")).assigned) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "change",
    [
        {"group": ""},
        {"member_id": "", "epoch": 3},
        {"member_id": "", "has_own_id": True},
        {"epoch": -3},
        {"epoch": -2},
        {"instance_id": ""},
        {"rack": ""},
        {"rebalance_ms": -1},
        {"owned": None},
        {"topics": None},
        {"pattern": "x" * 2000},
    ],
    ids=str,
)
def test_incomplete_requests_are_refused(bed: Bed, change: dict[str, Any]) -> None:
    assert bed.refusal(dataclasses.replace(joining("m"), **change)) == Code.INVALID_REQUEST
    assert bed.found() is None


def test_commits_need_the_epoch_of_the_member(bed: Bed) -> None:
    client = Client(bed, "a")

    def check(name: str, member_id: str, epoch: int, instance_id: str | None, *, knows_epochs: bool = True) -> int:
        with contextlib.ExitStack() as stack:
            committing = bed.table.committing(name, member_id, epoch, instance_id, knows_epochs=knows_epochs)
            return refusal(stack.enter_context, committing)

    assert check("g", "a", 1, None) == Code.NONE
    assert check("g", "a", 2, None) == Code.STALE_MEMBER_EPOCH
    assert check("g", "a", 1, None, knows_epochs=False) == Code.UNSUPPORTED_VERSION
    assert check("g", "b", 1, None) == Code.UNKNOWN_MEMBER_ID
    assert check("g", "", -1, None) == Code.UNKNOWN_MEMBER_ID
    assert refusal(bed.groups.check_fetch, "g", "a", 9) == Code.STALE_MEMBER_EPOCH
    assert refusal(bed.groups.check_fetch, "g", "a", -1) == Code.STALE_MEMBER_EPOCH
    assert refusal(bed.groups.check_fetch, "g", "b", -1) == Code.UNKNOWN_MEMBER_ID
    assert refusal(bed.groups.check_fetch, "g", None, 1) == Code.UNKNOWN_MEMBER_ID
    assert refusal(bed.groups.check_fetch, "g", None, -1) == Code.NONE
    client.leave()
    assert check("g", "", -1, None) == Code.NONE
    assert refusal(bed.groups.check_fetch, "g", None, -1) == Code.NONE
    assert refusal(bed.groups.check_fetch, "g", "a", -1) == Code.UNKNOWN_MEMBER_ID


# --- the two protocols -------------------------------------------------------------------------------------------


def classic_join() -> JoinRequest:
    return JoinRequest(
        "g", "", None, "c", "", "consumer", (("range", b""),), 10_000, 60_000, needs_id=False, can_skip_assignment=True
    )


def test_members_of_both_protocols_are_not_in_one_group(bed: Bed) -> None:
    client = Client(bed, "a")
    assert bed.classic.join(classic_join()).error == Code.INCONSISTENT_GROUP_PROTOCOL
    assert refusal(bed.classic.heartbeat, "g", "a", 1, None) == Code.UNKNOWN_MEMBER_ID
    client.leave()
    member = bed.classic.join(classic_join())
    assert (member.error, member.generation) == (0, 1)
    assert bed.refusal(joining("b")) == Code.GROUP_ID_NOT_FOUND


def test_leave_group_removes_members_of_the_consumer_protocol(bed: Bed) -> None:
    first, second, third = Client(bed, "a", instance_id="one"), Client(bed, "b"), Client(bed, "c")
    settle(first, second, third)
    assert refusal(bed.classic.leave, "g", "x", "one") == Code.FENCED_INSTANCE_ID
    assert refusal(bed.classic.leave, "g", "a", "two") == Code.UNKNOWN_MEMBER_ID
    assert refusal(bed.classic.leave, "g", "x", None) == Code.UNKNOWN_MEMBER_ID
    assert refusal(bed.classic.leave, "g", "", "one") == Code.NONE
    assert refusal(bed.classic.leave, "g", "b", None) == Code.NONE
    assert bed.refusal(beat(first.at)) == Code.UNKNOWN_MEMBER_ID
    settle(third)
    assert numbers(third.owned) == {0, 1, 2, 3}


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        member = bed.classic.join(classic_join())
        bed.classic.sync("g", member.member_id, 1, None, {})
        bed.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 5})
        bed.classic.leave("g", member.member_id, None)
        assert Client(bed, "a").at.epoch == 1
        assert not any(isinstance(record.value, GroupMetadata) for record in bed.engine.group_states().states("g"))
        assert bed.engine.group_offsets("g")
    with opened(tmp_path) as bed:
        assert bed.group().state == "Stable"


# --- the stored state --------------------------------------------------------------------------------------------


def described(group: ConsumerGroup) -> tuple[object, ...]:
    return (
        group.state,
        group.epoch,
        group.target_epoch,
        group.assignor,
        group.members,
        group.target,
        group.subscribed_topics(),
    )


def test_members_continue_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        clients = [Client(bed, "a"), Client(bed, "b", instance_id="two"), Client(bed, "c", topics=None, pattern="o.*")]
        settle(*clients)
        before = described(bed.group())
    with opened(tmp_path) as bed:
        assert described(bed.group()) == before
        for client in clients:
            client.bed = bed
            client.beat()
            assert (client.at.epoch, client.at.assigned) == (bed.group().epoch, None)
        bed.engine.create_partitions("orders", 5)
        settle(*clients)
        assert sum(len(client.owned) for client in clients) == 5


def test_topics_that_changed_while_the_gateway_was_away_start_the_next_epoch(tmp_path: Path) -> None:
    with opened(tmp_path) as bed:
        client = Client(bed, "a")
    with open_engine(tmp_path) as engine:
        engine.create_partitions("orders", 8)
    with opened(tmp_path) as bed:
        client.bed = bed
        client.beat()
        assert (client.at.epoch, len(client.owned)) == (2, 8)


def test_a_brokers_hash_of_the_topics_stays_until_the_next_epoch(tmp_path: Path) -> None:
    def stored(bed: Bed) -> list[ConsumerGroupMetadata]:
        values = (record.value for record in bed.engine.group_states().states("g"))
        return [value for value in values if isinstance(value, ConsumerGroupMetadata)]

    of_broker = ConsumerGroupMetadata(epoch=1, metadata_hash=77)
    with opened(tmp_path) as bed:
        client = Client(bed, "a", instance_id="one")
        record = OffsetsRecord(OffsetsType.CONSUMER_GROUP_METADATA, GroupKey(group="g"), of_broker, 0)
        bed.engine.group_states().store_states("g", [record])
    with opened(tmp_path) as bed:
        bed.groups.heartbeat(dataclasses.replace(beat(client.at), epoch=-2, instance_id="one"))
        assert (bed.group().members["a"].epoch, stored(bed)) == (-2, [of_broker])
        Client(bed, "b")
        assert stored(bed) == [ConsumerGroupMetadata(epoch=2)]


def test_a_change_that_cannot_be_stored_has_not_happened(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(bed, "a")

    def failed(*arguments: object) -> None:
        del arguments
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(StoredGroups, "store_consumer", failed)
        with pytest.raises(StorageError):
            bed.groups.heartbeat(joining("b"))
    assert (list(bed.group().members), bed.group().epoch) == (["a"], 1)
    client.beat()
    assert client.at.epoch == 1


def test_a_deleted_group_leaves_nothing(bed: Bed) -> None:
    client = Client(bed, "a")
    assert refusal(bed.table.delete, "g") == Code.NON_EMPTY_GROUP
    client.leave()
    assert refusal(bed.table.delete, "g") == Code.NONE
    assert (bed.found(), bed.engine.group_states().states("g")) == (None, ())


class RandomGroup:
    """Random joins, heartbeats, departures, kills of clients, and new partitions."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311 - the same steps in each run
        self.clients: dict[str, Client] = {}
        self.partitions, self._named = 4, 0

    def step(self, bed: Bed) -> None:
        number = self.chance.randrange(8)
        if number == 0 and len(self.clients) < 5:
            self._named += 1
            name = f"m{self._named}"
            self.clients[name] = Client(bed, name, instance_id=self.chance.choice((None, name)))
        elif number == 1 and self.partitions < 12:
            self.partitions += 1
            bed.engine.create_partitions("orders", self.partitions)
        elif self.clients:
            client = self.chance.choice(list(self.clients.values()))
            if number == 2:
                self.clients.pop(client.id).leave()
            elif number == 3:  # killed
                del self.clients[client.id]
                self.wait(bed, 6_000)
            else:
                client.beat()

    def wait(self, bed: Bed, duration_ms: int) -> None:
        """Advance the clock in steps with heartbeats, so that sessions of killed clients expire."""
        for _ in range(3):
            bed.passed(duration_ms)
            for client in self.clients.values():
                client.beat()

    def used(self) -> list[object]:
        return [partition for client in self.clients.values() for partition in client.owned]


@pytest.mark.parametrize("seed", range(6))
def test_no_two_members_ever_use_one_partition(tmp_path: Path, seed: int) -> None:
    random_group = RandomGroup(seed)
    for _ in range(4):
        with opened(tmp_path) as bed:
            for client in random_group.clients.values():
                client.bed = bed
            for _ in range(25):
                random_group.step(bed)
                assert len(random_group.used()) == len(set(random_group.used()))
            random_group.wait(bed, 4_000)
            if random_group.clients:
                settle(*random_group.clients.values())
                assert len(random_group.used()) == random_group.partitions
