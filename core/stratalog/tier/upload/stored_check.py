"""Checks of a stored segment against the bytes that the layout was given, before a manifest names the segment.

A layout or a store may have a bug. If a segment was stored wrongly and then evicted from local disk, it would be lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from stratalog.errors import CorruptionError, ObjectNotFoundError
from stratalog.model.segment_info import FileKind, ObjectSlice
from stratalog.spi.layouts import HashedLog, SegmentSource, StoredSegment
from stratalog.spi.objects import ByteSource
from stratalog.tier.manifest.entry_tree import object_end
from stratalog.tier.store.layout_table import GuardedLayout
from stratalog.tier.store.store import TierStore

STEP_BYTES: Final = 4 << 20  # largest part of a log to read back at once


class GivenSegment:
    """A segment that is passed to a layout's ``write``; its ``.log`` file is hashed while the layout reads it.

    Attributes:
        source: the source to give to the layout.
    """

    def __init__(self, source: SegmentSource) -> None:
        self._log = HashedLog.of(source.log, f"{source.info.log} offset {source.info.base_offset}")
        self.source = SegmentSource(source.info, self._log, source.files)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the ``.log`` file, in hex. The file is read again if the layout did not read all its bytes."""
        if not self._log.is_read:
            for _ in self._log.chunks(STEP_BYTES):
                pass
        return self._log.sha256

    def check_claims(self, entry: StoredSegment, sizes: Mapping[str, int], layout: GuardedLayout) -> None:
        """Raise PluginError unless the entry that a layout returned fits its input and the objects that it stored.

        ``sizes`` are the sizes of the stored objects, by key.

        Raises:
            PluginError: the entry is malformed, lacks a file, describes another segment or another hash, or names bytes
                or objects that were not stored.
        """
        with layout.guard.calling("write"):
            defect = _entry_defect(entry) or self._contradiction(entry, sizes)
        if defect:
            layout.guard.refuse("write", defect)

    def _contradiction(self, entry: StoredSegment, sizes: Mapping[str, int]) -> str:
        if entry.info != self.source.info:
            return "describes another segment"
        if FileKind.LOG not in entry.slices:
            return "names no object for the .log file"
        missing = [kind for kind, data in self.source.files.items() if data and kind not in entry.slices]
        if missing:
            return f"names no object for the {missing[0]} file"
        for kind, place in entry.slices.items():
            if not 0 <= place.position <= place.position + place.size_bytes <= sizes.get(place.key, -1):
                return f"places {kind} outside what it put: key={place.key!r}"
        unknown_keys = sorted(entry.keys - set(sizes))
        if unknown_keys:
            return f"names an object that it did not put: key={unknown_keys[0]!r}"
        if entry.sha256 != self.sha256:
            return f"claims SHA-256 {entry.sha256} for a .log file of SHA-256 {self.sha256}"
        return ""


def read_back(
    entry: StoredSegment, sha256: str, files: Mapping[FileKind, bytes], store: TierStore, layout: GuardedLayout
) -> None:
    """Read a segment through its layout, without caches, and compare every byte.

    The ``.log`` file must have the hash ``sha256``, and the small files the bytes ``files``.

    Raises:
        PluginError: the bytes differ, or an object is missing or damaged. The segment must not be committed.
    """
    span = f"segment [{entry.info.base_offset}, {entry.info.end_offset}) of {entry.info.log}"
    try:
        difference = _difference(entry, sha256, files, store, layout)
    except (CorruptionError, ObjectNotFoundError) as error:
        layout.guard.refuse("write", f"stored {span} in {store.guard}, but cannot read it: {error}")
    if difference:
        layout.guard.refuse(
            "read", f"returned other bytes for {difference} of {span} than were stored in {store.guard}"
        )


def _difference(
    entry: StoredSegment, sha256: str, files: Mapping[FileKind, bytes], store: TierStore, layout: GuardedLayout
) -> str:
    digest, size_bytes = hashlib.sha256(), entry.info.size_bytes
    step = min(STEP_BYTES, store.limits.fetch_chunk_bytes)  # readers request no more bytes at once
    for start in range(0, size_bytes, step):
        end = min(start + step, size_bytes)
        returned_bytes = 0
        for piece in layout.read(entry, start, end, store.read_exactly):
            returned_bytes += len(piece)
            digest.update(piece)
            if returned_bytes > end - start:
                break
        if returned_bytes != end - start:
            return f"bytes [{start}, {end})"
    if digest.hexdigest() != sha256:
        return "the .log file"
    returned_files = _read_small_files(entry, files, store, layout)
    return next((f"the {kind} file" for kind, data in returned_files if data != files[kind]), "")


def _read_small_files(
    entry: StoredSegment, kinds: Iterable[FileKind], store: TierStore, layout: GuardedLayout
) -> Iterator[tuple[FileKind, bytes | None]]:
    """Yield the files of these kinds that a segment has, read through its layout.

    A request also reads the bytes after the requested range, because small files are usually stored one after another.
    """
    places = {kind: entry.slices[kind] for kind in kinds if kind in entry.slices}
    ahead_bytes = min(sum(place.size_bytes for place in places.values()), store.limits.fetch_chunk_bytes)
    read_key, read_start, read_bytes = "", 0, b""

    def fetch(key: str, start: int, end: int) -> bytes:
        nonlocal read_key, read_start, read_bytes
        if key != read_key or not read_start <= start <= end <= read_start + len(read_bytes):
            read_end = max(end, min(start + ahead_bytes, object_end(entry, key)))
            read_key, read_start, read_bytes = key, start, store.read_exactly(key, start, read_end)
        return read_bytes[start - read_start : end - read_start]

    for kind in sorted(places, key=lambda kind: places[kind].position):
        yield kind, layout.read_index(entry, kind, fetch)


def check_renewed(old: StoredSegment, renewed: StoredSegment, store: TierStore, layout: GuardedLayout) -> None:
    """Read a segment back by ``renewed``, a new entry for the objects of ``old``, and compare every byte.

    Raises:
        PluginError: the bytes read by the new entry differ, or cannot be read. The new entry must not be committed.
        CorruptObjectError: a small file cannot be read by the old entry.
    """
    kinds = [kind for kind in old.slices if kind is not FileKind.LOG]
    files = {kind: data for kind, data in _read_small_files(old, kinds, store, layout) if data is not None}
    read_back(renewed, old.sha256, files, store, layout)


class PutObjects:
    """Hashes of the uploaded objects of one segment, to find out later if the store has kept the objects unchanged."""

    def __init__(self, store: TierStore) -> None:
        self._store = store
        self._sources: dict[str, HashedLog] = {}

    def hash_upload(self, key: str, source: ByteSource) -> ByteSource:
        """Return a source with the same bytes, which are hashed during the upload of the object ``key``."""
        self._sources[key] = hashed_log = HashedLog(source, key)
        return hashed_log

    def check(self) -> None:
        """Read all objects; raise a PluginError that names the store if an object is missing or has other bytes."""
        for key, source in self._sources.items():
            digest = hashlib.sha256()
            try:
                for start in range(0, source.size_bytes, STEP_BYTES):
                    digest.update(self._store.read_exactly(key, start, min(start + STEP_BYTES, source.size_bytes)))
            except (CorruptionError, ObjectNotFoundError) as error:
                self._store.guard.refuse("put_file", f"did not keep what was uploaded: {error}")
            if digest.hexdigest() != source.sha256:
                self._store.guard.refuse("put_file", f"kept other bytes than were uploaded: key={key!r}")


def _entry_defect(entry: StoredSegment) -> str:
    """Return the reason why a manifest cannot contain the entry, "" if it can."""
    slices: Iterable[tuple[object, object]] = entry.slices.items()  # a plugin may ignore annotations
    if not all(isinstance(kind, FileKind) and isinstance(place, ObjectSlice) for kind, place in slices):
        return "returned slices that are not ObjectSlice by FileKind"
    try:
        is_same = StoredSegment.from_json(json.loads(json.dumps(entry.to_json()))) == entry
    except (TypeError, ValueError, CorruptionError) as error:
        return f"returned an entry that no manifest can hold: {error}"
    return "" if is_same else "returned an entry that changes in a manifest: its extra must hold JSON values"


def check_stored(store: TierStore, prefix: str, entries: Iterable[StoredSegment]) -> None:
    """Raise an error unless the objects of stored segments exist and have at least the size that their entries need.

    The call lists the objects. ``prefix`` is the key prefix of the log's segment objects.

    Raises:
        ObjectNotFoundError: an object is missing, or shorter than its slices need.
    """
    end_by_key: dict[str, int] = {}
    for entry in entries:
        for key in entry.keys:
            end_by_key[key] = max(end_by_key.get(key, 0), object_end(entry, key))
    if not end_by_key:
        return
    last = max(end_by_key)
    for info in store.list_all(prefix, after=min(end_by_key)[:-1]):
        if info.key > last:
            break
        if info.size_bytes >= end_by_key.get(info.key, 0):
            end_by_key.pop(info.key, None)
    if end_by_key:
        raise ObjectNotFoundError("an object of a staged segment is missing or incomplete", min(end_by_key))
