"""The APIs that the gateway announces, and their handlers.

Source: apache/kafka KafkaApis, ApiVersionManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code, ErrorCodeOf, RefusedError, client_text, coordinator_code, own_code
from stratalog_gateway.groups.classic_coordinator import ClassicGroupCoordinator
from stratalog_gateway.groups.consumer_coordinator import ConsumerGroupCoordinator
from stratalog_gateway.groups.group_table import GroupTable
from stratalog_gateway.handlers import (
    broker,
    configs,
    consumer_groups,
    group_admin,
    group_members,
    group_offsets,
    metadata,
    offsets,
    placement,
    sasl,
    topics,
    transaction_admin,
    transactions,
)
from stratalog_gateway.handlers.access import acls, client_quotas, scram_credentials
from stratalog_gateway.handlers.fetch import FetchHandler
from stratalog_gateway.handlers.produce import ProduceHandler
from stratalog_gateway.handlers.request import Groups, Handler, Request, Response
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.wire.messages import API_VERSIONS, Header, Maker, encode, read_body, read_header
from stratalog_gateway.wire.primitives import MalformedRequestError

PRODUCE: Final = 0
FETCH: Final = 1
_FIRST_WITH_LEVEL_0: Final = 4  # first version of ApiVersions whose clients accept features with the minimum level 0
FEATURES: Final = {
    "group.version": 1,  # the consumer protocol (KIP-848)
    "transaction.version": 2,  # Java producers increase the epoch at each end of a transaction (KIP-890)
}


class Api(NamedTuple):
    """An announced API of the gateway.

    Attributes:
        handle: handler; None for Produce and Fetch, whose handlers decode the request themselves.
        code_of: returns the error code of the response for an error of the handler.
    """

    name: str
    first: int
    last: int
    handle: Handler | None = None
    code_of: ErrorCodeOf = own_code


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


APIS: Final[Mapping[int, Api]] = {
    PRODUCE: Api("Produce", 3, 13),
    FETCH: Api("Fetch", 4, 18),
    2: Api("ListOffsets", 1, 10, offsets.list_offsets),
    3: Api("Metadata", 0, 13, metadata.metadata),
    8: Api("OffsetCommit", 2, 10, group_offsets.offset_commit),
    9: Api("OffsetFetch", 1, 10, group_offsets.offset_fetch),
    10: Api("FindCoordinator", 0, 6, broker.find_coordinator),
    11: Api("JoinGroup", 0, 9, group_members.join_group, coordinator_code),
    12: Api("Heartbeat", 0, 4, group_members.heartbeat, coordinator_code),
    13: Api("LeaveGroup", 0, 5, group_members.leave_group, coordinator_code),
    14: Api("SyncGroup", 0, 5, group_members.sync_group, coordinator_code),
    15: Api("DescribeGroups", 0, 6, group_admin.describe_groups),
    16: Api("ListGroups", 0, 5, group_admin.list_groups, coordinator_code),
    sasl.SASL_HANDSHAKE: Api("SaslHandshake", *sasl.VERSIONS[sasl.SASL_HANDSHAKE], sasl.illegal_state),
    API_VERSIONS: Api(
        "ApiVersions", *sasl.VERSIONS[API_VERSIONS], lambda request: _versions(request.header, request.make, Code.NONE)
    ),
    19: Api("CreateTopics", 2, 7, topics.create_topics),
    20: Api("DeleteTopics", 1, 6, topics.delete_topics),
    21: Api("DeleteRecords", 0, 2, offsets.delete_records),
    22: Api("InitProducerId", 0, 5, transactions.init_producer_id),
    23: Api("OffsetForLeaderEpoch", 2, 4, offsets.offset_for_leader_epoch),
    24: Api("AddPartitionsToTxn", 0, 5, transactions.add_partitions_to_txn),
    25: Api("AddOffsetsToTxn", 0, 4, transactions.add_offsets_to_txn),
    26: Api("EndTxn", 0, 5, transactions.end_txn),
    27: Api("WriteTxnMarkers", 1, 1, transaction_admin.write_txn_markers),
    28: Api("TxnOffsetCommit", 0, 5, transactions.txn_offset_commit),
    29: Api("DescribeAcls", 1, 3, acls.describe_acls),
    30: Api("CreateAcls", 1, 3, acls.create_acls),
    31: Api("DeleteAcls", 1, 3, acls.delete_acls),
    32: Api("DescribeConfigs", 1, 4, configs.describe_configs),
    33: Api("AlterConfigs", 0, 2, configs.alter_configs),
    34: Api("AlterReplicaLogDirs", 1, 2, placement.alter_replica_log_dirs),
    35: Api("DescribeLogDirs", 1, 4, broker.describe_log_dirs),
    sasl.SASL_AUTHENTICATE: Api("SaslAuthenticate", *sasl.VERSIONS[sasl.SASL_AUTHENTICATE], sasl.illegal_state),
    37: Api("CreatePartitions", 0, 3, topics.create_partitions),
    42: Api("DeleteGroups", 0, 2, group_admin.delete_groups),
    43: Api("ElectLeaders", 0, 2, broker.elect_leaders),
    44: Api("IncrementalAlterConfigs", 0, 1, configs.incremental_alter_configs),
    45: Api("AlterPartitionReassignments", 0, 1, placement.alter_partition_reassignments),
    46: Api("ListPartitionReassignments", 0, 0, placement.list_partition_reassignments),
    47: Api("OffsetDelete", 0, 0, group_offsets.offset_delete, coordinator_code),
    48: Api("DescribeClientQuotas", 0, 1, client_quotas.describe_client_quotas),
    49: Api("AlterClientQuotas", 0, 1, client_quotas.alter_client_quotas),
    50: Api("DescribeUserScramCredentials", 0, 0, scram_credentials.describe_user_scram_credentials),
    51: Api("AlterUserScramCredentials", 0, 0, scram_credentials.alter_user_scram_credentials),
    55: Api("DescribeQuorum", 0, 2, broker.describe_quorum),
    60: Api("DescribeCluster", 0, 2, broker.describe_cluster),
    61: Api("DescribeProducers", 0, 0, transaction_admin.describe_producers),
    65: Api("DescribeTransactions", 0, 0, transaction_admin.describe_transactions),
    66: Api("ListTransactions", 0, 2, transaction_admin.list_transactions),
    68: Api("ConsumerGroupHeartbeat", 0, 1, consumer_groups.consumer_group_heartbeat, coordinator_code),
    69: Api("ConsumerGroupDescribe", 0, 1, consumer_groups.consumer_group_describe),
    74: Api("ListConfigResources", 0, 1, configs.list_config_resources),
    75: Api("DescribeTopicPartitions", 0, 0, metadata.describe_topic_partitions),
}


class Dispatcher:
    """Handler of all requests. Thread-safe; a call may wait for records or for other members of a group."""

    def __init__(self, node: Node, table: GroupTable) -> None:
        self._node, self._produce, self._fetch = node, ProduceHandler(node), FetchHandler(node)
        self._groups = Groups(table, ClassicGroupCoordinator(node, table), ConsumerGroupCoordinator(node, table))

    def __call__(self, data: memoryview, client: Client) -> Response:
        """Return the response to a client's request; a response without pieces for Produce with acks=0.

        If a handler raises RefusedError or StorageError, the response has the error code, and its other fields are
        empty. As in Kafka, the caller closes the connection if this method raises an error.

        Raises:
            MalformedRequestError: the request does not fit its schema, the API or its version is not announced, or an
                append with acks=0 failed.
            StorageError: the handler raised this error, and the response has no field for an error code.
        """
        header = read_header(data)
        api = APIS.get(header.api)
        if api is None or not api.first <= header.version <= api.last:
            if header.api == API_VERSIONS:  # KIP-511: the response has version 0, which all clients can read
                header = header._replace(version=0)
                return Response([encode(header, _versions(header, Maker(header), Code.UNSUPPORTED_VERSION))])
            raise MalformedRequestError(f"api {header.api} version {header.version} is not announced")
        if header.api == FETCH:
            return self._fetch(header, data, client)
        if header.api == PRODUCE:
            return self._produce(header, data, client)
        assert api.handle is not None
        make = Maker(header)
        request = Request(header, read_body(header, data), make, client, self._node, self._groups)
        try:
            message = api.handle(request)
        except (RefusedError, StorageError) as error:
            if isinstance(error, StorageError) and not make.has("error_code"):
                raise
            message = make.error(api.code_of(error), client_text(error))
        return Response([encode(header, message)])
