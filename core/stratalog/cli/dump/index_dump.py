"""Dump of ``.index``, ``.timeindex`` and ``.txnindex`` files, and of the sections of ``.extra`` and ``.digest`` files.

Only plugins can read a section. All functions raise CorruptIndexError if the file is of another kind or damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from crc32c import crc32c

from stratalog.cleaning.compact.segment_digests import NEVER_MS, unpack_digest
from stratalog.cli.dump.file_dump import FileDump
from stratalog.cli.dump.kinds import Kind
from stratalog.cli.dump.source import PIECE_BYTES, Source, zeros_from
from stratalog.cli.output import moment
from stratalog.errors import CorruptIndexError
from stratalog.segment.extra_index_file import unpack_extras
from stratalog.segment.section_file import FileSection, ReadBytes
from stratalog.spi.indexes import IndexFormat, IndexRole

T = TypeVar("T")

_ANY_OFFSET: Final = (1 << 63) - 1
_ANY_SIZE: Final = 1 << 31

# role, kind of the rows in JSON, and columns of each index
_INDEXES: Final = {
    Kind.INDEX: (IndexRole.OFFSET, "offset_entry", ("offset", "position")),
    Kind.TIME_INDEX: (IndexRole.TIME, "time_entry", ("timestamp_ms", "offset")),
    Kind.TRANSACTION_INDEX: (
        IndexRole.TRANSACTION,
        "aborted_transaction",
        ("producer_id", "first_offset", "last_offset", "last_stable_offset"),
    ),
}


def dump_index(file: FileDump, kind: Kind, base_offset: int | None) -> None:
    """Show the entries of an index, and the size of the preallocated space at its end, which is not damage.

    An entry must not contradict an earlier one, and the file must not end inside an entry.
    """
    role, row_kind, columns = _INDEXES[kind]
    index, source = file.run.components.indexes[role], file.source
    used_bytes = -(-zeros_from(source) // index.entry_bytes) * index.entry_bytes
    unused_bytes = source.size_bytes - used_bytes
    file.title(f"{kind}, {source.size_bytes} bytes, base offset {base_offset or 0}")
    with file.sheet(row_kind, columns) as sheet:
        entries = _entries(index, source, base_offset or 0, min(used_bytes, source.size_bytes))
        for entry in islice(entries, file.run.limit):
            sheet.row([getattr(entry, column) for column in columns])
    if unused_bytes > 0:
        file.item("preallocated", {"position": used_bytes, "size_bytes": unused_bytes})
        file.run.output.line(
            f"({unused_bytes} bytes from position {used_bytes} on are preallocated, or were lost in a crash)"
        )


def _entries(index: IndexFormat[Any], source: Source, base_offset: int, end: int) -> Iterator[object]:
    """Yield the entries in the bytes [0, end); raise CorruptIndexError for an entry that contradicts an earlier one."""
    size = index.entry_bytes
    piece_bytes = PIECE_BYTES // size * size
    for start in range(0, end, piece_bytes):
        overlap = size if start else 0  # read the previous entry again, to compare it with the first new entry
        data = bytes(source.read(start - overlap, min(piece_bytes, end - start) + overlap))
        reader = index.reader(data, base_offset)
        damage: CorruptIndexError | None = None
        try:
            reader.check(_ANY_OFFSET, _ANY_SIZE)
        except CorruptIndexError as error:
            damage = CorruptIndexError(error.reason, source.label, start - overlap + error.position)
        good_end = len(reader) if damage is None else (damage.position - start + overlap) // size
        for number in range(1 if start else 0, good_end):
            yield reader[number]
        if damage is not None:
            raise damage


def _unpacked(file: FileDump, unpack: Callable[[ReadBytes, int], T | None], kind: str) -> T:
    contents = unpack(file.source.read, file.source.size_bytes)
    if contents is None:
        raise CorruptIndexError(f"this is not {kind}: its end is wrong", file.label, file.source.size_bytes)
    return contents


def dump_extras(file: FileDump) -> None:
    """Show the indexes of an ``.extra`` file, one on each line."""
    extras = _unpacked(file, unpack_extras, "a file of extra indexes")
    segment = extras.identity
    bounds = f"[{segment.base_offset}, {segment.end_offset}), {segment.size_bytes} bytes"
    file.title(f"extra indexes of the segment {bounds}")
    _dump_sections(file, "extra_index", "index", extras.sections.values())


def dump_digest(file: FileDump) -> None:
    """Show the sections of a ``.digest`` file, one on each line."""
    digest = _unpacked(file, unpack_digest, "a digest file")
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
