"""Dump of ``.extra`` and ``.digest`` files: their segment, and a list of sections. Only plugins can read a section."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from stratalog.cleaning.compact.segment_digests import NEVER_MS, unpack_digest
from stratalog.cli.dump.context import Context
from stratalog.cli.dump.source import PIECE_BYTES, Source
from stratalog.cli.output import moment
from stratalog.errors import CorruptIndexError
from stratalog.segment.extra_index_file import unpack_extras
from stratalog.segment.section_file import FileSection


def dump_extras(context: Context, source: Source) -> None:
    """Show the indexes of an ``.extra`` file, one on each line.

    Raises:
        CorruptIndexError: the file is not a file of extra indexes, or an index is damaged.
    """
    extras = unpack_extras(source.read, source.size_bytes)
    if extras is None:
        raise CorruptIndexError(
            "this is not a file of extra indexes: its end is wrong", source.label, source.size_bytes
        )
    segment = extras.identity
    identity_text = f"of the segment [{segment.base_offset}, {segment.end_offset}), {segment.size_bytes} bytes"
    context.title(source.label, f"extra indexes {identity_text}")
    _dump_sections(context, source, "extra_index", "index", extras.sections.values())


def dump_digest(context: Context, source: Source) -> None:
    """Show the sections of a ``.digest`` file, one on each line.

    Raises:
        CorruptIndexError: the file is not a digest file, or a section is damaged.
    """
    digest = unpack_digest(source.read, source.size_bytes)
    if digest is None:
        raise CorruptIndexError("this is not a digest file: its end is wrong", source.label, source.size_bytes)
    segment = digest.identity
    due = "" if digest.due_ms == NEVER_MS else f", due {moment(digest.due_ms)}"
    identity_text = f"[{segment.base_offset}, {segment.end_offset}), {segment.size_bytes} bytes{due}"
    context.title(source.label, f"digest of the segment {identity_text}")
    _dump_sections(context, source, "digest_section", "section", digest.sections)


def _is_valid(source: Source, section: FileSection) -> bool:
    crc, end = 0, section.position + section.size_bytes
    for position in range(section.position, end, PIECE_BYTES):
        crc = crc32c(source.read(position, min(PIECE_BYTES, end - position)), crc)
    return crc == section.crc


def _dump_sections(context: Context, source: Source, kind: str, column: str, sections: Iterable[FileSection]) -> None:
    """Show sections, each with True if its CRC is correct. Then raise the error of the first damaged section."""
    first_error = None
    with context.sheet(source, kind, (column, "position", "size_bytes", "valid")) as sheet:
        for section in sections:
            is_valid = _is_valid(source, section)
            sheet.row((section.name, section.position, section.size_bytes, is_valid))
            if not is_valid and first_error is None:
                first_error = CorruptIndexError(f"the CRC of {section.name} is wrong", source.label, section.position)
    if first_error is not None:
        raise first_error
