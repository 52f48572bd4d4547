"""Checks of the invariants of a manifest root, of a root and the next one, of entries and of references to pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from stratalog.model.offsets import MAX_EPOCH
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.root import INLINE_PAGES, MAX_MARKS, PAGE_ITEMS, RECENT_COMMITS, SHORTENING, PageRef, Root
from stratalog.tier.store.object_keys import is_segment_key

_HASH: Final = re.compile(r"[0-9a-f]{64}\Z")
_COMMIT_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_MAX_KEY_ID: Final = 256
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]*@[1-9][0-9]*\Z")
_MAX_LEVEL: Final = 4  # 256 ** 5 segments
_INT64_MAX: Final = (1 << 63) - 1
MAX_WRITER: Final = 128  # characters


def contradiction(root: Root) -> str:
    """Return a text about the first invariant that a root violates; "" if it violates none."""
    return (
        _commit_contradiction(root)
        or _field_contradiction(root)
        or _entries_contradiction(root)
        or _start_contradiction(root)
        or _epochs_contradiction(root)
    )


def _commit_contradiction(root: Root) -> str:
    """Return a text about the first wrong field among the fields of the commit itself; "" if all are correct."""
    if not 1 <= root.version <= _INT64_MAX:
        return f"version {root.version}"
    if not _COMMIT_ID.match(root.commit_id):
        return "malformed commit id"
    if not (root.parent_sha256 == "" if root.version == 1 else _HASH.match(root.parent_sha256)):
        return "malformed hash of the parent"
    if not 0 <= root.leader_epoch <= MAX_EPOCH:
        return f"leader epoch {root.leader_epoch}"
    if abs(root.created_ms) > _INT64_MAX:
        return f"created at {root.created_ms} ms"
    if (
        not all(_COMMIT_ID.match(commit) for commit in root.recent_commits)
        or root.recent_commits[-1:] != (root.commit_id,)
        or len(root.recent_commits) != min(root.version, RECENT_COMMITS)
    ):
        return "the list of recent commits does not end with this commit, or has the wrong length"
    return ""


def _field_contradiction(root: Root) -> str:
    """Return a text about the first wrong field among offsets, write rounds, MAC and history; "" if all are correct."""
    if not 0 <= root.log_start <= root.end_offset <= max(root.high_watermark, root.log_start) <= _INT64_MAX:
        return f"log start {root.log_start}, end {root.end_offset}, high watermark {root.high_watermark}"
    marks, mac = root.marks, root.mac
    if len({mark.writer for mark in marks}) != len(marks) or len(marks) > MAX_MARKS:
        return "write rounds are malformed, repeated or too many"
    if not all(is_writer(mark.writer) and 0 <= mark.number <= _INT64_MAX for mark in marks):
        return "write rounds are malformed, repeated or too many"
    if mac is not None and not (
        _NAME.match(mac.layout) and 1 <= len(mac.key_id) <= _MAX_KEY_ID and _HASH.match(mac.digest)
    ):
        return "malformed MAC"
    if not 0 <= root.history_start <= root.version:
        return f"history begins at version {root.history_start}"
    if not 0 <= root.first_dirty_offset <= _INT64_MAX:
        return f"first dirty offset {root.first_dirty_offset}"
    return ""


def regression(before: Root, root: Root) -> str:
    """Return the reason why ``root`` must not be the next root after ``before``; "" if this is allowed."""
    if root.leader_epoch < before.leader_epoch:
        return f"leader epoch {root.leader_epoch} after {before.leader_epoch}"
    if root.history_start < before.history_start:
        return f"history from version {root.history_start} on after {before.history_start}"
    if root.log_start < before.log_start:
        return f"log start {root.log_start} after {before.log_start}"
    if root.end_offset < before.end_offset and root.change not in SHORTENING:
        return f"end offset {root.end_offset} after {before.end_offset}"
    if root.high_watermark < before.high_watermark:
        return f"high watermark {root.high_watermark} after {before.high_watermark}"
    return ""


def is_writer(text: str) -> bool:
    """Return True if ``text`` is allowed as ``WriteMark.writer``: 1 to 128 printable characters."""
    return 1 <= len(text) <= MAX_WRITER and text.isprintable()


def entry_contradiction(prefix: str, entry: StoredSegment) -> str:
    """Return the defect of a manifest entry as text, "" if it has none; ``prefix`` is the prefix of the log's keys."""
    info, places = entry.info, entry.slices.values()
    defect = ""
    if not 0 <= info.base_offset < info.end_offset or info.size_bytes < 0:
        defect = f"offsets [{info.base_offset}, {info.end_offset}), {info.size_bytes} bytes"
    elif FileKind.LOG not in entry.slices:
        defect = "names no object for the .log file"
    elif not _LABEL.match(entry.layout) or not _HASH.match(entry.sha256):
        defect = "malformed layout or hash"
    strange = [key for key in {place.key for place in places} if not is_segment_key(prefix, key)]
    for place in places:
        if place.key in strange or place.position < 0 or place.size_bytes < 0:
            defect = f"slice key={place.key!r} position={place.position} size={place.size_bytes}"
    return f"entry {info.base_offset}: {defect}" if defect else ""


def refs_contradiction(refs: Sequence[PageRef]) -> str:
    """Return the defect of consecutive references to pages as text, "" if they have none."""
    for ref in refs:
        numbers = (ref.size_bytes, ref.stored_bytes, ref.leader_epoch)
        if (
            not 0 <= ref.level <= _MAX_LEVEL
            or not 0 <= ref.base_offset < ref.end_offset <= _INT64_MAX
            or not 1 <= ref.segments <= PAGE_ITEMS ** (ref.level + 1)
            or not 0 <= min(numbers) <= max(numbers) <= _INT64_MAX
            or ref.leader_epoch > MAX_EPOCH
            or ref.oldest_ms > ref.newest_ms
            or not _HASH.match(ref.sha256)
        ):
            return f"reference to the page at {ref.base_offset} is malformed"
    for earlier, later in pairwise(refs):
        if earlier.end_offset != later.base_offset or earlier.level < later.level:
            return f"a page ends at {earlier.end_offset}, the next one begins at {later.base_offset}"
    return ""


def _entries_contradiction(root: Root) -> str:
    if len(root.entries) > PAGE_ITEMS or len(root.pages) > INLINE_PAGES * (_MAX_LEVEL + 1):
        return f"{len(root.entries)} entries, {len(root.pages)} pages"
    log, prefix = (root.log, root.topic_id), root.prefix
    for entry in root.entries:
        if (entry.info.log, entry.info.topic_id) != log:
            return f"entry {entry.info.base_offset}: of another log, {entry.info.log} {entry.info.topic_id}"
        defect = entry_contradiction(prefix, entry)
        if defect:
            return defect
    defect = refs_contradiction(root.pages)
    if defect:
        return defect
    bounds = [(ref.base_offset, ref.end_offset) for ref in root.pages]
    bounds += [(entry.info.base_offset, entry.info.end_offset) for entry in root.entries]
    if bounds and min(bounds[0][1], root.entries[0].info.end_offset if root.entries else 0) <= root.log_start:
        return f"an entry is below the log start {root.log_start}, or there are pages without entries"
    for earlier, later in pairwise(bounds):
        if earlier[1] != later[0]:
            return f"entries end at {earlier[1]}, but the next one starts at {later[0]}"
    return ""


def _start_contradiction(root: Root) -> str:
    """Return a text if the totals or the start offset of a root contradict its pages and entries; otherwise ""."""
    inline_bytes = sum(entry.info.size_bytes for entry in root.entries)
    most_segments = sum(ref.segments for ref in root.pages) + len(root.entries)
    most_bytes = sum(ref.size_bytes for ref in root.pages) + inline_bytes
    first = root.pages[0] if root.pages else None
    least_segments = most_segments - (first.segments - 1 if first else 0)
    least_bytes = most_bytes - (first.size_bytes if first else 0)
    if not least_segments <= root.segments <= most_segments or not least_bytes <= root.size_bytes <= most_bytes:
        return (
            f"{root.segments} segments of {root.size_bytes} bytes, but the entries have {least_segments} to {most_segments} of "
            f"{most_bytes}"
        )
    low = first.base_offset if first else root.entries[0].info.base_offset if root.entries else root.log_start
    high = first.end_offset - 1 if first else low
    if not low <= root.start_offset <= high:
        return f"start offset {root.start_offset} is not in [{low}, {high}]"
    return ""


def _epochs_contradiction(root: Root) -> str:
    for entry in root.leader_epochs:
        if not 0 <= entry.epoch <= MAX_EPOCH or not root.start_offset <= entry.start_offset <= root.end_offset:
            return f"leader epoch {entry.epoch} from {entry.start_offset} on"
    for earlier, later in pairwise(root.leader_epochs):
        if earlier.epoch >= later.epoch or earlier.start_offset > later.start_offset:
            return f"leader epoch {later.epoch} from {later.start_offset} on after {earlier.epoch}"
    return ""
