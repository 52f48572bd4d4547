"""The APIs that the gateway announces, and their handlers.

Source: apache/kafka KafkaApis, ApiVersionManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from stratalog_gateway.error_codes import Code
from stratalog_gateway.groups.consumer_coordinator import ConsumerGroupCoordinator
from stratalog_gateway.groups.coordinator import GroupCoordinator
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.handlers.access.acls import AclHandlers
from stratalog_gateway.handlers.access.client_quotas import ClientQuotaHandlers
from stratalog_gateway.handlers.access.scram_credentials import ScramCredentialHandlers
from stratalog_gateway.handlers.broker import BrokerHandlers
from stratalog_gateway.handlers.cluster import ClusterHandlers
from stratalog_gateway.handlers.configs import ConfigHandlers
from stratalog_gateway.handlers.consumer_groups import ConsumerGroupHandlers
from stratalog_gateway.handlers.fetch import FetchHandler
from stratalog_gateway.handlers.group_admin import GroupAdminHandlers
from stratalog_gateway.handlers.group_members import GroupMemberHandlers
from stratalog_gateway.handlers.group_offsets import GroupOffsetHandlers
from stratalog_gateway.handlers.metadata import MetadataHandler
from stratalog_gateway.handlers.offsets import OffsetHandlers
from stratalog_gateway.handlers.placement import PlacementHandlers
from stratalog_gateway.handlers.produce import ProduceHandler
from stratalog_gateway.handlers.request import Handler, Request, Response
from stratalog_gateway.handlers.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, VERSIONS, illegal_state
from stratalog_gateway.handlers.topics import TopicHandlers
from stratalog_gateway.handlers.transaction_admin import TransactionAdminHandlers
from stratalog_gateway.handlers.transactions import TransactionHandlers
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.wire.messages import API_VERSIONS, Header, Maker, encode, read_body, read_header
from stratalog_gateway.wire.primitives import MalformedRequestError

PRODUCE: Final = 0
FETCH: Final = 1


class Api(NamedTuple):
    """An announced API: Kafka's name, and the first and last version (inclusive) that the gateway serves."""

    name: str
    first: int
    last: int


APIS: Final[Mapping[int, Api]] = {
    PRODUCE: Api("Produce", 3, 13),
    FETCH: Api("Fetch", 4, 18),
    2: Api("ListOffsets", 1, 10),
    3: Api("Metadata", 0, 13),
    8: Api("OffsetCommit", 2, 10),
    9: Api("OffsetFetch", 1, 10),
    10: Api("FindCoordinator", 0, 6),
    11: Api("JoinGroup", 0, 9),
    12: Api("Heartbeat", 0, 4),
    13: Api("LeaveGroup", 0, 5),
    14: Api("SyncGroup", 0, 5),
    15: Api("DescribeGroups", 0, 6),
    16: Api("ListGroups", 0, 5),
    SASL_HANDSHAKE: Api("SaslHandshake", *VERSIONS[SASL_HANDSHAKE]),
    API_VERSIONS: Api("ApiVersions", *VERSIONS[API_VERSIONS]),
    19: Api("CreateTopics", 2, 7),
    20: Api("DeleteTopics", 1, 6),
    21: Api("DeleteRecords", 0, 2),
    22: Api("InitProducerId", 0, 5),
    23: Api("OffsetForLeaderEpoch", 2, 4),
    24: Api("AddPartitionsToTxn", 0, 5),
    25: Api("AddOffsetsToTxn", 0, 4),
    26: Api("EndTxn", 0, 5),
    27: Api("WriteTxnMarkers", 1, 1),
    28: Api("TxnOffsetCommit", 0, 5),
    29: Api("DescribeAcls", 1, 3),
    30: Api("CreateAcls", 1, 3),
    31: Api("DeleteAcls", 1, 3),
    32: Api("DescribeConfigs", 1, 4),
    33: Api("AlterConfigs", 0, 2),
    34: Api("AlterReplicaLogDirs", 1, 2),
    35: Api("DescribeLogDirs", 1, 4),
    SASL_AUTHENTICATE: Api("SaslAuthenticate", *VERSIONS[SASL_AUTHENTICATE]),
    37: Api("CreatePartitions", 0, 3),
    42: Api("DeleteGroups", 0, 2),
    43: Api("ElectLeaders", 0, 2),
    44: Api("IncrementalAlterConfigs", 0, 1),
    45: Api("AlterPartitionReassignments", 0, 1),
    46: Api("ListPartitionReassignments", 0, 0),
    47: Api("OffsetDelete", 0, 0),
    48: Api("DescribeClientQuotas", 0, 1),
    49: Api("AlterClientQuotas", 0, 1),
    50: Api("DescribeUserScramCredentials", 0, 0),
    51: Api("AlterUserScramCredentials", 0, 0),
    55: Api("DescribeQuorum", 0, 2),
    60: Api("DescribeCluster", 0, 2),
    61: Api("DescribeProducers", 0, 0),
    65: Api("DescribeTransactions", 0, 0),
    66: Api("ListTransactions", 0, 1),
    68: Api("ConsumerGroupHeartbeat", 0, 1),
    69: Api("ConsumerGroupDescribe", 0, 1),
    74: Api("ListConfigResources", 0, 1),
    75: Api("DescribeTopicPartitions", 0, 0),
}
_FIRST_WITH_LEVEL_0: Final = 4  # first version of ApiVersions whose clients accept features with the minimum level 0
FEATURES: Final = {
    "group.version": 1,  # the consumer protocol (KIP-848)
    "transaction.version": 2,  # Java producers raise the epoch at each end of a transaction (KIP-890)
}


class Dispatcher:
    """Handler of all requests. Thread-safe; a call may wait for records or for other members of a group."""

    def __init__(self, node: Node, groups: GroupTable) -> None:
        classic = GroupCoordinator(node, groups)
        self._produce, self._fetch = ProduceHandler(node), FetchHandler(node)
        topics, configs, offsets, cluster = (
            TopicHandlers(node),
            ConfigHandlers(node),
            OffsetHandlers(node),
            ClusterHandlers(node),
        )
        members, admin, committed = (
            GroupMemberHandlers(classic),
            GroupAdminHandlers(node, groups),
            GroupOffsetHandlers(node, groups, classic),
        )
        metadata, broker, placement = MetadataHandler(node), BrokerHandlers(node), PlacementHandlers(node)
        transactions, states = TransactionHandlers(node, classic), TransactionAdminHandlers(node)
        consumers = ConsumerGroupHandlers(node, ConsumerGroupCoordinator(node, groups))
        acls, quotas, users = AclHandlers(node), ClientQuotaHandlers(node), ScramCredentialHandlers(node)
        self._handlers: dict[str, Handler] = {
            "DescribeAcls": acls.describe_acls,
            "CreateAcls": acls.create_acls,
            "DeleteAcls": acls.delete_acls,
            "DescribeClientQuotas": quotas.describe,
            "AlterClientQuotas": quotas.alter,
            "DescribeUserScramCredentials": users.describe,
            "AlterUserScramCredentials": users.alter,
            "ListOffsets": offsets.list_offsets,
            "Metadata": metadata,
            "DescribeTopicPartitions": metadata.describe_topic_partitions,
            "AlterReplicaLogDirs": placement.alter_replica_log_dirs,
            "AlterPartitionReassignments": placement.alter_partition_reassignments,
            "ListPartitionReassignments": placement.list_partition_reassignments,
            "ListConfigResources": configs.list_config_resources,
            "DescribeLogDirs": broker.describe_log_dirs,
            "ElectLeaders": broker.elect_leaders,
            "DescribeQuorum": broker.describe_quorum,
            "OffsetCommit": committed.offset_commit,
            "OffsetFetch": committed.offset_fetch,
            "FindCoordinator": cluster.find_coordinator,
            "ConsumerGroupHeartbeat": consumers.heartbeat,
            "ConsumerGroupDescribe": consumers.describe,
            "JoinGroup": members.join_group,
            "Heartbeat": members.heartbeat,
            "LeaveGroup": members.leave_group,
            "SyncGroup": members.sync_group,
            "DescribeGroups": admin.describe_groups,
            "ListGroups": admin.list_groups,
            "SaslHandshake": illegal_state,
            "ApiVersions": _api_versions,
            "CreateTopics": topics.create_topics,
            "DeleteTopics": topics.delete_topics,
            "DeleteRecords": offsets.delete_records,
            "InitProducerId": transactions.init_producer_id,
            "AddPartitionsToTxn": transactions.add_partitions_to_txn,
            "AddOffsetsToTxn": transactions.add_offsets_to_txn,
            "EndTxn": transactions.end_txn,
            "WriteTxnMarkers": states.write_txn_markers,
            "TxnOffsetCommit": transactions.txn_offset_commit,
            "OffsetForLeaderEpoch": offsets.offset_for_leader_epoch,
            "DescribeConfigs": configs.describe_configs,
            "SaslAuthenticate": illegal_state,
            "CreatePartitions": topics.create_partitions,
            "DeleteGroups": admin.delete_groups,
            "AlterConfigs": configs.alter_configs,
            "IncrementalAlterConfigs": configs.incremental_alter_configs,
            "OffsetDelete": committed.offset_delete,
            "DescribeCluster": cluster.describe_cluster,
            "DescribeProducers": states.describe_producers,
            "DescribeTransactions": states.describe_transactions,
            "ListTransactions": states.list_transactions,
        }

    def __call__(self, data: memoryview, client: Client) -> Response:
        """Return the response to a client's request; a response without pieces for Produce with acks=0.

        As in Kafka, the caller closes the connection after an error.

        Raises:
            MalformedRequestError: the request does not fit its schema, the API or its version is not announced, or an
                append with acks=0 failed.
            StorageError: the handler cannot read or store a state that the whole response needs.
        """
        header = read_header(data)
        api = APIS.get(header.api)
        if api is None or not api.first <= header.version <= api.last:
            if header.api == API_VERSIONS:  # KIP-511: in version 0, which all clients read
                header = header._replace(version=0)
                return Response([encode(header, _versions(header, Maker(header), Code.UNSUPPORTED_VERSION))])
            raise MalformedRequestError(f"api {header.api} version {header.version} is not announced")
        if header.api == FETCH:
            return self._fetch(header, data, client)
        if header.api == PRODUCE:
            return self._produce(header, data, client)
        request = Request(header, read_body(header, data), Maker(header), client)
        return Response([encode(header, self._handlers[api.name](request))])


def _api_versions(request: Request) -> Any:
    return _versions(request.header, request.make, Code.NONE)


def _versions(header: Header, make: Maker, error: int) -> Any:
    """Return the ApiVersions response with all announced APIs and features, and an error code.

    As in Kafka, Produce is announced from version 0 on, although the gateway only serves version 3 and later. Without
    version 0, older releases of librdkafka do not compress. Before version 4 of the response, the supported features
    are omitted: Java clients 3.7 close the connection if the minimum level of a feature is 0.

    Source: KAFKA-18659, KAFKA-17492.
    """
    keys = tuple(
        make.part("ApiVersion", api_key=key, min_version=0 if key == PRODUCE else api.first, max_version=api.last)
        for key, api in APIS.items()
    )
    supported = tuple(
        make.part("SupportedFeatureKey", name=name, min_version=0, max_version=level)
        for name, level in FEATURES.items()
        if header.version >= _FIRST_WITH_LEVEL_0
    )
    finalized = tuple(
        make.part("FinalizedFeatureKey", name=name, min_version_level=level, max_version_level=level)
        for name, level in FEATURES.items()
        if make.has("finalized_features")
    )
    return make(
        error_code=error,
        api_keys=keys,
        supported_features=supported,
        finalized_features_epoch=0,
        finalized_features=finalized,
    )
