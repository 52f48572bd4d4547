"""CreateTopics, DeleteTopics and CreatePartitions.

Source: apache/kafka ReplicationControlManager.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stratalog.errors import PluginError, UnknownTopicError
from stratalog.spi import TopicConfig
from stratalog_gateway.error_codes import UNKNOWN_TOPIC, Code, RefusedError
from stratalog_gateway.handlers.configs import describe_settings
from stratalog_gateway.handlers.request import Outcome, Request, check_topic_name, require
from stratalog_gateway.node import Node
from stratalog_gateway.security.resources import CLUSTER_NAME, Operation, ResourceType


def create_topics(request: Request) -> Any:
    """Create topics, or only check the request if ``validate_only`` is set. Return the response.

    As in Kafka, a topic that is in the request twice is in the response once.
    """
    times = Counter(topic.name for topic in request.body.topics)
    topics = {topic.name: topic for topic in request.body.topics}
    return request.make(topics=tuple(_create(request, topic, times[name]) for name, topic in topics.items()))


def _create(request: Request, topic: Any, times: int) -> Any:
    node, only_check = request.node, request.field("validate_only", False)
    config = {setting.name: setting.value for setting in topic.configs}
    count = len(topic.assignments) or topic.num_partitions
    count = node.settings.partitions if count == -1 else count
    with node.changing_topics, Outcome() as outcome:
        if times > 1:
            raise RefusedError(Code.INVALID_REQUEST, f"topic {topic.name} is in the request twice")
        if not request.client.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
            code = request.client.refusal(Operation.CREATE, ResourceType.TOPIC, topic.name)
            if code:
                raise RefusedError(code, "Authorization failed.")  # Kafka's text for CreateTopics
        check_topic_name(topic.name)
        _check_free(node, topic.name)  # before the values, as in Kafka: applications expect this error, and continue
        _check_new(node, topic, count)
        nulls = ",".join(setting.name for setting in topic.configs if setting.value is None)
        if nulls:
            raise RefusedError(Code.INVALID_CONFIG, f"Null value not supported for topic configs: {nulls}")
        if only_check:
            # without settings of plugins: only the creation of the topic checks them
            defaults = TopicConfig(remote_storage_enable=node.engine.tier is not None)
            _check_tier(node, defaults.replaced(defaults.known(config), "CreateTopics"))
        else:
            try:
                node.engine.create_topic(topic.name, partitions=count, config=config)
            except PluginError as error:  # for example, a codec is unknown
                raise RefusedError(Code.INVALID_CONFIG, str(error)) from error
    info = None if outcome.code else node.topics().get(topic.name)
    configs, refusal = (), request.client.refusal(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name)
    if info is not None and not refusal and request.header.version >= 5:
        with contextlib.suppress(UnknownTopicError):  # the topic was deleted meanwhile
            configs = describe_settings(node, request.make, topic.name, "CreatableTopicConfigs")
    return outcome.part(
        request.make,
        "CreatableTopicResult",
        name=topic.name,
        topic_id=None if info is None or info.topic_id is None else info.topic_id.as_uuid,
        topic_config_error_code=Code.NONE if outcome.code else refusal,
        num_partitions=-1 if outcome.code or refusal else count,
        replication_factor=-1 if outcome.code or refusal else 1,
        configs=configs,
    )


def _check_tier(node: Node, config: TopicConfig) -> None:
    """Raise RefusedError if a topic would use a tier that the engine does not have."""
    if config.remote_storage_enable and node.engine.tier is None:
        raise RefusedError(
            Code.INVALID_CONFIG, "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with "
            "remote log storage."
        )  # fmt: skip


def _check_free(node: Node, name: str) -> None:
    """Raise RefusedError if a topic with this name, or with a name that collides with it, exists."""
    topics = node.topics()
    if name in topics:
        raise RefusedError(Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    colliding = colliding_topic(name, topics)
    if colliding is not None:
        raise RefusedError(Code.INVALID_TOPIC, f"Topic '{name}' collides with existing topic: {colliding}")


def _check_new(node: Node, topic: Any, count: int) -> None:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise RefusedError(
                Code.INVALID_REQUEST,
                "with an assignment, the number of partitions and the replication factor must be -1",
            )
        numbers = sorted(assignment.partition_index for assignment in topic.assignments)
        if numbers != list(range(count)):
            raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, "the partitions of the assignment are not 0, 1, 2 ...")
        _check_brokers(node, [assignment.broker_ids for assignment in topic.assignments])
        return
    if count < 1:
        raise RefusedError(Code.INVALID_PARTITIONS, "Number of partitions must be larger than 0.")
    if topic.replication_factor not in {-1, 1}:
        raise RefusedError(
            Code.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {topic.replication_factor} time(s): the cluster has 1 broker.",
        )


def _check_brokers(node: Node, assignments: Sequence[Sequence[int]]) -> None:
    node_id = node.settings.node_id
    if any(tuple(brokers) != (node_id,) for brokers in assignments):
        raise RefusedError(Code.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {node_id}")


def delete_topics(request: Request) -> Any:
    """Delete topics, and return the response. From version 6 on, a request can contain ids instead of names.

    As in Kafka, a topic is not deleted if its name or id is in the request twice, and is in the response once.
    """
    body, make = request.body, request.make
    requested = [(topic.name, topic.topic_id) for topic in getattr(body, "topics", ())]
    requested += [(name, None) for name in getattr(body, "topic_names", ())]
    times, results = Counter(requested), []
    for identity, count in times.items():
        name, topic_id = identity
        # the lock prevents a new topic with the same name between the look-up of the id and the deletion
        with request.node.changing_topics, Outcome() as outcome:
            if (name is None) == (topic_id is None):
                raise RefusedError(Code.INVALID_REQUEST, "name a topic either by its name or by its id")
            if count > 1:
                raise RefusedError(Code.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")
            topic_name = request.node.topic_of(topic_id.bytes) if name is None else name
            if topic_name is None:
                raise RefusedError(Code.UNKNOWN_TOPIC_ID, "no topic has this id")
            if name is None and request.client.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic_name):
                name = topic_name
            require(request.client, Operation.DELETE, ResourceType.TOPIC, topic_name)
            request.node.engine.delete_topic(topic_name)
        results.append(outcome.part(make, "DeletableTopicResult", name=name, topic_id=topic_id))
    return make(responses=tuple(results))


def create_partitions(request: Request) -> Any:
    """Add partitions to topics, or only check the request if ``validate_only`` is set. Return the response."""
    times, results = Counter(topic.name for topic in request.body.topics), []
    for name, topic in {topic.name: topic for topic in request.body.topics}.items():
        with Outcome() as outcome:
            _add(request, topic, times[name])
        results.append(outcome.part(request.make, "CreatePartitionsTopicResult", name=name))
    return request.make(results=tuple(results))


def _add(request: Request, topic: Any, times: int) -> None:
    if times > 1:
        raise RefusedError(Code.INVALID_REQUEST, "Duplicate topic name.")
    require(request.client, Operation.ALTER, ResourceType.TOPIC, topic.name)
    node, info = request.node, request.node.topics().get(topic.name)
    if info is None:
        raise RefusedError(Code.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC)
    count = len(info.partitions)
    if topic.count <= count:
        reason = f"The topic {topic.name} currently has {count} partition(s); {topic.count} would not be an increase."
        if topic.count == count:
            reason = f"Topic already has {count} partition(s)."
        raise RefusedError(Code.INVALID_PARTITIONS, reason)
    if topic.assignments is not None:
        if len(topic.assignments) != topic.count - count:
            raise RefusedError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {topic.count - count} additional partition(s), but only {len(topic.assignments)} "
                "assignment(s) were specified.",
            )
        _check_brokers(node, [assignment.broker_ids for assignment in topic.assignments])
    if not request.body.validate_only:
        node.engine.create_partitions(topic.name, topic.count)


def colliding_topic(name: str, topics: Iterable[str]) -> str | None:
    """Return the first of ``topics`` whose name differs from ``name`` only in "." and "_"; None if there is none.

    Source: apache/kafka Topic.hasCollision. In a Kafka broker, both topics would have the same names of metrics.
    """
    metric_name = name.replace(".", "_")
    return next((other for other in topics if other != name and other.replace(".", "_") == metric_name), None)
