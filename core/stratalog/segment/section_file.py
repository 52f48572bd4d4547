"""Form of the files that describe a closed segment in sections: extra indexes (``.extra``), digest files (``.digest``).

::

    sections | directory: size, CRC and name of each section | trailer: identity of the segment, CRC of the directory

docs/formats/extra.md and docs/formats/digest.md describe the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from crc32c import crc32c

from stratalog.model.batches import Buffer
from stratalog.model.segment_info import SegmentInfo

_HEAD: Final = struct.Struct("<IIqqqqI")  # size of the directory, number of sections, identity
_CRC: Final = struct.Struct("<I")

ReadBytes: TypeAlias = Callable[[int, int], Buffer]
"""Function of a position and a size (bytes) that reads bytes; it returns fewer at the end of the file."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a segment's bytes, found without reading them all. If the bytes change, a field changes."""

    base_offset: int
    end_offset: int
    size_bytes: int
    modified_ms: int
    tail_crc: int

    @classmethod
    def in_tier(cls, info: SegmentInfo) -> Identity:
        """Return the identity of a segment in a tier.

        ``tail_crc`` is 0, because objects in a tier never change and have their own hashes.
        """
        return cls(info.base_offset, info.end_offset, info.size_bytes, info.modified_ms, 0)


@dataclass(frozen=True, slots=True)
class FileSection:
    """Name of a section, its position and size in the file (bytes), and its CRC-32C."""

    name: str
    position: int
    size_bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class SectionDirectory:
    """Directory of a file: identity of the segment, further fields of the trailer, and the sections."""

    identity: Identity
    fields: bytes
    sections: tuple[FileSection, ...]


@dataclass(frozen=True, slots=True)
class SectionForm:
    """Form of the files of one kind.

    Attributes:
        magic: the last 8 bytes of a file.
        section: fields of a section in the directory before its name: size, CRC-32C and length of the name.
        fields_bytes: size of the fields in the trailer between the identity and the CRC.
        max_directory_bytes: maximum size of the directory.
    """

    magic: bytes
    section: struct.Struct
    fields_bytes: int
    max_directory_bytes: int

    def entry(self, name: str, data: Buffer) -> bytes:
        """Return the entry of the directory for a section with this name and content."""
        encoded_name = name.encode("ascii")
        return self.section.pack(memoryview(data).nbytes, crc32c(data), len(encoded_name)) + encoded_name

    def trailer(self, directory: Buffer, count: int, identity: Identity, fields: bytes = b"") -> bytes:
        """Return the trailer of a file. ``directory`` has the entries of ``count`` sections, in their order."""
        bounds = (identity.base_offset, identity.end_offset, identity.size_bytes, identity.modified_ms)
        head = _HEAD.pack(len(directory), count, *bounds, identity.tail_crc) + fields
        crc = crc32c(head + bytes(_CRC.size) + self.magic, crc32c(directory))
        return head + _CRC.pack(crc) + self.magic

    def unpack(self, read: ReadBytes, size_bytes: int) -> SectionDirectory | None:
        """Return the directory of a file; None if the file has another form or is damaged. No section is read."""
        trailer_bytes = _HEAD.size + self.fields_bytes + _CRC.size + len(self.magic)
        body_bytes = size_bytes - trailer_bytes
        if body_bytes < 0:
            return None
        trailer = bytes(read(body_bytes, trailer_bytes))
        if len(trailer) != trailer_bytes or not trailer.endswith(self.magic):  # shorter if it was truncated meanwhile
            return None
        directory_bytes, count, *bounds = _HEAD.unpack_from(trailer)
        if directory_bytes > min(body_bytes, self.max_directory_bytes):
            return None
        directory = bytes(read(body_bytes - directory_bytes, directory_bytes))
        identity, fields = Identity(*bounds), trailer[_HEAD.size : _HEAD.size + self.fields_bytes]
        if self.trailer(directory, count, identity, fields) != trailer:
            return None
        try:
            return SectionDirectory(identity, fields, tuple(self._sections(directory, count)))
        except (struct.error, UnicodeDecodeError):  # the CRC is right, but stratalog did not write the file
            return None

    def _sections(self, directory: bytes, count: int) -> Iterator[FileSection]:
        entry_position = position = 0
        for _ in range(count):
            size_bytes, crc, length = self.section.unpack_from(directory, entry_position)
            entry_position += self.section.size
            yield FileSection(
                directory[entry_position : entry_position + length].decode("ascii"), position, size_bytes, crc
            )
            entry_position += length
            position += size_bytes
