"""Messages between members of a classic consumer group: subscriptions and assignments.

The group's coordinator stores these messages in ``__consumer_offsets``, and does not parse them. Groups with the
protocol type ``consumer`` use this format.

Source: apache/kafka ConsumerProtocol; ConsumerProtocolSubscription, ConsumerProtocolAssignment (versions 0 to 3).
"""

from __future__ import annotations

from typing import Final

from stratalog.model.messages.structures import (
    INT32,
    NULLABLE_BYTES,
    NULLABLE_STRING,
    STRING,
    Schema,
    array_of,
    nested,
    stored,
    structure,
)

PROTOCOL_TYPE: Final = "consumer"


@structure
class TopicPartitions:
    """Some partitions of a topic."""

    topic: str = stored(STRING)
    partitions: tuple[int, ...] = stored(array_of(INT32))


@structure
class Subscription:
    """A member's subscribed topics and owned partitions. Fields that a version does not store have their defaults."""

    topics: tuple[str, ...] = stored(array_of(STRING))
    user_data: bytes | None = stored(NULLABLE_BYTES, default=None)
    owned_partitions: tuple[TopicPartitions, ...] = stored(array_of(nested(TopicPartitions)), since=1, default=())
    generation: int = stored(INT32, since=2, default=-1)
    rack: str | None = stored(NULLABLE_STRING, since=3, default=None)


@structure
class Assignment:
    """The partitions that the group's leader assigned to a member."""

    partitions: tuple[TopicPartitions, ...] = stored(array_of(nested(TopicPartitions)))
    user_data: bytes | None = stored(NULLABLE_BYTES, default=None)


SUBSCRIPTION: Final = Schema(Subscription, "a consumer's subscription", range(4), 4, later_as_last=True)
ASSIGNMENT: Final = Schema(Assignment, "a consumer's assignment", range(4), 4, later_as_last=True)
