"""AlterReplicaLogDirs, AlterPartitionReassignments and ListPartitionReassignments.

Source: apache/kafka ReplicaManager.alterReplicaLogDirs, ReplicationControlManager.alterPartitionReassignments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stratalog.errors import ConfigError
from stratalog_gateway.error_codes import Code, RefusedError
from stratalog_gateway.handlers.request import Outcome, Request, answer_partitions, require
from stratalog_gateway.node import Node
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType


def alter_replica_log_dirs(request: Request) -> Any:
    """Move partitions to other directories. Unlike Kafka, return the response only after the moves."""
    make, topics = request.make, dict[str, list[Any]]()
    refusal = request.client.refusal(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    for directory in request.body.dirs:
        for topic in directory.topics:
            for number in topic.partitions:
                code = refusal or _move(request.node, topic.name, number, directory.path)
                part = make.part("AlterReplicaLogDirPartitionResult", partition_index=number, error_code=code)
                topics.setdefault(topic.name, []).append(part)
    return make(
        results=tuple(
            make.part("AlterReplicaLogDirTopicResult", topic_name=name, partitions=tuple(parts))
            for name, parts in topics.items()
        )
    )


def _move(node: Node, topic: str, partition: int, path: str) -> int:
    with Outcome() as outcome:
        if not Path(path).is_absolute():
            raise RefusedError(Code.LOG_DIR_NOT_FOUND, f"{path} is not an absolute path")
        node.log(topic, partition)
        directories = node.engine.log_directories()
        is_in_directory = any(
            (topic, partition) in names and os.path.realpath(directory) == os.path.realpath(path)
            for directory, names in directories.items()
        )
        if not is_in_directory:
            try:
                node.engine.move_partition(topic, partition, path)
            except ConfigError as error:
                raise RefusedError(Code.LOG_DIR_NOT_FOUND, str(error)) from error
    return outcome.code


def alter_partition_reassignments(request: Request) -> Any:
    """Return the response.

    Reassignments to this broker are accepted without effect. All other reassignments are refused. A client without
    permission gets the error also for each partition, because Kafka's Java client expects the partitions.
    """
    with Outcome() as access:
        require(request.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)

    def check(topic: Any, partition: Any) -> Any:
        number = partition.partition_index
        error, message = access.code, access.message
        if not error:
            error, message = _check_reassignment(request.node, topic.name, number, partition.replicas)
        return request.make.part(
            "ReassignablePartitionResponse", partition_index=number, error_code=error, error_message=message
        )

    responses = answer_partitions(request, "ReassignableTopicResponse", check)
    return request.make(error_code=access.code, error_message=access.message, responses=responses)


def _check_reassignment(
    node: Node, topic: str, partition: int, replicas: tuple[int, ...] | None
) -> tuple[int, str | None]:
    """Return error code and message for the requested replicas.

    ``replicas=None`` requests the end of a reassignment.
    """
    if not node.has_log(topic, partition):
        return Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}"
    if replicas is None:
        return Code.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress"
    if tuple(replicas) != (node.settings.node_id,):
        return Code.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {node.settings.node_id}"
    return Code.NONE, None


def list_partition_reassignments(request: Request) -> Any:
    """Return a response without reassignments, because no reassignment is ever in progress."""
    require(request.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    return request.make(topics=())
