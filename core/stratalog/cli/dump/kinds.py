"""Detection of a file's kind by its name, and the order of the files of a folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from stratalog.model import names
from stratalog.tier.read.disk_cache import is_cached_name
from stratalog.tier.store.object_keys import (
    PAGE_SUFFIX,
    manifest_prefix,
    pages_prefix,
    parse_manifest_key,
    parse_page_key,
    parse_segment_key,
    segments_prefix,
)


class Kind(StrEnum):
    """Kinds of files: the values of ``--kind``. The files of a folder are shown in the order of their kinds."""

    META_PROPERTIES = "meta-properties"
    TOPICS = "topics"
    PARTITION_METADATA = "partition-metadata"
    LEADER_EPOCHS = "leader-epochs"
    OFFSETS = "offset-checkpoint"
    CLEAN_SHUTDOWN = "clean-shutdown"
    TIER_NOTE = "tier-note"
    MARKS = "marks"
    NOTE = "note"
    MANIFEST = "manifest"
    MANIFEST_PAGE = "manifest-page"
    TIER_OBJECT = "tier-object"
    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TRANSACTION_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EXTRA = "extra"
    DIGEST = "digest"
    CACHED = "cached"


class Identified(NamedTuple):
    """Kind and base offset of a file; ``base_offset`` is None if the name does not contain one."""

    kind: Kind
    base_offset: int | None = None


_NAMES: Final = {
    names.META_PROPERTIES_FILE: Kind.META_PROPERTIES,
    names.TOPICS_FILE: Kind.TOPICS,
    names.INVENTORY_FILE: Kind.TOPICS,
    names.PARTITION_METADATA_FILE: Kind.PARTITION_METADATA,
    names.LEADER_EPOCHS_FILE: Kind.LEADER_EPOCHS,
    names.NEXT_EPOCH_FILE: Kind.LEADER_EPOCHS,
    names.RECOVERY_POINTS_FILE: Kind.OFFSETS,
    names.HIGH_WATERMARKS_FILE: Kind.OFFSETS,
    names.LOG_STARTS_FILE: Kind.OFFSETS,
    names.CLEANER_FILE: Kind.OFFSETS,
    names.CLEAN_SHUTDOWN_FILE: Kind.CLEAN_SHUTDOWN,
    names.TIER_NOTE_FILE: Kind.TIER_NOTE,
    names.MARKS_FILE: Kind.MARKS,
    names.ATTACH_NOTE_FILE: Kind.NOTE,
    names.RESTORE_NOTE_FILE: Kind.NOTE,
    names.RESTORING_FILE: Kind.NOTE,
    names.MOVED_FILE: Kind.NOTE,
}
_SUFFIXES: Final = {
    names.LOG_SUFFIX: Kind.LOG,
    ".checkpoint": Kind.LOG,  # snapshot of a KRaft quorum: a file of batches, like a log
    names.OFFSET_INDEX_SUFFIX: Kind.INDEX,
    names.TIME_INDEX_SUFFIX: Kind.TIME_INDEX,
    names.TRANSACTION_INDEX_SUFFIX: Kind.TRANSACTION_INDEX,
    names.SNAPSHOT_SUFFIX: Kind.SNAPSHOT,
    names.EXTRA_SUFFIX: Kind.EXTRA,
    names.DIGEST_SUFFIX: Kind.DIGEST,
    ".leader_epoch_checkpoint": Kind.LEADER_EPOCHS,  # suffix in Kafka's LocalTieredStorage
}
_DAMAGED: Final = ".damaged"  # suffix of a damaged object that a repair has kept
_NOTE_SUFFIX: Final = ".json"  # suffix of the note on an object that a repair could not restore
_LEADING_DIGITS: Final = re.compile(r"[0-9]{1,20}(?![0-9])")  # start of names in Kafka's remote caches
_LAST_OFFSET: Final = (1 << 63) - 1
_SILENT: Final = frozenset({names.LOCK_FILE})  # omitted without a note, because the file is always empty


def identify(name: str) -> Identified | None:
    """Return the kind and the base offset of the file ``name``; None if the name does not show a kind."""
    segment = names.parse_segment_file(name.removesuffix(names.SPOOL_SUFFIX))
    if segment is not None and segment.suffix in _SUFFIXES:
        return Identified(_SUFFIXES[segment.suffix], segment.base_offset)
    if name in _NAMES:
        return Identified(_NAMES[name])
    if name.startswith(names.STAGED_PREFIX):
        return Identified(Kind.LOG)
    if is_cached_name(name):
        return Identified(Kind.CACHED)
    kind = _tier_kind(name.removesuffix(_DAMAGED))
    if kind is not None:
        return Identified(kind)
    if name.endswith(_NOTE_SUFFIX) and _tier_kind(name.removesuffix(_NOTE_SUFFIX)) is not None:
        return Identified(Kind.NOTE)
    suffix = Path(name).suffix
    if suffix in _SUFFIXES:
        return Identified(_SUFFIXES[suffix], leading_offset(name))
    return None


def _tier_kind(name: str) -> Kind | None:
    """Return the kind of a tier object from the last part of its key; None if it is not a tier object."""
    if parse_manifest_key("", manifest_prefix("") + name) is not None:
        return Kind.MANIFEST
    if name.endswith(PAGE_SUFFIX) and parse_page_key("", pages_prefix("") + name) is not None:
        return Kind.MANIFEST_PAGE
    return Kind.TIER_OBJECT if parse_segment_key("", segments_prefix("") + name) is not None else None


def leading_offset(name: str) -> int | None:
    """Return the offset at the start of a file name; None if there are no digits, or the number is above 2^63 - 1."""
    digits = _LEADING_DIGITS.match(name)
    return int(digits[0]) if digits and int(digits[0]) <= _LAST_OFFSET else None


def sort_files(file_names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names of a known kind, in the order of a dump, and the names of an unknown kind.

    Files without a base offset come first, then the files of each segment. A snapshot comes before the segment that
    begins at the snapshot's offset.
    """
    sortable: list[tuple[tuple[int, int, int, str], str]] = []
    unknown = []
    ranks = {kind: rank for rank, kind in enumerate(Kind)}
    for name in sorted(file_names):
        identified = identify(name)
        if identified is None:
            unknown.append(name)
        elif identified.base_offset is None:
            sortable.append(((0, 0, ranks[identified.kind], name), name))
        else:
            rank = -1 if identified.kind is Kind.SNAPSHOT else ranks[identified.kind]
            sortable.append(((1, identified.base_offset, rank, name), name))
    return [name for _, name in sorted(sortable)], [name for name in unknown if name not in _SILENT]
