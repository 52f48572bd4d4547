"""Offsets of a stream, and the format of offsets in checkpoints, which is the format of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from stratalog import Reader, TopicPartition

_IDS_KEY: Final = "#topic-ids"  # checkpoints store this key; it cannot be the name of a topic

Json = dict[str, dict[str, Any]]


class Offsets(dict[TopicPartition, int]):
    """Offsets of a stream by partition.

    Args:
        ids: known ids of the topics, by name. A topic that was deleted and created again has another id.
    """

    def __init__(self, numbers: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None) -> None:
        super().__init__(numbers)
        self.ids: Mapping[str, str] = ids or {}


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """Return offsets in the format of the checkpoints of Spark's Kafka source: ``{"topic": {"0": 23}}``.

    If ids of topics are known, the key ``#topic-ids`` contains them. No topic can have this name.
    """
    by_topic: Json = {}
    for name, offset in sorted(offsets.items()):
        by_topic.setdefault(name.topic, {})[str(name.partition)] = offset
    if isinstance(offsets, Offsets) and offsets.ids:
        by_topic[_IDS_KEY] = dict(sorted(offsets.ids.items()))
    return by_topic


def from_json(offsets: Json) -> Offsets:
    """Parse the output of ``to_json``, or the offsets of Spark's Kafka source."""
    numbers = {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in offsets.items()
        if topic != _IDS_KEY
        for partition, offset in partitions.items()
    }
    return Offsets(numbers, {topic: str(topic_id) for topic, topic_id in offsets.get(_IDS_KEY, {}).items()})


def topic_ids(reader: Reader, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Return the ids of the topics of ``partitions``, by topic.

    The logs must be open. A topic without a known id is left out.
    """
    ids = {partition.topic: reader.log(*partition).topic_id for partition in partitions}
    return {topic: str(topic_id) for topic, topic_id in ids.items() if topic_id is not None}


def recreated_topics(before: Offsets, now: Offsets) -> frozenset[str]:
    """Return the topics that were deleted and created again: those whose ids in ``before`` and ``now`` differ."""
    return frozenset(topic for topic, topic_id in before.ids.items() if now.ids.get(topic, topic_id) != topic_id)
