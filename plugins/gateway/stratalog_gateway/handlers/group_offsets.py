"""OffsetCommit, OffsetFetch and OffsetDelete. The engine stores offsets in ``__consumer_offsets``, as Kafka does.

Source: apache/kafka OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.serial import entity_reader
from kio.serial.errors import DecodeError

from stratalog import CommittedOffset, TopicPartition
from stratalog.errors import StorageError, UnknownTopicError
from stratalog_gateway.error_codes import Code, RefusedError, coordinator_code
from stratalog_gateway.groups.consumer_group import ConsumerGroup
from stratalog_gateway.groups.group_table import Group
from stratalog_gateway.handlers.request import Outcome, Request, answer_partitions, code_answer, require
from stratalog_gateway.security.resources import Operation, ResourceType

_MANY_GROUPS: Final = 8  # first version of OffsetFetch with several groups
_EPOCHS: Final = 9  # first version of OffsetCommit and OffsetFetch with the epochs of the consumer protocol
_TOPIC_IDS: Final = 10  # first version of OffsetFetch with ids instead of names
_VERSION_BYTES: Final = 2
_MAX_METADATA: Final = 4096  # offset.metadata.max.bytes, with which Kafka compares String.length()
_NOTHING: Final = CommittedOffset(-1)
_SUBSCRIPTION = entity_reader(ConsumerProtocolSubscription)  # later versions only append fields


def offset_commit(request: Request) -> Any:
    """Commit offsets, and return the response with an error code for each partition."""
    body, make = request.body, request.make
    generation = getattr(body, "generation_id_or_member_epoch", -1)
    instance_id = request.field("group_instance_id", None)
    try:
        # Before the coordinator extends the session of the member. As in Kafka, the name of the group may be empty: Java
        # clients before 2.2 commit to this group by default.
        require(request.client, Operation.READ, ResourceType.GROUP, body.group_id)
        with request.groups.table.committing(
            body.group_id, getattr(body, "member_id", ""), generation, instance_id,
            knows_epochs=request.header.version >= _EPOCHS,
        ):  # fmt: skip
            names, errors = _commit(request, Code.NONE)
    except (RefusedError, StorageError) as error:
        names, errors = _commit(request, coordinator_code(error))
    return make(
        topics=tuple(
            make.part(
                "OffsetCommitResponseTopic",
                name=getattr(topic, "name", None),
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(
                    make.part(
                        "OffsetCommitResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=errors[name or "", partition.partition_index],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic, name in zip(body.topics, names, strict=True)
        )
    )


def _commit(request: Request, code_for_all: int) -> tuple[Sequence[str | None], dict[tuple[str, int], int]]:
    """Commit the offsets of the request.

    ``code_for_all`` is the error code for all partitions. It is 0 if the client may commit.

    Returns:
        The names of the topics of the request, and the error code of each partition. A name is None if the id of the
        topic is unknown. A code is 0 if the offset was committed.
    """
    body = request.body
    names = [_name_of(request, topic) for topic in body.topics]
    errors, offsets = check_offsets(request, names, code_for_all)
    if offsets:
        engine = request.node.engine
        # `check_offsets` may have found a topic that is being deleted. The engine of a read-only gateway has no topics.
        has_topics = request.node.source is engine
        code: int = Code.NONE
        try:
            engine.alter_group_offsets(body.group_id, offsets, must_exist=has_topics)
        except UnknownTopicError as error:
            code = error.kafka_code
        except StorageError as error:
            code = coordinator_code(error)
        errors |= dict.fromkeys(offsets, code) if code else _delete_stale(request, names, offsets)
    return names, errors


def _delete_stale(
    request: Request, names: Sequence[str | None], offsets: Iterable[TopicPartition]
) -> dict[tuple[str, int], int]:
    """Delete the committed offsets of topics whose ids have changed since ``names`` were looked up.

    The offsets belong to deleted topics, and new topics have the same names. Return UNKNOWN_TOPIC_ID for each partition
    whose offset was deleted. The caller holds the lock of the group, so no member has committed an offset of a new
    topic in the meantime.
    """
    changed = {name for topic, name in zip(request.body.topics, names, strict=True) if _name_of(request, topic) != name}
    partitions = [name for name in offsets if name.topic in changed]
    with Outcome(coordinator_code) as outcome:
        request.node.engine.alter_group_offsets(request.body.group_id, dict.fromkeys(partitions))
    return dict.fromkeys(partitions, outcome.code or Code.UNKNOWN_TOPIC_ID)


def _name_of(request: Request, topic: Any) -> str | None:
    """Return the name of a requested topic.

    From version 10 on, look up the topic's id; return None if the id is unknown.
    """
    if hasattr(topic, "name"):
        name: str = topic.name
        return name
    return None if topic.topic_id is None else request.node.topic_of(topic.topic_id.bytes)


def check_offsets(
    request: Request, names: Sequence[str | None], code_for_all: int
) -> tuple[dict[tuple[str, int], int], dict[TopicPartition, CommittedOffset]]:
    """Check the partitions of a request that commits offsets.

    Args:
        request: OffsetCommit or TxnOffsetCommit.
        names: names of the topics of the request; None if the id of a topic is unknown.
        code_for_all: error code for all partitions; 0 if the client may commit.

    Returns:
        The error code of each partition, and the offsets of the partitions whose code is 0.
    """
    errors: dict[tuple[str, int], int] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic, topic_name in zip(request.body.topics, names, strict=True):
        refusal = Code.UNKNOWN_TOPIC_ID
        if topic_name is not None:
            refusal = request.client.refusal(Operation.READ, ResourceType.TOPIC, topic_name)
        for partition in topic.partitions:
            name = TopicPartition(topic_name or "", partition.partition_index)
            errors[name] = code_for_all or refusal or _wrong_offset(request, name, partition)
            if not errors[name]:
                epoch = getattr(partition, "committed_leader_epoch", -1)
                offsets[name] = CommittedOffset(partition.committed_offset, epoch, partition.committed_metadata or "")
    return errors, offsets


def _wrong_offset(request: Request, name: TopicPartition, partition: Any) -> int:
    """Return an error code if an offset's partition does not exist, or its metadata is too long; otherwise return 0."""
    if not request.node.has_log(*name):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    units = len((partition.committed_metadata or "").encode("utf-16-le")) // 2
    return Code.OFFSET_METADATA_TOO_LARGE if units > _MAX_METADATA else Code.NONE


def offset_fetch(request: Request) -> Any:
    """Return the response with the offsets of the requested partitions, or of all partitions with an offset."""
    body, make = request.body, request.make
    if request.header.version < _MANY_GROUPS:
        topics: tuple[Any, ...] = ()
        with Outcome(coordinator_code) as outcome:
            require(request.client, Operation.DESCRIBE, ResourceType.GROUP, body.group_id)
            topics = _read_offsets(request, body.group_id, body.topics, "")
        if outcome.code and not make.has("error_code"):  # version 1
            topics = tuple(_fail_topic(request, topic, "", outcome.code) for topic in body.topics)
        return make(topics=topics, error_code=outcome.code)
    groups = []
    for group in body.groups:
        topics = ()
        with Outcome(coordinator_code) as outcome:
            require(request.client, Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
            member_id, epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
            request.groups.consumer.check_fetch(group.group_id, member_id, epoch)
            topics = _read_offsets(request, group.group_id, group.topics, "s")
        groups.append(outcome.part(make, "OffsetFetchResponseGroup", group_id=group.group_id, topics=topics))
    return make(groups=tuple(groups))


def _read_offsets(request: Request, group: str, requested_topics: Iterable[Any] | None, plural: str) -> tuple[Any, ...]:
    """Return the offsets of a group, as one message for each topic.

    ``plural`` is the suffix of the names of kio's classes: ``s`` in versions with several groups, otherwise empty.
    """
    client, is_strict = request.client, request.field("require_stable", False)
    # read before the offsets: otherwise the result could contain an old offset although a pending offset was committed
    pending = request.node.engine.pending_group_offsets(group) if is_strict else frozenset()
    offsets = request.node.engine.group_offsets(group)
    requested: dict[str, list[int]] = {}
    has_ids = request.header.version >= _TOPIC_IDS
    unknown: list[Any] = []
    if requested_topics is None:
        for name in offsets:
            if client.allows(Operation.DESCRIBE, ResourceType.TOPIC, name.topic):
                requested.setdefault(name.topic, []).append(name.partition)
    else:
        for topic in requested_topics:
            topic_name = _name_of(request, topic)
            if topic_name is None:
                unknown.append(topic)
            else:
                requested.setdefault(topic_name, []).extend(topic.partition_indexes)
    topics = [_topic_offsets(request, name, numbers, offsets, pending, plural) for name, numbers in requested.items()]
    topics += [_fail_topic(request, topic, plural, Code.UNKNOWN_TOPIC_ID) for topic in unknown]
    return tuple(message for message in topics if not has_ids or message.topic_id is not None)


def _fail_topic(request: Request, topic: Any, plural: str, error: int) -> Any:
    """Return the message for a topic of the request, with the same error code for each partition."""
    make = request.make
    partitions = tuple(
        make.part(
            f"OffsetFetchResponsePartition{plural}", partition_index=number, committed_offset=-1,
            committed_leader_epoch=-1, metadata="", error_code=error,
        )
        for number in topic.partition_indexes
    )  # fmt: skip
    identity = {field: getattr(topic, field, None) for field in ("name", "topic_id")}
    return make.part(f"OffsetFetchResponseTopic{plural}", **identity, partitions=partitions)


def _topic_offsets(
    request: Request,
    topic: str,
    numbers: Iterable[int],
    offsets: Mapping[TopicPartition, CommittedOffset],
    pending: Collection[TopicPartition],
    plural: str,
) -> Any:
    """Return the message with the offsets of a topic. Its topic id is None if the topic was deleted."""
    make, partitions = request.make, []
    refusal = request.client.refusal(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    for number in numbers:
        name = TopicPartition(topic, number)
        error = refusal or (Code.UNSTABLE_OFFSET_COMMIT if name in pending else Code.NONE)
        committed = _NOTHING if error else offsets.get(name, _NOTHING)
        partitions.append(
            make.part(
                f"OffsetFetchResponsePartition{plural}",
                partition_index=number,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=error,
            )
        )
    info = request.node.topics().get(topic)
    topic_id = None if info is None or info.topic_id is None else info.topic_id.as_uuid
    return make.part(f"OffsetFetchResponseTopic{plural}", name=topic, topic_id=topic_id, partitions=tuple(partitions))


def offset_delete(request: Request) -> Any:
    """Delete offsets of a group, and return the response.

    Offsets of topics to which members subscribe are not deleted.
    """
    require(request.client, Operation.DELETE, ResourceType.GROUP, request.body.group_id)
    if not request.body.group_id:  # as in Kafka: this group accepts commits, but only DeleteGroups deletes its offsets
        raise RefusedError(Code.INVALID_GROUP_ID)
    with request.groups.table.lock_group(request.body.group_id) as group:  # the lock prevents subscriptions and commits
        return _delete(request, group)


def _delete(request: Request, group: Group | None) -> Any:
    """Return the response after the deletion of the offsets.

    Raises:
        RefusedError: the group does not exist, or has members of another protocol.
        StorageError: the deletion could not be stored.
    """
    body, engine = request.body, request.node.engine
    existing = {*engine.group_offsets(body.group_id), *engine.pending_group_offsets(body.group_id)}
    if group is None and not existing:
        raise RefusedError(Code.GROUP_ID_NOT_FOUND)
    if group is not None and group.members and group.protocol_type != "consumer":
        raise RefusedError(Code.NON_EMPTY_GROUP)
    subscribed = set() if group is None else _subscribed_topics(group, [topic.name for topic in body.topics])
    refusals = {
        topic.name: request.client.refusal(Operation.READ, ResourceType.TOPIC, topic.name) for topic in body.topics
    }
    codes: dict[tuple[str, int], int] = {}
    for topic in body.topics:
        for partition in topic.partitions:
            name, code = TopicPartition(topic.name, partition.partition_index), refusals[topic.name]
            if not code and not request.node.has_log(*name):
                code = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif not code and topic.name in subscribed:
                code = Code.GROUP_SUBSCRIBED_TO_TOPIC
            codes[name] = code
    deletable = (name for name, code in codes.items() if not code and name in existing)
    engine.alter_group_offsets(body.group_id, dict.fromkeys(deletable))
    return request.make(
        topics=answer_partitions(
            request, "OffsetDeleteResponseTopic", code_answer(request, "OffsetDeleteResponsePartition", codes)
        )
    )


def _subscribed_topics(group: Group, requested: Iterable[str]) -> set[str]:
    """Return the topics to which the members of a group subscribe.

    If the metadata of a classic member is not in the consumer's format, return ``requested``. As in Kafka, the group
    may then subscribe to all these topics. Source: apache/kafka ClassicGroup.isSubscribedToTopic.
    """
    if isinstance(group, ConsumerGroup):
        return group.subscribed_topics()
    topics = set[str]()
    for member in group.members.values():
        try:
            subscription, _ = _SUBSCRIPTION(member.metadata(group.protocol), _VERSION_BYTES)
        except (DecodeError, ValueError, IndexError):
            return set(requested)
        topics.update(subscription.topics)
    return topics
