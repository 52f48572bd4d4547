"""Data classes of a log's manifest: a root, which is the state of the log in the tier after a commit, and changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stratalog.model.arguments import checked
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.store.object_keys import log_prefix, page_key

RECENT_COMMITS: Final = 64
MAX_MARKS: Final = 64  # largest number of writers in a root; the writer with the oldest mark is removed first
PAGE_ITEMS: Final = 256  # entries or references of one page; also the most entries of a root
INLINE_PAGES: Final = 512  # references of one level in a root; more of them move to a page of the next level


class ChangeKind(StrEnum):
    """The kind of change that a commit made. The words are stored in roots, and must not change.

    APPEND and REPLACE are changes by bulk writers. CLAIM begins a leader epoch. CLEAR and DELETE remove all segments.
    """

    CREATE = "create"
    CLAIM = "claim"
    OFFLOAD = "offload"
    EXPIRE = "expire"
    COMPACT = "compact"
    ERASE = "erase"
    REPLACE = "replace"
    APPEND = "append"
    TRUNCATE = "truncate"
    REWRAP = "rewrap"
    REBUILD = "rebuild"
    CLEAR = "clear"
    DELETE = "delete"


BULK: Final = frozenset({ChangeKind.APPEND, ChangeKind.REPLACE})  # changes by bulk writers, never by an engine
EMPTYING: Final = frozenset({ChangeKind.CLEAR, ChangeKind.DELETE})  # all earlier segments are removed from the tier
SHORTENING: Final = EMPTYING | {ChangeKind.TRUNCATE}  # these changes may lower the end offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """Reference to a page of the manifest, with facts that readers need without reading the page.

    Attributes:
        level: 0 for a page of entries; above 0, a page of references to pages of the level below.
        base_offset: base offset of the first entry.
        end_offset: exclusive end offset of the last entry.
        segments: number of segments in the page and in all pages below it.
        size_bytes: size of the ``.log`` files of these segments.
        oldest_ms: smallest timestamp of these segments (``segment_time_ms``).
        newest_ms: largest timestamp of these segments.
        stored_bytes: size of the page itself, in bytes.
        leader_epoch: leader epoch of the writer of the page.
        sha256: hash of the page's bytes, in hex.
    """

    level: int
    base_offset: int
    end_offset: int
    segments: int
    size_bytes: int
    oldest_ms: int
    newest_ms: int
    stored_bytes: int
    leader_epoch: int
    sha256: str

    def key(self, prefix: str) -> str:
        """Return the key of the page; ``prefix`` is the prefix of the log's keys."""
        return page_key(prefix, self.base_offset, self.leader_epoch, self.sha256)


@dataclass(frozen=True, slots=True)
class RootMac:
    """The MAC of a root: the name of the layout that made it, the id of the key, and the MAC in 64 hex digits."""

    layout: str
    key_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class TopicNote:
    """Number of partitions and settings of a topic, stored in a root for readers that have only the tier.

    ``config`` has the topic's own settings, by Kafka's names, as JSON values. It has no defaults.
    """

    partitions: int
    config: Mapping[str, object]


@checked
@dataclass(frozen=True, slots=True)
class WriteMark:
    """Progress of a writer that numbers its writes, such as a streaming query that numbers its micro-batches.

    The log has all records of write ``number`` and of earlier writes, so the writer can skip a repeated write.
    ``writer`` is the permanent id of the writer, 1 to 128 printable characters: for example, the streaming query's id.
    """

    writer: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change that a commit makes to the previous root. Offsets have the same meaning as in ``Root``.

    Attributes:
        kind: kind of the change.
        reason: text for people.
        log_start: new log start; segments whose end offset (exclusive) is at or below it are removed.
        high_watermark: new high watermark of the log.
        added: new entries, after the last entry, or in place of the replaced entries.
        replaced: the offsets [start, end) whose entries ``added`` replaces; both bounds are borders of entries. None if
            ``added`` replaces none.
        first_dirty_offset: first offset that is not compacted yet.
        topic: partitions and settings of the log's topic; None keeps those of the previous root.
        mark: new progress of a writer that numbers its writes; None for other writers.
        kept_end: exclusive end offset of the last entry to keep; the later entries are removed. None removes none.
    """

    kind: ChangeKind
    reason: str
    log_start: int
    high_watermark: int
    added: tuple[StoredSegment, ...] = ()
    replaced: tuple[int, int] | None = None
    first_dirty_offset: int = 0
    topic: TopicNote | None = None
    mark: WriteMark | None = None
    kept_end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One version of the state of a log in the tier.

    Older entries are in pages, the newest ones in the root itself. Page entries whose exclusive end offset is at or
    below the log start no longer belong to the log. Therefore increasing the log start rewrites no page.

    Attributes:
        version: 1 for the first root, one higher at each commit.
        commit_id: 32 random hex digits, by which a writer recognizes its own root after a lost reply.
        parent_sha256: hash of the bytes of the previous root, in hex; "" for the first root.
        leader_epoch: leader epoch of the writer; never lower than that of the previous root.
        change: kind of the commit's change: a ``ChangeKind``, or the name of a kind that a later release added.
        reason: text for people.
        log_start: the first offset that readers may read; never lower than that of the previous root.
        high_watermark: high watermark of the log at the commit; at least the exclusive end offset of the last entry.
        first_dirty_offset: first offset that is not compacted yet.
        start_offset: the base offset of the first entry whose end offset is above the log start, so it may be below the
            log start; the log start if there is no such entry.
        segments: number of entries whose end offset is above the log start, including those in pages.
        size_bytes: size of the ``.log`` files of these entries.
        leader_epochs: start offsets of leader epochs in [start_offset, end_offset), ascending.
        pages: references to the pages of the older entries, ascending by offset; their levels never increase.
        entries: the newest entries, ascending; the end offset of each entry is above ``log_start``.
        recent_commits: ids of the last commits up to this one, oldest first.
        created_ms: time of the commit, by the writer's wall clock.
        topic: partitions and settings of the log's topic, from the latest commit that had them; None if no commit had
            them.
        marks: progress of each writer that numbers its writes, the latest writer last; at most ``MAX_MARKS``.
        history_start: version of the last root that erased records; roots with lower versions are neither kept nor read
            as history. 0 if no records were erased.
        mac: MAC of all other fields; None if no layout of the log authenticates roots.
    """

    log: TopicPartition
    topic_id: TopicId
    version: int
    commit_id: str
    parent_sha256: str
    leader_epoch: int
    change: str
    reason: str
    log_start: int
    high_watermark: int
    first_dirty_offset: int
    start_offset: int
    segments: int
    size_bytes: int
    leader_epochs: tuple[EpochEntry, ...]
    pages: tuple[PageRef, ...]
    entries: tuple[StoredSegment, ...]
    recent_commits: tuple[str, ...]
    created_ms: int
    topic: TopicNote | None = None
    marks: tuple[WriteMark, ...] = ()
    history_start: int = 0
    mac: RootMac | None = None

    def number_of(self, writer: str) -> int:
        """Return the number of a writer's last write (``WriteMark.number``); -1 without a mark of the writer."""
        return next((mark.number for mark in self.marks if mark.writer == writer), -1)

    def unchanged(self, kind: ChangeKind, reason: str) -> Change:
        """Return a change on top of this root that keeps all entries, offsets and settings."""
        return Change(
            kind=kind,
            reason=reason,
            log_start=self.log_start,
            high_watermark=self.high_watermark,
            first_dirty_offset=self.first_dirty_offset,
        )

    @property
    def end_offset(self) -> int:
        """The exclusive end offset of the last entry, or the log start if there is none."""
        return self.entries[-1].info.end_offset if self.entries else self.log_start

    @property
    def is_half_rebuilt(self) -> bool:
        """True if a rebuild of the manifest is possibly incomplete.

        The high watermark of a repaired root can also be above its end offset, although the root lacks no segment.
        """
        return self.change == ChangeKind.REBUILD and self.high_watermark > self.end_offset

    @property
    def identity(self) -> str:
        """Commit id and MAC of this root as text, which identify the root; "" if the root has no MAC."""
        return f"{self.commit_id} {self.mac.digest}" if self.mac is not None else ""

    @property
    def prefix(self) -> str:
        """The prefix of the keys of all objects of the log in the tier."""
        return log_prefix(self.log, self.topic_id)


@dataclass(frozen=True, slots=True)
class Head:
    """A root and the hash of its bytes, which the next root contains as ``parent_sha256``.

    ``content_sha256`` is the hash of all fields except the digits of the MAC; the MAC is computed from this hash. It is
    "" if the root has no MAC.
    """

    root: Root
    sha256: str
    content_sha256: str = ""


def add_mark(marks: Iterable[WriteMark], mark: WriteMark | None) -> tuple[WriteMark, ...]:
    """Return ``marks`` with ``mark`` at the end, in place of the writer's earlier mark; None adds no mark.

    If there would be more than ``MAX_MARKS`` marks, the first one is removed.
    """
    if mark is None:
        return tuple(marks)
    return (*(earlier for earlier in marks if earlier.writer != mark.writer), mark)[-MAX_MARKS:]


def segment_time_ms(entry: StoredSegment) -> int:
    """Return the start of a segment's age for retention: the largest timestamp, or the file's time if there is none."""
    info = entry.info
    return info.max_timestamp_ms if info.max_timestamp_ms >= 0 else info.modified_ms


def newest_topic(topics: Mapping[TopicId, Sequence[Root]]) -> TopicId:
    """Return the id of the topic that was written last, of several topics with the same name.

    Deleted topics are considered only if all topics are deleted. The file times of the last segments are compared. If
    one of the topics has no segment, the times of the last commits are compared instead.

    Args:
        topics: by topic id, the latest roots of the topic's logs; at least one topic, and one root for each.
    """
    live_topics = {
        topic_id: roots for topic_id, roots in topics.items() if any(root.change != ChangeKind.DELETE for root in roots)
    }
    candidates = live_topics or topics
    written_ms = {
        topic_id: max(root.entries[-1].info.modified_ms if root.entries else -1 for root in roots)
        for topic_id, roots in candidates.items()
    }
    if min(written_ms.values()) < 0:  # if one has no segment, the times of the commits decide
        written_ms = {topic_id: max(root.created_ms for root in roots) for topic_id, roots in candidates.items()}
    return max(written_ms, key=written_ms.__getitem__)


def object_keys(entries: Iterable[StoredSegment]) -> set[str]:
    """Return the keys of all objects that the entries name."""
    return {key for entry in entries for key in entry.keys}


def stand_in_commit_id(prefix: str, version: int) -> str:
    """Return the commit id that a repair writes into ``recent_commits`` in place of that of a lost root."""
    return sha256_of(f"{prefix}{version}".encode())[:32]
