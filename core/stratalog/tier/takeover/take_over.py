"""Taking over a log whose directory is lost: what its tier says of where it goes on, in the next leader epoch.

The epoch is claimed first, by a root: from then on the writer before is fenced, and the end of the tier cannot move.
Only then is anything read of where the log ends.

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
from stratalog.model.names import (
    LEADER_EPOCHS_FILE,
    LOG_SUFFIX,
    TopicId,
    TopicPartition,
    segment_file,
)
from stratalog.model.offsets import EpochEntry, LogOffsets
from stratalog.producers.snapshot import ProducerEntry
from stratalog.segment.components import Components
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.manifest.root import EMPTYING, TopicNote
from stratalog.tier.tier import TierLogName
from stratalog.tier.tier_log import TierLog

FIRST_OWN_EPOCH: Final = 1
"""Of a log that the tier has nothing of: above that in which a topic's first engine writes."""


@dataclass(frozen=True, slots=True)
class AttachedLog:
    """A log that was taken over from its tier.

    Attributes:
        log: its name.
        topic_id: of its topic, as before.
        leader_epoch: the one in which it goes on; the writer before is fenced.
        log_start: the first offset that readers may ask for.
        log_end: the offset of the next record: where the tier ends.
        high_watermark: of the log at the last commit of the writer before. What it had acknowledged from ``log_end`` on was
            on its disk alone, and is lost; these offsets are given out again, in the new epoch.
        epochs: where leader epochs start, the new one included.
        producers: with a state at ``log_end``.
        topic: what the tier knows of the topic; None if it was never told.
        told_ms: when the writer before committed for the last time.
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
    told_ms: int = 0

    @property
    def lost(self) -> int:
        """How many offsets the writer before is known to have given out that are not in the tier; there may be more."""
        return max(self.high_watermark - self.log_end, 0)

    @property
    def open_transactions(self) -> int:
        """How many transactions have records in the tier and no marker there."""
        return sum(found.transaction_first_offset >= 0 for found in self.producers)

    @property
    def offsets(self) -> LogOffsets:
        """The bounds of the log as it is opened."""
        return LogOffsets(
            log_start=self.log_start,
            local_log_start=self.log_end,
            recovery_point=self.log_end,
            high_watermark=self.log_end,
            last_stable=self.log_end,
            log_end=self.log_end,
        )


def chosen_logs(names: Iterable[TierLogName], wanted: Collection[str] | None, uri: str) -> list[TierLogName]:
    """The logs of the tier that are meant.

    Args:
        names: all logs of the tier that are not deleted.
        wanted: topics, or ``TOPIC-ID`` as the tier's keys begin, for a topic that is there under several ids; None is
            all.
        uri: of the tier, for error texts.

    Raises:
        AttachError: a topic is not there, or it is there under several ids.
    """
    listed = sorted(names)
    left = set(wanted or ())
    found, ids = list[TierLogName](), dict[str, set[TopicId]]()
    for name in listed:
        spellings = {name.log.topic, f"{name.log.topic}-{name.topic_id}"}
        if wanted is None or not spellings.isdisjoint(wanted):
            found.append(name)
            ids.setdefault(name.log.topic, set()).add(name.topic_id)
        left -= spellings
    if left:
        raise AttachError(f"there is no topic {', '.join(sorted(left))} in {uri}")
    for topic, known in ids.items():
        if len(known) > 1:
            choices = ", ".join(f"{topic}-{topic_id}" for topic_id in sorted(known))
            raise AttachError(f"topic {topic} is in {uri} under several ids: say which, and all others: {choices}")
    return found


def has_log(remote: TierLog) -> bool:
    """Whether the tier holds the log: something was committed of it, and it was neither deleted nor taken out again."""
    return remote.root is not None and remote.root.change not in EMPTYING


def take_over(remote: TierLog, parts: Components) -> AttachedLog:
    """Fence the writer of a log, and tell where it goes on. Can be repeated: each time the epoch is one higher.

    Raises:
        FencedEpochError: somebody else takes it over at the same moment.
        CorruptManifestError, CorruptBatchError, CorruptObjectError: what the tier holds is damaged.
        StoreError: the store failed or refused.
    """
    before = remote.root
    root = remote.claim("attached from the tier")
    if root is None:
        raise StorageError(f"the tier holds nothing of {remote.log}")
    view = remote.view()
    return AttachedLog(
        log=remote.log,
        topic_id=remote.topic_id,
        leader_epoch=root.leader_epoch,
        log_start=root.log_start,
        log_end=root.end_offset,
        high_watermark=root.high_watermark,
        epochs=EpochCache(root.leader_epochs).assign(root.leader_epoch, root.end_offset).entries,
        producers=tuple(producers_at(view, view.end_offset, parts).entries()),
        topic=root.topic,
        told_ms=before.created_ms if before is not None else 0,
    )


def untiered(found: Iterable[AttachedLog]) -> Iterator[AttachedLog]:
    """The partitions of which the tier has nothing yet, where it knows how many a topic has: they begin at offset 0.

    Without them keys would go to other partitions than before.
    """
    topics = dict[str, list[AttachedLog]]()
    for log in found:
        topics.setdefault(log.log.topic, []).append(log)
    for topic, logs in topics.items():
        there = {log.log.partition for log in logs}
        notes = [log.topic for log in logs if log.topic is not None]
        for partition in range(max((note.partitions for note in notes), default=0)):
            if partition not in there:
                begun = EpochCache().assign(FIRST_OWN_EPOCH, 0).entries
                name = TopicPartition(topic, partition)
                yield AttachedLog(name, logs[0].topic_id, FIRST_OWN_EPOCH, 0, 0, 0, begun, (), notes[0])


def write_folder(files: LogFiles, found: AttachedLog) -> None:
    """Make the folder of a log hold what is needed to go on, durable on return: no records, and all that is known of them.

    Raises:
        DiskFullError, LogDirError: the folder is not complete.
    """
    store_topic_id(files, found.topic_id)
    store_epochs(files, LEADER_EPOCHS_FILE, found.epochs)
    if found.log_end:
        store_snapshot(files, found.log_end, found.producers)
    files.open_segment(segment_file(found.log_end, LOG_SUFFIX), create=True).close()
    files.sync()


def is_empty_folder(files: LogFiles) -> bool:
    """Whether a log's folder holds no record: what an attach that was interrupted leaves."""
    return not any(file.size_bytes for file in files.list() if LOG_SUFFIX in file.name)
