"""Single requests of transactional producers, and the responses that a Kafka broker would send."""

from __future__ import annotations

import datetime as dt
import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import NOW_MS, Served, Wire, part, served
from stratalog import CommittedOffset, Engine, ProducerId, TopicPartition, open_engine
from stratalog.client.group_offsets import GroupOffsets
from stratalog.env import Env
from stratalog.env.clock import ManualClock, SystemClock
from stratalog.testing.faults import FaultyVfs, failing
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.settings import GatewaySection

ID = "tx"
WAIT_S = 20
MINUTE = dt.timedelta(minutes=1)
SECOND = dt.timedelta(seconds=1)
NONE, INVALID_GROUP_ID, INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, CONCURRENT, FENCED = 0, 24, 47, 48, 49, 51, 90
NO_ID, ABORTABLE, NOT_ATTEMPTED, UNKNOWN_TOPIC, INVALID_REQUEST, INVALID_REGULAR_EXPRESSION = 105, 120, 55, 3, 42, 128
NOT_COORDINATOR = 16


def prepare(engine: Engine) -> None:
    """Create the topics. The internal ones have only one partition, because each test creates them."""
    engine.create_topic("orders", partitions=2)
    for topic in ("__transaction_state", "__consumer_offsets"):
        engine.create_topic(topic, config={"cleanup.policy": "compact"})


@pytest.fixture
def orders(gateway: Served) -> Served:
    prepare(gateway.engine)
    return gateway


def init(
    wire: Wire, transactional_id: str | None = ID, expected: ProducerId | None = None, timeout: dt.timedelta = MINUTE
) -> Any:
    producer = expected or ProducerId(-1, -1)
    return wire.ask(
        "InitProducerId",
        5,
        transactional_id=transactional_id,
        transaction_timeout=timeout,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def begun(wire: Wire) -> ProducerId:
    response = init(wire)
    assert response.error_code == NONE
    return ProducerId(response.producer_id, response.producer_epoch)


def add(wire: Wire, producer: ProducerId, *partitions: int, topic: str = "orders", version: int = 3) -> list[int]:
    topic_partitions = part("AddPartitionsToTxn", version, "AddPartitionsToTxnTopic", name=topic, partitions=partitions)
    response = wire.ask(
        "AddPartitionsToTxn",
        version,
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=(topic_partitions,),
    )
    [result] = response.results_by_topic_v3_and_below
    return [partition.partition_error_code for partition in result.results_by_partition]


def verify(wire: Wire, producer: ProducerId, partition: int, version: int = 5) -> int:
    topic = part("AddPartitionsToTxn", version, "AddPartitionsToTxnTopic", name="orders", partitions=(partition,))
    transaction = part(
        "AddPartitionsToTxn", version, "AddPartitionsToTxnTransaction", transactional_id=ID,
        producer_id=producer.producer_id, producer_epoch=producer.epoch, verify_only=True, topics=(topic,),
    )  # fmt: skip
    [result] = wire.ask("AddPartitionsToTxn", version, transactions=(transaction,)).results_by_transaction
    code: int = result.topic_results[0].results_by_partition[0].partition_error_code
    return code


def send(
    served: Served, wire: Wire, producer: ProducerId, value: bytes, sequence: int = 0, *, partition: int = 0,
    version: int = 9, transactional_id: str | None = ID,
) -> int:  # fmt: skip
    data = served.batch([value], producer=(*producer, sequence), transactional=True)
    partition_data = part("Produce", version, "PartitionProduceData", index=partition, records=data)
    topics = (part("Produce", version, "TopicProduceData", name="orders", partition_data=(partition_data,)),)
    response = wire.ask(
        "Produce", version, transactional_id=transactional_id, acks=-1, timeout=SECOND, topic_data=topics
    )
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def end(wire: Wire, producer: ProducerId, *, commit: bool = True, version: int = 3) -> Any:
    return wire.ask(
        "EndTxn",
        version,
        transactional_id=ID,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


def commit_offset(
    wire: Wire, producer: ProducerId, offset: int, *, version: int = 3, member: str = "", generation: int = -1
) -> int:
    partition = part(
        "TxnOffsetCommit", version, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=offset,
        committed_leader_epoch=-1, committed_metadata="note",
    )  # fmt: skip
    topic = part("TxnOffsetCommit", version, "TxnOffsetCommitRequestTopic", name="orders", partitions=(partition,))
    response = wire.ask(
        "TxnOffsetCommit", version, transactional_id=ID, group_id="g", producer_id=producer.producer_id,
        producer_epoch=producer.epoch, generation_id=generation, member_id=member, group_instance_id=None,
        topics=(topic,),
    )  # fmt: skip
    code: int = response.topics[0].partitions[0].error_code
    return code


def committed(served: Served, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in served.engine.log("orders", partition).records(isolation="read_committed")]


# --- transactions of a producer that keeps its epoch -----------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_after_its_commit_only(orders: Served, *, commit: bool) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        assert add(wire, producer, 0, 1) == [NONE, NONE]
        assert send(orders, wire, producer, b"a") == send(orders, wire, producer, b"b", partition=1) == NONE
        assert committed(orders) == []
        assert end(wire, producer, commit=commit).error_code == NONE
        assert end(wire, producer, commit=commit).error_code == NONE  # a repeated request
        assert end(wire, producer, commit=not commit).error_code == INVALID_STATE
        assert add(wire, producer, 0) == [NONE]
        assert send(orders, wire, producer, b"c", 1) == NONE
        assert end(wire, producer).error_code == NONE
    assert committed(orders) == ([b"a", b"c"] if commit else [b"c"])


def test_a_new_producer_fences_the_one_before(orders: Served) -> None:
    with orders.wire() as wire:
        old = begun(wire)
        add(wire, old, 0)
        send(orders, wire, old, b"old")
        new = begun(wire)
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)  # the abort also used an epoch
        assert send(orders, wire, old, b"late", 1) == INVALID_EPOCH
        assert add(wire, old, 1) == [FENCED]
        assert add(wire, old, 1, version=1) == [INVALID_EPOCH]
        assert end(wire, old).error_code == FENCED
        assert end(wire, old, version=1).error_code == INVALID_EPOCH
        assert init(wire, expected=old).error_code == FENCED
        assert commit_offset(wire, old, 1) == INVALID_EPOCH
    assert committed(orders) == []


def test_a_producer_that_repeats_its_requests_after_the_disk_was_full_commits(tmp_path: Path) -> None:
    files = FaultyVfs()
    with served(tmp_path, env=Env(files=files)) as gateway:
        prepare(gateway.engine)
        with gateway.wire() as wire:
            producer = begun(wire)
            assert add(wire, producer, 0) == [NONE]
            files.rule = failing("write", errno.ENOSPC, times=100)
            offsets = {
                "transactional_id": ID,
                "group_id": "g",
                "producer_id": producer[0],
                "producer_epoch": producer[1],
            }
            assert init(wire).error_code == NOT_COORDINATOR
            assert add(wire, producer, 1) == [NOT_COORDINATOR]
            assert wire.ask("AddOffsetsToTxn", 3, **offsets).error_code == NOT_COORDINATOR
            assert commit_offset(wire, producer, 5, version=5) == NOT_COORDINATOR
            assert end(wire, producer).error_code == NOT_COORDINATOR
            files.rule = None
            assert add(wire, producer, 1) == [NONE]
            assert wire.ask("AddOffsetsToTxn", 3, **offsets).error_code == NONE
            assert commit_offset(wire, producer, 5) == NONE
            assert end(wire, producer).error_code == NONE
        assert gateway.engine.group_offsets("g")[TopicPartition("orders", 0)].offset == 5


def test_a_batch_needs_a_transaction_with_its_partition(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        assert send(orders, wire, producer, b"a") == INVALID_STATE
        assert send(orders, wire, producer, b"a", version=11) == ABORTABLE
        add(wire, producer, 1)
        assert send(orders, wire, producer, b"a") == INVALID_STATE
        assert send(orders, wire, producer, b"a", partition=1, transactional_id=None) == 53
        assert send(orders, wire, ProducerId(7, 0), b"a", partition=1) == INVALID_MAPPING
        assert send(orders, wire, producer, b"a", partition=1, transactional_id="other") == INVALID_MAPPING
        assert verify(wire, producer, 1) == NONE
        assert verify(wire, producer, 0) == verify(wire, producer, 0, version=4) == ABORTABLE
        end(wire, producer)
        assert send(orders, wire, producer, b"a", partition=1) == INVALID_STATE
    assert orders.engine.log("orders", 0).offsets().log_end == 0


def test_partitions_are_added_all_or_none(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        assert add(wire, producer, 0, 9) == [NOT_ATTEMPTED, UNKNOWN_TOPIC]
        assert add(wire, producer, 0, topic="__transaction_state") == [29]
        assert end(wire, producer).error_code == INVALID_STATE
        assert add(wire, ProducerId(7, 0), 0) == [INVALID_MAPPING]


# --- transactions that raise the epoch (KIP-890) ---------------------------------------------------------------------


def test_each_end_raises_the_epoch_and_partitions_are_added_by_the_batch(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        for value in (b"a", b"b"):
            assert send(orders, wire, producer, value, version=12) == NONE
            response = end(wire, producer, version=5)
            assert (response.error_code, response.producer_epoch) == (NONE, producer.epoch + 1)
            repeated_response = end(wire, producer, version=5)  # a repeated request
            assert (repeated_response.error_code, repeated_response.producer_epoch) == (NONE, response.producer_epoch)
            assert send(orders, wire, producer, b"late", 1, version=12) == INVALID_EPOCH
            producer = ProducerId(response.producer_id, response.producer_epoch)
        assert end(wire, producer, version=5).error_code == INVALID_STATE
        aborted = end(wire, producer, version=5, commit=False)  # allowed without a transaction
        assert (aborted.error_code, aborted.producer_epoch) == (NONE, producer.epoch + 1)
    assert committed(orders) == [b"a", b"b"]


def test_offsets_add_their_partition(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        assert commit_offset(wire, producer, 5, version=5) == NONE
        assert orders.engine.group_offsets("g") == {}
        end(wire, producer, version=5)
    assert orders.engine.group_offsets("g")[TopicPartition("orders", 0)].offset == 5


# --- offsets ---------------------------------------------------------------------------------------------------------


def add_offsets(wire: Wire, producer: ProducerId, group: str = "g") -> int:
    code: int = wire.ask(
        "AddOffsetsToTxn", 3, transactional_id=ID, producer_id=producer.producer_id, producer_epoch=producer.epoch,
        group_id=group,
    ).error_code  # fmt: skip
    return code


def stable_offset(wire: Wire, *, strict: bool) -> tuple[int, int]:
    topic = part("OffsetFetch", 8, "OffsetFetchRequestTopics", name="orders", partition_indexes=(0,))
    group = part("OffsetFetch", 8, "OffsetFetchRequestGroup", group_id="g", topics=(topic,))
    [partition] = wire.ask("OffsetFetch", 8, groups=(group,), require_stable=strict).groups[0].topics[0].partitions
    return partition.error_code, partition.committed_offset


def test_offsets_are_committed_with_the_transaction(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        assert commit_offset(wire, producer, 5) == INVALID_STATE
        assert commit_offset(wire, producer, 5, version=4) == ABORTABLE
        assert add_offsets(wire, producer, group="") == INVALID_GROUP_ID
        assert commit_offset(wire, producer, 5) == INVALID_STATE
        assert add_offsets(wire, producer) == NONE
        assert commit_offset(wire, producer, 5) == NONE
        assert stable_offset(wire, strict=False) == (NONE, -1)
        assert stable_offset(wire, strict=True) == (88, -1)
        assert end(wire, producer).error_code == NONE
        assert stable_offset(wire, strict=True) == (NONE, 5)
        add_offsets(wire, producer)
        assert commit_offset(wire, producer, 9) == NONE
        end(wire, producer, commit=False)
        assert stable_offset(wire, strict=True) == (NONE, 5)
        assert commit_offset(wire, producer, 9, member="nobody", generation=3) == 25


def test_a_stale_member_epoch_is_an_illegal_generation_for_producers(orders: Served) -> None:
    """STALE_MEMBER_EPOCH would be a fatal error of the producer, which could not even abort."""
    with orders.wire() as wire:
        heartbeat = wire.ask(
            "ConsumerGroupHeartbeat", 1, group_id="g", member_id="m", member_epoch=0, instance_id=None, rack_id=None,
            rebalance_timeout=MINUTE, subscribed_topic_names=("orders",), subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=(),
        )  # fmt: skip
        assert (heartbeat.error_code, heartbeat.member_epoch) == (NONE, 1)
        producer = begun(wire)
        add_offsets(wire, producer)
        assert [commit_offset(wire, producer, 5, member="m", generation=epoch) for epoch in (0, 2, 1)] == [22, 22, NONE]
        assert commit_offset(wire, producer, 5, member="n", generation=1) == 25


def test_a_member_of_a_missing_group_has_an_illegal_generation_for_producers(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        add_offsets(wire, producer)
        assert commit_offset(wire, producer, 9, member="nobody", generation=3) == 22


def test_an_offset_that_becomes_stable_during_its_request_is_not_replaced_by_the_one_before(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Engine.group_offsets

    def offsets(engine: Engine, group: str) -> dict[TopicPartition, CommittedOffset]:
        committed_offsets = read(engine, group)
        engine.transactions.end_decided(ID, producer, commit=True)
        return committed_offsets

    with orders.wire() as wire:
        orders.engine.alter_group_offsets("g", {TopicPartition("orders", 0): 1})
        producer = begun(wire)
        add_offsets(wire, producer)
        assert commit_offset(wire, producer, 5) == NONE
        monkeypatch.setattr(Engine, "group_offsets", offsets)
        assert stable_offset(wire, strict=True) == (88, -1)
        assert stable_offset(wire, strict=True) == (NONE, 5)


def test_an_expiration_does_not_delete_the_offset_of_a_transaction_that_commits_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, may_delete, expired, codes = GroupOffsets.commit, threading.Event(), threading.Event(), list[int]()

    def commit(offsets: GroupOffsets, group: str, changed: dict[TopicPartition, None]) -> None:
        if not changed:
            return
        assert may_delete.wait(WAIT_S)
        committing.start()
        committing.join(0.2)
        delete(offsets, group, changed)
        expired.set()

    clock = ManualClock(NOW_MS)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        prepare(engine)
        engine.alter_group_offsets("g", {TopicPartition("orders", 0): 1})
        clock.advance_ms(120_000)
        gateway = Gateway(engine, GatewaySection(port=0, retention_minutes=1, retention_check_ms=1), SystemClock())
        monkeypatch.setattr(GroupOffsets, "commit", commit)
        gateway.start()
        with Served(engine, gateway).wire() as wire:
            producer = begun(wire)
            add_offsets(wire, producer)
            committing = threading.Thread(target=lambda: codes.append(commit_offset(wire, producer, 5)))
            may_delete.set()
            assert expired.wait(WAIT_S)
            committing.join(WAIT_S)
            monkeypatch.undo()
            assert (codes, end(wire, producer).error_code) == ([NONE], NONE)
            assert stable_offset(wire, strict=True) == (NONE, 5)
        gateway.stop()


def test_the_commit_of_a_transaction_does_not_restore_a_deleted_offset(orders: Served) -> None:
    deleted = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(deleted,)),)
    with orders.wire() as wire:
        producer = begun(wire)
        add_offsets(wire, producer)
        assert commit_offset(wire, producer, 5) == NONE
        assert wire.ask("OffsetDelete", 0, group_id="g", topics=topics).error_code == NONE
        assert end(wire, producer).error_code == NONE
        assert stable_offset(wire, strict=True) == (NONE, -1)


# --- ids and timeouts ------------------------------------------------------------------------------------------------


def test_a_producer_continues_with_its_own_id_and_epoch_only(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        raised = init(wire, expected=producer)
        assert (raised.producer_id, raised.producer_epoch) == (producer.producer_id, producer.epoch + 1)
        assert init(wire, expected=producer).producer_epoch == producer.epoch + 1  # a repeated request
        assert init(wire, expected=ProducerId(7, 0)).error_code == FENCED
        assert init(wire, expected=ProducerId(7, -1)).error_code == INVALID_REQUEST
        assert init(wire, "").error_code == INVALID_REQUEST
        assert init(wire, timeout=dt.timedelta(hours=1)).error_code == 50
        assert init(wire, timeout=dt.timedelta()).error_code == 50
        idempotent_producer = init(wire, None)
        assert (idempotent_producer.error_code, idempotent_producer.producer_epoch) == (NONE, 0)


def test_a_late_request_of_the_previous_epoch_does_not_abort_the_open_transaction(orders: Served) -> None:
    with orders.wire() as wire:
        producer = begun(wire)
        raised = init(wire, expected=producer)
        current = ProducerId(raised.producer_id, raised.producer_epoch)
        assert add(wire, current, 0) == [NONE]
        assert init(wire, expected=producer).error_code == FENCED
        assert end(wire, current).error_code == NONE


def test_a_transaction_that_exceeds_its_timeout_is_aborted(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        prepare(engine)
        gateway = Gateway(engine, GatewaySection(port=0), SystemClock())
        gateway.start()
        orders = Served(engine, gateway)
        with orders.wire() as wire:
            producer = begun(wire)
            add(wire, producer, 0)
            send(orders, wire, producer, b"slow")
            clock.advance_ms(60_000)
            engine.run_duties()
            assert engine.log("orders", 0).open_transactions()
            clock.advance_ms(10_000)
            engine.run_duties()
            assert engine.log("orders", 0).open_transactions() == []
            assert end(wire, producer).error_code == FENCED
        gateway.stop()
        assert committed(orders) == []


# --- administration --------------------------------------------------------------------------------------------------


def described(wire: Wire, transactional_id: str = ID) -> Any:
    [state] = wire.ask("DescribeTransactions", 0, transactional_ids=(transactional_id,)).transaction_states
    return state


def test_transactions_are_listed_and_described(orders: Served) -> None:
    def ids(states: tuple[str, ...] = (), producers: tuple[int, ...] = (), open_ms: int = -1) -> tuple[list[str], Any]:
        listing = wire.ask(
            "ListTransactions", 1, state_filters=states, producer_id_filters=producers, duration_filter=open_ms
        )
        return [state.transactional_id for state in listing.transaction_states], listing.unknown_state_filters

    with orders.wire() as wire:
        producer = begun(wire)
        assert ids(("Empty",)) == ([ID], ())
        add(wire, producer, 0, 1)
        transaction = described(wire)
        assert (transaction.error_code, transaction.transaction_state, transaction.transaction_timeout) == (
            NONE,
            "Ongoing",
            MINUTE,
        )
        assert [(topic.topic, topic.partitions) for topic in transaction.topics] == [("orders", (0, 1))]
        assert ids() == ids(("Ongoing",)) == ids((), (producer.producer_id,)) == ([ID], ())
        assert ids(("Empty", "Nonsense")) == ([], ("Nonsense",))
        assert ids((), (7,)) == ids((), (), 1 << 40) == ([], ())
        unknown = described(wire, "unknown")
        assert (unknown.error_code, unknown.producer_id, unknown.producer_epoch) == (NO_ID, 0, 0)
        assert described(wire, "").error_code == INVALID_REQUEST


def test_transactions_are_listed_by_a_pattern_of_the_complete_transactional_id(orders: Served) -> None:
    def listed(wire: Wire, pattern: str | None) -> tuple[int, list[str]]:
        listing = wire.ask(
            "ListTransactions", 2, state_filters=(), producer_id_filters=(), duration_filter=-1,
            transactional_id_pattern=pattern,
        )  # fmt: skip
        return listing.error_code, [state.transactional_id for state in listing.transaction_states]

    with orders.wire() as wire:
        begun(wire)
        assert listed(wire, f"{ID[0]}.*") == listed(wire, "") == listed(wire, None) == (NONE, [ID])
        assert listed(wire, ID[0]) == listed(wire, f"{ID}.+") == (NONE, [])
        assert listed(wire, "(") == (INVALID_REGULAR_EXPRESSION, [])


def test_producers_are_described_and_an_administrator_ends_their_transactions(orders: Served) -> None:
    def producers(partition: int, name: str = "orders") -> Any:
        topic = part("DescribeProducers", 0, "TopicRequest", name=name, partition_indexes=(partition,))
        return wire.ask("DescribeProducers", 0, topics=(topic,)).topics[0].partitions[0]

    with orders.wire() as wire:
        producer = begun(wire)
        add(wire, producer, 0)
        send(orders, wire, producer, b"a")
        [active_producer] = producers(0).active_producers
        assert (
            active_producer.producer_id,
            active_producer.last_sequence,
            active_producer.current_txn_start_offset,
        ) == (producer.producer_id, 0, 0)
        assert producers(9).error_code == UNKNOWN_TOPIC
        assert producers(0, "or/ders").error_code == 17  # INVALID_TOPIC_EXCEPTION
        topic = part("WriteTxnMarkers", 1, "WritableTxnMarkerTopic", name="orders", partition_indexes=(0, 9))
        marker = part(
            "WriteTxnMarkers", 1, "WritableTxnMarker", producer_id=producer.producer_id, producer_epoch=producer.epoch,
            transaction_result=False, topics=(topic,), coordinator_epoch=0,
        )  # fmt: skip
        [result] = wire.ask("WriteTxnMarkers", 1, markers=(marker,)).markers
        assert [partition.error_code for partition in result.topics[0].partitions] == [NONE, UNKNOWN_TOPIC]
        assert producers(0).active_producers[0].current_txn_start_offset == -1


def test_the_coordinator_of_a_transactional_id_is_this_broker(gateway: Served) -> None:
    with gateway.wire() as wire:
        [coordinator] = wire.ask("FindCoordinator", 4, key_type=1, coordinator_keys=(ID,)).coordinators
        assert (coordinator.error_code, f"{coordinator.host}:{coordinator.port}") == (NONE, gateway.bootstrap)
        [share_coordinator] = wire.ask("FindCoordinator", 6, key_type=2, coordinator_keys=("share",)).coordinators
        assert (share_coordinator.error_code, share_coordinator.node_id) == (INVALID_REQUEST, -1)


def test_the_version_of_transactions_is_announced(gateway: Served) -> None:
    with gateway.wire() as wire:
        api_versions = wire.ask("ApiVersions", 4, client_software_name="test", client_software_version="1")
    assert ("transaction.version", 2) in [
        (feature.name, feature.max_version_level) for feature in api_versions.finalized_features
    ]
