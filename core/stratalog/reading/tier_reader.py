"""Reads of a tier alone, without a directory or an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from stratalog.config.topic import TopicConfig
from stratalog.epochs.epoch_cache import EpochCache
from stratalog.log.load.tier_producers import stable_end
from stratalog.log.read.tier_view import RemoteView
from stratalog.log.read.view import LogView
from stratalog.model.names import TopicId, TopicPartition, unknown_topic
from stratalog.model.offsets import LogOffsets
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import Reader, StaticLog
from stratalog.reading.topic_table import KEEP_EVERYTHING
from stratalog.segment.components import Components
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.history import AsOf
from stratalog.tier.manifest.root import Root, newest_topic
from stratalog.tier.read.unmanaged_logs import foreign_view
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.tier import NOTHING_KNOWN, Tier, TierListing

KAFKA_LAYOUT: Final = "kafka_local_tiered"


class BucketReader(Reader):
    """Reader of the logs of one tier, without a directory.

    The tier may lack the segment with the end marker of a transaction that has records in the tier. Then the last
    stable offset, up to which ``read_committed`` reads, is the first offset of the first such transaction.

    Args:
        location: URI of the tier.
        host: components to read the logs with; ``close`` closes it.
        tier: the opened tier; ``close`` closes it.
        as_of: read the state at this version of each log's manifest, or at this time; None reads the latest state.
        topics: show only these topics; None shows all.
    """

    def __init__(
        self,
        location: str,
        host: ComponentHost,
        tier: Tier,
        as_of: AsOf | None = None,
        topics: Collection[str] | None = None,
    ) -> None:
        super().__init__(location, host, tier)
        self._bucket, self._as_of = tier, as_of
        self._topics = None if topics is None else frozenset(topics)
        self._ids: dict[TopicPartition, TopicId] | None = None
        self._listing: TierListing | None = None
        # Segments that Kafka brokers uploaded; empty if stratalog has logs in the tier.
        self._foreign: dict[TierLogName, list[StoredSegment]] = {}

    def _names(self) -> Mapping[TopicPartition, TopicId]:
        if self._ids is None:
            topics = dict[str, dict[TopicId, list[TopicPartition]]]()
            known_versions = self._listing.versions if self._listing is not None else NOTHING_KNOWN
            self._listing = self._bucket.listing(self._topics, known_versions)
            for tier_log in self._listing.versions:
                topics.setdefault(tier_log.log.topic, {}).setdefault(tier_log.topic_id, []).append(tier_log.log)
            newest_ids = [(self._newest(ids), ids) for ids in topics.values()]
            names = {name: topic_id for topic_id, ids in newest_ids for name in ids[topic_id]}
            if not topics:
                self._foreign = {
                    name: segments
                    for name, segments in self._bucket.foreign(KAFKA_LAYOUT).items()
                    if self._topics is None or name.log.topic in self._topics
                }
                names = {name.log: name.topic_id for name in self._foreign}
            self._ids = names  # only now: after an error, the next call lists the tier again
        return self._ids

    def _newest(self, ids: Mapping[TopicId, Sequence[TopicPartition]]) -> TopicId:
        """Return the id of the topic that was written last, of several topics with the same name."""
        if len(ids) == 1:
            return next(iter(ids))
        logs = [TierLogName(name, topic_id) for topic_id, names in ids.items() for name in names]
        self._in_parallel(logs, lambda tier_log: self._newest_view(*tier_log))
        roots = dict[TopicId, list[Root]]()
        for tier_log in logs:
            root = self._bucket.log(*tier_log).root
            if root is not None:
                roots.setdefault(tier_log.topic_id, []).append(root)
        return newest_topic(roots)

    def _topic_id(self, name: TopicPartition) -> TopicId | None:
        return self._names()[name]

    def topic_config(self, name: TopicPartition) -> TopicConfig:
        """Return the topic's settings in the log's latest manifest root.

        If the root has no settings, the result has unlimited retention unless ``[topic_defaults]`` limits it. The call
        may raise UnknownTopicError, StoreError, CorruptManifestError and ClosedError.
        """
        topic_id = self._names().get(name)
        if topic_id is None:
            raise unknown_topic(name, self._names(), self.location)
        root = self._bucket.log(name, topic_id).root
        built_in = TopicConfig(sections=self._host.registry.topic_sections())
        defaults = {"remote.storage.enable": True, **self._host.settings.topic_defaults}
        if root is None or root.topic is None:
            return built_in.replaced({**KEEP_EVERYTHING, **defaults}, "topic_defaults")
        default_config = built_in.replaced(defaults, "topic_defaults")
        return default_config.merged(default_config.recognised(root.topic.config), f"topic {name.topic}")

    def _open(self, name: TopicPartition) -> StaticLog:
        topic_id = self._names()[name]
        foreign = self._foreign.get(TierLogName(name, topic_id))
        if foreign is not None:
            remote = foreign_view(foreign, self._bucket.fetcher)
        elif self._as_of is None:
            remote = self._newest_view(name, topic_id)
        else:
            remote = self._bucket.log(name, topic_id).view_as_of(self._as_of)
        return StaticLog(tier_view(name, remote, self._components), topic_id)

    def _newest_view(self, name: TopicPartition, topic_id: TopicId) -> RemoteView:
        """Return the state of the log in the tier at its newest version in the last listing."""
        assert self._listing is not None  # set together with the names
        version = self._listing.versions[TierLogName(name, topic_id)]
        return self._bucket.log(name, topic_id).refresh_listed(version, self._listing.began)

    def refresh(self) -> tuple[TopicPartition, ...]:
        """Update the logs to the tier's state; return the opened logs that have changed. See ``Reader.refresh``."""
        if self._as_of is not None:
            return super().refresh()
        self._check_open()
        self._ids = None
        names, changed, listed_logs = self._names(), list[TopicPartition](), list[tuple[TopicPartition, StaticLog]]()
        for name, log in list(self._logs.items()):
            if log.topic_id is None or names.get(name) != log.topic_id:
                self._logs.pop(name).close()
                changed.append(name)
            elif (foreign := self._foreign.get(TierLogName(name, log.topic_id))) is None:
                listed_logs.append((name, log))
            elif _extent(remote := foreign_view(foreign, self._bucket.fetcher)) != _extent(log.view().remote):
                log.show(tier_view(name, remote, self._components))
                changed.append(name)
        outdated = [(name, log) for name, log in listed_logs if not self._is_current(name, log)]
        for (name, log), view in zip(outdated, self._in_parallel(outdated, self._read_newest), strict=True):
            log.show(view)
            changed.append(name)
        return tuple(sorted(changed))

    def _is_current(self, name: TopicPartition, log: StaticLog) -> bool:
        assert self._listing is not None  # set together with the names
        assert log.topic_id is not None  # checked by ``refresh``
        remote = log.view().remote
        return remote is not None and remote.version == self._listing.versions[TierLogName(name, log.topic_id)]

    def _read_newest(self, named_log: tuple[TopicPartition, StaticLog]) -> LogView:
        name, log = named_log
        assert log.topic_id is not None  # checked by ``refresh``
        return tier_view(name, self._newest_view(name, log.topic_id), self._components)

    def _close(self) -> None:
        """Do nothing: only the tier is open, and the base class closes it."""


def _extent(remote: RemoteView | None) -> tuple[int, int, int] | None:
    """Return start, end and number of the segments in a tier, which change if a broker adds or deletes segments."""
    return None if remote is None else (remote.start_offset, remote.end_offset, len(remote.segments))


def tier_view(name: TopicPartition, remote: RemoteView, components: Components) -> LogView:
    """Return the view of a log that is read from its tier alone.

    The call may read the last segments of the log in the tier, and raises the errors of these reads.
    """
    end = remote.end_offset
    offsets = LogOffsets(
        log_start=remote.log_start,
        local_log_start=end,
        recovery_point=end,
        high_watermark=end,
        last_stable=stable_end(remote, components),
        log_end=end,
    )
    epochs = EpochCache(remote.leader_epochs)
    return LogView(name, (), offsets, epochs, components, remote, leader_epoch=epochs.latest)
