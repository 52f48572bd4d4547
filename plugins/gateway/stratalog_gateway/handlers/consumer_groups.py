"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

Source: apache/kafka GroupCoordinatorService.consumerGroupHeartbeat, consumerGroupDescribe.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Final

from stratalog_gateway.error_codes import Code, RefusedError, coordinator_code
from stratalog_gateway.groups.assignors import NOTHING, Partitions, group_by_topic
from stratalog_gateway.groups.consumer_coordinator import Heartbeat, Progress
from stratalog_gateway.groups.consumer_group import ConsumerGroup, ConsumerMember
from stratalog_gateway.handlers.request import Outcome, Request, require
from stratalog_gateway.security.resources import Operation, ResourceType
from stratalog_gateway.wire.messages import to_ms

_OWN_IDS: Final = 1  # first version of ConsumerGroupHeartbeat in which a new member chooses its id
_CONSUMER: Final = 1  # type of a member that uses the consumer protocol


def consumer_group_heartbeat(request: Request) -> Any:
    """Handle a heartbeat. Return the response with the member's epoch and, if necessary, its assignment."""
    make, progress, assignment = request.make, _progress(request), None
    if progress.assigned is not None:
        topics = tuple(
            make.part("TopicPartitions", topic_id=topic, partitions=numbers)
            for topic, numbers in group_by_topic(progress.assigned).items()
        )
        assignment = make.part("Assignment", topic_partitions=topics)
    return make(
        member_id=progress.member_id,
        member_epoch=progress.epoch,
        heartbeat_interval=dt.timedelta(milliseconds=request.node.settings.consumer_heartbeat_ms),
        assignment=assignment,
    )


def _progress(request: Request) -> Progress:
    body, client = request.body, request.client
    require(client, Operation.READ, ResourceType.GROUP, body.group_id)
    for name in body.subscribed_topic_names or ():
        require(client, Operation.DESCRIBE, ResourceType.TOPIC, name)
    owned = None
    if body.topic_partitions is not None:
        owned = frozenset(
            (topic.topic_id or uuid.UUID(int=0), number)
            for topic in body.topic_partitions
            for number in topic.partitions
        )
    return request.groups.consumer.heartbeat(
        Heartbeat(
            group=body.group_id,
            member_id=body.member_id,
            epoch=body.member_epoch,
            instance_id=body.instance_id,
            rack=body.rack_id,
            client_id=request.header.client_id,
            client_host=f"/{client.host}",
            rebalance_ms=to_ms(body.rebalance_timeout),
            topics=body.subscribed_topic_names,
            pattern=request.field("subscribed_topic_regex", None),
            assignor=body.server_assignor,
            owned=owned,
            has_own_id=request.header.version >= _OWN_IDS,
            may_see=lambda name: client.allows(Operation.DESCRIBE, ResourceType.TOPIC, name),
        )
    )


def consumer_group_describe(request: Request) -> Any:
    """Return the response with groups of the consumer protocol, and GROUP_ID_NOT_FOUND for other groups."""
    return request.make(groups=tuple(_describe(request, name) for name in request.body.group_ids))


def _describe(request: Request, name: str) -> Any:
    make, client = request.make, request.client
    with Outcome(coordinator_code) as outcome:
        require(client, Operation.DESCRIBE, ResourceType.GROUP, name)
        with request.groups.table.lock_group(name) as group:
            if not isinstance(group, ConsumerGroup):
                raise RefusedError(Code.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
            for topic in group.subscribed_topics():
                require(client, Operation.DESCRIBE, ResourceType.TOPIC, topic)
            return make.part(
                "DescribedGroup",
                group_id=name,
                group_state=group.state,
                group_epoch=group.epoch,
                assignment_epoch=group.target_epoch,
                assignor_name=group.assignor,
                members=tuple(_member(request, member, group) for member in group.members.values()),
                authorized_operations=request.authorized_operations(ResourceType.GROUP, name),
            )
    return make.error_part("DescribedGroup", outcome.code, outcome.message, group_id=name)


def _member(request: Request, member: ConsumerMember, group: ConsumerGroup) -> Any:
    return request.make.part(
        "Member",
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(request, member.assigned),
        target_assignment=_assignment(request, group.target.get(member.id, NOTHING)),
        member_type=_CONSUMER,
    )


def _assignment(request: Request, partitions: Partitions) -> Any:
    """Return partitions as a message with the names of their topics. Partitions of deleted topics are omitted."""
    make, topics = request.make, []
    for topic_id, numbers in group_by_topic(partitions).items():
        name = request.node.topic_of(topic_id.bytes)
        if name is not None:
            topics.append(make.part("TopicPartitions", topic_id=topic_id, topic_name=name, partitions=numbers))
    return make.part("Assignment", topic_partitions=tuple(topics))
