"""Names of topics, folders and files of logs: the only place that builds or parses them.

Source: the naming rules of Kafka's log directories (UnifiedLog, LocalLog, LogFileUtils, Topic).
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from stratalog.errors import ConfigError, InvalidTopicError, UnknownTopicError
from stratalog.model.offsets import MAX_OFFSET

_LEAST_SIMILARITY: Final = 0.7  # at difflib's default of 0.6, "copies" would be suggested for "nope"
_NAMED: Final = 10  # maximum number of topics or partitions in an error text
LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DIGEST_SUFFIX: Final = ".digest"  # compaction's digest file of a segment; Kafka ignores it
EXTRA_SUFFIX: Final = ".extra"  # extra indexes of a closed segment; Kafka ignores it
DESCRIBING_SUFFIXES: Final = (DIGEST_SUFFIX, EXTRA_SUFFIX)  # files that are valid for one state of a closed segment
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
DELETED_SUFFIX: Final = ".deleted"
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
SPOOL_SUFFIX: Final = ".tier.deleted"  # data to be uploaded to a tier; stratalog or Kafka deletes it when the log opens

LEADER_EPOCHS_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
RECOVERY_POINTS_FILE: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS_FILE: Final = "replication-offset-checkpoint"
LOG_STARTS_FILE: Final = "log-start-offset-checkpoint"
CLEANER_FILE: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
LOCK_FILE: Final = ".lock"
META_PROPERTIES_FILE: Final = "meta.properties"
TOPICS_FILE: Final = "stratalog-topics.json"  # a file, because Kafka ignores files but refuses unknown folders

INVENTORY_FILE: Final = "stratalog-inventory.json"  # in each log directory of an engine that has several
TIER_NOTE_FILE: Final = "stratalog-tier.json"  # in a log's folder, and in each log directory
MARKS_FILE: Final = "stratalog-marks.json"  # in a log's folder, where Kafka ignores it
NEXT_EPOCH_FILE: Final = "stratalog-next-epoch"  # in a log's folder, where Kafka ignores it
STAGED_PREFIX: Final = "stratalog-staged-"  # files in a log's folder: records that are not yet published
ATTACH_NOTE_FILE: Final = "stratalog-attach.json"  # in the first log directory, until the attach is done
RESTORE_NOTE_FILE: Final = "stratalog-restore.json"  # in a log directory, until the restore is done
RESTORING_FILE: Final = "stratalog-restoring"  # in a log's folder: the folder's earlier contents have been removed
MOVED_FILE: Final = "stratalog-moved"  # in a log's folder: a complete copy of the folder in another log directory

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
IGNORED_FOLDERS: Final = frozenset({"remote-log-index-cache"})

MAX_TOPIC_LENGTH: Final = 249
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")
_PARTITION_FOLDER: Final = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})\Z")
_LEFT_FOLDER: Final = re.compile(r"(?P<topic>\S+)-(?P<partition>[0-9]+)\.[0-9a-f]{32}-(?P<fate>delete|future|stray)\Z")
_SEGMENT_FILE: Final = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)(?P<state>\.deleted|\.cleaned|\.swap)?\Z")
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?\Z")
_MAX_FOLDER_TOPIC: Final = 255  # old Kafka releases allowed 255 characters, and their folders are still read
_MAX_PARTITION: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, order=True)
class TopicId:
    """A topic's UUID, in Kafka's 22 characters of URL-safe base64 without padding.

    Raises:
        InvalidTopicError: the text is not such a UUID, or all bits of the UUID are 0.
    """

    text: str

    def __post_init__(self) -> None:
        # The pattern is checked first, because the decoder silently ignores foreign characters.
        raw = base64.urlsafe_b64decode(self.text[:22] + "==") if _TOPIC_ID.match(self.text) else bytes(16)
        if raw == bytes(16):
            raise InvalidTopicError(
                f"{self.text!r} is not a topic id: use the 22 characters of URL-safe base64 that Kafka shows"
            )
        # The last character has four unused bits. Encoding the bytes sets these bits to 0: equal ids get equal texts.
        object.__setattr__(self, "text", base64.urlsafe_b64encode(raw).decode()[:22])

    @property
    def as_uuid(self) -> uuid.UUID:
        """The id as a UUID, whose 16 bytes Kafka's protocol sends."""
        return uuid.UUID(bytes=base64.urlsafe_b64decode(self.text + "=="))

    @classmethod
    def from_uuid(cls, value: uuid.UUID) -> TopicId:
        """Return the id with the 16 bytes of ``value``; raise InvalidTopicError if all of them are 0."""
        return cls(base64.urlsafe_b64encode(value.bytes).decode().rstrip("="))

    @classmethod
    def random(cls, chance: Random) -> TopicId:
        """Return a random topic id (UUID version 4) whose text does not begin with a dash.

        Source: apache/kafka Uuid.randomUuid.
        """
        while True:
            topic_id = cls.from_uuid(random_uuid(chance))
            if not topic_id.text.startswith("-"):
                return topic_id

    def __str__(self) -> str:
        return self.text


def random_uuid(chance: Random) -> uuid.UUID:
    """Return a random UUID (version 4) from the random source of an ``Env``."""
    return uuid.UUID(int=chance.getrandbits(128), version=4)


class TopicPartition(NamedTuple):
    """The name of one log. Names are ordered by topic, then by partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partitions_of(names: Iterable[TopicPartition], topic: str, place: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of a topic in ``names``, sorted. ``place`` describes the directories or the tier in errors.

    Raises:
        UnknownTopicError: ``names`` has no partition of the topic.
    """
    logs = tuple(names)
    partitions = tuple(sorted(name for name in logs if name.topic == topic))
    if not partitions:
        raise unknown_topic(topic, logs, place)
    return partitions


def only_partition(names: Iterable[TopicPartition], topic: str, place: str) -> int:
    """Return the number of the only partition of a topic. ``partitions_of`` describes the arguments.

    Raises:
        UnknownTopicError: see ``partitions_of``.
        ConfigError: the topic has several partitions.
    """
    first, *others = partitions_of(names, topic, place)
    if others:
        raise ConfigError(
            f"topic {topic} has {len(others) + 1} partitions: name one, such as log({topic!r}, {first.partition})"
        )
    return first.partition


def check_topic(topic: str) -> str:
    """Return ``topic`` if Kafka accepts it as a name.

    Raises:
        InvalidTopicError: ``topic`` is empty, ``.`` or ``..``, is longer than 249 characters, or has a character that
            is not in ``[a-zA-Z0-9._-]``.
    """
    if not _is_topic(topic, MAX_TOPIC_LENGTH):
        raise InvalidTopicError(
            f"topic name {topic!r} is not allowed: 1 to {MAX_TOPIC_LENGTH} of [a-zA-Z0-9._-], not '.' or '..'"
        )
    return topic


def unknown_topic(
    name: str | TopicPartition, existing: Iterable[str | TopicPartition], place: str
) -> UnknownTopicError:
    """Return the error for a topic or partition that does not exist.

    The error's text suggests names from ``existing``. It contains ``place``, which describes the directories or the
    tier.
    """
    import difflib  # noqa: PLC0415 - only errors need it

    logs = set(existing)
    topics = sorted({log if isinstance(log, str) else log.topic for log in logs})
    topic = name if isinstance(name, str) else name.topic
    problem = f"there is no {'topic ' if isinstance(name, str) else ''}{name} in {place}"
    if topic in topics:
        numbers = sorted(log.partition for log in logs if not isinstance(log, str) and log.topic == topic)
        return UnknownTopicError(f"{problem}: topic {topic} has the partitions {', '.join(map(str, numbers[:_NAMED]))}")
    if not topics:
        return UnknownTopicError(f"{problem}, which has no topics")
    matches = difflib.get_close_matches(topic, topics, n=1, cutoff=_LEAST_SIMILARITY) or [
        name for name in topics if topic and (name.startswith(topic) or topic.startswith(name))
    ]
    if len(matches) == 1:
        return UnknownTopicError(f"{problem}: did you mean {matches[0]!r}?")
    more_topics = f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else ""
    return UnknownTopicError(f"{problem}: its topics are {', '.join(topics[:_NAMED])}{more_topics}")


def _is_topic(topic: str, longest: int) -> bool:
    return topic not in {".", ".."} and len(topic) <= longest and bool(_TOPIC.match(topic))


def partition_folder(log: TopicPartition) -> str:
    """Return the name of a log's folder in its log directory: ``topic-partition``."""
    return f"{log.topic}-{log.partition}"


def parse_partition_folder(name: str) -> TopicPartition | None:
    """Return the log whose folder has this name; None if ``partition_folder`` cannot return this name.

    For example, the result is None for ``orders-01``, and for names with Kafka's suffix ``-delete``, ``-future`` or
    ``-stray``.
    """
    match = _PARTITION_FOLDER.match(name)
    if not match or not _is_topic(match["topic"], _MAX_FOLDER_TOPIC) or int(match["partition"]) > _MAX_PARTITION:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def left_folder_fate(name: str) -> str | None:
    """Return the fate (delete, future or stray) in a folder name ``topic-partition.id-fate``; None for other names."""
    match = _LEFT_FOLDER.match(name)
    return match["fate"] if match else None


def future_folder(log: TopicPartition, unique: uuid.UUID) -> str:
    """Return the name of the folder into which a log is moved. A long topic is shortened to fit 255 characters."""
    suffix = f"-{log.partition}.{unique.hex}-future"
    return log.topic[: 255 - len(suffix)] + suffix


def deleted_folder(log: TopicPartition, unique: uuid.UUID) -> str:
    """Return the name of the folder of a deleted log. A long topic is shortened to fit 255 characters."""
    suffix = f"-{log.partition}.{unique.hex}-delete"
    return log.topic[: 255 - len(suffix)] + suffix


def segment_file(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: 20 digits and a suffix, for example ``.log``."""
    return f"{base_offset:020d}{suffix}"


class SegmentFileName(NamedTuple):
    """A segment file's name: base offset, suffix (such as ``.log``), state (``""`` or, for example, ``.deleted``)."""

    base_offset: int
    suffix: str
    state: str


def parse_segment_file(name: str) -> SegmentFileName | None:
    """Parse the name of a segment's file; return None for another name, or if the offset is above 2^63 - 1."""
    match = _SEGMENT_FILE.match(name)
    if not match or int(match["base"]) > MAX_OFFSET:
        return None
    return SegmentFileName(int(match["base"]), match["suffix"], match["state"] or "")
