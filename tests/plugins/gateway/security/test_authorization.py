"""The response of each API to a client that lacks a permission."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import frame_of, part, request, response
from stratalog import CommittedOffset, Engine, Record, TopicPartition, open_engine
from stratalog.env.clock import SystemClock
from stratalog_gateway.groups.classic_group import ClassicGroup
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.handlers.dispatch import APIS, Dispatcher
from stratalog_gateway.node import Node
from stratalog_gateway.security.authorizer import Authorizer
from stratalog_gateway.security.client import Client
from stratalog_gateway.settings import GatewaySection

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 29, 30, 31, 53
SECOND = dt.timedelta(seconds=1)
ALL_TOPIC = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))


class Direct:
    """Sends requests of one principal to the handlers, without a connection."""

    def __init__(self, dispatch: Dispatcher, client: Client) -> None:
        self._dispatch, self._client = dispatch, client

    def ask(self, api: str, version: int, /, **values: Any) -> Any:
        answer = self._dispatch(memoryview(request(api, version, values)), self._client)
        frame = frame_of(answer.pieces)
        answer.release()
        return response(api, version, frame[4:])


class Bed:
    """An engine with two topics and committed offsets of a group. ``of`` returns the client of a principal."""

    def __init__(self, engine: Engine, acls: Path) -> None:
        self.engine = engine
        settings = GatewaySection(acls_file=str(acls), auto_create=True)
        self._endpoint = settings.endpoints()[0]
        self._node = Node(engine, settings, SystemClock())
        self.groups = GroupTable(self._node)
        self._dispatch = Dispatcher(self._node, self.groups)
        assert self._node.acls is not None
        self._authorizer = Authorizer(self._node.acls, frozenset({"User:admin"}), allow_everyone=False)

    def of(self, user: str) -> Direct:
        client = Client("127.0.0.1", self._endpoint, self._authorizer)
        client.principal = f"User:{user}"
        return Direct(self._dispatch, client)

    def reset(self) -> None:
        for name in {"orders", "prices"} - self.engine.topics().keys():
            self.engine.create_topic(name)
            self.engine.log(name).append([Record(value=b"v")])
        place = {TopicPartition(name, 0): CommittedOffset(1) for name in ("orders", "prices")}
        self.engine.alter_group_offsets("g", place)

    def close(self) -> None:
        self._node.close()
        self.groups.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("authorization")
    acls = folder / "acls.json"
    acls.write_text(json.dumps({"version": 1, "acls": [
        {
            "principal": f"User:{user}", "operation": operation, "resourceType": kind, "resourceName": name,
            "permissionType": permission,
        }
        for user, permission, operation, kind, name in map(str.split, (*OTHERS, *(
            f"{api} allow {acl}" for api, (_, _, needed, _) in CALLS.items() for acl in needed
        )))
    ]}))  # fmt: skip
    with open_engine(folder / "logs") as engine:
        bed = Bed(engine, acls)
        yield bed
        bed.close()


@pytest.fixture
def bed(shared: Bed) -> Bed:
    shared.reset()
    return shared


def produce(wire: Direct, topic: str = "orders") -> int:
    data = part("Produce", 8, "PartitionProduceData", index=0, records=b"")
    topics = (part("Produce", 8, "TopicProduceData", name=topic, partition_data=(data,)),)
    result = wire.ask("Produce", 8, transactional_id=None, acks=1, timeout=SECOND, topic_data=topics)
    return int(result.responses[0].partition_responses[0].error_code)


def fetch(wire: Direct, topic: str = "orders") -> int:
    partition = part("Fetch", 11, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (part("Fetch", 11, "FetchTopic", topic=topic, partitions=(partition,)),)
    result = wire.ask(
        "Fetch", 11, replica_id=-1, max_wait=SECOND, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=topics, forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    return int(result.responses[0].partitions[0].error_code)


def list_offsets(wire: Direct) -> int:
    partition = part("ListOffsets", 1, "ListOffsetsPartition", partition_index=0, timestamp=-1)
    topics = (part("ListOffsets", 1, "ListOffsetsTopic", name="orders", partitions=(partition,)),)
    return int(wire.ask("ListOffsets", 1, replica_id=-1, topics=topics).topics[0].partitions[0].error_code)


def epoch_end(wire: Direct) -> int:
    api = "OffsetForLeaderEpoch"
    partition = part(api, 3, "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0)
    topics = (part(api, 3, "OffsetForLeaderTopic", topic="orders", partitions=(partition,)),)
    return int(wire.ask(api, 3, replica_id=-1, topics=topics).topics[0].partitions[0].error_code)


def delete_records(wire: Direct) -> int:
    partition = part("DeleteRecords", 1, "DeleteRecordsPartition", partition_index=0, offset=0)
    topics = (part("DeleteRecords", 1, "DeleteRecordsTopic", name="orders", partitions=(partition,)),)
    return int(wire.ask("DeleteRecords", 1, topics=topics, timeout=SECOND).topics[0].partitions[0].error_code)


def offset_commit(wire: Direct) -> int:
    partition = part("OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1,
                  committed_metadata="")  # fmt: skip
    topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(partition,)),)
    result = wire.ask(
        "OffsetCommit", 2, group_id="g", generation_id_or_member_epoch=-1, member_id="", retention_time=SECOND,
        topics=topics,
    )  # fmt: skip
    return int(result.topics[0].partitions[0].error_code)


def offset_fetch(wire: Direct) -> int:
    topics = (part("OffsetFetch", 5, "OffsetFetchRequestTopic", name="orders", partition_indexes=(0,)),)
    result = wire.ask("OffsetFetch", 5, group_id="g", topics=topics)
    return int(result.error_code or result.topics[0].partitions[0].error_code)


def offset_delete(wire: Direct) -> int:
    partition = part("OffsetDelete", 0, "OffsetDeleteRequestPartition", partition_index=0)
    topics = (part("OffsetDelete", 0, "OffsetDeleteRequestTopic", name="orders", partitions=(partition,)),)
    result = wire.ask("OffsetDelete", 0, group_id="g", topics=topics)
    return int(result.error_code or result.topics[0].partitions[0].error_code)


def find_coordinator(wire: Direct) -> int:
    return int(wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=("g",)).coordinators[0].error_code)


def join_group(wire: Direct) -> int:
    return int(
        wire.ask(
            "JoinGroup",
            4,
            group_id="g",
            session_timeout=SECOND * 10,
            rebalance_timeout=SECOND,
            member_id="",
            protocol_type="consumer",
            protocols=(),
        ).error_code
    )


def sync_group(wire: Direct) -> int:
    return int(
        wire.ask("SyncGroup", 5, group_id="g", generation_id=1, member_id="m", group_instance_id=None,
                 protocol_type="consumer", protocol_name="range", assignments=()).error_code
    )  # fmt: skip


def heartbeat(wire: Direct) -> int:
    return int(
        wire.ask("Heartbeat", 3, group_id="g", generation_id=1, member_id="m", group_instance_id=None).error_code
    )


def consumer_group_heartbeat(wire: Direct) -> int:
    result = wire.ask(
        "ConsumerGroupHeartbeat", 0, group_id="new", member_id="m", member_epoch=1, rebalance_timeout=SECOND,
        subscribed_topic_names=("orders",), topic_partitions=(),
    )  # fmt: skip
    return int(result.error_code)


def consumer_group_describe(wire: Direct) -> int:
    result = wire.ask("ConsumerGroupDescribe", 0, group_ids=("unknown",), include_authorized_operations=False)
    return int(result.groups[0].error_code)


def leave_group(wire: Direct) -> int:
    return int(wire.ask("LeaveGroup", 2, group_id="g", member_id="m").error_code)


def describe_groups(wire: Direct) -> int:
    return int(wire.ask("DescribeGroups", 1, groups=("g",)).groups[0].error_code)


def delete_groups(wire: Direct) -> int:
    return int(wire.ask("DeleteGroups", 1, groups_names=("g",)).results[0].error_code)


def create_topics(wire: Direct) -> int:
    topic = part("CreateTopics", 4, "CreatableTopic", name="new", num_partitions=1, replication_factor=1,
                 assignments=(), configs=())  # fmt: skip
    return int(wire.ask("CreateTopics", 4, topics=(topic,), timeout=SECOND, validate_only=True).topics[0].error_code)


def delete_topics(wire: Direct) -> int:
    return int(wire.ask("DeleteTopics", 3, topic_names=("orders",), timeout=SECOND).responses[0].error_code)


def create_partitions(wire: Direct) -> int:
    topic = part("CreatePartitions", 1, "CreatePartitionsTopic", name="orders", count=2, assignments=None)
    return int(
        wire.ask("CreatePartitions", 1, topics=(topic,), timeout=SECOND, validate_only=True).results[0].error_code
    )


def describe_configs(wire: Direct, kind: int = 2, name: str = "orders") -> int:
    resource = part("DescribeConfigs", 1, "DescribeConfigsResource", resource_type=kind, resource_name=name,
                  configuration_keys=None)  # fmt: skip
    result = wire.ask("DescribeConfigs", 1, resources=(resource,), include_synonyms=False)
    return int(result.results[0].error_code)


def alter_configs(wire: Direct) -> int:
    change = part("IncrementalAlterConfigs", 0, "AlterableConfig", name="retention.ms", config_operation=0, value="1")
    resource = part("IncrementalAlterConfigs", 0, "AlterConfigsResource", resource_type=2, resource_name="orders",
                  configs=(change,))  # fmt: skip
    result = wire.ask("IncrementalAlterConfigs", 0, resources=(resource,), validate_only=True)
    return int(result.responses[0].error_code)


def replace_configs(wire: Direct) -> int:
    setting = part("AlterConfigs", 1, "AlterableConfig", name="retention.ms", value="1")
    resource = part("AlterConfigs", 1, "AlterConfigsResource", resource_type=2, resource_name="orders",
                  configs=(setting,))  # fmt: skip
    result = wire.ask("AlterConfigs", 1, resources=(resource,), validate_only=True)
    return int(result.responses[0].error_code)


def init_producer_id(wire: Direct) -> int:
    return int(wire.ask("InitProducerId", 1, transactional_id=None, transaction_timeout=SECOND).error_code)


def describe_log_dirs(wire: Direct) -> int:
    return int(wire.ask("DescribeLogDirs", 3, topics=None).error_code)


def alter_replica_log_dirs(wire: Direct) -> int:
    topic = part("AlterReplicaLogDirs", 2, "AlterReplicaLogDirTopic", name="orders", partitions=(0,))
    directory = part("AlterReplicaLogDirs", 2, "AlterReplicaLogDir", path="/no/directory", topics=(topic,))
    return int(wire.ask("AlterReplicaLogDirs", 2, dirs=(directory,)).results[0].partitions[0].error_code)


def alter_partition_reassignments(wire: Direct) -> int:
    api = "AlterPartitionReassignments"
    partition = part(api, 0, "ReassignablePartition", partition_index=0, replicas=(1,))
    topic = part(api, 0, "ReassignableTopic", name="orders", partitions=(partition,))
    answer = wire.ask(api, 0, timeout=SECOND, topics=(topic,))
    assert answer.responses[0].partitions[0].error_code == answer.error_code  # Java clients count the partitions
    return int(answer.error_code)


def list_partition_reassignments(wire: Direct) -> int:
    return int(wire.ask("ListPartitionReassignments", 0, timeout=SECOND, topics=None).error_code)


def list_config_resources(wire: Direct) -> int:
    return int(wire.ask("ListConfigResources", 0).error_code)


def elect_leaders(wire: Direct) -> int:
    result = wire.ask("ElectLeaders", 1, election_type=0, topic_partitions=None, timeout=SECOND)
    return int(result.error_code)


def describe_quorum(wire: Direct) -> int:
    return int(wire.ask("DescribeQuorum", 1, topics=()).error_code)


def add_partitions_to_txn(wire: Direct) -> int:
    api = "AddPartitionsToTxn"
    topics = (part(api, 2, "AddPartitionsToTxnTopic", name="orders", partitions=(0,)),)
    result = wire.ask(
        api, 2, v3_and_below_transactional_id="t", v3_and_below_producer_id=5, v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )  # fmt: skip
    return int(result.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def add_offsets_to_txn(wire: Direct) -> int:
    result = wire.ask("AddOffsetsToTxn", 2, transactional_id="t", producer_id=5, producer_epoch=0, group_id="g")
    return int(result.error_code)


def end_txn(wire: Direct) -> int:
    return int(wire.ask("EndTxn", 2, transactional_id="t", producer_id=5, producer_epoch=0, committed=True).error_code)


def txn_offset_commit(wire: Direct) -> int:
    api = "TxnOffsetCommit"
    partition = part(api, 2, "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=1,
                  committed_metadata="", committed_leader_epoch=-1)  # fmt: skip
    topics = (part(api, 2, "TxnOffsetCommitRequestTopic", name="orders", partitions=(partition,)),)
    result = wire.ask(api, 2, transactional_id="t", group_id="g", producer_id=5, producer_epoch=0, topics=topics)
    return int(result.topics[0].partitions[0].error_code)


def write_txn_markers(wire: Direct) -> int:
    api = "WriteTxnMarkers"
    topics = (part(api, 1, "WritableTxnMarkerTopic", name="unknown", partition_indexes=(0,)),)
    marker = part(api, 1, "WritableTxnMarker", producer_id=5, producer_epoch=0, transaction_result=False,
                  topics=topics, coordinator_epoch=0)  # fmt: skip
    return int(wire.ask(api, 1, markers=(marker,)).markers[0].topics[0].partitions[0].error_code)


def describe_transactions(wire: Direct) -> int:
    result = wire.ask("DescribeTransactions", 0, transactional_ids=("t",))
    return int(result.transaction_states[0].error_code)


def describe_producers(wire: Direct) -> int:
    topics = (part("DescribeProducers", 0, "TopicRequest", name="orders", partition_indexes=(0,)),)
    return int(wire.ask("DescribeProducers", 0, topics=topics).topics[0].partitions[0].error_code)


def acl_filter(api: str, kind: str, **values: Any) -> Any:
    fields = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1, **values,
    }  # fmt: skip
    return fields if not kind else part(api, 2, kind, **fields)


def describe_acls(wire: Direct) -> int:
    return int(wire.ask("DescribeAcls", 2, **acl_filter("DescribeAcls", "")).error_code)


def create_acls(wire: Direct) -> int:
    acl = part("CreateAcls", 2, "AclCreation", resource_type=2, resource_name="new", resource_pattern_type=3,
               principal="User:new", host="*", operation=3, permission_type=3)  # fmt: skip
    return int(wire.ask("CreateAcls", 2, creations=(acl,)).results[0].error_code)


def delete_acls(wire: Direct) -> int:
    user_filter = acl_filter("DeleteAcls", "DeleteAclsFilter", principal_filter="User:new")
    return int(wire.ask("DeleteAcls", 2, filters=(user_filter,)).filter_results[0].error_code)


def describe_client_quotas(wire: Direct) -> int:
    return int(wire.ask("DescribeClientQuotas", 1, components=(), strict=False).error_code)


def alter_client_quotas(wire: Direct) -> int:
    entity = part("AlterClientQuotas", 1, "EntityData", entity_type="user", entity_name="new")
    entry = part("AlterClientQuotas", 1, "EntryData", entity=(entity,), ops=())
    result = wire.ask("AlterClientQuotas", 1, entries=(entry,), validate_only=False)
    return int(result.entries[0].error_code)


def describe_scram(wire: Direct) -> int:
    return int(wire.ask("DescribeUserScramCredentials", 0, users=None).error_code)


def alter_scram(wire: Direct) -> int:
    deletion = part("AlterUserScramCredentials", 0, "ScramCredentialDeletion", name="new", mechanism=1)
    result = wire.ask("AlterUserScramCredentials", 0, deletions=(deletion,), upsertions=())
    return int(result.results[0].error_code)


# Call, error code without permission, needed ACLs, error code with them.
CALLS: dict[str, tuple[Callable[[Direct], int], int, tuple[str, ...], int]] = {
    "Produce": (produce, TOPIC, ("Write Topic orders",), 87),
    "Fetch": (fetch, TOPIC, ("Read Topic orders",), 0),
    "ListOffsets": (list_offsets, TOPIC, ("Describe Topic orders",), 0),
    "OffsetForLeaderEpoch": (epoch_end, TOPIC, ("Describe Topic orders",), 0),
    "DeleteRecords": (delete_records, TOPIC, ("Delete Topic orders",), 0),
    "OffsetCommit": (offset_commit, GROUP, ("Read Group g", "Read Topic orders"), 0),
    "OffsetFetch": (offset_fetch, GROUP, ("Describe Group g", "Describe Topic orders"), 0),
    "OffsetDelete": (offset_delete, GROUP, ("Delete Group g", "Read Topic orders"), 0),
    "FindCoordinator": (find_coordinator, GROUP, ("Describe Group g",), 0),
    "JoinGroup": (join_group, GROUP, ("Read Group g",), 23),
    "SyncGroup": (sync_group, GROUP, ("Read Group g",), 25),
    "Heartbeat": (heartbeat, GROUP, ("Read Group g",), 25),
    "LeaveGroup": (leave_group, GROUP, ("Read Group g",), 25),
    "ConsumerGroupHeartbeat": (consumer_group_heartbeat, GROUP, ("Read Group new", "Describe Topic orders"), 69),
    "ConsumerGroupDescribe": (consumer_group_describe, GROUP, ("Describe Group unknown",), 69),
    "DescribeGroups": (describe_groups, GROUP, ("Describe Group g",), 0),
    "DeleteGroups": (delete_groups, GROUP, ("Delete Group g",), 0),
    "CreateTopics": (create_topics, TOPIC, ("Create Topic new",), 0),
    "DeleteTopics": (delete_topics, TOPIC, ("Delete Topic orders",), 0),
    "CreatePartitions": (create_partitions, TOPIC, ("Alter Topic orders",), 0),
    "DescribeConfigs": (describe_configs, TOPIC, ("DescribeConfigs Topic orders",), 0),
    "AlterConfigs": (replace_configs, TOPIC, ("AlterConfigs Topic orders",), 0),
    "IncrementalAlterConfigs": (alter_configs, TOPIC, ("AlterConfigs Topic orders",), 0),
    "DescribeLogDirs": (describe_log_dirs, CLUSTER, ("Describe Cluster kafka-cluster",), 0),
    "AlterReplicaLogDirs": (alter_replica_log_dirs, CLUSTER, ("Alter Cluster kafka-cluster",), 57),
    "AlterPartitionReassignments": (alter_partition_reassignments, CLUSTER, ("Alter Cluster kafka-cluster",), 0),
    "ListPartitionReassignments": (list_partition_reassignments, CLUSTER, ("Describe Cluster kafka-cluster",), 0),
    "ListConfigResources": (list_config_resources, CLUSTER, ("DescribeConfigs Cluster kafka-cluster",), 0),
    "ElectLeaders": (elect_leaders, CLUSTER, ("Alter Cluster kafka-cluster",), 0),
    "DescribeQuorum": (describe_quorum, CLUSTER, ("Describe Cluster kafka-cluster",), 0),
    "AddPartitionsToTxn": (
        add_partitions_to_txn,
        TRANSACTIONAL_ID,
        ("Write TransactionalId t", "Write Topic orders"),
        49,
    ),
    "AddOffsetsToTxn": (add_offsets_to_txn, TRANSACTIONAL_ID, ("Write TransactionalId t", "Read Group g"), 49),
    "EndTxn": (end_txn, TRANSACTIONAL_ID, ("Write TransactionalId t",), 49),
    "TxnOffsetCommit": (
        txn_offset_commit,
        TRANSACTIONAL_ID,
        ("Write TransactionalId t", "Read Group g", "Read Topic orders"),
        49,
    ),
    "WriteTxnMarkers": (write_txn_markers, CLUSTER, ("ClusterAction Cluster kafka-cluster",), 3),
    "DescribeTransactions": (describe_transactions, TRANSACTIONAL_ID, ("Describe TransactionalId t",), 105),
    "DescribeProducers": (describe_producers, TOPIC, ("Read Topic orders",), 0),
    "DescribeAcls": (describe_acls, CLUSTER, ("Describe Cluster kafka-cluster",), 0),
    "CreateAcls": (create_acls, CLUSTER, ("Alter Cluster kafka-cluster",), 0),
    "DeleteAcls": (delete_acls, CLUSTER, ("Alter Cluster kafka-cluster",), 0),
    "InitProducerId": (init_producer_id, CLUSTER, ("Write Topic orders",), 0),
    "DescribeClientQuotas": (describe_client_quotas, CLUSTER, ("DescribeConfigs Cluster kafka-cluster",), 0),
    "AlterClientQuotas": (alter_client_quotas, CLUSTER, ("AlterConfigs Cluster kafka-cluster",), 42),
    "DescribeUserScramCredentials": (describe_scram, CLUSTER, ("Describe Cluster kafka-cluster",), 0),
    "AlterUserScramCredentials": (alter_scram, CLUSTER, ("Alter Cluster kafka-cluster",), 54),
}


OTHERS = (
    "reader allow Read Topic orders",
    "reader allow Read Group g",
    "reader allow Describe Cluster kafka-cluster",
    "creator allow Create Cluster kafka-cluster",
    "writer allow All Topic orders",
    "owner allow All TransactionalId mine",
    "deleter allow Delete Group g",
    "order-writer allow All Topic order",
)
# The gateway answers these requests before it knows the client's principal.
WITHOUT_ACLS = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
OF_OWN_TESTS = {
    "Metadata",
    "DescribeTopicPartitions",
    "DescribeCluster",
    "ListGroups",
    "ListTransactions",
}  # without a permission, the response has fewer entries instead of an error


def test_each_api_has_its_permission_tested() -> None:
    assert {api.name for api in APIS.values()} == {*CALLS, *WITHOUT_ACLS, *OF_OWN_TESTS}


@pytest.mark.parametrize("api", CALLS)
def test_an_operation_needs_its_permission(bed: Bed, api: str) -> None:
    call, refusal, _, allowed = CALLS[api]
    assert call(bed.of("nobody")) == refusal
    assert call(bed.of(api)) == allowed
    bed.reset()
    assert call(bed.of("admin")) == allowed


@pytest.mark.parametrize("call", [offset_commit, offset_fetch, offset_delete])
def test_a_permission_for_the_group_alone_does_not_open_topics(bed: Bed, call: Callable[[Direct], int]) -> None:
    users = {"offset_commit": "JoinGroup", "offset_fetch": "FindCoordinator", "offset_delete": "deleter"}
    assert call(bed.of(users[call.__name__])) == TOPIC


def test_settings_of_the_broker_need_a_permission_for_the_cluster(bed: Bed) -> None:
    assert describe_configs(bed.of("DescribeConfigs"), kind=4, name="1") == CLUSTER
    assert describe_configs(bed.of("admin"), kind=4, name="1") == 0


def topics_of(metadata: Any) -> dict[str | None, int]:
    return {topic.name: int(topic.error_code) for topic in metadata.topics}


def named(wire: Direct, *names: str, create: bool = False) -> Any:
    topics = tuple(part("Metadata", 9, "MetadataRequestTopic", name=name) for name in names)
    return wire.ask(
        "Metadata", 9, topics=topics, allow_auto_topic_creation=create, include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )  # fmt: skip


def test_metadata_shows_only_topics_that_the_client_may_describe(bed: Bed) -> None:
    for user, visible_topics in (("reader", {"orders"}), ("nobody", set()), ("admin", {"orders", "prices"})):
        topics = {topic.name for topic in bed.of(user).ask("Metadata", 1, topics=None).topics}
        assert topics - {"__consumer_offsets"} == visible_topics
    assert topics_of(named(bed.of("reader"), "orders", "prices", "unknown")) == {
        "orders": 0, "prices": TOPIC, "unknown": TOPIC,
    }  # fmt: skip


def test_topics_are_described_only_to_a_client_that_may_describe_them(bed: Bed) -> None:
    def described(user: str, *names: str) -> dict[str, tuple[int, int]]:
        topics = tuple(part("DescribeTopicPartitions", 0, "TopicRequest", name=name) for name in names)
        result = bed.of(user).ask(
            "DescribeTopicPartitions", 0, topics=topics, response_partition_limit=100, cursor=None
        )
        return {
            topic.name: (int(topic.error_code), topic.topic_authorized_operations)
            for topic in result.topics
            if not topic.is_internal
        }

    assert described("reader") == {"orders": (0, 1 << 3 | 1 << 8)}
    assert described("reader", "prices", "unknown") == {
        "prices": (TOPIC, -(1 << 31)), "unknown": (TOPIC, -(1 << 31)),
    }  # fmt: skip


def test_the_error_of_a_missing_topic_names_no_topic_that_the_client_may_not_describe(bed: Bed) -> None:
    wire = bed.of("order-writer")
    [deleted] = wire.ask("DeleteTopics", 5, topic_names=("order",), timeout=SECOND).responses
    data = part("Produce", 8, "PartitionProduceData", index=0, records=bytes(61))
    topics = (part("Produce", 8, "TopicProduceData", name="order", partition_data=(data,)),)
    result = wire.ask("Produce", 8, transactional_id=None, acks=1, timeout=SECOND, topic_data=topics)
    [produced] = result.responses[0].partition_responses
    text = "This server does not host this topic-partition."
    assert (deleted.error_code, deleted.error_message) == (3, text)
    assert (produced.error_code, produced.error_message) == (3, text)


def test_refusals_have_the_texts_of_a_broker(bed: Bed) -> None:
    wire = bed.of("nobody")
    topic = part("CreateTopics", 5, "CreatableTopic", name="fresh", num_partitions=1, replication_factor=1,
                 assignments=(), configs=())  # fmt: skip
    [created] = wire.ask("CreateTopics", 5, topics=(topic,), timeout=SECOND, validate_only=False).topics
    [deleted] = wire.ask("DeleteTopics", 5, topic_names=("orders",), timeout=SECOND).responses
    acls = wire.ask("DescribeAcls", 1, resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
                    principal_filter=None, host_filter=None, operation=1, permission_type=1)  # fmt: skip
    [coordinator] = wire.ask("FindCoordinator", 4, key_type=0, coordinator_keys=("g",)).coordinators
    old_coordinator = wire.ask("FindCoordinator", 3, key_type=0, key="g")
    assert [answer.error_message for answer in (created, deleted, acls, coordinator, old_coordinator)] == [
        "Authorization failed.", "Topic authorization failed.", "Cluster authorization failed.", "",
        "Group authorization failed.",
    ]  # fmt: skip


def test_a_hidden_topic_with_an_id_has_no_name(bed: Bed) -> None:
    topic_id = bed.engine.topics()["prices"].topic_id
    assert topic_id is not None
    topics = (part("Metadata", 12, "MetadataRequestTopic", topic_id=topic_id.as_uuid, name=None),)
    metadata = bed.of("reader").ask(
        "Metadata", 12, topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    assert topics_of(metadata) == {None: TOPIC}


def test_a_topic_is_created_only_for_a_client_that_may_create_it(bed: Bed) -> None:
    assert topics_of(named(bed.of("nobody"), "fresh", create=True)) == {"fresh": TOPIC}
    assert "fresh" not in bed.engine.topics()
    assert create_topics(bed.of("creator")) == 0


def test_authorized_operations_are_bits(bed: Bed) -> None:
    metadata = named(bed.of("reader"), "orders")
    assert metadata.topics[0].topic_authorized_operations == (1 << 3 | 1 << 8)
    assert metadata.cluster_authorized_operations == 1 << 8
    assert named(bed.of("writer"), "orders").topics[0].topic_authorized_operations == ALL_TOPIC
    assert named(bed.of("writer"), "orders").cluster_authorized_operations == 0
    groups = bed.of("reader").ask("DescribeGroups", 3, groups=("g",), include_authorized_operations=True).groups
    assert groups[0].authorized_operations == (1 << 3 | 1 << 8)
    cluster = bed.of("reader").ask("DescribeCluster", 0, include_cluster_authorized_operations=True)
    assert cluster.cluster_authorized_operations == 1 << 8
    cluster = bed.of("reader").ask("DescribeCluster", 0, include_cluster_authorized_operations=False)
    assert cluster.cluster_authorized_operations == -(1 << 31)


def test_only_visible_groups_are_listed(bed: Bed) -> None:
    for user, visible_groups in (("reader", ["g"]), ("deleter", ["g"]), ("nobody", []), ("admin", ["g"])):
        assert [group.group_id for group in bed.of(user).ask("ListGroups", 0).groups] == visible_groups


def test_all_offsets_of_a_group_are_those_of_visible_topics(bed: Bed) -> None:
    group_offsets = bed.of("reader").ask("OffsetFetch", 5, group_id="g", topics=None)
    assert [topic.name for topic in group_offsets.topics] == ["orders"]


def test_offsets_of_a_group_are_refused_for_each_partition_if_the_version_has_no_other_error(bed: Bed) -> None:
    topics = (part("OffsetFetch", 1, "OffsetFetchRequestTopic", name="orders", partition_indexes=(0, 1)),)
    for user, offsets in (("nobody", [(GROUP, -1), (GROUP, -1)]), ("reader", [(0, 1), (0, -1)])):
        [topic] = bed.of(user).ask("OffsetFetch", 1, group_id="g", topics=topics).topics
        assert topic.name == "orders"
        assert [(item.error_code, item.committed_offset) for item in topic.partitions] == offsets


def test_a_client_without_permission_does_not_extend_the_session_of_a_member(bed: Bed) -> None:
    protocol = part("JoinGroup", 3, "JoinGroupRequestProtocol", name="range", metadata=b"")
    member = bed.of("admin").ask(
        "JoinGroup", 3, group_id="members", session_timeout=SECOND * 60, rebalance_timeout=SECOND * 60, member_id="",
        protocol_type="consumer", protocols=(protocol,),
    )  # fmt: skip

    def session_ends_ns() -> int:
        with bed.groups.lock_group("members") as group:
            assert isinstance(group, ClassicGroup)
            return group.members[member.member_id].deadline_ns

    before = session_ends_ns()
    for user, code in (("nobody", GROUP), ("admin", 27)):
        partition = part(
            "OffsetCommit", 2, "OffsetCommitRequestPartition", partition_index=0, committed_offset=1,
            committed_metadata="",
        )  # fmt: skip
        topics = (part("OffsetCommit", 2, "OffsetCommitRequestTopic", name="orders", partitions=(partition,)),)
        result = bed.of(user).ask(
            "OffsetCommit", 2, group_id="members", generation_id_or_member_epoch=1, member_id=member.member_id,
            retention_time=SECOND, topics=topics,
        )  # fmt: skip
        assert result.topics[0].partitions[0].error_code == code
        assert (session_ends_ns() > before) is (user == "admin")
    bed.of("admin").ask("LeaveGroup", 2, group_id="members", member_id=member.member_id)
    bed.of("admin").ask("DeleteGroups", 1, groups_names=("members",))


def test_a_transactional_producer_needs_its_id(bed: Bed) -> None:
    def code(user: str) -> int:
        producer = bed.of(user).ask("InitProducerId", 1, transactional_id="mine", transaction_timeout=SECOND)
        return int(producer.error_code)

    assert code("writer") == TRANSACTIONAL_ID
    assert code("owner") == 0
    for user, visible_ids in (("owner", ["mine"]), ("writer", [])):
        listing = bed.of(user).ask("ListTransactions", 0, state_filters=(), producer_id_filters=())
        assert [state.transactional_id for state in listing.transaction_states] == visible_ids
    many = bed.of("owner").ask("AddPartitionsToTxn", 4, transactions=())
    assert many.error_code == CLUSTER


def test_a_group_alone_does_not_open_a_transaction(bed: Bed) -> None:
    for call, refusal in ((add_offsets_to_txn, GROUP), (txn_offset_commit, GROUP), (add_partitions_to_txn, TOPIC)):
        assert call(bed.of("EndTxn")) == refusal
