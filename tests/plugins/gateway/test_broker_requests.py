"""Requests that name topics by id, and requests about the broker itself."""

from __future__ import annotations

import datetime as dt
import difflib
import errno
import threading
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Served, Wire, part, request, served
from stratalog import Engine, Record, TopicInfo, TopicPartition, TopicSetting, open_engine
from stratalog.engine.open.open_logs import OpenLogs
from stratalog.env import Env
from stratalog.env.clock import SystemClock
from stratalog.errors import LogDirOfflineError, UnknownTopicError
from stratalog.testing.faults import FaultyVfs, failing
from stratalog_gateway.gateway import Gateway
from stratalog_gateway.node import Node
from stratalog_gateway.settings import GatewaySection

SECOND = dt.timedelta(seconds=1)


@pytest.fixture
def orders(gateway: Served) -> Served:
    gateway.engine.create_topic("orders", partitions=3)
    return gateway


def topic_id(gateway: Served) -> uuid.UUID:
    orders_id = gateway.engine.topics()["orders"].topic_id
    assert orders_id is not None
    return orders_id.as_uuid


def produced(wire: Wire, data: bytes, requested_id: uuid.UUID) -> Any:
    records = part("Produce", 13, "PartitionProduceData", index=0, records=data)
    topics = (part("Produce", 13, "TopicProduceData", topic_id=requested_id, partition_data=(records,)),)
    topic = wire.ask("Produce", 13, transactional_id=None, acks=1, timeout=SECOND, topic_data=topics).responses[0]
    assert topic.topic_id == requested_id
    return topic.partition_responses[0]


def test_records_are_produced_and_fetched_by_topic_id(orders: Served) -> None:
    data, orders_id = orders.batch([b"a"]), topic_id(orders)
    with orders.wire() as wire:
        assert produced(wire, data, orders_id).error_code == 0
        partition = part("Fetch", 18, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = (part("Fetch", 18, "FetchTopic", topic_id=orders_id, partitions=(partition,)),)
        topic = wire.ask(
            "Fetch", 18, max_wait=SECOND, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
            session_epoch=-1, topics=topics, forgotten_topics_data=(), rack_id="",
        ).responses[0]  # fmt: skip
    assert (topic.topic_id, len(topic.partitions[0].records)) == (orders_id, len(data))


def test_an_unknown_topic_id_is_refused(orders: Served) -> None:
    with orders.wire() as wire:
        assert produced(wire, orders.batch([b"a"]), uuid.uuid4()).error_code == 100


def test_an_unknown_topic_is_refused_without_a_search_for_similar_names(
    orders: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = list[str]()

    def search(name: str, *_: object, **__: object) -> list[str]:
        searched.append(name)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", search)
    partition = part("ListOffsets", 6, "ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=0)
    topics = (part("ListOffsets", 6, "ListOffsetsTopic", name="order", partitions=(partition,)),)
    with orders.wire() as wire:
        result = wire.ask("ListOffsets", 6, replica_id=-1, isolation_level=0, topics=topics)
    assert result.topics[0].partitions[0].error_code == UnknownTopicError.kafka_code
    assert searched == []


def test_offsets_are_committed_and_read_by_topic_id(orders: Served) -> None:
    def commit(wire: Wire, requested_id: uuid.UUID) -> int:
        offset = part(
            "OffsetCommit", 10, "OffsetCommitRequestPartition", partition_index=1, committed_offset=5,
            committed_leader_epoch=0, committed_metadata="m",
        )  # fmt: skip
        topics = (part("OffsetCommit", 10, "OffsetCommitRequestTopic", topic_id=requested_id, partitions=(offset,)),)
        topic = wire.ask(
            "OffsetCommit", 10, group_id="g", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=topics,
        ).topics[0]  # fmt: skip
        assert topic.topic_id == requested_id
        code: int = topic.partitions[0].error_code
        return code

    def fetch(wire: Wire, requested_ids: tuple[uuid.UUID, ...] | None) -> list[tuple[uuid.UUID, int, int]]:
        topics = None
        if requested_ids is not None:
            topics = tuple(
                part("OffsetFetch", 10, "OffsetFetchRequestTopics", topic_id=requested_id, partition_indexes=(1,))
                for requested_id in requested_ids
            )
        group = part("OffsetFetch", 10, "OffsetFetchRequestGroup", group_id="g", topics=topics)
        fetched_group = wire.ask("OffsetFetch", 10, groups=(group,), require_stable=True).groups[0]
        return [
            (topic.topic_id, item.committed_offset, item.error_code)
            for topic in fetched_group.topics
            for item in topic.partitions
        ]

    known_id, unknown_id = topic_id(orders), uuid.uuid4()
    with orders.wire() as wire:
        assert (commit(wire, known_id), commit(wire, unknown_id)) == (0, 100)
        assert fetch(wire, None) == [(known_id, 5, 0)]
        assert fetch(wire, (unknown_id, known_id)) == [(known_id, 5, 0), (unknown_id, -1, 100)]


def test_topics_are_described_in_pages(orders: Served) -> None:
    orders.engine.create_topic("bills", partitions=1)

    def page(wire: Wire, limit: int, cursor: Any = None, *names: str) -> tuple[dict[str, list[int]], Any]:
        topics = tuple(part("DescribeTopicPartitions", 0, "TopicRequest", name=name) for name in names)
        response = wire.ask("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=limit, cursor=cursor)
        assert all(item.eligible_leader_replicas == () for topic in response.topics for item in topic.partitions)
        described = {
            topic.name: [item.partition_index for item in topic.partitions] or [-topic.error_code]
            for topic in response.topics
        }
        if response.next_cursor is None:
            return described, None
        next_cursor = response.next_cursor
        return described, part(
            "DescribeTopicPartitions",
            0,
            "Cursor",
            topic_name=next_cursor.topic_name,
            partition_index=next_cursor.partition_index,
        )

    with orders.wire() as wire:
        first, cursor = page(wire, 3)
        second, end = page(wire, 3, cursor)
        named_page, _ = page(wire, 100, None, "orders", "none")
        smallest_page, _ = page(wire, 0)
    assert smallest_page == {"bills": [0]}  # a page is never empty: the client would request it forever
    assert (first, second, end) == ({"bills": [0], "orders": [0, 1]}, {"orders": [2]}, None)
    assert named_page == {"none": [-3], "orders": [0, 1, 2]}


def test_a_topic_is_not_described_while_it_is_deleted(orders: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.engine.create_topic("bills")
    listed: list[str] = []
    codes: list[int] = []
    remove = OpenLogs.remove
    bills, deleted = (part("DescribeTopicPartitions", 0, "TopicRequest", name=name) for name in ("bills", "orders"))

    def metadata(wire: Wire, topics: tuple[Any, ...] | None) -> Any:
        return wire.ask(
            "Metadata", 12, topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        ).topics

    def pages(wire: Wire, *topics: Any) -> Any:
        return wire.ask("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=100, cursor=None).topics

    def remove_and_request(logs: OpenLogs, name: TopicPartition, delay_ms: int) -> None:
        remove(logs, name, delay_ms)
        listed.extend(topic.name for topic in (*metadata(wire, None), *pages(wire)))
        by_name = part("Metadata", 12, "MetadataRequestTopic", topic_id=None, name="orders")
        codes.extend(topic.error_code for topic in (*metadata(wire, (by_name,)), *pages(wire, deleted)))

    with orders.wire() as wire:
        assert [topic.name for topic in pages(wire, bills)] == ["bills"]  # from now on, the list of topics is cached
        monkeypatch.setattr(OpenLogs, "remove", remove_and_request)
        orders.engine.delete_topic("orders")
    assert (listed, codes) == (["bills"] * 6, [3] * 6)


def test_the_directories_of_the_broker_are_described(orders: Served) -> None:
    orders.engine.log("orders", 1).append([Record(value=bytes(1000))])
    topic = part("DescribeLogDirs", 4, "DescribableLogDirTopic", topic="orders", partitions=(0, 1))
    with orders.wire() as wire:
        [directory] = wire.ask("DescribeLogDirs", 4, topics=(topic,)).results
        [everything] = wire.ask("DescribeLogDirs", 1, topics=None).results
    sizes = {item.partition_index: item.partition_size for item in directory.topics[0].partitions}
    assert (directory.error_code, directory.log_dir) == (0, next(iter(orders.engine.log_directories())))
    assert (sizes[0], sizes[1] > 1000, sorted(sizes)) == (0, True, [0, 1])
    assert 0 < directory.usable_bytes <= directory.total_bytes
    assert len(everything.topics[0].partitions) == 3


def test_a_directory_whose_disk_has_failed_has_an_error_code(tmp_path: Path) -> None:
    files = FaultyVfs()
    with served(tmp_path, env=Env(files=files)) as gateway:
        gateway.engine.create_topic("orders")
        files.rule = failing("write", errno.EIO)
        with pytest.raises(LogDirOfflineError):
            gateway.engine.log("orders", 0).append([Record(value=b"lost")])
        with gateway.wire() as wire:
            for version in (1, 4):
                [directory] = wire.ask("DescribeLogDirs", version, topics=None).results
                assert (directory.error_code, directory.log_dir, directory.topics) == (56, str(tmp_path), ())
            assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)


def test_elections_are_refused(orders: Served) -> None:
    topic_partitions = part("ElectLeaders", 2, "TopicPartitions", topic="orders", partitions=(0, 9))
    with orders.wire() as wire:
        response = wire.ask("ElectLeaders", 2, election_type=0, topic_partitions=(topic_partitions,), timeout=SECOND)
        assert [item.error_code for item in response.replica_election_results[0].partition_result] == [84, 3]
        assert wire.ask("ElectLeaders", 2, election_type=1, topic_partitions=None, timeout=SECOND).error_code == 0
        assert wire.ask("ElectLeaders", 2, election_type=7, topic_partitions=None, timeout=SECOND).error_code == 42


def test_the_quorum_is_this_broker(gateway: Served) -> None:
    def asked(wire: Wire, topic: str) -> Any:
        data = part("DescribeQuorum", 2, "PartitionData", partition_index=0)
        topics = (part("DescribeQuorum", 2, "TopicData", topic_name=topic, partitions=(data,)),)
        return wire.ask("DescribeQuorum", 2, topics=topics)

    with gateway.wire() as wire:
        quorum = asked(wire, "__cluster_metadata")
        [partition] = quorum.topics[0].partitions
        assert (partition.leader_id, [voter.replica_id for voter in partition.current_voters]) == (1, [1])
        assert [node.node_id for node in quorum.nodes] == [1]
        assert asked(wire, "orders").topics[0].partitions[0].error_code == 3


def test_the_message_of_a_success_is_null_or_a_text_as_in_kafka(tmp_path: Path) -> None:
    acls, users, quotas = (tmp_path / name for name in ("acls.json", "users.json", "quotas.json"))
    acls.write_text('{"version": 1, "acls": []}')
    users.write_text('{"version": 1, "users": {}}')
    quotas.write_text('{"version": 1, "quotas": []}')
    resource = part(
        "DescribeConfigs", 4, "DescribeConfigsResource", resource_type=2, resource_name="new", configuration_keys=()
    )
    new_topic = part("CreateTopics", 7, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                     assignments=(), configs=())  # fmt: skip
    acl = part("CreateAcls", 3, "AclCreation", resource_type=2, resource_name="new", resource_pattern_type=3,
               principal="User:x", host="*", operation=3, permission_type=3)  # fmt: skip
    files: dict[str, Any] = {"acls_file": str(acls), "users_file": str(users), "quotas_file": str(quotas)}
    with served(tmp_path / "logs", **files, super_users="User:ANONYMOUS") as gateway, gateway.wire() as wire:
        topics = wire.ask("CreateTopics", 7, topics=(new_topic,), timeout=SECOND, validate_only=False).topics
        configs = wire.ask("DescribeConfigs", 4, resources=(resource,), include_synonyms=False,
                           include_documentation=False).results  # fmt: skip
        created_acls = wire.ask("CreateAcls", 3, creations=(acl,)).results
        acl_list = wire.ask("DescribeAcls", 3, resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
                            principal_filter=None, host_filter=None, operation=1, permission_type=1)  # fmt: skip
        coordinators = wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=("g",)).coordinators
        old_coordinator = wire.ask("FindCoordinator", 3, key_type=0, key="g")
        quorum = wire.ask("DescribeQuorum", 2, topics=())
        client_quotas = wire.ask("DescribeClientQuotas", 1, components=(), strict=False)
        scram_users = wire.ask("DescribeUserScramCredentials", 0, users=None)
    successes = (*topics, *configs, *created_acls, acl_list, *coordinators, quorum, client_quotas, scram_users)
    assert [success.error_code for success in successes] == [0] * len(successes)
    assert [success.error_message for success in successes] == [None, *[""] * 7]
    assert old_coordinator.error_message == "NONE"


def test_a_replica_moves_to_another_directory_and_to_no_other_broker(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    with open_engine(directories) as engine:
        engine.create_topic("orders", partitions=2)
        gateway = Gateway(engine, GatewaySection(port=0), SystemClock())
        gateway.start()
        try:
            with Wire(gateway.address) as wire:
                assert [moved(wire, path) for path in (directories[1], directories[1], tmp_path / "c")] == [0, 0, 57]
                assert TopicPartition("orders", 0) in engine.log_directories()[str(directories[1])]
                assert [reassigned(wire, replicas) for replicas in ((1,), (2,), None)] == [0, 39, 85]
                reassignments = wire.ask("ListPartitionReassignments", 0, timeout=SECOND, topics=None)
                assert (reassignments.error_code, reassignments.topics) == (0, ())
        finally:
            gateway.stop()


def moved(wire: Wire, path: Path) -> int:
    topic = part("AlterReplicaLogDirs", 2, "AlterReplicaLogDirTopic", name="orders", partitions=(0,))
    directory = part("AlterReplicaLogDirs", 2, "AlterReplicaLogDir", path=str(path), topics=(topic,))
    code: int = wire.ask("AlterReplicaLogDirs", 2, dirs=(directory,)).results[0].partitions[0].error_code
    return code


def reassigned(wire: Wire, replicas: tuple[int, ...] | None) -> int:
    api = "AlterPartitionReassignments"
    partition = part(api, 0, "ReassignablePartition", partition_index=0, replicas=replicas)
    topics = (part(api, 0, "ReassignableTopic", name="orders", partitions=(partition,)),)
    code: int = wire.ask(api, 0, timeout=SECOND, topics=topics).responses[0].partitions[0].error_code
    return code


def test_the_resources_with_settings_are_listed(orders: Served) -> None:
    with orders.wire() as wire:
        response = wire.ask("ListConfigResources", 1, resource_types=())
        assert [(item.resource_type, item.resource_name) for item in response.config_resources] == [
            (2, "orders"),
            (4, "1"),
        ]
        assert wire.ask("ListConfigResources", 0).config_resources == ()
        codes = [wire.ask("ListConfigResources", 1, resource_types=(2, kind)).error_code for kind in (8, 16, 32, 3)]
        assert codes == [0, 0, 0, 35]


def test_a_group_that_does_not_exist_is_an_error_from_version_6_on(gateway: Served) -> None:
    with gateway.wire() as wire:
        for version, code in ((5, 0), (6, 69)):
            group = wire.ask("DescribeGroups", version, groups=("g",), include_authorized_operations=False).groups[0]
            assert (group.error_code, group.group_state) == (code, "Dead")


def test_a_group_that_rebalances_is_described_with_its_last_assignments(gateway: Served) -> None:
    with gateway.wire() as wire, gateway.wire() as second_wire:

        def described() -> tuple[Any, ...]:
            group = second_wire.ask("DescribeGroups", 5, groups=("g",), include_authorized_operations=False).groups[0]
            member = group.members[0]
            return group.group_state, group.protocol_data, member.member_metadata, member.member_assignment

        protocol = part("JoinGroup", 3, "JoinGroupRequestProtocol", name="range", metadata=b"m")
        values = {
            "group_id": "g", "session_timeout": SECOND * 60, "rebalance_timeout": SECOND * 60,
            "protocol_type": "consumer", "protocols": (protocol,),
        }  # fmt: skip
        join_response = wire.ask("JoinGroup", 3, member_id="", **values)
        assert described() == ("CompletingRebalance", "", b"", b"")
        assignment = part(
            "SyncGroup", 2, "SyncGroupRequestAssignment", member_id=join_response.member_id, assignment=b"assigned"
        )
        assert wire.ask(
            "SyncGroup", 2, group_id="g", generation_id=1, member_id=join_response.member_id, assignments=(assignment,)
        ).error_code == 0  # fmt: skip
        assert described() == ("Stable", "range", b"m", b"assigned")
        second_wire.send(request("JoinGroup", 3, {"member_id": "", **values}))
        with gateway.wire() as third_wire:
            beat = {"group_id": "g", "generation_id": 1, "member_id": join_response.member_id}
            assert any(third_wire.ask("Heartbeat", 2, **beat).error_code for _ in range(10_000))
            group = third_wire.ask("DescribeGroups", 5, groups=("g",), include_authorized_operations=False).groups[0]
            assert group.group_state == "PreparingRebalance"
            described_members = [(item.member_metadata, item.member_assignment) for item in group.members]
            assert described_members == [(b"", b"assigned"), (b"", b"")]
            third_wire.ask("JoinGroup", 3, member_id=join_response.member_id, **values)
            group = third_wire.ask("DescribeGroups", 5, groups=("g",), include_authorized_operations=False).groups[0]
            assert group.group_state == "CompletingRebalance"
            assert [item.member_assignment for item in group.members] == [b"assigned", b""]


def test_an_assignment_is_returned_only_to_a_member_that_knows_the_protocol_of_its_group(gateway: Served) -> None:
    protocol = part("JoinGroup", 3, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    with gateway.wire() as wire:
        join_response = wire.ask(
            "JoinGroup", 3, group_id="g", session_timeout=SECOND * 60, rebalance_timeout=SECOND * 60, member_id="",
            protocol_type="consumer", protocols=(protocol,),
        )  # fmt: skip
        names = (
            ("consumer", "sticky"),
            ("connect", "range"),
            (None, "range"),
            ("consumer", None),
            ("consumer", "range"),
        )
        codes = [
            wire.ask(
                "SyncGroup", 5, group_id="g", generation_id=1, member_id=join_response.member_id,
                group_instance_id=None, protocol_type=kind, protocol_name=name, assignments=(),
            ).error_code
            for kind, name in names
        ]  # fmt: skip
    assert codes == [23, 23, 23, 23, 0]


def test_a_deletion_names_a_topic_either_by_name_or_by_id(orders: Served) -> None:
    with orders.wire() as wire:
        for name, requested_id in (("orders", topic_id(orders)), ("orders", uuid.uuid4()), (None, None)):
            topics = (part("DeleteTopics", 6, "DeleteTopicState", name=name, topic_id=requested_id),)
            [result] = wire.ask("DeleteTopics", 6, topics=topics, timeout=SECOND).responses
            assert (result.error_code, result.name, result.topic_id) == (42, name, requested_id)
    assert "orders" in orders.engine.topics()


def test_a_topic_that_is_deleted_after_its_creation_is_created_without_an_error(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Engine.topic_settings

    def settings(engine: Engine, name: str) -> dict[str, TopicSetting]:
        engine.delete_topic(name)
        return read(engine, name)

    monkeypatch.setattr(Engine, "topic_settings", settings)
    topic = part("CreateTopics", 7, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                 assignments=(), configs=())  # fmt: skip
    with gateway.wire() as wire:
        [created_topic] = wire.ask("CreateTopics", 7, topics=(topic,), timeout=SECOND, validate_only=False).topics
    assert (created_topic.error_code, created_topic.configs) == (0, ())


def test_a_topic_that_is_in_a_deletion_twice_is_not_deleted(orders: Served) -> None:
    orders.engine.create_topic("prices")
    with orders.wire() as wire:
        for name, requested_id in (("orders", None), (None, topic_id(orders))):
            repeated_topic = part("DeleteTopics", 6, "DeleteTopicState", name=name, topic_id=requested_id)
            unknown_topic = part("DeleteTopics", 6, "DeleteTopicState", name="unknown", topic_id=None)
            results = wire.ask(
                "DeleteTopics", 6, topics=(repeated_topic, unknown_topic, repeated_topic), timeout=SECOND
            ).responses
            assert [item.error_code for item in results] == [42, 3]
        names = ("orders", "prices", "orders")
        results = wire.ask("DeleteTopics", 5, topic_names=names, timeout=SECOND).responses
        assert [item.error_code for item in results] == [42, 0]
    assert list(orders.engine.topics()) == ["orders"]


@pytest.mark.parametrize("version", [8, 12])
def test_the_records_that_break_a_rule_are_named(gateway: Served, version: int) -> None:
    gateway.engine.create_topic("orders", config={"cleanup.policy": "compact"})
    records = part("Produce", version, "PartitionProduceData", index=0, records=gateway.batch([b"a", b"b"]))
    topics = (part("Produce", version, "TopicProduceData", name="orders", partition_data=(records,)),)
    with gateway.wire() as wire:
        response = wire.ask("Produce", version, transactional_id=None, acks=1, timeout=SECOND, topic_data=topics)
    result = response.responses[0].partition_responses[0]
    assert result.error_code == 87
    assert [item.batch_index for item in result.record_errors] == [0, 1]
    assert all(item.batch_index_error_message for item in result.record_errors)


def test_the_settings_of_a_topic_are_replaced(gateway: Served) -> None:
    gateway.engine.create_topic("orders", config={"retention.ms": 5, "segment.bytes": 2000})
    setting = part("AlterConfigs", 2, "AlterableConfig", name="retention.ms", value="7")
    resource = part(
        "AlterConfigs", 2, "AlterConfigsResource", resource_type=2, resource_name="orders", configs=(setting,)
    )
    with gateway.wire() as wire:
        for only_check, sources in ((True, {"retention.ms", "segment.bytes"}), (False, {"retention.ms"})):
            response = wire.ask("AlterConfigs", 2, resources=(resource,), validate_only=only_check)
            assert response.responses[0].error_code == 0
            settings = gateway.engine.topic_settings("orders")
            assert {name for name, setting in settings.items() if setting.source == "topic"} == sources
    assert gateway.engine.topics()["orders"].config.retention_ms == 7


def test_a_topic_without_a_valid_name_has_no_settings(orders: Served) -> None:
    with orders.wire() as wire:
        for name, code in (("", 42), ("or/ders", 17), ("unknown", 3)):
            assert altered(wire, (name, (("retention.ms", 0, "5"),)), only_check=False) == [code]
        resources = tuple(
            part("DescribeConfigs", 4, "DescribeConfigsResource", resource_type=2, resource_name=name,
                 configuration_keys=None)
            for name in ("", "or/ders", "unknown")
        )  # fmt: skip
        response = wire.ask(
            "DescribeConfigs", 4, resources=resources, include_synonyms=False, include_documentation=False
        )
    assert [item.error_code for item in response.results] == [17, 17, 3]


def described(wire: Wire, kind: int, name: str, *names: str, **options: bool) -> dict[str, Any]:
    """Send DescribeConfigs for a resource, with all fields by default. Return its settings by name."""
    resource = part(
        "DescribeConfigs", 4, "DescribeConfigsResource", resource_type=kind, resource_name=name,
        configuration_keys=names or None,
    )  # fmt: skip
    all_options = {"include_synonyms": True, "include_documentation": True, **options}
    [result] = wire.ask("DescribeConfigs", 4, resources=(resource,), **all_options).results
    assert result.error_code == 0
    return {item.name: item for item in result.configs}


def values_of(setting: Any) -> list[tuple[str, str | None, int]]:
    """Return the names, values and sources of a setting's synonyms."""
    return [(item.name, item.value, item.source) for item in setting.synonyms]


def test_the_settings_of_a_topic_are_described_with_synonyms_types_and_documentation(tmp_path: Path) -> None:
    defaults = {"retention.ms": 9, "segment.bytes": 2000, "local.hard.limit.bytes": 7}
    with served(tmp_path / "logs", topic_defaults=defaults) as gateway, gateway.wire() as wire:
        gateway.engine.create_topic("orders", config={"segment.bytes": 3000, "flush.ms": 5, "index.extra": ""})
        settings = described(wire, 2, "orders")
        assert {name: values_of(settings[name]) for name in (
            "segment.bytes", "flush.ms", "retention.ms", "cleanup.policy", "segment.ms", "local.hard.limit.bytes",
            "remote.storage.enable", "index.extra",
        )} == {
            "segment.bytes": [("segment.bytes", "3000", 1), ("log.segment.bytes", "1073741824", 5)],
            "flush.ms": [("flush.ms", "5", 1)],
            "retention.ms": [("log.retention.ms", "9", 4)],
            "cleanup.policy": [("log.cleanup.policy", "delete", 5)],
            "segment.ms": [],
            "local.hard.limit.bytes": [("local.hard.limit.bytes", "7", 4)],
            "remote.storage.enable": [],
            "index.extra": [("index.extra", "", 1)],
        }  # fmt: skip
        names = "segment.bytes", "compression.gzip.level", "retention.ms", "cleanup.policy", "preallocate"
        assert [settings[name].config_type for name in names] == [3, 3, 5, 7, 1]
        assert all(item.documentation for item in settings.values())
        short = described(wire, 2, "orders", include_synonyms=False, include_documentation=False)
        assert {(item.synonyms, item.documentation) for item in short.values()} == {((), None)}


def test_the_settings_of_the_broker_are_described_with_synonyms_types_and_documentation(tmp_path: Path) -> None:
    with served(tmp_path / "logs", partitions=3) as gateway, gateway.wire() as wire:
        settings = described(wire, 4, "1")
        sourced_names = "num.partitions", "max.connections", "ssl.cipher.suites", "broker.id"
        assert {name: (settings[name].config_source, values_of(settings[name])) for name in sourced_names} == {
            "num.partitions": (4, [("num.partitions", "3", 4), ("num.partitions", "1", 5)]),
            "max.connections": (5, [("max.connections", "2000", 5)]),
            "ssl.cipher.suites": (5, []),
            "broker.id": (4, [("broker.id", "1", 4)]),
        }
        names = (
            "num.partitions", "connections.max.idle.ms", "ssl.cipher.suites", "listeners", "ssl.key.password",
            "ssl.principal.mapping.rules", "auto.create.topics.enable", "socket.send.buffer.bytes",
        )  # fmt: skip
        assert [settings[name].config_type for name in names] == [3, 5, 7, 2, 9, 2, 1, 3]
        assert settings["num.partitions"].documentation
        short = described(wire, 4, "1", include_synonyms=False, include_documentation=False)
        assert {(item.synonyms, item.documentation) for item in short.values()} == {((), None)}
        assert described(wire, 4, "") == {}


def test_each_group_has_the_settings_of_the_gateway(tmp_path: Path) -> None:
    with served(tmp_path / "logs", consumer_session_ms=50_000) as gateway, gateway.wire() as wire:
        settings = described(wire, 32, "g")
        assert {name: (item.value, item.config_type, values_of(item)) for name, item in settings.items()} == {
            f"consumer.{name}": (value, 3, [(f"consumer.{name}", value, 5)])
            for name, value in (("heartbeat.interval.ms", "5000"), ("session.timeout.ms", "50000"))
        }
        assert all(item.documentation for item in settings.values())
        assert list(described(wire, 32, "g", "consumer.session.timeout.ms")) == ["consumer.session.timeout.ms"]
        resource = part(
            "DescribeConfigs", 1, "DescribeConfigsResource", resource_type=32, resource_name="", configuration_keys=None
        )
        result = wire.ask("DescribeConfigs", 1, resources=(resource,), include_synonyms=False).results[0]
        assert (result.error_code, result.error_message) == (42, "Group name must not be empty")


def altered(
    wire: Wire,
    *resources: tuple[str, tuple[tuple[str, int, str | None], ...]],
    only_check: bool,
    kind: int = 2,
) -> list[int]:
    """Send IncrementalAlterConfigs for resources, each with changes (name, operation, value). Return the error codes.

    ``kind`` is the type of the resources. The default is topics.
    """
    requested_resources = tuple(
        part(
            "IncrementalAlterConfigs", 1, "AlterConfigsResource", resource_type=kind, resource_name=resource,
            configs=tuple(
                part("IncrementalAlterConfigs", 1, "AlterableConfig", name=name, config_operation=how, value=value)
                for name, how, value in changes
            ),
        )
        for resource, changes in resources
    )  # fmt: skip
    responses = wire.ask(
        "IncrementalAlterConfigs", 1, resources=requested_resources, validate_only=only_check
    ).responses
    return [item.error_code for item in responses]


@pytest.mark.parametrize(("kind", "name"), [(4, "1"), (4, ""), (32, "g")])
def test_settings_of_brokers_and_groups_can_only_be_reset(orders: Served, kind: int, name: str) -> None:
    """kafka-reassign-partitions.sh --verify resets the throttles of brokers."""
    reset, change = ("leader.replication.throttled.rate", 1, None), ("leader.replication.throttled.rate", 0, "5")
    with orders.wire() as wire:
        codes = [
            altered(wire, (name, changes), only_check=False, kind=kind)
            for changes in ((reset,), (), (change,), (reset, change))
        ]
        assert codes == [[0], [0], [42], [42]]
        assert altered(wire, ("9", (reset,)), only_check=False, kind=4) == [42]
        assert altered(wire, ("x", (reset,)), only_check=False, kind=64) == [42]  # an unknown type of resources


def test_a_topic_that_is_in_a_change_of_settings_twice_is_not_changed(orders: Served) -> None:
    orders.engine.create_topic("prices")
    first, second = ("retention.ms", 0, "5"), ("retention.bytes", 0, "6")
    with orders.wire() as wire:
        codes = altered(wire, ("orders", (first,)), ("prices", (first,)), ("orders", (second,)), only_check=False)
    assert codes == [42, 0, 42]
    assert {name: info.config.retention_ms for name, info in orders.engine.topics().items()} == {
        "orders": 604_800_000,
        "prices": 5,
    }


@pytest.mark.parametrize("only_check", [True, False])
def test_a_check_of_settings_reports_the_refusal_of_the_change(tmp_path: Path, *, only_check: bool) -> None:
    (tmp_path / "tier").mkdir()
    with served(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as gateway, gateway.wire() as wire:
        gateway.engine.create_topic("orders")
        gateway.engine.create_topic("prices", config={"retention.ms": 5_000, "local.retention.ms": 5_000})
        for topic, change in (
            ("orders", ("remote.storage.enable", 0, "false")),  # the topic would leave its tier
            ("prices", ("retention.ms", 0, "4000")),
        ):
            assert altered(wire, (topic, (change,)), only_check=only_check) == [40]


@pytest.mark.parametrize("only_check", [True, False])
def test_a_check_of_settings_counts_resets(orders: Served, *, only_check: bool) -> None:
    orders.engine.alter_topic("orders", {"max.compaction.lag.ms": 1000})
    changes = (("max.compaction.lag.ms", 1, None), ("min.compaction.lag.ms", 0, "2000"))
    with orders.wire() as wire:
        assert altered(wire, ("orders", changes[1:]), only_check=only_check) == [40]
        assert altered(wire, ("orders", changes), only_check=only_check) == [0]
    assert orders.engine.topics()["orders"].config.min_compaction_lag_ms == (0 if only_check else 2000)


@pytest.mark.parametrize("name", ["compression.type", "cleanup.policy"])
def test_a_setting_that_names_an_unknown_component_is_invalid(orders: Served, name: str) -> None:
    with orders.wire() as wire:
        for only_check in (True, False):
            assert altered(wire, ("orders", ((name, 0, "unknown"),)), only_check=only_check) == [40]
        value = part("CreateTopics", 4, "CreatableTopicConfig", name=name, value="unknown")
        topic = part("CreateTopics", 4, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                     assignments=(), configs=(value,))  # fmt: skip
        response = wire.ask("CreateTopics", 4, topics=(topic,), timeout=SECOND, validate_only=False)
    assert response.topics[0].error_code == 40


@pytest.mark.parametrize("only_check", [True, False])
def test_the_reset_of_an_unknown_setting_has_no_effect(orders: Served, *, only_check: bool) -> None:
    resets = tuple((name, 1, None) for name in ("retention.ms", "no.setting", "other.setting", "retention"))
    orders.engine.alter_topic("orders", {"retention.ms": 5})
    with orders.wire() as wire:
        assert altered(wire, ("orders", (*resets, ("retention", 0, "5"))), only_check=only_check) == [42]  # twice
        assert altered(wire, ("orders", (*resets, ("wrong", 0, "5"))), only_check=only_check) == [40]
        assert orders.engine.topics()["orders"].config.retention_ms == 5
        assert altered(wire, ("orders", resets), ("unknown", resets), only_check=only_check) == [0, 3]
    assert orders.engine.topics()["orders"].config.retention_ms == (5 if only_check else 604_800_000)


def test_the_settings_of_a_topic_that_is_deleted_meanwhile_are_refused(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.engine.create_topic("orders")
    read = Engine.topic_settings

    def settings(engine: Engine, name: str) -> dict[str, TopicSetting]:
        topic_settings = read(engine, name)
        engine.delete_topic(name)
        return topic_settings

    monkeypatch.setattr(Engine, "topic_settings", settings)
    setting = part("AlterConfigs", 2, "AlterableConfig", name="retention.ms", value="7")
    resource = part(
        "AlterConfigs", 2, "AlterConfigsResource", resource_type=2, resource_name="orders", configs=(setting,)
    )
    with gateway.wire() as wire:
        response = wire.ask("AlterConfigs", 2, resources=(resource,), validate_only=True)
    assert response.responses[0].error_code == 3


class AnnouncingLock:
    """A lock that sets an event before a thread waits for it."""

    def __init__(self, event: threading.Event) -> None:
        self._lock, self._event = threading.Lock(), event

    def __enter__(self) -> None:
        if self._lock.locked():
            self._event.set()
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()


def test_two_changes_of_a_list_at_the_same_time_are_both_kept(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.engine.create_topic("orders", config={"cleanup.policy": "delete"})
    read, other_is_here, nodes, topics = Engine.topic_settings, threading.Event(), list[Node](), Node.topics

    def topics_of(node: Node) -> dict[str, TopicInfo]:
        nodes.append(node)
        return topics(node)

    monkeypatch.setattr(Node, "topics", topics_of)
    with gateway.wire() as wire:
        wire.ask("Metadata", 1, topics=None)
    monkeypatch.setattr(nodes[0], "changing_topics", AnnouncingLock(other_is_here))

    def change(operation: int, value: str) -> int:
        setting = part(
            "IncrementalAlterConfigs",
            1,
            "AlterableConfig",
            name="cleanup.policy",
            config_operation=operation,
            value=value,
        )
        resource = part(
            "IncrementalAlterConfigs",
            1,
            "AlterConfigsResource",
            resource_type=2,
            resource_name="orders",
            configs=(setting,),
        )
        with gateway.wire() as wire:
            response = wire.ask("IncrementalAlterConfigs", 1, resources=(resource,), validate_only=False)
        code: int = response.responses[0].error_code
        return code

    def settings_of_first(engine: Engine, name: str) -> dict[str, TopicSetting]:
        topic_settings = read(engine, name)
        monkeypatch.setattr(Engine, "topic_settings", settings_of_other)
        other_changes.append(pool.submit(change, 3, "delete"))
        assert other_is_here.wait(20)  # at the lock, or, if the gateway lets it lose this change, after its read
        return topic_settings

    def settings_of_other(engine: Engine, name: str) -> dict[str, TopicSetting]:
        topic_settings = read(engine, name)
        other_is_here.set()
        return topic_settings

    other_changes = list[Future[int]]()
    monkeypatch.setattr(Engine, "topic_settings", settings_of_first)
    with ThreadPoolExecutor(1) as pool:
        assert change(2, "compact") == 0
        assert other_changes[0].result(20) == 0
    monkeypatch.undo()
    assert gateway.engine.topic_settings("orders")["cleanup.policy"].value == "compact"


def test_a_topic_cannot_use_a_tier_that_the_gateway_does_not_have(orders: Served) -> None:
    with orders.wire() as wire:
        for only_check in (True, False):
            value = part("CreateTopics", 4, "CreatableTopicConfig", name="remote.storage.enable", value="true")
            topic = part("CreateTopics", 4, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                         assignments=(), configs=(value,))  # fmt: skip
            created = wire.ask("CreateTopics", 4, topics=(topic,), timeout=SECOND, validate_only=only_check)
            setting = part("AlterConfigs", 2, "AlterableConfig", name="remote.storage.enable", value="true")
            resource = part(
                "AlterConfigs", 2, "AlterConfigsResource", resource_type=2, resource_name="orders", configs=(setting,)
            )
            altered = wire.ask("AlterConfigs", 2, resources=(resource,), validate_only=only_check)
            assert [created.topics[0].error_code, altered.responses[0].error_code] == [40, 40]


@pytest.mark.parametrize("only_check", [True, False])
def test_local_retention_of_a_new_topic_is_compared_on_a_gateway_with_a_tier(
    tmp_path: Path, *, only_check: bool
) -> None:
    (tmp_path / "tier").mkdir()
    with served(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as gateway, gateway.wire() as wire:
        value = part("CreateTopics", 4, "CreatableTopicConfig", name="local.retention.ms", value="1000000000000")
        topic = part("CreateTopics", 4, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                     assignments=(), configs=(value,))  # fmt: skip
        response = wire.ask("CreateTopics", 4, topics=(topic,), timeout=SECOND, validate_only=only_check)
        assert response.topics[0].error_code == 40


def test_remote_storage_of_a_topic_can_be_reset_on_a_gateway_without_a_tier(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    with open_engine(tmp_path / "logs", tier=(tmp_path / "tier").as_uri()) as engine:
        engine.create_topic("new", config={"remote.storage.enable": True, "remote.log.delete.on.disable": True})
    with served(tmp_path / "logs") as gateway, gateway.wire() as wire:
        setting = part("AlterConfigs", 2, "AlterableConfig", name="remote.log.delete.on.disable", value="true")
        resource = part(
            "AlterConfigs", 2, "AlterConfigsResource", resource_type=2, resource_name="new", configs=(setting,)
        )
        for only_check in (True, False):
            response = wire.ask("AlterConfigs", 2, resources=(resource,), validate_only=only_check)
            assert response.responses[0].error_code == 0


@pytest.mark.parametrize(
    ("stored", "setting", "cluster_id"),
    [
        ("", "", "stratalog"),
        ("cluster.id=of-a-broker\n", "", "of-a-broker"),
        ("cluster.id=of-a-broker\n", "own", "own"),
    ],
)
def test_clients_see_the_cluster_id_of_the_broker_that_wrote_the_directory(
    tmp_path: Path, stored: str, setting: str, cluster_id: str
) -> None:
    (tmp_path / "meta.properties").write_text(f"version=1\n{stored}node.id=1\n")
    with served(tmp_path, cluster_id=setting) as gateway, gateway.wire() as wire:
        response = wire.ask("DescribeCluster", 0, include_cluster_authorized_operations=False)
        assert response.cluster_id == cluster_id
        response = wire.ask(
            "Metadata", 9, topics=(), allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )  # fmt: skip
        assert response.cluster_id == cluster_id
