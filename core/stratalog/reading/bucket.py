"""Reading a tier alone: no directory, no engine; what the newest manifest root of each log says."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.epochs.cache import EpochCache
from stratalog.log.view import LogView
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import LogOffsets
from stratalog.reading.parts import ComponentHost
from stratalog.reading.reader import Reader, StaticLog
from stratalog.tier.tier import Tier


class BucketReader(Reader):
    """The logs of one tier. Everything in a tier is below the last stable offset, so no producer state is needed."""

    def __init__(self, location: str, host: ComponentHost, tier: Tier) -> None:
        super().__init__(location, host, tier)
        self._bucket = tier
        self._ids: dict[TopicPartition, TopicId] | None = None

    def _names(self) -> Mapping[TopicPartition, TopicId]:
        if self._ids is None:
            self._ids = {found.log: found.topic_id for found in self._bucket.logs()}
        return self._ids

    def _topic_id(self, name: TopicPartition) -> TopicId | None:
        return self._names()[name]

    def _open(self, name: TopicPartition) -> StaticLog:
        topic_id = self._names()[name]
        remote = self._bucket.log(name, topic_id).view()
        end = remote.end_offset
        offsets = LogOffsets(
            log_start=remote.log_start,
            local_log_start=end,
            recovery_point=end,
            high_watermark=end,
            last_stable=end,
            log_end=end,
        )
        view = LogView(name, (), offsets, EpochCache(remote.leader_epochs), remote)
        return StaticLog(view, topic_id, self._parts)

    def _close(self) -> None:
        """Nothing but the tier is open, and that is closed by the reader."""
