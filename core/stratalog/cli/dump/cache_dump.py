"""Dump of a file of the local disk cache that readers of a tier use."""

from __future__ import annotations

from typing import Final

from stratalog.cli.dump.context import Context
from stratalog.cli.dump.sheet import Sheet
from stratalog.cli.dump.source import Source
from stratalog.errors import CorruptObjectError
from stratalog.tier.read.disk_cache import unpack_item

_COLUMNS: Final = ("tier", "key", "item", "position", "size_bytes")


def dump_cached(context: Context, source: Source) -> None:
    """Show the tier, the object's key, the part of the object, and the position of the part in the file.

    Raises:
        CorruptObjectError: the file is not a file of the disk cache, or is damaged.
    """
    context.title(source.label, f"cached of a tier, {source.size_bytes} bytes")
    found = unpack_item(source.read, source.size_bytes)
    if found is None:
        raise CorruptObjectError("this is not a file of the cache, or its CRC is wrong", source.label, 0)
    uri, _, key = found.group.partition("\n")
    with Sheet(context.output, source.label, "cached_item", _COLUMNS) as sheet:
        sheet.row((uri, key, found.item, found.position, found.size_bytes))
