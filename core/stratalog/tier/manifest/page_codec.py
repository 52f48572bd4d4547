"""Encoding of manifest pages, of manifest entries, and of references to pages.

An entry omits topic, partition and topic id, which the root or page contains once. An entry contains each object key
once, without the prefix of the log's keys. A reference is a list of numbers and a hash.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, Final

from stratalog.errors import CorruptManifestError, StorageError, UnknownComponentError
from stratalog.extensions import extension
from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.stored import checked_slices, exactly, stored_fields
from stratalog.tier.manifest.json_fields import canonical, load_object, sha256_of
from stratalog.tier.manifest.manifest_checks import entry_contradiction, refs_contradiction
from stratalog.tier.manifest.root import PAGE_ITEMS, PageRef
from stratalog.tier.store.object_keys import log_prefix

EXTENSIONS: Final = ("stratalog.tier.manifest.entries_c",)
FORMAT: Final = "stratalog-page"
FORMAT_VERSION: Final = 1
_FIELDS: Final = frozenset({"format", "format_version", "topic", "partition", "topic_id", "level", "items"})
_ROOT_FIELDS: Final = ("topic", "partition", "topic_id")
_NUMBERS: Final = (
    "level", "base_offset", "end_offset", "segments", "size_bytes", "oldest_ms", "newest_ms", "stored_bytes",
    "leader_epoch",
)  # fmt: skip
_twin: Final[ModuleType | None] = extension(EXTENSIONS[0])


def entry_to_json(entry: StoredSegment) -> dict[str, Any]:
    """Return the JSON object of a manifest entry, without topic, partition and topic id."""
    prefix = log_prefix(entry.info.log, entry.info.topic_id)
    value = entry.to_json()
    for name in _ROOT_FIELDS:
        del value[name]
    names = list(dict.fromkeys(place.key for place in entry.slices.values()))
    value["objects"] = [name.removeprefix(prefix) for name in names]
    value["slices"] = {
        str(kind): [names.index(place.key), place.position, place.size_bytes] for kind, place in entry.slices.items()
    }
    return value


def entry_to_text(entry: StoredSegment) -> str:
    """Return the JSON object of ``entry_to_json`` as one line of text."""
    text: str | None = None
    if _twin is not None:
        text = _twin.text_of(entry, log_prefix(entry.info.log, entry.info.topic_id))
    return json.dumps(entry_to_json(entry), separators=(",", ":")) if text is None else text


def entry_from_json(value: object, log: TopicPartition, topic_id: TopicId) -> StoredSegment:
    """Return the manifest entry that ``entry_to_json`` encoded as ``value``.

    Raises:
        StorageError, TypeError, ValueError, KeyError: ``value`` is not an entry.
    """
    prefix = log_prefix(log, topic_id)
    entry: StoredSegment | None = None if _twin is None else _twin.entry_of(value, prefix, log, topic_id)
    return _parse_entry(value, prefix, log, topic_id) if entry is None else entry


def _parse_entry(value: object, prefix: str, log: TopicPartition, topic_id: TopicId) -> StoredSegment:
    """Return the result of ``entry_from_json``, in pure Python."""
    fields = dict(exactly(dict, value, "entry"))
    for name in _ROOT_FIELDS:
        if name in fields:
            raise ValueError(f"unknown field {name!r}")
    names = [prefix + exactly(str, name, "objects") for name in exactly(list, fields.pop("objects"), "objects")]
    places = exactly(dict, fields.pop("slices"), "slices").items()
    slices = checked_slices((kind, *_place(names, kind, place)) for kind, place in places)
    fields |= {"topic": log.topic, "partition": log.partition, "topic_id": topic_id.text}
    return StoredSegment(**stored_fields(fields, "", slices))


def _place(names: Sequence[str], kind: object, place: object) -> tuple[str, object, object]:
    number, position, size_bytes = exactly(list, place, "slices")
    if not 0 <= exactly(int, number, "slices") < len(names):
        raise ValueError(f"slice {kind} has the object index {number}, but there are only {len(names)} objects")
    return names[number], position, size_bytes


def ref_to_json(ref: PageRef) -> list[Any]:
    """Return a reference to a page as a JSON array of numbers and the hash."""
    return [*(getattr(ref, name) for name in _NUMBERS), ref.sha256]


def ref_from_json(value: object) -> PageRef:
    """Return the reference that ``ref_to_json`` encoded; raise ValueError or TypeError if ``value`` is not one."""
    row = exactly(list, value, "pages")
    if len(row) != len(_NUMBERS) + 1:
        raise ValueError(f"a reference to a page has {len(_NUMBERS) + 1} values, not {len(row)}")
    numbers = {name: exactly(int, item, name) for name, item in zip(_NUMBERS, row[:-1], strict=True)}
    return PageRef(**numbers, sha256=exactly(str, row[-1], "sha256"))


def encode_page(log: TopicPartition, topic_id: TopicId, level: int, items: Sequence[StoredSegment | PageRef]) -> bytes:
    """Return the canonical bytes of a page: of level 0 with entries, of a higher level with references to pages."""
    rows = [ref_to_json(item) if isinstance(item, PageRef) else entry_to_json(item) for item in items]
    return canonical(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "topic": log.topic,
            "partition": log.partition,
            "topic_id": topic_id.text,
            "level": level,
            "items": rows,
        }
    )


def parse_page(
    data: bytes, log: TopicPartition, topic_id: TopicId, ref: PageRef
) -> tuple[StoredSegment | PageRef, ...]:
    """Return the contents of the page that ``ref`` names: entries at level 0, references at a higher level.

    Raises:
        CorruptManifestError: ``data`` is not the page that ``ref`` names; the error names the key.
    """
    key = ref.key(log_prefix(log, topic_id))
    if len(data) != ref.stored_bytes or sha256_of(data) != ref.sha256:
        raise CorruptManifestError("the page has another size or hash than the manifest names", key)
    page_log, page_topic_id, items = read_page(data, key)
    defect = (
        "the page belongs to another log"
        if (page_log, page_topic_id) != (log, topic_id)
        else _contradiction(ref, items)
    )
    if defect:
        raise CorruptManifestError(f"manifest page contradicts its reference: {defect}", key)
    return items


def read_page(data: bytes, key: str) -> tuple[TopicPartition, TopicId, tuple[StoredSegment | PageRef, ...]]:
    """Return the log, the topic id, and the entries or references of a page, without a reference to compare it with.

    Raises:
        CorruptManifestError: ``data`` is not a page; the error names ``key``.
    """
    fields = load_object(data, key)
    if fields.get("format") != FORMAT:
        raise CorruptManifestError("this is not a manifest page", key)
    if fields.get("format_version") != FORMAT_VERSION:
        raise UnknownComponentError(
            f"unsupported page format {fields.get('format_version')!r} (key={key}): this release reads "
            f"{FORMAT_VERSION}; install the release that wrote it"
        )
    try:
        fields.check_names(_FIELDS)
        log = TopicPartition(fields.text("topic"), fields.integer("partition"))
        topic_id, level, rows = TopicId(fields.text("topic_id")), fields.integer("level"), fields.items("items")
        items: tuple[StoredSegment | PageRef, ...] = (
            tuple(ref_from_json(row) for row in rows)
            if level
            else tuple(entry_from_json(row, log, topic_id) for row in rows)
        )
    except (KeyError, TypeError, ValueError, RecursionError, StorageError) as error:
        raise CorruptManifestError(f"this is not a manifest page ({error})", key) from error
    return log, topic_id, items


def _contradiction(ref: PageRef, items: Sequence[StoredSegment | PageRef]) -> str:
    """Return a text if the items of a page contradict the reference to the page; otherwise ""."""
    if not 1 <= len(items) <= PAGE_ITEMS:
        return f"{len(items)} items"
    child_refs = [item for item in items if isinstance(item, PageRef)]
    entries = [item for item in items if isinstance(item, StoredSegment)]
    prefix = log_prefix(entries[0].info.log, entries[0].info.topic_id) if entries else ""
    defect = refs_contradiction(child_refs) or next(
        filter(None, (entry_contradiction(prefix, entry) for entry in entries)), ""
    )
    bounds = [(item.base_offset, item.end_offset) for item in child_refs]
    bounds += [(entry.info.base_offset, entry.info.end_offset) for entry in entries]
    if not defect and (any(item.level != ref.level - 1 for item in child_refs) or bool(child_refs) != bool(ref.level)):
        defect = "pages of another level"
    if not defect and any(earlier[1] != later[0] for earlier, later in pairwise(bounds)):
        defect = "a gap or an overlap"
    if not defect and (bounds[0][0], bounds[-1][1]) != (ref.base_offset, ref.end_offset):
        defect = f"offsets [{bounds[0][0]}, {bounds[-1][1]})"
    return defect
