"""DescribeCluster, FindCoordinator, DescribeLogDirs, ElectLeaders and DescribeQuorum: requests about the only broker.

Source: apache/kafka ReplicaManager.describeLogDirs, ReplicationControlManager.electLeaders, KRaft's describeQuorum.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from typing import Any, Final

from stratalog import TopicPartition
from stratalog.errors import StorageError
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import REFUSALS, Request, require
from stratalog_gateway.node import Node
from stratalog_gateway.security.resources import CLUSTER_NAME, NOT_REQUESTED, Operation, ResourceType

_UNCLEAN: Final = 1  # election type
_METADATA_TOPIC: Final = "__cluster_metadata"
_GROUP: Final = 0
_KEYS: Final = {_GROUP: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}  # by the type of a coordinator's key
_BROKERS: Final = 1  # endpoint type


def describe_log_dirs(request: Request) -> Any:
    """Return the response with the local size (bytes) of each log, by directory.

    Offline directories have KAFKA_STORAGE_ERROR.
    """
    make, requested_topics = request.make, request.body.topics
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    requested = (
        None
        if requested_topics is None
        else {TopicPartition(topic.topic, number) for topic in requested_topics for number in topic.partitions}
    )
    directories: Mapping[str, Iterable[TopicPartition]] = {}
    with contextlib.suppress(StorageError):  # raised if no directory is in service
        directories = request.node.source.log_directories()
    results = [
        make.error_part("DescribeLogDirsResult", Code.KAFKA_STORAGE_ERROR, None, log_dir=path)
        for path in request.node.source.offline_log_directories()
    ]
    for path, names in directories.items():
        topics: dict[str, list[Any]] = {}
        for name in names:
            if requested is None or name in requested:
                part = make.part(
                    "DescribeLogDirsPartition",
                    partition_index=name.partition,
                    partition_size=_local_bytes(request.node, name),
                    offset_lag=0,
                    is_future_key=False,
                )
                topics.setdefault(name.topic, []).append(part)
        total, free = _capacity(path)
        results.append(
            make.part(
                "DescribeLogDirsResult",
                log_dir=path,
                topics=tuple(
                    make.part("DescribeLogDirsTopic", name=topic, partitions=tuple(partitions))
                    for topic, partitions in topics.items()
                ),
                total_bytes=total,
                usable_bytes=free,
            )
        )
    return make(results=tuple(results))


def _local_bytes(node: Node, name: TopicPartition) -> int:
    """Return the size (bytes) of a log's local segments; 0 if the log cannot be opened."""
    try:
        return sum(segment.size_bytes for segment in node.log(*name).segments() if segment.is_local)
    except StorageError:
        return 0


def elect_leaders(request: Request) -> Any:
    """Return the response with ELECTION_NOT_NEEDED for each partition, because its only replica is the leader.

    The code is UNKNOWN_TOPIC_OR_PARTITION if a partition does not exist. The response contains no partitions if the
    request asks for elections of all partitions (null).
    """
    make, body = request.make, request.body
    require(request.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    if getattr(body, "election_type", 0) not in {0, _UNCLEAN}:
        raise RefusedError(Code.INVALID_REQUEST)
    if body.topic_partitions is None:  # Kafka's response then only contains partitions with an election
        return make(replica_election_results=())
    return make(
        replica_election_results=tuple(
            make.part(
                "ReplicaElectionResult",
                topic=topic.topic,
                partition_result=tuple(_election_results(request, topic.topic, topic.partitions)),
            )
            for topic in body.topic_partitions
        )
    )


def _election_results(request: Request, topic: str, partitions: Iterable[int]) -> Iterable[Any]:
    for number in partitions:
        exists = request.node.has_log(topic, number)
        code = Code.ELECTION_NOT_NEEDED if exists else Code.UNKNOWN_TOPIC_OR_PARTITION
        reason = "the only broker leads the partition" if exists else f"there is no {topic}-{number}"
        yield request.make.part("PartitionResult", partition_id=number, error_code=code, error_message=reason)


def describe_quorum(request: Request) -> Any:
    """Return the response with this broker as the leader and only voter of ``__cluster_metadata``."""
    make, settings = request.make, request.node.settings
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    topics = tuple(
        make.part(
            "TopicData",
            topic_name=topic.topic_name,
            partitions=tuple(
                _quorum(request, topic.topic_name, partition.partition_index) for partition in topic.partitions
            ),
        )
        for topic in request.body.topics
    )
    nodes: tuple[Any, ...] = ()
    if make.has("nodes"):
        endpoint = request.client.endpoint
        host, port = endpoint.address
        listener = make.part("Listener", name=endpoint.name, host=host, port=port)
        nodes = (make.part("Node", node_id=settings.node_id, listeners=(listener,)),)
    return make(topics=topics, nodes=nodes)


def _quorum(request: Request, topic: str, partition: int) -> Any:
    make, node_id, now_ms = request.make, request.node.settings.node_id, request.node.clock.now_ms()
    is_metadata_log = (topic, partition) == (_METADATA_TOPIC, 0)
    changes = request.node.source.topic_changes
    voter = make.part(
        "ReplicaState", replica_id=node_id, replica_directory_id=None, log_end_offset=changes,
        last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms,
    )  # fmt: skip
    return make.part(
        "PartitionData",
        partition_index=partition,
        error_code=Code.NONE if is_metadata_log else Code.UNKNOWN_TOPIC_OR_PARTITION,
        leader_id=node_id if is_metadata_log else -1,
        leader_epoch=1 if is_metadata_log else -1,
        high_watermark=changes if is_metadata_log else -1,
        current_voters=(voter,) if is_metadata_log else (),
        observers=(),
    )


def _capacity(path: str) -> tuple[int, int]:
    """Return the total and the free bytes of the disk of a directory. Both are -1 if the disk cannot be read."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free


def cluster_operations(request: Request) -> int:
    """Return the operations on the cluster that the client may perform, as the bit field of the protocol.

    Return NOT_REQUESTED if the request does not ask for the operations; 0 if the client has no right to describe the
    cluster.
    """
    operations = request.authorized_operations(ResourceType.CLUSTER, CLUSTER_NAME)
    if operations == NOT_REQUESTED or request.client.allows(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return operations
    return 0


def describe_cluster(request: Request) -> Any:
    """Return the response with the only broker."""
    node, make, (host, port) = request.node, request.make, request.client.endpoint.address
    broker = make.part(
        "DescribeClusterBroker", broker_id=node.settings.node_id, host=host, port=port, rack=None, is_fenced=False
    )
    return make(
        endpoint_type=_BROKERS,
        cluster_id=node.cluster_id,
        controller_id=node.settings.node_id,
        brokers=(broker,),
        cluster_authorized_operations=cluster_operations(request),
    )


def find_coordinator(request: Request) -> Any:
    """Return the response with this broker as the coordinator of each requested group or transactional id."""
    make = request.make
    if not make.has("coordinators"):
        return make(**_coordinator(request, request.body.key))
    return make(
        coordinators=tuple(
            make.part("Coordinator", key=key, **_coordinator(request, key)) for key in request.body.coordinator_keys
        )
    )


def _coordinator(request: Request, key: str) -> dict[str, object]:
    kind = _KEYS.get(request.field("key_type", _GROUP))
    error: int = Code.INVALID_REQUEST
    message: str | None = "only groups and transactional ids have a coordinator"
    if kind is not None:
        error = request.client.refusal(Operation.DESCRIBE, kind, key)
        message = "" if request.make.has("coordinators") else REFUSALS.get(error)
    host, port = ("", -1) if error else request.client.endpoint.address
    return {
        "error_code": error, "error_message": message, "node_id": -1 if error else request.node.settings.node_id,
        "host": host, "port": port,
    }  # fmt: skip
