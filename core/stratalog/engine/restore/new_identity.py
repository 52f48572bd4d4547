"""Restored logs with a new topic id: in another cluster, or as a copy beside the original topic.

Leader epochs and producer ids are valid within one cluster. A new topic starts in leader epoch 0, and a new cluster
assigns producer ids from 0 upwards. Epochs and producer ids of the old cluster would cause these problems:

- A broker discards leader epochs above its own epoch. A consumer waits forever for a leader with the epoch of its
  group's committed offset.
- If a new producer gets the producer id of an old producer and repeats its sequence number, the new batch is
  acknowledged as a duplicate, but not written.
- A coordinator cannot end a transaction of a producer whose last marker has a higher coordinator epoch.
- A coordinator ignores a committed offset whose topic id is not the id of the topic (since Kafka 4.1).

Therefore all batches get leader epoch 0, and the log's next epoch starts at its end. All producers without an open
transaction are removed. Committed offsets with a leader epoch above 0 get epoch 0, and contain no topic id.

Source: apache/kafka LeaderEpochFileCache.assign; clients' Metadata.updateLastSeenEpochIfNewer; ProducerAppendInfo
(findDuplicateBatch, checkCoordinatorEpoch); OffsetMetadataManager.isMismatchedTopicId.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from stratalog.client.statetopic import StateTopic
from stratalog.errors import UnknownTopicError
from stratalog.log.folder.directory_state import read_topic_id
from stratalog.log.folder.folder import store_snapshot
from stratalog.log.load.producer_replay import snapshot_offsets
from stratalog.log.log import Log
from stratalog.model.messages.offsets_topic import (
    OFFSETS_TOPIC,
    CommitKey,
    OffsetCommit,
    offsets_value,
    parse_offsets_record,
)
from stratalog.model.names import SNAPSHOT_SUFFIX, TopicPartition, segment_file
from stratalog.model.records import Record
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.takeover.download import RestorePlan

FIRST_EPOCH: Final = 0


def gets_new_id(plan: RestorePlan, files: LogFiles) -> bool:
    """Return True if the log's folder has another topic id than the log in the tier, or none."""
    return read_topic_id(files) != plan.topic_id


def assign_new_id(log: Log, files: LogFiles, reopen: Callable[[], Log]) -> Log:
    """Remove the old cluster's producers from the state of a restored log with a new topic id; return the reopened log.

    The batches keep their producer ids and sequence numbers. All producer snapshots are replaced by one snapshot at the
    log end. It contains only the producers with an open transaction, without their coordinator epochs. The log also
    gets a new, empty active segment. The next opening, even with a recovery, reads the snapshot at the start of that
    segment, and replays only later batches.

    In ``__consumer_offsets``, the function also replaces committed offsets that have data of the old cluster. The log must
    be truncated to its final end offset. The function closes the log.
    """
    end = log.offsets().log_end
    producers = [producer._replace(coordinator_epoch=-1) for producer in log.open_transactions()]
    log.close()
    if end:  # before the old ones are removed: a repeated restore reads the open transactions from this snapshot
        store_snapshot(files, end, producers)
    for offset in snapshot_offsets(file.name for file in files.list()):
        if offset != end:
            files.remove(segment_file(offset, SNAPSHOT_SUFFIX))
    files.sync()
    log = reopen()
    log.roll()
    if log.name.topic == OFFSETS_TOPIC:
        _replace_commits(log)
    return log


def _replace_commits(log: Log) -> None:
    """Append a record for each committed offset with data of the old cluster, to replace the older record."""
    topic = _Commits(log)
    topic.refresh(log.name.partition)
    if topic.replacements:
        log.append(list(topic.replacements.values()), "durable")


class _Commits(StateTopic):
    """Reader of the committed offsets in one partition that contain data of the old cluster.

    Attributes:
        replacements: by record key, the new record of a committed offset, without the old cluster's data.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(_OneLog(log), OFFSETS_TOPIC)
        self.replacements: dict[bytes, Record] = {}
        self._newest: dict[bytes, int] = {}

    def apply(self, partition: int, record: Record) -> None:
        del partition  # the log has only one partition
        parsed = parse_offsets_record(record.key, record.value)
        if parsed is None or not isinstance(parsed.key, CommitKey):
            return
        key = record.key or b""
        if self._newest.get(key, -1) > record.offset:
            return  # this record's transaction ended late; the offset that was committed after the record is newer
        self._newest[key] = record.offset
        self.replacements.pop(key, None)
        if isinstance(parsed.value, OffsetCommit) and parsed.value_version is not None:
            commit = replace(parsed.value, leader_epoch=min(parsed.value.leader_epoch, FIRST_EPOCH))
            # without tagged fields such as the topic id
            value = offsets_value(parsed.kind, commit, parsed.value_version)
            if value != record.value:
                self.replacements[key] = record._replace(value=value)

    def forget(self, partition: int) -> None:
        del partition
        self.replacements.clear()
        self._newest.clear()


@dataclass(frozen=True, slots=True)
class _OneLog:
    """Adapter of a single log to ``Logs``, for a ``StateTopic``."""

    only: Log

    def partitions(self) -> tuple[TopicPartition, ...]:
        return (self.only.name,)

    def log(self, topic: str, partition: int) -> Log:
        if (topic, partition) != self.only.name:
            raise UnknownTopicError(f"there is no {topic}-{partition}")
        return self.only

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> object:
        raise UnknownTopicError(f"topic {name} cannot be created here: partitions={partitions} config={config}")
