"""Reads of a tier alone, without a directory or an engine, from the newest manifest root of each log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ClosedError
from stratalog.log.load.tier_producers import stable_end
from stratalog.log.read.tier_view import RemoteView
from stratalog.log.read.view import LogView
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.reader import Reader, StaticLog
from stratalog.segment.components import Components
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.history import AsOf
from stratalog.tier.manifest.root import newest_topic
from stratalog.tier.read.unmanaged_logs import foreign_view
from stratalog.tier.tier import Tier, TierLogName

KAFKA_LAYOUT: Final = "kafka_local_tiered"


class BucketReader(Reader):
    """Logs of one tier.

    The records in a tier were below their log's last stable offset when they were uploaded. But the marker that ends a
    transaction may be in a segment that is not in the tier. Alone, the tier is stable up to the first such transaction.
    """

    def __init__(self, location: str, host: ComponentHost, tier: Tier, as_of: AsOf | None = None) -> None:
        super().__init__(location, host, tier)
        self._bucket, self._as_of = tier, as_of
        self._ids: dict[TopicPartition, TopicId] | None = None
        # Segments that Kafka's own tier holds, if stratalog has none there.
        self._foreign: dict[TierLogName, list[StoredSegment]] = {}

    def _names(self) -> Mapping[TopicPartition, TopicId]:
        if self._ids is None:
            topics = dict[str, dict[TopicId, list[TopicPartition]]]()
            for found in self._bucket.logs():
                topics.setdefault(found.log.topic, {}).setdefault(found.topic_id, []).append(found.log)
            chosen = [(self._newest(ids), ids) for ids in topics.values()]
            self._ids = {name: topic_id for topic_id, ids in chosen for name in ids[topic_id]}
            if not topics:
                self._foreign = self._bucket.foreign(KAFKA_LAYOUT)
                self._ids = {name.log: name.topic_id for name in self._foreign}
        return self._ids

    def _newest(self, ids: Mapping[TopicId, Sequence[TopicPartition]]) -> TopicId:
        """Return the id of the topic that a name means, for all its partitions."""
        if len(ids) == 1:
            return next(iter(ids))
        found = {topic_id: [self._bucket.log(name, topic_id).root for name in names] for topic_id, names in ids.items()}
        roots = {topic_id: [root for root in each if root is not None] for topic_id, each in found.items()}
        return newest_topic({topic_id: there for topic_id, there in roots.items() if there})

    def _topic_id(self, name: TopicPartition) -> TopicId | None:
        return self._names()[name]

    def _open(self, name: TopicPartition) -> StaticLog:
        topic_id = self._names()[name]
        foreign = self._foreign.get(TierLogName(name, topic_id))
        if foreign is not None:
            view = foreign_view(foreign, self._bucket.fetcher)
            return StaticLog(tier_view(name, view, self._parts), topic_id, self._parts)
        found = self._bucket.log(name, topic_id)
        remote = found.view() if self._as_of is None else found.view_as_of(self._as_of)
        return StaticLog(tier_view(name, remote, self._parts), topic_id, self._parts)

    def refresh(self) -> tuple[TopicPartition, ...]:
        """See ``Reader.refresh``."""
        if self._as_of is not None:
            return super().refresh()
        if self._closed:
            raise ClosedError("the reader is closed")
        self._ids = None
        names, changed = self._names(), list[TopicPartition]()
        for name, log in list(self._logs.items()):
            if log.topic_id is None or names.get(name) != log.topic_id:
                self._logs.pop(name).close()
                changed.append(name)
                continue
            before, now = log.view().remote, self._bucket.log(name, log.topic_id).refresh()
            if before is None or before.version != now.version:
                log.show(tier_view(name, now, self._parts))
                changed.append(name)
        return tuple(changed)

    def _close(self) -> None:
        """Do nothing: only the tier is open, and the base class closes it."""


def tier_view(name: TopicPartition, remote: RemoteView, parts: Components) -> LogView:
    """Return the view of a log that is in the tier alone; errors as ``stable_end``."""
    end = remote.end_offset
    offsets = LogOffsets(
        log_start=remote.log_start,
        local_log_start=end,
        recovery_point=end,
        high_watermark=end,
        last_stable=stable_end(remote, parts),
        log_end=end,
    )
    epochs = EpochCache(remote.leader_epochs)
    return LogView(name, (), offsets, epochs, remote, leader_epoch=epochs.latest)
