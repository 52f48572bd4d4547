"""Manifest roots: what a log's tier holds, one complete root a commit, chained by hash.

A root is canonical JSON (sorted keys, no spaces, ASCII) under ``manifest/{version, 20 digits}``; its hash is that of
these bytes. Roots are created only-if-absent and never change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeVar

from stratalog.errors import CorruptManifestError, StorageError, UnknownComponentError
from stratalog.model.names import TopicId, TopicPartition, is_segment_key, log_prefix, manifest_key
from stratalog.model.segments import FileKind
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.stored import stored_from_json, stored_to_json

T = TypeVar("T")

FORMAT: Final = "stratalog-manifest"
FORMAT_VERSION: Final = 1
RECENT_COMMITS: Final = 64

_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]*@[1-9][0-9]*\Z")
_FIELDS: Final = frozenset({
    "format", "format_version", "topic", "partition", "topic_id", "version", "commit_id", "parent_sha256",
    "leader_epoch", "change", "reason", "log_start", "high_watermark", "first_dirty_offset", "pages", "entries",
    "recent_commits", "created_ms",
})  # fmt: skip


class ChangeKind(StrEnum):
    """Why a root was made. Persistent: roots name it by these words; later versions may know more."""

    CLAIM = "claim"
    OFFLOAD = "offload"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a commit wants the next root to say. Offsets as in ``Root``."""

    kind: ChangeKind
    reason: str
    entries: tuple[StoredSegment, ...]
    log_start: int
    high_watermark: int
    first_dirty_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One version of what the tier holds of a log.

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
        entries: the segments, ascending; they tile their range and end above ``log_start``.
        recent_commits: the ids of the last commits, oldest first, this one included.
        created_ms: the writer's wall clock.
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
    entries: tuple[StoredSegment, ...]
    recent_commits: tuple[str, ...]
    created_ms: int

    @property
    def end_offset(self) -> int:
        """The first offset after the last entry, or the log start if there is none."""
        return self.entries[-1].info.end_offset if self.entries else self.log_start

    @property
    def prefix(self) -> str:
        """The prefix of everything the tier holds of the log."""
        return log_prefix(self.log, self.topic_id)

    @property
    def object_keys(self) -> frozenset[str]:
        """Every object that an entry names."""
        return frozenset(key for entry in self.entries for key in entry.keys)


@dataclass(frozen=True, slots=True)
class Head:
    """A root and the hash of its bytes, by which the next root names it."""

    root: Root
    sha256: str


def next_root(
    head: Head | None,
    change: Change,
    *,
    log: TopicPartition,
    topic_id: TopicId,
    commit_id: str,
    leader_epoch: int,
    created_ms: int,
) -> Root:
    """The root that follows ``head`` (None: the first one of a log).

    Raises:
        StorageError: the change would break what roots promise; a bug of the caller.
    """
    before = head.root if head else None
    root = Root(
        log=log,
        topic_id=topic_id,
        version=before.version + 1 if before else 1,
        commit_id=commit_id,
        parent_sha256=head.sha256 if head else "",
        leader_epoch=leader_epoch,
        change=change.kind,
        reason=change.reason,
        log_start=change.log_start,
        high_watermark=change.high_watermark,
        first_dirty_offset=change.first_dirty_offset,
        entries=change.entries,
        recent_commits=((*before.recent_commits, commit_id) if before else (commit_id,))[-RECENT_COMMITS:],
        created_ms=created_ms,
    )
    wrong = _contradiction(root) or (_regression(before, root) if before else "")
    if wrong:
        raise StorageError(f"a manifest root of {log} is refused: {wrong}")
    return root


def encode_root(root: Root) -> bytes:
    """The canonical bytes of a root."""
    value = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "topic": root.log.topic,
        "partition": root.log.partition,
        "topic_id": root.topic_id.text,
        "version": root.version,
        "commit_id": root.commit_id,
        "parent_sha256": root.parent_sha256,
        "leader_epoch": root.leader_epoch,
        "change": root.change,
        "reason": root.reason,
        "log_start": root.log_start,
        "high_watermark": root.high_watermark,
        "first_dirty_offset": root.first_dirty_offset,
        "pages": [],  # where references to older entries will stand
        "entries": [stored_to_json(entry) for entry in root.entries],
        "recent_commits": list(root.recent_commits),
        "created_ms": root.created_ms,
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256_of(data: bytes) -> str:
    """The hash by which the next root names this one, hex."""
    return hashlib.sha256(data).hexdigest()


def parse_root(data: bytes, log: TopicPartition, topic_id: TopicId, version: int, *, limit_bytes: int) -> Head:
    """Parse and check the root read from the key of ``version``.

    Raises:
        CorruptManifestError: too large, no JSON, not what a root is, or of another log or version; names the key.
        UnknownComponentError: a newer format, unsupported here.
    """
    key = manifest_key(log_prefix(log, topic_id), version)
    if len(data) > limit_bytes:
        raise CorruptManifestError(f"manifest root is larger than {limit_bytes} bytes", key, limit_bytes)
    value = _loaded(data, key)
    if value.get("format") != FORMAT:
        raise CorruptManifestError("not a manifest root", key)
    fields = _Fields(value)
    try:
        format_version, pages = fields.integer("format_version"), fields.items("pages")
        if format_version <= FORMAT_VERSION and not pages:
            root = _root_from(fields)
    except (KeyError, TypeError, ValueError, RecursionError, StorageError) as error:
        raise CorruptManifestError(f"not what a manifest root is ({error})", key) from error
    if format_version > FORMAT_VERSION or pages:
        raise UnknownComponentError(
            f"unsupported manifest format {format_version} key={key}: this stratalog reads up to {FORMAT_VERSION}, "
            "without pages; install a newer one"
        )
    if (root.log, root.topic_id, root.version) != (log, topic_id, version):
        raise CorruptManifestError(f"this is version {root.version} of {root.log} {root.topic_id}", key)
    wrong = _contradiction(root)
    if wrong:
        raise CorruptManifestError(f"manifest root contradicts itself: {wrong}", key)
    return Head(root, sha256_of(data))


def _loaded(data: bytes, key: str) -> dict[str, Any]:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number here")

    try:
        value = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptManifestError(f"not JSON ({error})", key, getattr(error, "pos", 0)) from error
    if not isinstance(value, dict):
        raise CorruptManifestError("not a JSON object", key)
    return value


def _root_from(fields: _Fields) -> Root:
    fields.check_names()
    return Root(
        log=TopicPartition(fields.text("topic"), fields.integer("partition")),
        topic_id=TopicId(fields.text("topic_id")),
        version=fields.integer("version"),
        commit_id=fields.text("commit_id"),
        parent_sha256=fields.text("parent_sha256"),
        leader_epoch=fields.integer("leader_epoch"),
        change=fields.text("change"),
        reason=fields.text("reason"),
        log_start=fields.integer("log_start"),
        high_watermark=fields.integer("high_watermark"),
        first_dirty_offset=fields.integer("first_dirty_offset"),
        entries=tuple(stored_from_json(entry) for entry in fields.items("entries")),
        recent_commits=tuple(_text(item) for item in fields.items("recent_commits")),
        created_ms=fields.integer("created_ms"),
    )


class _Fields:
    """Typed access to a JSON object; TypeError or KeyError says which field is wrong."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def check_names(self) -> None:
        """An unknown field would be lost by the next root; a later format that adds one has another version."""
        unknown = sorted(set(self._value) - _FIELDS)
        if unknown:
            raise ValueError(f"unknown field {unknown[0][:64]!r}")

    def integer(self, name: str) -> int:
        return _of(int, self._value[name], name)

    def text(self, name: str) -> str:
        return _of(str, self._value[name], name)

    def items(self, name: str) -> list[Any]:
        return _of(list, self._value[name], name)


def _of(kind: type[T], value: object, name: str) -> T:
    if type(value) is not kind:  # exactly: True is no version
        raise TypeError(f"{name} is not of type {kind.__name__}")
    return value


def _text(value: object) -> str:
    return _of(str, value, "recent_commits")


# --- what roots promise ------------------------------------------------------------------------------------------


def _contradiction(root: Root) -> str:
    """What is wrong with a root taken alone, or ""."""
    checks: Iterable[tuple[bool, Callable[[], str]]] = (
        (root.version >= 1, lambda: f"version {root.version}"),
        (bool(_COMMIT_ID.match(root.commit_id)), lambda: "malformed commit id"),
        (
            root.parent_sha256 == "" if root.version == 1 else bool(_HASH.match(root.parent_sha256)),
            lambda: "malformed hash of the parent",
        ),
        (root.leader_epoch >= 0, lambda: f"leader epoch {root.leader_epoch}"),
        (
            all(_COMMIT_ID.match(commit) for commit in root.recent_commits)
            and root.recent_commits[-1:] == (root.commit_id,)
            and len(root.recent_commits) == min(root.version, RECENT_COMMITS),
            lambda: "recent commits do not end with this one, or are not as many as they must be",
        ),
        (
            0 <= root.log_start <= root.end_offset <= max(root.high_watermark, root.log_start),
            lambda: f"log start {root.log_start}, end {root.end_offset}, high watermark {root.high_watermark}",
        ),
        (root.first_dirty_offset >= 0, lambda: f"first dirty offset {root.first_dirty_offset}"),
    )
    wrong = next((text() for good, text in checks if not good), "")
    return wrong or _entries_contradiction(root)


def _entries_contradiction(root: Root) -> str:
    for entry in root.entries:
        wrong = _entry_contradiction(root, entry)
        if wrong:
            return f"entry {entry.info.base_offset}: {wrong}"
    if root.entries and root.entries[0].info.end_offset <= root.log_start:
        return f"an entry lies below the log start {root.log_start}"
    for left, right in pairwise(root.entries):
        if left.info.end_offset != right.info.base_offset:
            return f"entries end at {left.info.end_offset} and go on at {right.info.base_offset}"
    return ""


def _entry_contradiction(root: Root, entry: StoredSegment) -> str:
    info = entry.info
    if (info.log, info.topic_id) != (root.log, root.topic_id):
        return f"of another log, {info.log} {info.topic_id}"
    if not 0 <= info.base_offset < info.end_offset or info.size_bytes < 0:
        return f"offsets [{info.base_offset}, {info.end_offset}), {info.size_bytes} bytes"
    if FileKind.LOG not in entry.slices:
        return "names no object for the .log file"
    if not _LABEL.match(entry.layout) or not _HASH.match(entry.sha256):
        return "malformed layout or hash"
    for place in entry.slices.values():
        if not is_segment_key(root.prefix, place.key) or place.position < 0 or place.size_bytes < 0:
            return f"slice key={place.key!r} position={place.position} size={place.size_bytes}"
    return ""


def _regression(before: Root, root: Root) -> str:
    """What may not follow ``before``, or ""."""
    if root.leader_epoch < before.leader_epoch:
        return f"leader epoch {root.leader_epoch} after {before.leader_epoch}"
    if root.log_start < before.log_start:
        return f"log start {root.log_start} after {before.log_start}"
    if root.end_offset < before.end_offset:
        return f"end offset {root.end_offset} after {before.end_offset}"
    if root.high_watermark < before.high_watermark:
        return f"high watermark {root.high_watermark} after {before.high_watermark}"
    return ""
