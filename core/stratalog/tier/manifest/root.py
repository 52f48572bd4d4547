"""Manifest roots as values: the state of a log's tier after one commit, and the change that a commit makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stratalog.model.arguments import checked
from stratalog.model.names import TopicId, TopicPartition, log_prefix, page_key
from stratalog.model.offsets import EpochEntry
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.json_fields import sha256_of

RECENT_COMMITS: Final = 64
MAX_MARKS: Final = 64  # writers that a root remembers; the one that has not written for longest is removed first
PAGE_ITEMS: Final = 256  # entries or references of one page; also the most entries of a root
INLINE_PAGES: Final = 512  # references of one level in a root; more of them move to a page of the next level


class ChangeKind(StrEnum):
    """The reason for a root. Persistent: roots store these words; later versions may know more."""

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


BULK: Final = frozenset({ChangeKind.APPEND, ChangeKind.REPLACE})  # made by jobs, never by an engine
EMPTYING: Final = frozenset({ChangeKind.CLEAR, ChangeKind.DELETE})  # all earlier segments leave the tier
SHORTENING: Final = EMPTYING | {ChangeKind.TRUNCATE}  # the end offset may fall


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """The location of a page, and facts that readers need without reading the page.

    Attributes:
        level: 0 for a page of entries; above 0, a page of references to pages of the level below.
        base_offset: of its first entry.
        end_offset: of its last entry.
        segments: number of segments in it and in all pages below it.
        size_bytes: of their ``.log`` files.
        oldest_ms: the smallest segment time; a segment's time is its largest timestamp, or the file's time.
        newest_ms: the largest segment time.
        stored_bytes: of the page itself.
        leader_epoch: of the writer.
        sha256: of the page's bytes.
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
        """Return the key of the page in the log under ``prefix``."""
        return page_key(prefix, self.base_offset, self.leader_epoch, self.sha256)


@dataclass(frozen=True, slots=True)
class RootMac:
    """The MAC of a root: the layout whose keys made it, the id of the key, and 64 hex digits."""

    layout: str
    key_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class TopicNote:
    """Facts about a topic that are needed if only the tier is left: its number of partitions and its settings.

    ``config`` has the settings that were set explicitly, by Kafka's names, as JSON values. It does not contain the
    engine's defaults.
    """

    partitions: int
    config: Mapping[str, object]


@checked
@dataclass(frozen=True, slots=True)
class WriteMark:
    """Progress of a writer with numbered rounds: the log has all records of round ``number`` and of earlier rounds.

    ``writer`` identifies the writer permanently, in 1 to 128 printable characters, for example the id of a streaming
    query.
    """

    writer: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change that a commit makes to a root. Offsets as in ``Root``.

    Attributes:
        kind: the reason.
        reason: text for people.
        log_start: segments that end at or below it leave the tier.
        high_watermark: of the log.
        added: new entries, behind the last one or instead of the replaced ones.
        replaced: the offsets [start, end) that ``added`` replaces; the borders of entries.
        first_dirty_offset: where compaction continues.
        topic: facts about the log's topic; None keeps those of the previous root.
        mark: of a writer that writes in numbered rounds; replaces the writer's earlier mark.
        kept_end: the border of an entry; entries from there on leave the tier. None keeps all.
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

    Older entries are in pages, the newest ones in the root itself. Page entries that end at or below the log start no
    longer belong to the log. Therefore raising the log start rewrites no page.

    Attributes:
        log: its name.
        topic_id: of its topic.
        version: 1 for the first root, one higher at each commit.
        commit_id: 32 hex digits, random: identifies our own root after a lost reply.
        parent_sha256: of the bytes of the previous root, "" for the first.
        leader_epoch: of the writer; never falls along the chain.
        change: a ``ChangeKind``, or a word of a later version.
        reason: text for people.
        log_start: the first offset that readers may ask for; never falls.
        high_watermark: of the log at the commit, at least the end of the last entry.
        first_dirty_offset: where compaction continues.
        start_offset: the base offset of the first entry above the log start, or the log start if there is none.
        segments: number of entries above the log start, including those in pages.
        size_bytes: of their ``.log`` files.
        leader_epochs: where epochs start in [start_offset, end_offset), ascending.
        pages: of the older entries, ascending; levels never rise along them.
        entries: the newest ones, ascending; all of them end above ``log_start``.
        recent_commits: the ids of the last commits, oldest first, this one included.
        created_ms: the writer's wall clock.
        topic: facts about the log's topic, from the latest commit that had them; None if no commit had.
        marks: one for each writer, the latest writer last; at most ``MAX_MARKS``.
        history_start: versions below it are neither kept nor read as history, because a key was erased after them.
        mac: over all other fields; None if no layout of the log authenticates roots.
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
        """Return the number of a writer's last round, -1 if it has none here."""
        return next((mark.number for mark in self.marks if mark.writer == writer), -1)

    def unchanged(self, kind: ChangeKind, reason: str) -> Change:
        """Return a change on top of this root that keeps its offsets and entries."""
        return Change(
            kind=kind,
            reason=reason,
            log_start=self.log_start,
            high_watermark=self.high_watermark,
            first_dirty_offset=self.first_dirty_offset,
        )

    @property
    def end_offset(self) -> int:
        """The first offset after the last entry, or the log start if there is none."""
        return self.entries[-1].info.end_offset if self.entries else self.log_start

    @property
    def identity(self) -> str:
        """Text that is unique to a root with this MAC, for a note on local disk; "" without a MAC."""
        return f"{self.commit_id} {self.mac.digest}" if self.mac is not None else ""

    @property
    def prefix(self) -> str:
        """The prefix of all objects of the log in the tier."""
        return log_prefix(self.log, self.topic_id)


@dataclass(frozen=True, slots=True)
class Head:
    """A root and the hash of its bytes, by which the next root names it.

    ``content_sha256`` is the hash of all fields except the digits of the MAC. The MAC is computed from it. It is ""
    without a MAC.
    """

    root: Root
    sha256: str
    content_sha256: str = ""


def marked(marks: Iterable[WriteMark], mark: WriteMark | None) -> tuple[WriteMark, ...]:
    """Return the marks with ``mark`` at the end, which replaces the same writer's earlier mark."""
    if mark is None:
        return tuple(marks)
    return (*(found for found in marks if found.writer != mark.writer), mark)[-MAX_MARKS:]


def segment_time_ms(entry: StoredSegment) -> int:
    """Return the segment's time for retention: the largest timestamp, or the time when the file was last written."""
    info = entry.info
    return info.max_timestamp_ms if info.max_timestamp_ms >= 0 else info.modified_ms


def newest_topic(topics: Mapping[TopicId, Sequence[Root]]) -> TopicId:
    """Return the latest topic of several that had the same name: the one that is not deleted and was written last.

    Args:
        topics: the roots of their logs, at least one each.
    """
    live = {found: roots for found, roots in topics.items() if any(root.change != ChangeKind.DELETE for root in roots)}
    asked = live or topics
    written_ms = {found: max(map(_written_ms, roots)) for found, roots in asked.items()}
    if min(written_ms.values()) < 0:  # if one has no segment, the times of the commits decide
        written_ms = {found: max(root.created_ms for root in roots) for found, roots in asked.items()}
    return max(written_ms, key=written_ms.__getitem__)


def _written_ms(root: Root) -> int:
    return root.entries[-1].info.modified_ms if root.entries else -1


def object_keys(entries: Iterable[StoredSegment]) -> set[str]:
    """Return the keys of all objects that the entries name."""
    return {key for entry in entries for key in entry.keys}


def stand_in(prefix: str, version: int) -> str:
    """Return the commit id that replaces that of a lost root."""
    return sha256_of(f"{prefix}{version}".encode())[:32]
