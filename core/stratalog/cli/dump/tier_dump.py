"""Dump of files that contain tier objects (segments, manifest roots, manifest pages), and of disk cache files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from stratalog.cli.dump.file_dump import FileDump
from stratalog.cli.dump.index_dump import dump_extras, dump_index
from stratalog.cli.dump.kinds import Kind
from stratalog.cli.dump.log_dump import dump_log
from stratalog.cli.dump.source import Source, read_all
from stratalog.cli.dump.state_dump import dump_epochs, dump_snapshot
from stratalog.errors import CorruptionError, CorruptManifestError, CorruptObjectError, StorageError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import StoredSegment, TierLayout
from stratalog.spi.objects import ObjectInfo
from stratalog.spi.stored import FURTHER_OBJECTS
from stratalog.tier.manifest.json_fields import sha256_of
from stratalog.tier.manifest.page_codec import read_page
from stratalog.tier.manifest.root import PageRef, Root
from stratalog.tier.manifest.root_codec import parse_root
from stratalog.tier.read.disk_cache import unpack_item
from stratalog.tier.store.object_keys import log_prefix, parse_log_prefix

_INDEXES: Final = {
    FileKind.OFFSET_INDEX: Kind.INDEX,
    FileKind.TIME_INDEX: Kind.TIME_INDEX,
    FileKind.TRANSACTION_INDEX: Kind.TRANSACTION_INDEX,
}
_SMALL_FILES: Final = {
    FileKind.SNAPSHOT: dump_snapshot,
    FileKind.EXTRA: dump_extras,
    FileKind.LEADER_EPOCHS: dump_epochs,
}
_SLICE_COLUMNS: Final = ("slice", "position", "size_bytes", "valid")
_PAGE_COLUMNS: Final = ("level", "base_offset", "end_offset", "segments", "size_bytes", "oldest_ms", "newest_ms", "key")
_SEGMENT_COLUMNS: Final = (
    "base_offset", "end_offset", "size_bytes", "max_timestamp_ms", "layout", "leader_epochs", "key"
)  # fmt: skip
_ROOT_FIELDS: Final = (
    "version", "commit_id", "parent_sha256", "leader_epoch", "change", "reason", "log_start", "end_offset",
    "high_watermark", "first_dirty_offset", "history_start", "created_ms", "start_offset", "segments", "size_bytes"
)  # fmt: skip
_CACHED_COLUMNS: Final = ("tier", "key", "item", "position", "size_bytes")
_KEY_PARTS: Final = 4  # topic, partition, folder, name
_CUT_CHARACTERS: Final = 255  # length of a folder name that continues in the next folder: see docs/formats/tier.md


def dump_object(file: FileDump) -> None:
    """Show a segment object: its footer and its slices, whose hashes are checked. ``deep`` shows the slices' contents.

    A damaged slice is reported, and the other slices are shown. Raise CorruptObjectError if the object has no valid
    footer of an installed layout.
    """
    layout, segment = _discover(file)
    values = {name: value for name, value in segment.to_json().items() if name not in {"slices", "extra"}}
    values["key"] = segment.slices[FileKind.LOG].key
    file.title(f"tier object, {file.source.size_bytes} bytes, layout {segment.layout}")
    file.properties("tier_object", values, moments=("max_timestamp_ms", "modified_ms"))
    _ObjectDump(file, layout, segment).run()


def _discover(file: FileDump) -> tuple[TierLayout, StoredSegment]:
    names = file.run.host.registry.tier_layouts().names()
    info = ObjectInfo(_key_of(Path(file.label)), file.source.size_bytes)
    for name in names:
        layout = file.run.host.layouts.by_name(name)
        segment = next(layout.discover([info], _fetch(file.source)), None)
        if segment is not None:
            return layout, segment
    text = f"the object has no footer of an installed tier layout ({', '.join(names)})"
    raise CorruptObjectError(text, file.label, file.source.size_bytes)


def _key_of(path: Path) -> str:
    """Return the object's key if the file is in the folders of a ``file://`` tier; "" for any other file."""
    parts = path.absolute().parts
    key = "/".join(parts[-_KEY_PARTS:])
    parent = parts[-_KEY_PARTS - 1] if len(parts) > _KEY_PARTS else ""
    if len(parent) == _CUT_CHARACTERS and parent.endswith("+"):  # a name that is too long for the file system
        key = parent[:-1] + key
    return key if parse_log_prefix(key) is not None else ""


def _fetch(source: Source) -> Callable[[str, int, int], bytes]:
    return lambda _, start, end: bytes(source.read(start, end - start))


class _ObjectDump:
    def __init__(self, file: FileDump, layout: TierLayout, segment: StoredSegment) -> None:
        self._file, self._layout, self._segment = file, layout, segment
        self._fetch = _fetch(file.source)

    def run(self) -> None:
        # an object with this field does not contain the segment's files, but lists the objects that contain them
        is_elsewhere = FURTHER_OBJECTS in self._segment.extra
        valid_by_kind: dict[FileKind, bool] = {}
        with self._file.sheet("slice", _SLICE_COLUMNS) as sheet:
            for kind, object_slice in sorted(self._segment.slices.items(), key=lambda pair: pair[1].position):
                damage = None if is_elsewhere else self._check(kind)
                if not is_elsewhere:
                    valid_by_kind[kind] = damage is None
                sheet.row((str(kind), object_slice.position, object_slice.size_bytes, valid_by_kind.get(kind)))
                if damage is not None:
                    self._file.corrupt(damage)
        for kind, is_valid in valid_by_kind.items() if self._file.run.deep else ():
            if is_valid or kind is FileKind.LOG:  # the batches of a log have CRCs of their own
                try:
                    self._dump(kind)
                except CorruptionError as error:
                    replace(self._file, source=replace(self._file.source, label=error.file)).corrupt(error)

    def _check(self, kind: FileKind) -> CorruptionError | None:
        """Return the error if the hash of a slice is wrong, or None. A log is read in pieces."""
        try:
            if kind is FileKind.LOG:
                for _ in self._layout.read(self._segment, 0, self._segment.info.size_bytes, self._fetch):
                    pass
            else:
                self._layout.read_index(self._segment, kind, self._fetch)
        except CorruptionError as error:
            return error
        return None

    def _dump(self, kind: FileKind) -> None:
        label, base_offset = f"{self._file.label}#{kind}", self._segment.info.base_offset
        if kind is FileKind.LOG:
            log = replace(self._file, source=Source(label, self._segment.info.size_bytes, self._log_bytes))
            log.title(f"log, {log.source.size_bytes} bytes, base offset {base_offset}")
            dump_log(log, base_offset, self._segment.info.log.topic)
            return
        content = self._layout.read_index(self._segment, kind, self._fetch) or b""
        part = replace(self._file, source=Source(label, len(content), lambda start, end: content[start:end]))
        if kind in _INDEXES:
            dump_index(part, _INDEXES[kind], base_offset)
        else:
            _SMALL_FILES[kind](part)

    def _log_bytes(self, start: int, end: int) -> bytes:
        """Return bytes [start, end) of the log, even if the log is damaged.

        A layout checks the hash of the log if the whole log is read in one range. Therefore the bytes are read in two
        ranges. A wrong hash has already been reported, and the CRC of each batch shows which batches are good.
        """
        middle = (start + end) // 2
        ranges = ((start, middle), (middle, end))
        return b"".join(
            piece for first, last in ranges for piece in self._layout.read(self._segment, first, last, self._fetch)
        )


# --- manifest roots ----------------------------------------------------------------------------------------------


def dump_manifest(file: FileDump) -> None:
    """Show a manifest root: its fields, its references to pages, and its own entries.

    Raise CorruptManifestError if the root is malformed, or if its log or version differ from its path.
    """
    limit_bytes = file.run.components.limits.manifest_bytes
    data = read_all(file.source, limit_bytes)
    file.title(f"manifest root, {len(data)} bytes")
    log, topic_id, version = _identity(data, file.label)
    head = parse_root(data, log, topic_id, version, limit_bytes=limit_bytes)
    file.properties("manifest", {**_root_item(head.root), "sha256": head.sha256}, moments=("created_ms",))
    _dump_references(file, head.root.pages, head.root.prefix, head.root.entries)


def dump_page(file: FileDump) -> None:
    """Show a page of a manifest: its entries, or its references to other pages."""
    data = read_all(file.source, file.run.components.limits.manifest_bytes)
    file.title(f"manifest page, {len(data)} bytes")
    log, topic_id, items = read_page(data, file.label)
    pages = [item for item in items if isinstance(item, PageRef)]
    entries = [item for item in items if isinstance(item, StoredSegment)]
    values = {
        "topic": log.topic,
        "partition": log.partition,
        "topic_id": str(topic_id),
        "level": pages[0].level + 1 if pages else 0,
        "sha256": sha256_of(data),
    }
    file.properties("manifest_page", values)
    _dump_references(file, pages, log_prefix(log, topic_id), entries)


def _identity(data: bytes, label: str) -> tuple[TopicPartition, TopicId, int]:
    """Return log, topic id and version of a manifest root, from its path or, if the path lacks them, from its content.

    Raise CorruptManifestError if the content is not a manifest root.
    """
    path = Path(label)
    try:
        value = json.loads(data)
        log, topic_id = TopicPartition(value["topic"], int(value["partition"])), TopicId(value["topic_id"])
        version = int(path.name if path.name.isdigit() else value["version"])
    except (ValueError, KeyError, TypeError, RecursionError, StorageError) as error:
        raise CorruptManifestError(f"this is not a manifest root ({error})", label) from error
    path_identity = parse_log_prefix("/".join(path.absolute().parts[-_KEY_PARTS:]))
    return (*(path_identity or (log, topic_id)), version)


def _root_item(root: Root) -> dict[str, object]:
    return {
        "topic": root.log.topic,
        "partition": root.log.partition,
        "topic_id": str(root.topic_id),
        **{name: getattr(root, name) for name in _ROOT_FIELDS},
        "leader_epochs": [list(entry) for entry in root.leader_epochs],
        "pages": len(root.pages),
        "entries": len(root.entries),
        "mac": None if root.mac is None else [root.mac.layout, root.mac.key_id, root.mac.digest],
    }


def _dump_references(file: FileDump, pages: Iterable[PageRef], prefix: str, entries: Iterable[StoredSegment]) -> None:
    """Show the pages and segments to which a root or a page refers. ``prefix`` is the key prefix of the pages."""
    with file.sheet("page", _PAGE_COLUMNS) as sheet:
        for page in pages:
            sheet.row((*(getattr(page, name) for name in _PAGE_COLUMNS[:-1]), page.key(prefix)))
    with file.sheet("segment", _SEGMENT_COLUMNS) as sheet:
        for entry in entries:
            info, key = entry.info, entry.slices[FileKind.LOG].key
            epochs = [list(epoch) for epoch in info.leader_epochs]
            bounds = (info.base_offset, info.end_offset, info.size_bytes, info.max_timestamp_ms)
            sheet.row((*bounds, entry.layout, epochs, key))


# --- cache -------------------------------------------------------------------------------------------------------


def dump_cached(file: FileDump) -> None:
    """Show a file of the disk cache: tier, object key, part of the object, and position of this part in the file."""
    file.title(f"cached of a tier, {file.source.size_bytes} bytes")
    cache_item = unpack_item(file.source.read, file.source.size_bytes)
    if cache_item is None:
        raise CorruptObjectError("this is not a file of the cache, or its CRC is wrong", file.label, 0)
    uri, _, key = cache_item.group.partition("\n")
    with file.sheet("cached_item", _CACHED_COLUMNS) as sheet:
        sheet.row((uri, key, cache_item.item, cache_item.position, cache_item.size_bytes))
