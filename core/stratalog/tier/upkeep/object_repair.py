"""Repair of damaged objects of a tier from a copy of the same segment.

An object is written again only if the copy gives exactly the bytes that its manifest entry describes. Therefore no root
changes and no writer is fenced. A reader gets the right bytes or an error meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Final

from stratalog.errors import CorruptObjectError, ObjectNotFoundError
from stratalog.model.names import quarantine_key
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.spi.objects import ByteSource, ObjectInfo
from stratalog.spi.providers import Section
from stratalog.tier.manifest.pages import Whole
from stratalog.tier.store.layout_table import GuardedLayout, LayoutTable
from stratalog.tier.store.store import TierStore
from stratalog.tier.upkeep.tier_check import Finding
from stratalog.tier.upload.stored_check import GivenSegment

_STEP_BYTES: Final = 1 << 20


def mend(
    store: TierStore, layouts: LayoutTable, stored: StoredSegment, source: SegmentSource, section: Section | None
) -> bool:
    """Write the objects of ``stored`` again from ``source``, under their own keys.

    The layout writes the segment twice: once to compare, and once to upload.

    Returns:
        True if the objects were written; False if the copy differs, or if the layout writes other bytes today.

    Raises:
        StoreError: the store failed; call again.
        StorageError: the source cannot be read.
        PluginError: the objects were written, and the store returns other bytes.
        UnknownComponentError: the layout is not installed.
    """
    if source.info != stored.info:
        return False
    layout = layouts.by_label(stored.layout)
    given = GivenSegment(_with_extras(store, layout, stored, source))

    def written(put: Callable[[str, ByteSource], ObjectInfo]) -> StoredSegment:
        made = layout.write(given.source, _SameKeys(stored, put), section)
        return dataclasses.replace(made, layout=stored.layout)

    try:
        if written(_read_only) != stored or given.sha256 != stored.sha256 or written(store.put) != stored:
            return False
        if store.verification.is_due(stored.layout, is_bundled=layout.guard.is_bundled):
            given.read_back(stored, store, layout)
            store.verification.passed(stored.layout)
    except CorruptObjectError:
        return False
    return True


def _with_extras(
    store: TierStore, layout: GuardedLayout, stored: StoredSegment, source: SegmentSource
) -> SegmentSource:
    """Return the source with the stored EXTRA indexes if they are sound; copies may lack them."""
    files = dict(source.files)
    if FileKind.EXTRA not in stored.slices:
        files.pop(FileKind.EXTRA, None)
    with contextlib.suppress(CorruptObjectError, ObjectNotFoundError):  # if they are damaged, the copy's own are used
        data = layout.read_index(stored, FileKind.EXTRA, store.read_exactly)
        if data is not None:
            files[FileKind.EXTRA] = data
    return dataclasses.replace(source, files=files)


def quarantine(store: TierStore, prefix: str, finding: Finding, now_ms: int) -> str:
    """Write a note about an object that cannot be repaired, beside the log's other objects; return the note's key.

    The object itself is not changed: its undamaged parts can still be read, and only retention removes it.

    Raises:
        StoreError: the store failed.
    """
    key = quarantine_key(prefix, finding.key)
    found = {
        "format": "stratalog-quarantine",
        "format_version": 1,
        "key": finding.key,
        "flaw": str(finding.flaw),
        "position": finding.position,
        "text": finding.text,
        "noted_ms": now_ms,
    }
    store.put(key, Whole(json.dumps(found, sort_keys=True).encode()))
    return key


def _read_only(key: str, source: ByteSource) -> ObjectInfo:
    """Read all bytes, and store none."""
    for _ in source.chunks(_STEP_BYTES):
        pass
    return ObjectInfo(key, source.size_bytes)


class _SameKeys:
    """A sink that returns the keys that a segment has already, in the order of their suffixes.

    Raises CorruptObjectError if the layout asks for an object that the segment does not have.
    """

    def __init__(self, stored: StoredSegment, put: Callable[[str, ByteSource], ObjectInfo]) -> None:
        self._left = sorted(stored.keys)
        self._put, self._label = put, stored.layout

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix will use."""
        for key in self._left:
            if key.endswith(f".{suffix}"):
                return key
        raise CorruptObjectError(f"{self._label} stores an object that the entry does not name", f"*.{suffix}")

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Pass one object to the given ``put`` function."""
        key = self.key(suffix)
        self._left.remove(key)
        return dataclasses.replace(self._put(key, source), key=key)
