"""Dump of ``.digest`` files: the segment's identity and the sections; only the filter can read a section's content."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from stratalog.cleaning.compact.segment_digests import NEVER_MS, DigestSection, unpack_digest
from stratalog.cli.dump.context import Context
from stratalog.cli.dump.sheet import Sheet
from stratalog.cli.dump.source import PIECE_BYTES, Source
from stratalog.cli.output import moment
from stratalog.errors import CorruptIndexError

_COLUMNS: Final = ("section", "position", "size_bytes", "valid")


def dump_digest(context: Context, source: Source) -> None:
    """Show the sections of a ``.digest`` file, one on each line.

    Raises:
        CorruptIndexError: the file is not a digest file, or a section is damaged.
    """
    found = unpack_digest(source.read, source.size_bytes)
    if found is None:
        raise CorruptIndexError("this is not a digest file: its end is wrong", source.label, source.size_bytes)
    segment = found.identity
    due = "" if found.due_ms == NEVER_MS else f", due {moment(found.due_ms)}"
    what = f"[{segment.base_offset}, {segment.end_offset}), {segment.size_bytes} bytes{due}"
    context.title(source.label, f"digest of the segment {what}")
    damaged = None
    with Sheet(context.output, source.label, "digest_section", _COLUMNS) as sheet:
        for section in found.sections:
            is_valid = _is_valid(source, section)
            sheet.row((section.kind, section.position, section.size_bytes, is_valid))
            if not is_valid and damaged is None:
                damaged = CorruptIndexError(f"the CRC of {section.kind} is wrong", source.label, section.position)
    if damaged is not None:
        raise damaged


def _is_valid(source: Source, section: DigestSection) -> bool:
    found, end = 0, section.position + section.size_bytes
    for position in range(section.position, end, PIECE_BYTES):
        found = crc32c(source.read(position, min(PIECE_BYTES, end - position)), found)
    return found == section.crc
