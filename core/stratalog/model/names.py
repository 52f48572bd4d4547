"""Names of topics, files and object keys: the only place that builds or parses them.

Source: the naming rules of Kafka's log directories (UnifiedLog, LocalLog, LogFileUtils, Topic).
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

from stratalog.errors import ConfigError, InvalidTopicError, UnknownTopicError

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

PAGE_SUFFIX: Final = ".page"
MAX_TOPIC_LENGTH: Final = 249
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")
_PARTITION_FOLDER: Final = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})\Z")
_LEFT_FOLDER: Final = re.compile(r"(?P<topic>\S+)-(?P<partition>[0-9]+)\.[0-9a-f]{32}-(?P<fate>delete|future|stray)\Z")
_SEGMENT_FILE: Final = re.compile(r"(?P<base>[0-9]{20})(?P<suffix>\.[a-z]+)(?P<state>\.deleted|\.cleaned|\.swap)?\Z")
_SEGMENT_KEY: Final = re.compile(
    r"(?P<base>[0-9]{20})-(?P<epoch>0|[1-9][0-9]{0,9})-(?P<unique>[0-9a-f]{32})\.(?P<suffix>[a-z]+)\Z"
)
_UPLOAD_VERSION: Final = 7  # version of the UUID
_UPLOAD_RANDOM_BITS: Final = 80
_UPLOAD_TIME_MASK: Final = (1 << 48) - 1
_UPLOAD_KIND_MASK: Final = 0xF << 76 | 0b11 << 62  # version and variant
_UPLOAD_KIND: Final = _UPLOAD_VERSION << 76 | 0b10 << 62
_TOPIC_FOLDER_KEY: Final = re.compile(r"(?P<topic>.+)-(?P<id>[A-Za-z0-9_-]{22})\Z")
_MANIFEST_KEY: Final = re.compile(r"[0-9]{20}\Z")
_DELETED_TOPICS: Final = "stratalog-deleted/"
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?\Z")
_MAX_FOLDER_TOPIC: Final = 255  # old Kafka releases allowed 255 characters, and their folders are still read
_INT_END: Final = 1 << 31
_LONG_END: Final = 1 << 63


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
    if not match or not _is_topic(match["topic"], _MAX_FOLDER_TOPIC) or int(match["partition"]) >= _INT_END:
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
    if not match or int(match["base"]) >= _LONG_END:
        return None
    return SegmentFileName(int(match["base"]), match["suffix"], match["state"] or "")


# --- object keys, relative to the tier's URI ---------------------------------------------------------------------


@lru_cache(maxsize=64)  # the entries of a manifest are of one log
def log_prefix(log: TopicPartition, topic_id: TopicId) -> str:
    """Return the prefix of all keys of one log in a tier. The prefix ends with a slash.

    Raises:
        InvalidTopicError: ``check_topic`` refuses the topic.
    """
    return f"{check_topic(log.topic)}-{topic_id}/{log.partition}/"


def parse_log_prefix(key: str) -> tuple[TopicPartition, TopicId] | None:
    """Return the log and the topic id of a key that begins with a result of ``log_prefix``; None for another key."""
    parts = key.split("/", 2)
    match = _TOPIC_FOLDER_KEY.match(parts[0])
    if len(parts) < 3 or not match:
        return None
    log = parse_partition_folder(f"{match['topic']}-{parts[1]}")
    try:
        topic_id = TopicId(match["id"])
        return (log, topic_id) if log and key.startswith(log_prefix(log, topic_id)) else None
    except InvalidTopicError:
        return None


def segment_key(prefix: str, base_offset: int, leader_epoch: int, unique: uuid.UUID, suffix: str = "seg") -> str:
    """Return the key of a new segment object. ``unique`` makes sure that no upload overwrites an object."""
    return f"{segments_prefix(prefix)}{base_offset:020d}-{leader_epoch}-{unique.hex}.{suffix}"


def upload_id(now_ms: int, random_bits: int) -> uuid.UUID:
    """Return the unique part of a segment object's key: a UUID of version 7, with the start time of the upload.

    Args:
        now_ms: current time of the writer's clock (ms since 1970).
        random_bits: random number of 80 bits.
    """
    number = (now_ms & _UPLOAD_TIME_MASK) << _UPLOAD_RANDOM_BITS | random_bits
    return uuid.UUID(int=number & ~_UPLOAD_KIND_MASK | _UPLOAD_KIND)  # before Python 3.14, version=7 is refused


def upload_time_ms(key: str) -> int | None:
    """Return the start time (ms since 1970) of the upload of a segment object; None if the key contains no time."""
    match = _SEGMENT_KEY.match(key[key.rfind("/") + 1 :])
    unique = uuid.UUID(hex=match["unique"]) if match else None
    return unique.int >> _UPLOAD_RANDOM_BITS if unique is not None and unique.version == _UPLOAD_VERSION else None


def segments_prefix(prefix: str) -> str:
    """Return the prefix of a log's segment objects. The prefix ends with a slash."""
    return f"{prefix}segments/"


class SegmentKey(NamedTuple):
    """Base offset and leader epoch in the key of a segment object or page; its writer had this leader epoch."""

    base_offset: int
    leader_epoch: int


def parse_segment_key(prefix: str, key: str) -> SegmentKey | None:
    """Parse the key of a segment object of the log with the key prefix ``prefix``; return None for another key."""
    return _parse_numbered_key(segments_prefix(prefix), key)


def _parse_numbered_key(start: str, key: str) -> SegmentKey | None:
    match = _SEGMENT_KEY.match(key[len(start) :]) if key.startswith(start) else None
    if match is None:
        return None
    base, epoch = int(match["base"]), int(match["epoch"])
    return SegmentKey(base, epoch) if base < _LONG_END and epoch < _INT_END else None


def is_segment_key(prefix: str, key: str) -> bool:
    """Return True if ``key`` is a segment object's key of the log with the key prefix ``prefix``."""
    return parse_segment_key(prefix, key) is not None


def manifest_prefix(prefix: str) -> str:
    """Return the prefix of a log's manifest roots. The prefix ends with a slash."""
    return f"{prefix}manifest/"


def manifest_key(prefix: str, version: int) -> str:
    """Return the key of a log's manifest root with this version."""
    return f"{prefix}manifest/{version:020d}"


def parse_manifest_key(prefix: str, key: str) -> int | None:
    """Return the version of a manifest root of the log with the key prefix ``prefix``; None for another key."""
    start = manifest_prefix(prefix)
    if not key.startswith(start) or not _MANIFEST_KEY.match(key[len(start) :]):
        return None
    version = int(key[len(start) :])
    return version if version < _LONG_END else None


def pages_prefix(prefix: str) -> str:
    """Return the prefix of the pages of a log's manifest. The prefix ends with a slash."""
    return f"{prefix}pages/"


def page_key(prefix: str, base_offset: int, leader_epoch: int, sha256: str) -> str:
    """Return the key of a manifest page. The key contains the page's hash, so a second write changes nothing."""
    return f"{pages_prefix(prefix)}{base_offset:020d}-{leader_epoch}-{sha256[:32]}{PAGE_SUFFIX}"


def parse_page_key(prefix: str, key: str) -> SegmentKey | None:
    """Parse the key of a manifest page of the log with the key prefix ``prefix``; return None for another key."""
    return _parse_numbered_key(pages_prefix(prefix), key)


def quarantine_key(prefix: str, key: str) -> str:
    """Return the key of the JSON object that describes a damaged object; ``prefix`` is the key prefix of the log."""
    return f"{prefix}quarantine/{key.rpartition('/')[2]}.json"


def quarantined_key(prefix: str, key: str) -> str:
    """Return the key for a copy of a damaged object before its repair; ``prefix`` is the key prefix of the log."""
    return f"{prefix}quarantine/{key.rpartition('/')[2]}.damaged"


def after_log_prefix(prefix: str) -> str:
    """Return a key above all keys of a log and below all keys of the next log, to skip the log in a listing."""
    return prefix.removesuffix("/") + chr(ord("/") + 1)


def deleted_topic_key(topic: str, topic_id: TopicId) -> str:
    """Return the key of the note about a deleted and collected topic, whose id was computed from the topic's name."""
    return f"{_DELETED_TOPICS}{topic}-{topic_id}"


def is_own_key(key: str) -> bool:
    """Return True if only stratalog gives an object this key: an object of a log, or the note of a deleted topic."""
    return key.startswith(_DELETED_TOPICS) or parse_log_prefix(key) is not None


def probe_key(unique: uuid.UUID) -> str:
    """Return the key of an object for a test of a store. The test deletes the object."""
    return f"stratalog-probe/{unique.hex}"
