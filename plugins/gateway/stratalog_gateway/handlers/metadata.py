"""Metadata and DescribeTopicPartitions. All partitions are on this broker.

Source: apache/kafka KafkaApis.handleTopicMetadataRequest, DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from stratalog import TopicInfo
from stratalog.errors import StorageError, TopicExistsError, UnknownTopicError
from stratalog_gateway.error_codes import Code
from stratalog_gateway.handlers.broker import cluster_operations
from stratalog_gateway.handlers.request import Request, is_topic_name
from stratalog_gateway.handlers.topics import colliding_topic
from stratalog_gateway.node import INTERNAL_TOPICS
from stratalog_gateway.security.resources import CLUSTER_NAME, NOT_REQUESTED, Operation, ResourceType


def _is_visible(request: Request, topic: str) -> bool:
    """Return True if the client may see that a topic exists."""
    return request.client.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)


_MAX_PARTITIONS: Final = 2000  # max.request.partition.size.limit


def metadata(request: Request) -> Any:
    """Return the response with the broker and the requested topics.

    Null requests all topics that the client may see.
    """
    node, make, requested = request.node, request.make, request.body.topics
    settings = node.settings
    if requested is None or (request.header.version == 0 and not requested):
        visible = [info for info in node.topics().values() if _is_visible(request, info.name)]
        topics = [topic for info in visible if (topic := _topic(request, info)) is not None]
    else:
        topics = [_describe_requested(request, topic.name, getattr(topic, "topic_id", None)) for topic in requested]
    host, port = request.client.endpoint.address
    broker = make.part("MetadataResponseBroker", node_id=settings.node_id, host=host, port=port, rack=None)
    return make(
        brokers=(broker,),
        cluster_id=node.cluster_id,
        controller_id=settings.node_id,
        topics=tuple(topics),
        cluster_authorized_operations=cluster_operations(request),
    )


def _describe_requested(request: Request, name: str | None, topic_id: uuid.UUID | None) -> Any:
    if name is None or topic_id is not None:  # Java clients send an empty name with an id
        name = None if topic_id is None else request.node.topic_of(topic_id.bytes)
        if name is None:
            return _unknown(request, None, topic_id, Code.UNKNOWN_TOPIC_ID)
        if not _is_visible(request, name):
            return _unknown(request, None, topic_id, Code.TOPIC_AUTHORIZATION_FAILED)
    if not _is_visible(request, name):
        return _unknown(request, name, None, Code.TOPIC_AUTHORIZATION_FAILED)
    info = request.node.topics().get(name)
    if info is None:
        error = _create(request, name)
        info = request.node.topics().get(name)
        if info is None:
            return _unknown(request, name, None, error)
    topic = _topic(request, info)
    return _unknown(request, name, None, Code.UNKNOWN_TOPIC_OR_PARTITION) if topic is None else topic


def _create(request: Request, name: str) -> int:
    """Create a topic if settings and permissions allow it.

    Return the error code that the response needs if the topic does not exist afterwards.
    """
    is_allowed = request.node.settings.auto_create and request.field("allow_auto_topic_creation", True)
    if not is_allowed or name in INTERNAL_TOPICS:
        return Code.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else Code.INVALID_TOPIC
    if not request.client.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        refusal = request.client.refusal(Operation.CREATE, ResourceType.TOPIC, name)
        if refusal:
            return refusal
    if colliding_topic(name, request.node.topics()) is not None:
        return Code.INVALID_TOPIC
    try:
        with request.node.changing_topics:
            request.node.engine.create_topic(name, partitions=request.node.settings.partitions)
    except TopicExistsError:
        return Code.UNKNOWN_TOPIC_OR_PARTITION  # for a topic that was deleted meanwhile; the client retries
    except StorageError as error:
        return error.kafka_code
    return Code.UNKNOWN_TOPIC_OR_PARTITION


def describe_topic_partitions(request: Request) -> Any:
    """Return the response with one page of at most 2,000 partitions, and with the cursor of the next page.

    The cursor is null on the last page.
    """
    body, make = request.body, request.make
    requested = {topic.name for topic in body.topics}
    names = sorted(requested or (name for name in request.node.topics() if _is_visible(request, name)))
    start, first = ("", 0) if body.cursor is None else (body.cursor.topic_name, body.cursor.partition_index)
    room, topics = max(min(body.response_partition_limit, _MAX_PARTITIONS), 1), []
    for name in names:
        if name < start:
            continue
        if not _is_visible(request, name):
            topics.append(_describe_topic(request, name, None, Code.TOPIC_AUTHORIZATION_FAILED, ()))
            continue
        info = request.node.topics().get(name)
        numbers = [] if info is None else [number for number in info.partitions if name != start or number >= first]
        page = numbers[: max(room, 0)]
        partitions = _partitions(request, name, page, "DescribeTopicPartitionsResponsePartition")
        if info is None or partitions is None:
            if requested:
                topics.append(_describe_topic(request, name, None, Code.UNKNOWN_TOPIC_OR_PARTITION, ()))
            continue
        room -= len(page)
        if page:
            topics.append(_describe_topic(request, name, info, Code.NONE, partitions))
        if len(page) < len(numbers):
            cursor = make.part("Cursor", topic_name=name, partition_index=numbers[len(page)])
            return make(topics=tuple(topics), next_cursor=cursor)
    return make(topics=tuple(topics), next_cursor=None)


def _describe_topic(
    request: Request, name: str, info: TopicInfo | None, error: int, partitions: tuple[Any, ...]
) -> Any:
    return request.make.part(
        "DescribeTopicPartitionsResponseTopic",
        error_code=error,
        name=name,
        topic_id=None if info is None or info.topic_id is None else info.topic_id.as_uuid,
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=NOT_REQUESTED
        if info is None
        else request.client.operations(ResourceType.TOPIC, name),
    )


def _topic(request: Request, info: TopicInfo) -> Any | None:
    """Return the description of a topic; None if the topic was deleted after it was listed."""
    partitions = _partitions(request, info.name, info.partitions, "MetadataResponsePartition")
    if partitions is None:
        return None
    return request.make.part(
        "MetadataResponseTopic",
        name=info.name,
        topic_id=None if info.topic_id is None else info.topic_id.as_uuid,
        is_internal=info.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=request.authorized_operations(ResourceType.TOPIC, info.name),
    )


def _partitions(request: Request, topic: str, numbers: Sequence[int], kind: str) -> tuple[Any, ...] | None:
    """Return the descriptions of partitions; None if one was deleted after it was listed, because its topic is deleted."""
    try:
        return tuple(_partition(request, topic, number, kind) for number in numbers)
    except UnknownTopicError:
        return None


def _partition(request: Request, topic: str, number: int, kind: str) -> Any:
    error, epoch, node_id = int(Code.NONE), -1, request.node.settings.node_id
    try:
        epoch = request.node.log(topic, number).leader_epoch
    except UnknownTopicError:
        raise
    except StorageError as failure:
        error = failure.kafka_code
    return request.make.part(
        kind,
        error_code=error,
        partition_index=number,
        leader_id=node_id,
        leader_epoch=epoch,
        replica_nodes=(node_id,),
        isr_nodes=(node_id,),
        eligible_leader_replicas=(),  # Kafka's Java client does not accept null
        last_known_elr=(),
        offline_replicas=(),
    )


def _unknown(request: Request, name: str | None, topic_id: uuid.UUID | None, error: int) -> Any:
    return request.make.part(
        "MetadataResponseTopic",
        error_code=error,
        name=name if name is not None or request.header.version >= 12 else "",
        topic_id=topic_id,
        is_internal=False,
        partitions=(),
    )
