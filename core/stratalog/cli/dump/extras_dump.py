"""Dump of ``.extra`` files: the segment's identity and the extra indexes; only a plugin can read an index."""

from __future__ import annotations

from typing import Final

from stratalog.cli.dump.context import Context
from stratalog.cli.dump.sheet import Sheet
from stratalog.cli.dump.source import Source
from stratalog.errors import CorruptIndexError
from stratalog.segment.extra_index_file import unpack_extras

_COLUMNS: Final = ("index", "position", "size_bytes", "valid")


def dump_extras(context: Context, source: Source) -> None:
    """Show the indexes of an ``.extra`` file, one on each line.

    Raises:
        CorruptIndexError: the file is not a file of extra indexes, or an index is damaged.
    """
    packed = unpack_extras(source.read, source.size_bytes)
    if packed is None:
        raise CorruptIndexError(
            "this is not a file of extra indexes: its end is wrong", source.label, source.size_bytes
        )
    found = packed.identity
    about = f"of the segment [{found.base_offset}, {found.end_offset}), {found.size_bytes} bytes"
    context.title(source.label, f"extra indexes {about}")
    damaged = None
    with Sheet(context.output, source.label, "extra_index", _COLUMNS) as sheet:
        for label, section in packed.sections.items():
            is_valid = packed.index(label, source.read) is not None
            sheet.row((label, section.position, section.size_bytes, is_valid))
            if not is_valid and damaged is None:
                damaged = CorruptIndexError(f"the CRC of {label} is wrong", source.label, section.position)
    if damaged is not None:
        raise damaged
