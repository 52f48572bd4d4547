"""Repair of a log in a tier: of its manifest, and of its objects, from copies of the same segments.

An object is written again only if the copy gives exactly the bytes that its manifest entry describes. Therefore no root
changes and no writer is fenced. During the repair, a reader gets the right bytes or an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from stratalog.errors import CorruptObjectError, ObjectNotFoundError, StorageError, StoreError
from stratalog.log.folder.folder import read_epochs
from stratalog.log.load.overflow import open_pieces
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileKind
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind, Repair
from stratalog.spi.layouts import SegmentSource, StoredSegment
from stratalog.spi.objects import ByteSource, BytesSource, ObjectInfo
from stratalog.spi.segment_store import LogFiles
from stratalog.tier.store.layout_table import GuardedLayout
from stratalog.tier.store.object_keys import log_prefix, quarantine_key
from stratalog.tier.store.store import ChunkSource, TierStore
from stratalog.tier.tier_log_reader import TierLogReader
from stratalog.tier.upkeep.manifest_repair import ManifestRepair
from stratalog.tier.upload.checked_source import CheckedSources
from stratalog.tier.upload.stored_check import GivenSegment, read_back

_STEP_BYTES: Final = 1 << 20
_OBJECT_KINDS: Final = frozenset({FindingKind.MISSING, FindingKind.SIZE, FindingKind.FILE, FindingKind.LOG})


class FolderCopies:
    """Copies of segments in the folder of a log. Another process may write to the folder at the same time."""

    def __init__(self, files: LogFiles, log: TierLogReader, components: Components) -> None:
        self._files, self._log, self._components = files, log, components

    @contextlib.contextmanager
    def open_copy(self, entry: StoredSegment) -> Iterator[SegmentSource | None]:
        """Return a context whose value is the segment of the folder with the same offsets; None if there is none.

        The context raises StorageError at its start if the segment cannot be read or has a damaged batch.
        """
        offsets = (entry.info.base_offset, entry.info.end_offset)
        with ExitStack() as resources:
            for segment in open_pieces(self._files, self._components, resources):
                if (segment.base_offset, segment.end_offset) == offsets:
                    epochs = read_epochs(self._files)
                    reader = CheckedSources(self._files, self._log.name, self._log.topic_id, epochs, self._components)
                    yield reader.source(segment, segment.base_offset)
                    return
            yield None


class TierRepair:
    """Repairs one log of a tier. Not thread-safe.

    Args:
        copies: folders with copies of segments, the preferred one first.
    """

    def __init__(self, log: TierLogReader, copies: Sequence[FolderCopies] = ()) -> None:
        log.check_writable()
        self._log, self._copies = log, copies

    def manifest(self) -> Iterator[Repair]:
        """Repair damaged roots and pages of the manifest by ``ManifestRepair.run``. Stop the log's engine first."""
        return ManifestRepair(self._log).run()

    def segments(self, findings: Sequence[Finding]) -> list[Repair]:
        """Restore the damaged segments of ``findings`` from copies; return a result for each finding, in order.

        ``done`` of a result is "" if the finding was not repaired. Findings that are not about the objects of a segment
        are not repaired.
        """
        restored = dict[int, tuple[str, str]]()
        repairs = list[Repair]()
        for finding in findings:
            entry = finding.segment
            if entry is None or finding.kind not in _OBJECT_KINDS:
                repairs.append(Repair(finding, ""))
                continue
            base, is_first = entry.info.base_offset, entry.info.base_offset not in restored
            if is_first:
                restored[base] = self._restore_from_copies(entry)
            outcome, failure = restored[base]
            repairs.append(Repair(finding, outcome, failure if is_first else ""))
        return repairs

    def restore(self, entry: StoredSegment, source: SegmentSource) -> bool:
        """Write the objects of a segment again from a copy, under the same keys.

        The layout writes the segment twice: once to compare the result with the entry, and once to upload it. An object
        is uploaded only if its bytes are the same both times.

        Returns:
            True if the objects were written; False if the copy differs from the segment, or if the layout now makes
                other objects of it.

        Raises:
            StorageError: the copy cannot be read.
            PluginError: the objects were written, but the store returns other bytes.
        """
        if entry.info.original_bytes is not None and source.uncompress is not None:
            source = source.uncompress(source)
        if source.info != entry.info:
            return False
        store, layout = self._log.objects, self._log.fetcher.layouts.by_label(entry.layout)
        segment = GivenSegment(_replace_extras(store, layout, entry, source))
        puts = _ComparedPuts(store)

        def write(put: Callable[[str, ByteSource], ObjectInfo]) -> StoredSegment:
            new_entry = layout.write(segment.source, _SameKeys(entry, put), None)
            return dataclasses.replace(new_entry, layout=entry.layout)

        try:
            if write(puts.hash) != entry or segment.sha256 != entry.sha256:
                return False
            write(puts.upload)
            if puts.hashes:  # the layout stored fewer objects
                return False
            if store.verification.is_due(entry.layout, is_bundled=layout.guard.is_bundled):
                read_back(entry, segment.sha256, segment.source.files, store, layout)
                store.verification.record_success(entry.layout)
        except CorruptObjectError:
            return False
        return True

    def note(self, finding: Finding) -> str:
        """Store a small JSON object that describes a finding that cannot be repaired; return the key of this object.

        The damaged object is not changed.
        """
        key = quarantine_key(log_prefix(self._log.name, self._log.topic_id), finding.place)
        note = {
            "format": "stratalog-quarantine",
            "format_version": 1,
            "key": finding.place,
            "flaw": str(finding.kind),
            "position": finding.position,
            "text": finding.text,
            "noted_ms": self._log.components.env.clock.now_ms(),
        }
        self._log.objects.put(key, BytesSource(json.dumps(note, sort_keys=True).encode()))
        return key

    def _restore_from_copies(self, entry: StoredSegment) -> tuple[str, str]:
        """Restore a segment from the first equal copy; return text about the repair, and the error of a copy, or ""."""
        try:
            for copies in self._copies:
                with copies.open_copy(entry) as source:
                    if source is not None and self.restore(entry, source):
                        return "put back", ""
        except StoreError:
            raise
        except StorageError as error:  # the copy is damaged too, or was deleted meanwhile
            return "", str(error)
        return "", ""


def _replace_extras(
    store: TierStore, layout: GuardedLayout, entry: StoredSegment, source: SegmentSource
) -> SegmentSource:
    """Return ``source`` with the extra indexes of the tier in place of its own, if the tier's indexes can be read."""
    files = dict(source.files)
    if FileKind.EXTRA not in entry.slices:
        files.pop(FileKind.EXTRA, None)
    with contextlib.suppress(CorruptObjectError, ObjectNotFoundError):  # then the copy's own indexes are used
        data = layout.read_index(entry, FileKind.EXTRA, store.read_exactly)
        if data is not None:
            files[FileKind.EXTRA] = data
    return dataclasses.replace(source, files=files)


class _ComparedPuts:
    """Upload of a segment's objects only if a layout makes the same bytes twice.

    The layout stores the segment two times. The objects of the first time are only hashed. The objects of the second
    time are compared with the hashes, and uploaded.

    Attributes:
        hashes: SHA-256 of the objects that are hashed and not uploaded yet, by key.
    """

    def __init__(self, store: TierStore) -> None:
        self._store, self.hashes = store, dict[str, str]()

    def hash(self, key: str, source: ByteSource) -> ObjectInfo:
        """Hash the bytes of an object without storing them; a substitute for ``TierStore.put``."""
        digest = hashlib.sha256()
        for chunk in source.chunks(_STEP_BYTES):
            digest.update(chunk)
        self.hashes[key] = digest.hexdigest()
        return ObjectInfo(key, source.size_bytes)

    def upload(self, key: str, source: ByteSource) -> ObjectInfo:
        """Upload an object; raise CorruptObjectError if it was not hashed, or if its hash differs."""
        sha256 = self.hashes.pop(key, "")

        def check(digest: str) -> None:
            if digest != sha256:
                raise CorruptObjectError("the layout stores other bytes in each call", key)

        def chunks(chunk_bytes: int) -> Iterator[Buffer]:
            digest, remaining_bytes = hashlib.sha256(), source.size_bytes
            for chunk in source.chunks(chunk_bytes):
                digest.update(chunk)
                remaining_bytes -= len(chunk)
                if remaining_bytes <= 0:  # checked before the last piece: the store must not keep other bytes
                    check(digest.hexdigest())
                yield chunk
            check(digest.hexdigest())

        return self._store.put(key, ChunkSource(source.size_bytes, chunks))


class _SameKeys:
    """An ObjectSink that uses the keys that a segment already has, instead of new ones.

    Both methods raise CorruptObjectError if the segment has no unused key with this suffix.
    """

    def __init__(self, entry: StoredSegment, put: Callable[[str, ByteSource], ObjectInfo]) -> None:
        self._unused_keys = sorted(entry.keys)
        self._put, self._label = put, entry.layout

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix will use."""
        for key in self._unused_keys:
            if key.endswith(f".{suffix}"):
                return key
        raise CorruptObjectError(f"{self._label} stores an object that the entry does not name", f"*.{suffix}")

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Pass one object to the function ``put`` of the constructor, and return the result."""
        key = self.key(suffix)
        self._unused_keys.remove(key)
        return self._put(key, source)
