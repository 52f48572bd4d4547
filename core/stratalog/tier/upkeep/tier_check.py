"""Check of a log in a tier: roots, pages, objects, small files, and optionally every batch. Nothing is changed.

Each root, page and segment is checked separately, so damage of one does not hide damage of another. Each problem is a
finding. An error ends the check only if it is not about damage, such as a failure of the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from stratalog.env.progress import OnBytes, uncounted
from stratalog.errors import (
    CorruptIndexError,
    CorruptManifestError,
    CorruptObjectError,
    CorruptSnapshotError,
    ObjectNotFoundError,
    StorageError,
    TamperedManifestError,
)
from stratalog.model.segment_info import FileKind
from stratalog.producers.snapshot import decode_snapshot
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind
from stratalog.segment.segment_check import SegmentReport, StoredIndex, check_segment
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import INDEX_KINDS, StoredSegment
from stratalog.tier.manifest.entry_tree import object_end
from stratalog.tier.manifest.head import read_chain
from stratalog.tier.manifest.root import Head, PageRef
from stratalog.tier.manifest.root_diff import named_keys
from stratalog.tier.read.remote_segment import StoredBounds
from stratalog.tier.store.layout_table import GuardedLayout
from stratalog.tier.store.object_keys import pages_prefix, segments_prefix
from stratalog.tier.tier_log_reader import TierLogReader
from stratalog.tier.upkeep.collect import list_unfinished

_DAMAGE_ERRORS: Final = (CorruptObjectError, ObjectNotFoundError, CorruptIndexError, CorruptSnapshotError)
_ROLES: Final = {kind: role for role, kind in INDEX_KINDS.items()}


def is_missing(findings: Iterable[Finding]) -> bool:
    """Return True if one of the findings is a missing object."""
    return any(finding.kind is FindingKind.MISSING for finding in findings)


class TierLogCheck:
    """Check of one log of a tier, in several steps: first ``roots``, then the other methods. Not thread-safe.

    Args:
        contents: True to read every ``.log`` file, and check its hash, each batch, and the indexes against the batches.
    """

    def __init__(self, log: TierLogReader, components: Components, *, contents: bool) -> None:
        self._log, self._store, self._layouts = log.name, log.objects, log.fetcher.layouts
        self._finder, self._pages = log.new_finder(), log.new_pages()
        self._components, self._contents = components, contents
        self._head: Head | None = None
        self._sizes: dict[str, int] = {}  # sizes of the existing objects, by key
        self._is_whole = True  # True if every root and page exists and could be read: then unnamed objects are orphans

    def roots(self) -> Iterator[Finding]:
        """Yield the findings about the manifest roots, and list the objects for the later steps.

        Consume the whole result before you call another method, except ``contents``.
        """
        prefix = self._finder.prefix
        versions = [version for version, _ in self._finder.roots_above(0)]
        for key_prefix in (segments_prefix(prefix), pages_prefix(prefix)):
            self._sizes.update((info.key, info.size_bytes) for info in self._store.list_all(key_prefix))
        for chained_root in read_chain(self._finder, versions):
            self._is_whole = self._is_whole and not chained_root.has_loss
            # If the head is damaged, the objects of the root before are checked.
            self._head = chained_root.head or self._head
            yield from chained_root.findings

    @property
    def size_bytes(self) -> int:
        """The ``.log`` bytes of the segments in the latest root that ``roots`` could read; 0 if there is none."""
        return 0 if self._head is None else self._head.root.size_bytes

    def segments(self, start: int = 0) -> Iterator[StoredSegment | Finding]:
        """Yield the segments of the latest readable root, and findings about its pages, about gaps and missing MACs.

        The segments ascend. Their end offsets (exclusive) are above ``start`` and above the log start. If no root is
        readable, nothing is yielded.
        """
        if self._head is None:
            return
        root = self._head.root
        start = max(start, root.log_start)
        expected: int | None = None
        check = self._finder.authenticity.entry_check(root)
        for item in (*self._walk(root.pages, start), *root.entries):
            if isinstance(item, StoredSegment):
                info = item.info
                if info.end_offset <= start:
                    continue
                if expected not in (None, info.base_offset):
                    text = f"segment [{info.base_offset}, {info.end_offset}) does not start at offset {expected}"
                    yield self._finding(FindingKind.OFFSETS, item.log_key, text)
                expected = info.end_offset
                try:
                    if check is not None:
                        check(item)
                except TamperedManifestError as error:
                    yield self._finding(FindingKind.ROOT, error.file, error.reason, segment=item)
            else:
                expected = None
            yield item

    def check(self, entry: StoredSegment, on_bytes: OnBytes = uncounted) -> list[Finding]:
        """Return the findings about one segment: those of ``presence`` and, if no object is missing, of ``contents``.

        ``on_bytes`` is called with numbers of bytes. Their sum is the size of the ``.log`` file, even if the file is
        not read.
        """
        remaining_bytes = entry.info.size_bytes

        def on_piece(size_bytes: int) -> None:
            nonlocal remaining_bytes
            new_bytes = min(size_bytes, remaining_bytes)  # a damaged log is read twice
            remaining_bytes -= new_bytes
            on_bytes(new_bytes)

        findings = self.presence(entry)
        if not is_missing(findings):
            findings += self.contents(entry, on_piece)
        on_bytes(remaining_bytes)
        return findings

    def presence(self, entry: StoredSegment) -> list[Finding]:
        """Return the findings about missing or too short objects of a segment, by the listing of ``roots``."""
        return list(self._check_objects(entry))

    def contents(self, entry: StoredSegment, on_bytes: OnBytes = uncounted) -> list[Finding]:
        """Return the findings about the small files of a segment, and about its ``.log`` file if the check reads it.

        The check reads ``.log`` files if the argument ``contents`` of the class is True. ``on_bytes`` is called with
        the numbers of bytes of the
        ``.log`` file that were read. Several threads may call this method, and ``roots`` need not be called before.
        """
        indexes = dict[IndexRole, StoredIndex]()
        findings = [*self._check_files(entry, indexes), *self._check_layout_data(entry)]
        if self._contents:
            try:
                findings += self._check_log_file(entry, indexes, on_bytes)
            except _DAMAGE_ERRORS as error:
                findings.append(self._damage(error, FindingKind.LOG, entry, entry.log_key))
        return findings

    def orphans(self) -> Iterator[Finding]:
        """Yield findings about objects that no existing root names, and about uploads that are not complete.

        An upload that is not complete may still be in progress.

        The result is empty if there is no readable root, or if a root or a page is damaged or missing: the objects that
        it named are unknown.
        """
        if self._head is None or not self._is_whole:
            return
        try:
            roots = self._finder.roots_unchecked(version for version, _ in self._finder.roots_above(0))
            kept_keys = named_keys(roots, self._pages)
        except (CorruptManifestError, ObjectNotFoundError):
            return
        for key in sorted(self._sizes.keys() - kept_keys):
            yield self._finding(FindingKind.ORPHAN, key, f"no root names this object of {self._sizes[key]} bytes")
        for upload in list_unfinished(self._store, self._finder.prefix):
            yield self._finding(
                FindingKind.ORPHAN, upload.key, f"upload {upload.upload_id} was started but not completed"
            )

    # --- inside ------------------------------------------------------------------------------------------------------

    def _walk(self, refs: Sequence[PageRef], start: int) -> Iterator[StoredSegment | Finding]:
        for ref in refs:
            if ref.end_offset <= start:
                continue
            try:
                items = self._pages.read(ref)
            except (CorruptManifestError, ObjectNotFoundError) as error:
                self._is_whole = False
                span = f"of offsets [{ref.base_offset}, {ref.end_offset})"
                yield self._finding(FindingKind.PAGE, ref.key(self._finder.prefix), f"{error.reason}, {span}")
                continue
            for item in items:
                if isinstance(item, StoredSegment):
                    yield item
                else:
                    yield from self._walk([item], start)

    def _check_objects(self, entry: StoredSegment) -> Iterator[Finding]:
        for key in sorted(entry.keys):
            size, end = self._sizes.get(key), object_end(entry, key)
            if size is None:
                yield self._finding(FindingKind.MISSING, key, "the object is missing", segment=entry)
            elif size < end:
                yield self._finding(
                    FindingKind.SIZE, key, f"the object has {size} bytes, its entry needs {end}", size, entry
                )

    def _check_files(self, entry: StoredSegment, indexes: dict[IndexRole, StoredIndex]) -> Iterator[Finding]:
        """Yield the findings about the small files of a segment; add its undamaged indexes to ``indexes``."""
        for kind, place in entry.slices.items():
            if kind is FileKind.LOG:
                continue
            try:
                self._check_file(entry, kind, indexes)
            except _DAMAGE_ERRORS as error:
                yield self._damage(error, FindingKind.FILE, entry, place.key, f"the {kind} file: ")

    def _check_layout_data(self, entry: StoredSegment) -> list[Finding]:
        """Return the finding about data that the layout stores beside the segment's files, such as a footer."""
        try:
            self._layout(entry).check(entry, self._store.read_exactly)
        except _DAMAGE_ERRORS as error:
            return [self._damage(error, FindingKind.FILE, entry, getattr(error, "file", "") or entry.log_key)]
        return []

    def _check_file(self, entry: StoredSegment, kind: FileKind, indexes: dict[IndexRole, StoredIndex]) -> None:
        """Check a small file; raise an error of ``_DAMAGE_ERRORS``, or add an undamaged index to ``indexes``."""
        data = self._layout(entry).read_index(entry, kind, self._store.read_exactly) or b""
        info, role = entry.info, _ROLES.get(kind)
        if role is not None:
            self._components.indexes[role].reader(data, info.base_offset).check(info.end_offset, info.size_bytes)
            indexes[role] = StoredIndex(entry.slices[kind].key, data, name=f"the {kind} file: ")
        if kind is FileKind.SNAPSHOT:
            decode_snapshot(data, entry.slices[kind].key)

    def _check_log_file(
        self, entry: StoredSegment, indexes: Mapping[IndexRole, StoredIndex], on_bytes: OnBytes
    ) -> list[Finding]:
        """Return the findings about every batch, the hash of the whole ``.log`` file, and the indexes."""
        size_bytes = entry.info.size_bytes
        try:
            report = self._check_batches(
                entry, self._check_hash(entry, self._read(entry, 0, size_bytes)), indexes, on_bytes
            )
        except CorruptObjectError:
            if not size_bytes:
                raise
            # two partial reads skip the hash check of the layout: a bad batch is a better finding than a wrong hash
            halves = chain(self._read(entry, 0, size_bytes - 1), self._read(entry, size_bytes - 1, size_bytes))
            report = self._check_batches(entry, halves, {}, on_bytes)
            if not report.findings:
                raise
        findings = [
            replace(
                finding,
                kind=FindingKind.LOG if finding.kind is FindingKind.DAMAGE else finding.kind,
                segment=entry,
                log=self._log,
            )
            for finding in report.findings
        ]
        is_whole = all(finding.kind is not FindingKind.LOG for finding in findings)
        if is_whole and report.largest_ms != entry.info.max_timestamp_ms:
            text = f"the largest timestamp is {report.largest_ms}, the entry has {entry.info.max_timestamp_ms}"
            findings.append(self._finding(FindingKind.LOG, entry.log_key, text, segment=entry))
        return findings

    def _check_batches(
        self,
        entry: StoredSegment,
        pieces: Iterable[memoryview],
        indexes: Mapping[IndexRole, StoredIndex],
        on_bytes: OnBytes,
    ) -> SegmentReport:
        segment = _StreamedSegment(entry, pieces)
        report = check_segment(segment, self._components, indexes=indexes, on_bytes=on_bytes)
        if all(finding.kind is not FindingKind.DAMAGE for finding in report.findings):
            segment.finish()
        return report

    def _read(self, entry: StoredSegment, start: int, end: int) -> Iterator[memoryview]:
        return self._layout(entry).read(entry, start, end, self._store.read_exactly)

    def _check_hash(self, entry: StoredSegment, pieces: Iterable[memoryview]) -> Iterable[memoryview]:
        """Return the pieces of a ``.log`` file; check its hash at the end, if the layout is a plugin's."""
        if self._layout(entry).guard.is_bundled:
            return pieces

        def hash_pieces() -> Iterator[memoryview]:
            digest = hashlib.sha256()
            for piece in pieces:
                digest.update(piece)
                yield piece
            if digest.hexdigest() != entry.sha256:
                raise CorruptObjectError("the hash of the log file is wrong", entry.log_key)

        return hash_pieces()

    def _damage(
        self, error: StorageError, kind: FindingKind, entry: StoredSegment, key: str, text_prefix: str = ""
    ) -> Finding:
        """Return a finding about the damage for which a check raised ``error``."""
        return self._finding(kind, key, text_prefix + error.reason, getattr(error, "position", 0), entry)

    def _layout(self, entry: StoredSegment) -> GuardedLayout:
        return self._layouts.by_label(entry.layout)

    def _finding(
        self, kind: FindingKind, key: str, text: str, position: int = 0, segment: StoredSegment | None = None
    ) -> Finding:
        return Finding(kind, key, position, text, segment, self._log)


class _StreamedSegment(StoredBounds):
    """A ReadableSegment without indexes, for one sequential read of a segment in a tier."""

    def __init__(self, entry: StoredSegment, pieces: Iterable[memoryview]) -> None:
        self.entry, self.label = entry, entry.log_key
        self._pieces = iter(pieces)
        self._buffer, self._start = bytearray(), 0  # bytes that may still be read, and their position

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return up to ``size_bytes`` from ``position``, which must not decrease between calls; fewer at the end."""
        self._buffer = self._buffer[position - self._start :]
        self._start = position
        while len(self._buffer) < size_bytes and (piece := next(self._pieces, None)) is not None:
            self._buffer += piece
        return memoryview(bytes(self._buffer[:size_bytes]))

    def finish(self) -> None:
        """Read the rest of the pieces, because their iterator checks the hash of the whole file at its end."""
        for _ in self._pieces:
            pass

    def index_entries(self, role: IndexRole) -> bytes:
        """Return ``b""``."""
        del role
        return b""

    def forget(self) -> bool:
        """Return False: nothing is cached."""
        return False
