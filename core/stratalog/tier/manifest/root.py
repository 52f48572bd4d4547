"""Manifest roots as values: what a log's tier holds after one commit, and what a commit wants changed."""

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
MAX_MARKS: Final = 64  # writers that a root remembers; the one that has been silent for longest is forgotten first
PAGE_ITEMS: Final = 256  # entries, or references, of one page; and the most entries that stand in a root
INLINE_PAGES: Final = 512  # references of one level in a root: more are gathered in a page of the next level


class ChangeKind(StrEnum):
    """Why a root was made. Persistent: roots name it by these words; later versions may know more."""

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


BULK: Final = frozenset({ChangeKind.APPEND, ChangeKind.REPLACE})  # what jobs make, and no engine
EMPTYING: Final = frozenset({ChangeKind.CLEAR, ChangeKind.DELETE})  # nothing that was there counts any more
SHORTENING: Final = EMPTYING | {ChangeKind.TRUNCATE}  # the end may fall


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """Where a page is, and what one needs to know of it without reading it.

    Attributes:
        level: 0 for a page of entries; else a page of references to pages of the level below.
        base_offset: of its first entry.
        end_offset: of its last entry.
        segments: how many it holds, in all pages below it.
        size_bytes: of their ``.log`` files.
        oldest_ms: the smallest of the segments' times; a segment's is its largest timestamp, or the file's time.
        newest_ms: the largest of them.
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
        """The key of the page, of the log under ``prefix``."""
        return page_key(prefix, self.base_offset, self.leader_epoch, self.sha256)


@dataclass(frozen=True, slots=True)
class RootMac:
    """The MAC of a root: the layout whose keys made it, the id of the key, and 64 hex digits."""

    layout: str
    key_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class TopicNote:
    """What somebody who finds nothing but the tier must know of a topic: how many partitions it has, and its settings.

    ``config`` are the settings that somebody chose, by Kafka's names, as JSON values; the engine's defaults are not in it.
    """

    partitions: int
    config: Mapping[str, object]


@checked
@dataclass(frozen=True, slots=True)
class WriteMark:
    """How far somebody came who writes in numbered rounds: everything of round ``number`` and those before it is there.

    ``writer`` is theirs for good, 1 to 128 printable characters: the id of a streaming query, say.
    """

    writer: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit wants the next root to say. Offsets as in ``Root``.

    Attributes:
        kind: why.
        reason: the same, for people.
        log_start: segments that end at or below it leave the tier.
        high_watermark: of the log.
        added: new entries: behind the last one, or in the place of what is replaced.
        replaced: the offsets [start, end) that ``added`` stands for from now on; the borders of entries.
        first_dirty_offset: where compaction goes on.
        topic: of the log's topic; None leaves what the root before says.
        mark: of who writes in numbered rounds; takes the place of the same writer's earlier one.
        kept_end: the border of an entry; those from there on leave the tier. None keeps all.
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
    """One version of what the tier holds of a log.

    Older entries are in pages, the newest ones in the root itself. Entries of a page that end at or below the log start
    do not count any more: raising the log start rewrites no page.

    Attributes:
        log: its name.
        topic_id: of its topic.
        version: 1 for the first root, one more each commit.
        commit_id: 32 hex digits, random: tells our own root from another's after a lost reply.
        parent_sha256: of the bytes of the root before, "" for the first.
        leader_epoch: of the writer; never falls along the chain.
        change: a ``ChangeKind``, or a word of a later version.
        reason: why, for people.
        log_start: the first offset that readers may ask for; never falls.
        high_watermark: of the log at the commit, at least the end of the last entry.
        first_dirty_offset: where compaction goes on.
        start_offset: the base offset of the first entry that counts, or the log start if there is none.
        segments: how many entries count, those in pages included.
        size_bytes: of their ``.log`` files.
        leader_epochs: where epochs start in [start_offset, end_offset), ascending.
        pages: of the older entries, ascending; levels never rise along them.
        entries: the newest ones, ascending; all of them end above ``log_start``.
        recent_commits: the ids of the last commits, oldest first, this one included.
        created_ms: the writer's wall clock.
        topic: of the log's topic, as it was at the last commit that told of it; None if none did.
        marks: one a writer, the one that wrote last at the end; at most ``MAX_MARKS``.
        history_start: versions below it are not kept as history, and not read as such: a key was erased since.
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
        """The number of a writer's last round, -1 if it has none here."""
        return next((mark.number for mark in self.marks if mark.writer == writer), -1)

    @property
    def end_offset(self) -> int:
        """The first offset after the last entry, or the log start if there is none."""
        return self.entries[-1].info.end_offset if self.entries else self.log_start

    @property
    def identity(self) -> str:
        """Text that only a root with this MAC has, for a note on local disk; "" without a MAC."""
        return f"{self.commit_id} {self.mac.digest}" if self.mac is not None else ""

    @property
    def prefix(self) -> str:
        """The prefix of everything the tier holds of the log."""
        return log_prefix(self.log, self.topic_id)


@dataclass(frozen=True, slots=True)
class Head:
    """A root and the hash of its bytes, by which the next root names it.

    ``content_sha256`` is the hash of all fields without the digits of the MAC, which the MAC is made of; "" without a MAC.
    """

    root: Root
    sha256: str
    content_sha256: str = ""


def marked(marks: Iterable[WriteMark], mark: WriteMark | None) -> tuple[WriteMark, ...]:
    """The marks with one more, in the place of the same writer's earlier one."""
    if mark is None:
        return tuple(marks)
    return (*(found for found in marks if found.writer != mark.writer), mark)[-MAX_MARKS:]


def segment_time_ms(entry: StoredSegment) -> int:
    """What retention by time goes by: the largest timestamp, or when the file was last written."""
    info = entry.info
    return info.max_timestamp_ms if info.max_timestamp_ms >= 0 else info.modified_ms


def newest_topic(topics: Mapping[TopicId, Sequence[Root]]) -> TopicId:
    """Of topics that had the same name one after the other, the one that is not deleted, and was written last.

    Args:
        topics: the roots of their logs, at least one each.
    """
    live = {found: roots for found, roots in topics.items() if any(root.change != ChangeKind.DELETE for root in roots)}
    asked = live or topics
    written_ms = {found: max(map(_written_ms, roots)) for found, roots in asked.items()}
    if min(written_ms.values()) < 0:  # where one holds no segment any more, the commits tell
        written_ms = {found: max(root.created_ms for root in roots) for found, roots in asked.items()}
    return max(written_ms, key=written_ms.__getitem__)


def _written_ms(root: Root) -> int:
    return root.entries[-1].info.modified_ms if root.entries else -1


def object_keys(entries: Iterable[StoredSegment]) -> set[str]:
    """Every object that an entry names."""
    return {key for entry in entries for key in entry.keys}


def stand_in(prefix: str, version: int) -> str:
    """The commit id of a root that nobody can read any more."""
    return sha256_of(f"{prefix}{version}".encode())[:32]
