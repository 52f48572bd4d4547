"""Takeover of a log whose directory is lost: a new engine continues the log at the end offset of the tier.

First, a commit begins the next leader epoch. It fences the previous writer, so the end offset of the tier can no longer
change. Only then is the end offset read.

Source: KIP-405, building a follower's auxiliary state: leader epochs and producer snapshot of the last remote segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import AttachError, StorageError
from stratalog.log.folder.directory_state import store_topic_id
from stratalog.log.folder.folder import store_epochs, store_snapshot
from stratalog.log.load.tier_producers import producers_at
from stratalog.model.names import LEADER_EPOCHS_FILE, LOG_SUFFIX, TopicId, TopicPartition, segment_file, unknown_topic
from stratalog.model.offsets import EpochEntry, LogOffsets
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.manifest.root import EMPTYING, TopicNote
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.tier_log import TierLog

FIRST_OWN_EPOCH: Final = 1
"""Leader epoch of an attached log that has nothing in the tier.

It is above the epoch in which the first engine of a topic writes.
"""


@dataclass(frozen=True, slots=True)
class AttachedLog:
    """State of a log that was taken over from its tier, or of a partition that the tier lacks (``missing_partitions``).

    Attributes:
        topic_id: id of its topic; the takeover does not change it.
        leader_epoch: the new leader epoch, which fences the previous writer.
        log_start: the first offset that readers may read.
        log_end: offset of the next record, which is the exclusive end offset of the tier.
        high_watermark: high watermark of the log at the last commit of the previous writer. If it is above ``log_end``,
            the records between the two offsets were only on that writer's disk, and are lost. Their offsets are
            assigned again.
        epochs: leader epochs and their start offsets, including the new one.
        producers: states of producers at ``log_end``.
        topic: partitions and settings of the topic in the tier; None if they are unknown.
        last_commit_ms: time (ms since 1970) of the previous writer's last commit; 0 if it is unknown.
    """

    log: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    log_start: int
    log_end: int
    high_watermark: int
    epochs: tuple[EpochEntry, ...]
    producers: tuple[ProducerEntry, ...]
    topic: TopicNote | None = None
    last_commit_ms: int = 0

    @property
    def lost(self) -> int:
        """The number of offsets from ``log_end`` to ``high_watermark``, whose records are lost; 0 if there are none.

        Records that the previous writer appended after its last commit are lost, too, but not counted.
        """
        return max(self.high_watermark - self.log_end, 0)

    @property
    def open_transactions(self) -> int:
        """The number of transactions that have records in the tier, but no marker that ends them."""
        return sum(producer.transaction_first_offset >= 0 for producer in self.producers)

    @property
    def offsets(self) -> LogOffsets:
        """The offsets of the log when it is opened without local records."""
        return LogOffsets(
            log_start=self.log_start,
            local_log_start=self.log_end,
            recovery_point=self.log_end,
            high_watermark=self.log_end,
            last_stable=self.log_end,
            log_end=self.log_end,
        )


def select_logs(names: Iterable[TierLogName], topics: Collection[str] | None, uri: str) -> list[TierLogName]:
    """Return the logs of the tier that ``topics`` names, sorted.

    Args:
        names: all logs of the tier that are not deleted.
        topics: names of topics, or ``NAME-ID`` for one of several topics with the same name; None selects all logs.
        uri: URI of the tier, for error texts.

    Raises:
        AttachError: a topic does not exist, or several selected topics have the same name.
    """
    sorted_names = sorted(names)
    unknown = set(topics or ())
    selected, ids_by_topic = list[TierLogName](), dict[str, set[TopicId]]()
    for name in sorted_names:
        spellings = {name.log.topic, f"{name.log.topic}-{name.topic_id}"}
        if topics is None or not spellings.isdisjoint(topics):
            selected.append(name)
            ids_by_topic.setdefault(name.log.topic, set()).add(name.topic_id)
        unknown -= spellings
    if unknown:
        raise AttachError(str(unknown_topic(min(unknown), (name.log for name in sorted_names), uri)))
    for topic, topic_ids in ids_by_topic.items():
        if len(topic_ids) > 1:
            choices = ", ".join(f"{topic}-{topic_id}" for topic_id in sorted(topic_ids))
            raise AttachError(
                f"topic {topic} is in {uri} under several ids: select it by id, and name all other topics: {choices}"
            )
    return selected


def has_log(remote: TierLog) -> bool:
    """Return True if the log has a root, and the change of its latest root is neither CLEAR nor DELETE."""
    return remote.root is not None and remote.root.change not in EMPTYING


def take_over(remote: TierLog, components: Components) -> AttachedLog:
    """Fence the writer of a log, and return the state in which a new engine continues it.

    Each call begins another leader epoch.

    Raises:
        FencedEpochError: another process takes the log over at the same time.
        EpochsExhaustedError: there is no next leader epoch.
        CorruptionError: the manifest or the last segments in the tier are damaged.
        StorageError: the log has no root in the tier, or its topic was deleted or left the tier.
    """
    before = remote.root
    root = remote.claim("attached from the tier")
    if root is None or root.change in EMPTYING:  # the topic may be deleted meanwhile
        raise StorageError(f"the tier has no segments of {remote.name}")
    view = remote.view()
    return AttachedLog(
        log=remote.name,
        topic_id=remote.topic_id,
        leader_epoch=root.leader_epoch,
        log_start=root.log_start,
        log_end=root.end_offset,
        high_watermark=root.high_watermark,
        epochs=EpochCache(root.leader_epochs).assign(root.leader_epoch, root.end_offset).entries,
        producers=tuple(producers_at(view, view.end_offset, components).entries()),
        topic=root.topic,
        last_commit_ms=before.created_ms if before is not None else 0,
    )


def missing_partitions(attached_logs: Iterable[AttachedLog]) -> Iterator[AttachedLog]:
    """Yield the missing partitions of the topics in ``attached_logs``, as empty logs from offset 0 on.

    The number of partitions of a topic is in ``topic`` of its logs; if that is None for all of them, nothing is
    yielded. The caller must create these partitions: with fewer partitions, a producer would assign keys to other
    partitions than before.
    """
    topics = dict[str, list[AttachedLog]]()
    for log in attached_logs:
        topics.setdefault(log.log.topic, []).append(log)
    for topic, logs in topics.items():
        partitions = {log.log.partition for log in logs}
        notes = [log.topic for log in logs if log.topic is not None]
        for partition in range(max((note.partitions for note in notes), default=0)):
            if partition not in partitions:
                epochs = EpochCache().assign(FIRST_OWN_EPOCH, 0).entries
                name = TopicPartition(topic, partition)
                yield AttachedLog(name, logs[0].topic_id, FIRST_OWN_EPOCH, 0, 0, 0, epochs, (), notes[0])


def write_folder(files: LogFiles, log: AttachedLog) -> None:
    """Write the files of a log without local records into its folder; durable on return.

    Raises:
        LogDirError: a file could not be written; the folder may be incomplete.
    """
    store_topic_id(files, log.topic_id)
    store_epochs(files, LEADER_EPOCHS_FILE, log.epochs)
    if log.log_end:
        store_snapshot(files, log.log_end, log.producers)
    files.open_segment(segment_file(log.log_end, LOG_SUFFIX), create=True).close()
    files.sync()


def is_empty_folder(files: LogFiles) -> bool:
    """Return True if no ``.log`` file in a log's folder has bytes; an interrupted attach can leave such a folder."""
    return not any(file.size_bytes for file in files.list() if LOG_SUFFIX in file.name)
