"""Dump of ``.extra`` and ``.digest`` files: their segment, and a list of sections. Only plugins can read a section.

The functions raise CorruptIndexError if the file is of another kind, or if a section is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from stratalog.cleaning.compact.segment_digests import NEVER_MS, unpack_digest
from stratalog.cli.dump.file_dump import FileDump
from stratalog.cli.dump.source import PIECE_BYTES, Source
from stratalog.cli.output import moment
from stratalog.errors import CorruptIndexError
from stratalog.segment.extra_index_file import unpack_extras
from stratalog.segment.section_file import FileSection


def dump_extras(file: FileDump) -> None:
    """Show the indexes of an ``.extra`` file, one on each line."""
    extras = unpack_extras(file.source.read, file.source.size_bytes)
    if extras is None:
        text = "this is not a file of extra indexes: its end is wrong"
        raise CorruptIndexError(text, file.label, file.source.size_bytes)
    segment = extras.identity
    bounds = f"[{segment.base_offset}, {segment.end_offset}), {segment.size_bytes} bytes"
    file.title(f"extra indexes of the segment {bounds}")
    _dump_sections(file, "extra_index", "index", extras.sections.values())


def dump_digest(file: FileDump) -> None:
    """Show the sections of a ``.digest`` file, one on each line."""
    digest = unpack_digest(file.source.read, file.source.size_bytes)
    if digest is None:
        text = "this is not a digest file: its end is wrong"
        raise CorruptIndexError(text, file.label, file.source.size_bytes)
    segment = digest.identity
    due = "" if digest.due_ms == NEVER_MS else f", due {moment(digest.due_ms)}"
    bounds = f"[{segment.base_offset}, {segment.end_offset}), {segment.size_bytes} bytes"
    file.title(f"digest of the segment {bounds}{due}")
    _dump_sections(file, "digest_section", "section", digest.sections)


def _dump_sections(file: FileDump, kind: str, column: str, sections: Iterable[FileSection]) -> None:
    """Show sections, each with True if its CRC is correct. Then raise the error of the first damaged section."""
    damaged_sections: list[FileSection] = []
    with file.sheet(kind, (column, "position", "size_bytes", "valid")) as sheet:
        for section in sections:
            is_valid = _crc(file.source, section) == section.crc
            sheet.row((section.name, section.position, section.size_bytes, is_valid))
            if not is_valid:
                damaged_sections.append(section)
    if damaged_sections:
        first = damaged_sections[0]
        raise CorruptIndexError(f"the CRC of {first.name} is wrong", file.label, first.position)


def _crc(source: Source, section: FileSection) -> int:
    crc, end = 0, section.position + section.size_bytes
    for position in range(section.position, end, PIECE_BYTES):
        crc = crc32c(source.read(position, min(PIECE_BYTES, end - position)), crc)
    return crc
