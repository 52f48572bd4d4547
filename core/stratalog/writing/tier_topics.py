"""The topics of a tier for bulk writers, which have no engine. The topics are read from the roots of their logs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.errors import TopicExistsError, UnknownTopicError
from stratalog.model.names import TopicId, TopicPartition, check_topic
from stratalog.reading.component_host import ComponentHost
from stratalog.tier.commit.append_change import Appending
from stratalog.tier.manifest.head import ClockReading
from stratalog.tier.manifest.root import BULK, ChangeKind, Root, TopicNote, newest_topic
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.tier import Tier, TierListing
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher

_IDS: Final = uuid.UUID("0a4f3f6e-5a6b-5c37-8a55-7d6d0b9f2c11")  # persistent: namespace of ids of topics created here
_FRESH_MS: Final = 30_000  # age up to which a listing is used for the states of logs


@dataclass(frozen=True, slots=True)
class TierTopic:
    """One topic of a tier.

    Attributes:
        note: description of the topic in ``root``; None if there is none.
        root: newest root of the topic's log with the lowest partition number.
    """

    name: str
    topic_id: TopicId
    partitions: int
    config: TopicConfig
    note: TopicNote | None
    root: Root


class TierTopics:
    """Table of a tier's topics. Each topic is read once until ``forget``. Only ``log_from_listing`` is thread-safe."""

    def __init__(self, host: ComponentHost, tier: Tier) -> None:
        self._host, self._tier = host, tier
        self._topics: dict[str, TierTopic | None] = {}
        self._listings: dict[str, TierListing] = {}  # by topic
        self._versions: dict[TierLogName, int] = {}

    def forget(self) -> None:
        """Discard the cached topics. The next call that needs a topic reads it."""
        self._topics.clear()
        self._listings.clear()

    def all(self) -> Iterator[TierTopic]:
        """Yield the existing topics, sorted by name."""
        listing = self._tier.listing()
        for name in sorted({name.log.topic for name in listing.versions}):
            self._listings.setdefault(name, listing)
            topic = self._find_topic(name)
            if topic is not None:
                yield topic

    def get(self, topic: str) -> TierTopic:
        """Return one topic; raise UnknownTopicError if it does not exist."""
        tier_topic = self._find_topic(topic)
        if tier_topic is None:
            raise UnknownTopicError(f"there is no topic {topic} in {self._tier.uri}: create it first")
        return tier_topic

    def create(self, topic: str, partitions: int, config: Mapping[str, object]) -> None:
        """Create a topic; see ``BulkWriter.create_topic``."""
        check_topic(topic)
        self._host.settings.limits.check_partitions(topic, partitions)
        existing = self._find_topic(topic)
        if existing is not None and existing.partitions != partitions:
            raise TopicExistsError(f"topic {topic} has {existing.partitions} partitions, not {partitions}")
        topic_id = self._new_id(topic) if existing is None else existing.topic_id
        existing_partitions = {
            log_name.log.partition for log_name in self._listing(topic).versions if log_name.topic_id == topic_id
        }
        missing = [number for number in reversed(range(partitions)) if number not in existing_partitions]
        if existing is not None and (not missing or existing.root.change not in BULK):
            return  # it is complete, or an engine creates its partitions
        topic_config = self._defaults().replaced(config, f"create_topic({topic!r})")
        values = topic_config.to_mapping()
        note = TopicNote(partitions, {name: values[name] for name in config})
        if existing is not None:  # an earlier call failed before it had created all partitions
            note = existing.note or note
        for number in missing:
            remote = self._tier.log(TopicPartition(topic, number), topic_id)
            remote.refresh()
            if remote.root is None:
                remote.check_not_lost()
            if remote.root is None:
                TierPublisher(remote, 0, topic_config).add(
                    Appending(entries=(), topic=note, reason="the topic was created")
                )
        del self._topics[topic], self._listings[topic]

    def log(self, name: TopicPartition) -> TierLog:
        """Return a log in the state in which it was read last; raise UnknownTopicError if it does not exist."""
        topic = self.get(name.topic)
        if not 0 <= name.partition < topic.partitions:
            raise UnknownTopicError(f"topic {name.topic} has {topic.partitions} partitions: there is no {name}")
        return self._tier.log(name, topic.topic_id)

    def log_from_listing(self, log: TopicPartition) -> TierLog:
        """Return a log of a topic that ``get`` has returned, in its state at the time of the topic's listing.

        If the listing is older than 30 seconds, the newest state is read instead. The call sends a request only if that
        state was not read before.

        Raises:
            UnknownTopicError: the topic has no such partition.
            StoreError, CorruptManifestError: the state cannot be read.
        """
        remote = self.log(log)
        listing = self._listings[log.topic]
        version = listing.versions.get(TierLogName(log, remote.topic_id))
        is_fresh = ClockReading.of(self._host.env.clock).is_within(listing.began, _FRESH_MS)
        if version is None or not is_fresh:
            remote.refresh()
        else:
            remote.refresh_listed(version, listing.began)
        return remote

    def _new_id(self, topic: str) -> TopicId:
        """Return the topic id for a new topic. Writers that create the topic at the same time get the same id.

        The id is computed from the tier's URI and the name, and differs from the ids of deleted topics.
        """
        topic_id = TopicId.from_uuid(uuid.uuid5(_IDS, f"{self._tier.uri}/{topic}"))
        existing_ids = {log_name.topic_id for log_name in self._listing(topic).versions if log_name.log.topic == topic}
        while topic_id in existing_ids or self._tier.was_collected(topic, topic_id):
            topic_id = TopicId.from_uuid(uuid.uuid5(_IDS, f"{topic_id}/{topic}"))
        return topic_id

    def _listing(self, topic: str) -> TierListing:
        if topic not in self._listings:
            listing = self._listings[topic] = self._tier.listing([topic], self._versions)
            self._versions.update(listing.versions)
        return self._listings[topic]

    def _find_topic(self, topic: str) -> TierTopic | None:
        """Return a topic, as described by the root of its first log, or None if it does not exist.

        If several topics have the name, the newest one that is not deleted is returned.
        """
        if topic not in self._topics:
            by_id: dict[TopicId, list[TopicPartition]] = {}
            listing = self._listing(topic)
            for name in listing.versions:
                if name.log.topic == topic:
                    by_id.setdefault(name.topic_id, []).append(name.log)
            first_roots = list[Root | None]()
            for topic_id, logs in by_id.items():
                remote = self._tier.log(min(logs), topic_id)
                remote.refresh_listed(listing.versions[TierLogName(min(logs), topic_id)], listing.began)
                first_roots.append(remote.root)
            live_roots = [root for root in first_roots if root is not None and root.change != ChangeKind.DELETE]
            roots = {root.topic_id: root for root in live_roots}
            newest = newest_topic({topic_id: [root] for topic_id, root in roots.items()}) if live_roots else None
            last = max(by_id[newest]).partition if newest else 0
            self._topics[topic] = None if newest is None else self._describe(roots[newest], last)
        return self._topics[topic]

    def _describe(self, root: Root, last_partition: int) -> TierTopic:
        note = root.topic
        partitions = max(last_partition + 1, note.partitions if note else 0)
        source = f"topic {root.log.topic} in {self._tier.uri}"
        config = self._defaults().merged(note.config if note else {}, source)  # an engine has validated the combination
        return TierTopic(root.log.topic, root.topic_id, partitions, config, note, root)

    def _defaults(self) -> TopicConfig:
        built_in = TopicConfig(sections=dict(self._host.registry.topic_sections()))
        return built_in.replaced(self._host.settings.topic_defaults, "topic_defaults")
