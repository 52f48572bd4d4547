"""Keys of a log's objects in a tier, relative to the tier's URI: the only place that builds or parses them."""

from __future__ import annotations

import re
import uuid
from functools import lru_cache
from typing import Final, NamedTuple

from stratalog.errors import InvalidTopicError
from stratalog.model.names import TopicId, TopicPartition, check_topic, parse_partition_folder
from stratalog.model.offsets import MAX_EPOCH, MAX_OFFSET

PAGE_SUFFIX: Final = ".page"
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
    return SegmentKey(base, epoch) if base <= MAX_OFFSET and epoch <= MAX_EPOCH else None


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
    return version if version <= MAX_OFFSET else None


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
