"""Restored logs that go on under another topic id: in another cluster, or beside the topic that they were copied from.

Leader epochs and producer ids count within one cluster. A new topic begins in leader epoch 0, and a new cluster gives out
producer ids from 0 on, so that those of the old one must not be met again:

- A broker forgets epochs above its own. A consumer waits for ever for a leader of the epoch in which its group committed.
- A batch of a producer that the log knows, with a sequence that it knows, is acknowledged and not written.
- A coordinator whose epoch is below that of a producer's last marker can end none of its transactions.
- A coordinator passes over a committed offset of a topic id that is not the topic's (since Kafka 4.1).

So records are in epoch 0, and the log's next one begins where it ends; producers are forgotten, but for those with an open
transaction; committed offsets of a later epoch are of epoch 0, and tell no topic id.

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


def goes_anew(plan: RestorePlan, files: LogFiles) -> bool:
    """Whether the log goes to a topic of another id than the tier's; a folder that tells of none is some broker's."""
    return read_topic_id(files) != plan.topic_id


def begin_anew(log: Log, files: LogFiles, reopen: Callable[[], Log]) -> Log:
    """Let a log that was restored begin a life of its own; the log, opened again.

    Its active segment is an empty one: no recovery replays what producers of the old cluster did.

    Args:
        log: open, with the end that it shall have.
        files: its folder.
        reopen: opens it once more.
    """
    end = log.offsets().log_end
    kept = [found._replace(coordinator_epoch=-1) for found in log.open_transactions()]
    log.close()
    if end:  # this one first: who repeats a restore finds the open transactions here
        store_snapshot(files, end, kept)
    for offset in snapshot_offsets(file.name for file in files.list()):
        if offset != end:
            files.remove(segment_file(offset, SNAPSHOT_SUFFIX))
    files.sync()
    log = reopen()
    log.roll()
    if log.name.topic == OFFSETS_TOPIC:
        _commit_again(log)
    return log


def _commit_again(log: Log) -> None:
    """Append committed offsets once more as this cluster can take them: what is newest of a key counts."""
    topic = _Commits(log)
    topic.refresh(log.name.partition)
    if topic.again:
        log.append(list(topic.again.values()), "durable")


class _Commits(StateTopic):
    """The committed offsets of one partition that tell what is of the old cluster, without that, by key."""

    def __init__(self, log: Log) -> None:
        super().__init__(_OneLog(log), OFFSETS_TOPIC)
        self.again: dict[bytes, Record] = {}
        self._newest: dict[bytes, int] = {}

    def apply(self, partition: int, record: Record) -> None:
        del partition  # there is one
        parsed = parse_offsets_record(record.key, record.value)
        if parsed is None or not isinstance(parsed.key, CommitKey):
            return
        key = record.key or b""
        if self._newest.get(key, -1) > record.offset:
            return  # a transaction that ended late: what was committed after its record stands
        self._newest[key] = record.offset
        self.again.pop(key, None)
        if isinstance(parsed.value, OffsetCommit) and parsed.value_version is not None:
            kept = replace(parsed.value, leader_epoch=min(parsed.value.leader_epoch, FIRST_EPOCH))
            value = offsets_value(parsed.kind, kept, parsed.value_version)  # tagged fields, as the topic id, stay out
            if value != record.value:
                self.again[key] = record._replace(value=value)

    def forget(self, partition: int) -> None:
        del partition
        self.again.clear()
        self._newest.clear()


@dataclass(frozen=True, slots=True)
class _OneLog:
    """An engine with a single log."""

    only: Log

    def partitions(self) -> tuple[TopicPartition, ...]:
        return (self.only.name,)

    def log(self, topic: str, partition: int) -> Log:
        if (topic, partition) != self.only.name:
            raise UnknownTopicError(f"there is no {topic}-{partition}")
        return self.only

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None) -> object:
        raise UnknownTopicError(f"topic {name} is not made here: partitions={partitions} config={config}")
