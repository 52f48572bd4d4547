"""Digest files, one beside each compacted segment.

If the digest of a segment proves that no filter drops a record, a later compaction round skips the segment. The filters
define the content of a digest. A digest is optional: if the file is missing, damaged, or describes an earlier version
of the segment, the round reads the segment. docs/formats/digest.md describes the format.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from crc32c import crc32c

from stratalog.cleaning.compact import unchanged_segments
from stratalog.cleaning.compact.unchanged_segments import UnchangedState
from stratalog.config.keys import LONG_MAX
from stratalog.errors import FileReplacedError, OutOfResourcesError, SegmentGoneError
from stratalog.log.log import Log
from stratalog.model.batches import Buffer
from stratalog.model.names import DIGEST_SUFFIX, parse_segment_file, segment_file
from stratalog.segment.section_file import FileSection, Identity, ReadBytes, SectionForm
from stratalog.segment.segment import Segment
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.segment_store import LogFiles, SegmentFile

NEVER_MS: Final = LONG_MAX
_NEW: Final = ".new"
_SECRET_BYTES: Final = 16
_FIELDS: Final = struct.Struct("<q16s")  # due_ms, secret
_FORM: Final = SectionForm(
    magic=b"STLGDIG2", section=struct.Struct("<IIB"), fields_bytes=_FIELDS.size, max_directory_bytes=1 << 24
)


@dataclass(frozen=True, slots=True)
class Digest:
    """Content of a digest file.

    Attributes:
        identity: bounds, size and time of the segment that the digest file describes.
        due_ms: time (ms since 1970) when the first tombstone of the segment expires; ``NEVER_MS`` without tombstones.
        secret: secret with which the filters have hashed the keys in the sections.
        sections: the sections in the file, named after their kinds.
        unchanged: state in which a compaction round must reach the segment to skip it; empty until ``find_sparing``
            reads it.
    """

    identity: Identity
    due_ms: int
    secret: bytes
    sections: tuple[FileSection, ...]
    unchanged: UnchangedState = field(default_factory=UnchangedState)


class SegmentDigests:
    """Digest files of the local segments of one log, for one compaction round. Not thread-safe.

    A digest is a file beside a compacted segment. With it, a later round can skip the segment if no filter drops a
    record of the segment.

    Args:
        writable: True if files may be written. The constructor then removes damaged and unfinished digest files, and
            digest files whose segment does not exist or is active.

    Attributes:
        secret: secret with which filters hash keys: the secret in the existing files, or a new random one if there are
            no files.
    """

    def __init__(self, log: Log, *, writable: bool = True) -> None:
        self._log, self.writable = log, writable
        self._digests = dict[int, Digest]()
        segments = log.view().segments
        self._files: LogFiles | None = segments[0].files if segments else None
        names = [] if self._files is None else [info.name for info in self._files.list() if info.is_file]
        bases = {segment.base_offset for segment in segments[:-1]}
        for name in names:
            parsed = parse_segment_file(name.removesuffix(_NEW))
            if self._files is None or parsed is None or parsed.suffix != DIGEST_SUFFIX or parsed.state:
                continue
            digest = None if name.endswith(_NEW) else _read(self._files, name)
            if digest is not None and parsed.base_offset in bases:
                self._digests[parsed.base_offset] = digest
            elif writable:  # left by a crash, or its segment was deleted
                self._files.remove(name)
        any_digest = next(iter(self._digests.values()), None)
        new_secret = log.components.env.chance.randbytes(_SECRET_BYTES)
        self.secret = new_secret if any_digest is None else any_digest.secret

    def find_sparing(self, segment: Segment, filters: Sequence[RecordFilter], now_ms: int) -> Digest | None:
        """Return a segment's digest file if it proves that no filter drops a record and no tombstone has expired.

        Return None if it does not prove that, or if the segment has no valid digest file.
        """
        digest = self._digests.get(segment.base_offset)
        if digest is None or self._files is None or digest.due_ms <= now_ms or digest.secret != self.secret:
            return None
        kinds = {section.name for section in digest.sections}
        if not filters or any(record_filter.digest_kind not in kinds for record_filter in filters):
            return None
        if digest.identity != segment.identity():
            return None
        with contextlib.closing(self._files.open_segment(_name(segment.base_offset))) as file:
            for section in digest.sections:
                data = file.read(section.position, section.size_bytes)
                if crc32c(data) != section.crc:
                    return None
                if section.name == unchanged_segments.KIND:
                    digest = replace(digest, unchanged=UnchangedState.decode(data))
                if not all(
                    record_filter.spares(data) for record_filter in filters if record_filter.digest_kind == section.name
                ):
                    return None
        return digest

    def sections(self, digest: Digest) -> Iterator[tuple[str, Buffer]]:
        """Iterate over the kinds and bytes of the filters' sections, to write them into a merged segment's digest file.

        The section of ``unchanged_segments`` is left out.
        """
        assert self._files is not None
        with contextlib.closing(self._files.open_segment(_name(digest.identity.base_offset))) as file:
            for section in digest.sections:
                # Merged segments have one joined section, see UnchangedState.join.
                if section.name == unchanged_segments.KIND:
                    continue
                yield section.name, file.read(section.position, section.size_bytes)

    def begin(self, base_offset: int) -> DigestWriter | None:
        """Begin the digest file of a segment. Return None if ``writable`` is False, or if the log had no segments."""
        if self._files is None or not self.writable:
            return None
        return DigestWriter(self._log, self._files, base_offset, self.secret)


class DigestWriter:
    """Writer of one digest file. ``seal`` renames the complete file to its final name, in place of an older one.

    If the disk is full, the writer removes the file without an error. The writer syncs nothing: if a power loss leaves
    an incomplete file, its checksums do not match, and the file is ignored.
    """

    def __init__(self, log: Log, files: LogFiles, base_offset: int, secret: bytes) -> None:
        self._log, self._files, self._secret = log, files, secret
        self._base, self._name = base_offset, _name(base_offset)
        self._file: SegmentFile | None = None
        self._is_given_up = False
        self._directory = bytearray()
        self._count = 0

    def add(self, kind: str, section: Buffer) -> None:
        """Write a section. ``kind`` is the ``digest_kind`` of the filter that made the section."""
        if self._append(section):
            self._directory += _FORM.entry(kind, section)
            self._count += 1

    def seal(self, due_ms: int) -> None:
        """Complete the file with the identity of the segment that the log has now at the base offset.

        ``due_ms`` has the same meaning as in ``Digest``. If the log no longer has such a segment, the file is removed.
        """
        segment = next((item for item in self._log.view().segments if item.base_offset == self._base), None)
        try:
            identity = None if segment is None else segment.identity()
        except SegmentGoneError:
            identity = None
        if identity is None:  # truncated or deleted meanwhile
            self.abandon()
            return
        trailer = _FORM.trailer(self._directory, self._count, identity, _FIELDS.pack(due_ms, self._secret))
        if self._append(self._directory + trailer) and self._file is not None:
            self._file.close()
            self._files.rename(self._name + _NEW, self._name)

    def abandon(self) -> None:
        """Remove the incomplete file; later calls of ``add`` do nothing."""
        self._is_given_up = True
        if self._file is not None:
            self._file.close()
            self._file = None
            self._files.remove(self._name + _NEW)

    def _append(self, data: Buffer) -> bool:
        if self._is_given_up:
            return False
        try:
            if self._file is None:
                self._files.remove(self._name + _NEW)
                self._file = self._files.open_segment(self._name + _NEW, create=True)
            self._file.append(data)
        except (FileReplacedError, OutOfResourcesError):  # a digest file only saves time; free space is for records
            self.abandon()
            return False
        return True


def _name(base_offset: int) -> str:
    return segment_file(base_offset, DIGEST_SUFFIX)


def _read(files: LogFiles, name: str) -> Digest | None:
    """Return the contents of a digest file; None if the file is damaged, is no longer there, or has another format."""
    try:
        with contextlib.closing(files.open_segment(name)) as file:
            return unpack_digest(file.read, file.size_bytes)
    except SegmentGoneError:
        return None


def unpack_digest(read: ReadBytes, size_bytes: int) -> Digest | None:
    """Return the contents of the digest file of a segment; None if the file is damaged or is not a digest file.

    The contents of the sections are not read, only their directory and the trailer.
    """
    unpacked = _FORM.unpack(read, size_bytes)
    if unpacked is None:
        return None
    due_ms, secret = _FIELDS.unpack(unpacked.fields)
    return Digest(unpacked.identity, due_ms, secret, unpacked.sections)
