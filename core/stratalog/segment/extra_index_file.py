"""Extra indexes of one segment: their creation and their bytes, which docs/formats/extra.md describes.

The same bytes are stored in a file beside a closed segment and uploaded to a tier with the segment. Logs work without
extra indexes: bytes that fail a check count as missing.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Final, Protocol, runtime_checkable

from crc32c import crc32c

from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptIndexError
from stratalog.model.batches import Buffer
from stratalog.model.records import Fields, RecordColumns
from stratalog.registry.guard import Guard
from stratalog.segment.components import Components
from stratalog.segment.control_batches import drop_markers
from stratalog.segment.framing import walk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode
from stratalog.segment.section_file import FileSection, Identity, ReadBytes, SectionForm
from stratalog.spi.extra import ExtraIndex, ExtraIndexBuilder, ExtraIndexReader

_LOGGER: Final = logging.getLogger(__name__)
MAX_INDEX_BYTES: Final = 64 << 20
_CHECKED_KEYS: Final = 256  # number of keys that each index of a plugin must not exclude
_SECTION: Final = struct.Struct("<QIB")
_MAX_SECTIONS: Final = 255
_FORM: Final = SectionForm(
    magic=b"STLGEXT1",
    section=_SECTION,
    fields_bytes=0,
    max_directory_bytes=_MAX_SECTIONS * (_SECTION.size + 255),
)


@runtime_checkable
class HasExtras(Protocol):
    """A segment that may have extra indexes."""

    def extra_index(self, label: str) -> bytes:
        """Return the extra index with this label (``name@version``); ``b""`` if it is missing, damaged or empty."""


def extra_index(segment: ReadableSegment, label: str) -> bytes:
    """Return the extra index with this label (``name@version``) of a segment; ``b""`` if the segment has none."""
    return segment.extra_index(label) if isinstance(segment, HasExtras) else b""


# --- bytes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedExtras:
    """Directory of packed extra indexes: identity of the segment, and the section of each index by its label."""

    identity: Identity
    sections: Mapping[str, FileSection]

    def index(self, label: str, read: ReadBytes) -> bytes | None:
        """Return the index with this label, read by ``read``; None if it is missing, damaged or above 64 MiB."""
        section = self.sections.get(label)
        if section is None or section.size_bytes > MAX_INDEX_BYTES:
            return None
        data = bytes(read(section.position, section.size_bytes))
        return data if len(data) == section.size_bytes and crc32c(data) == section.crc else None


def pack_extras(identity: Identity, indexes: Mapping[str, Buffer]) -> list[Buffer]:
    """Return extra indexes and their directory as packed bytes, in parts to be written in this order."""
    directory = b"".join(_FORM.entry(label, data) for label, data in indexes.items())
    return [*indexes.values(), directory + _FORM.trailer(directory, len(indexes), identity)]


def unpack_extras(read: ReadBytes, size_bytes: int) -> PackedExtras | None:
    """Return the directory of packed extra indexes, which have a total size of ``size_bytes``; None if damaged."""
    directory = _FORM.unpack(read, size_bytes)
    return (
        None
        if directory is None
        else PackedExtras(directory.identity, {section.name: section for section in directory.sections})
    )


# --- creation --------------------------------------------------------------------------------------------------------


def build_extras(
    segment: ReadableSegment, labels: Collection[str], components: Components, config: TopicConfig
) -> dict[str, Buffer]:
    """Return the bytes of the extra indexes of a closed segment, by label, built in one pass over its records.

    An index above 64 MiB is replaced by ``b""``, with a logged warning.

    Raises:
        CorruptBatchError: a batch is damaged; no index is built.
        PluginError: a builder raised an error that is not a StorageError, returned no index, or returned an index that
            excludes a key of the segment.
        StorageError: a builder raised this error, a record cannot be decoded, or a read failed.
    """
    extras = {label: components.extras.of(label) for label in labels}
    guards = {label: components.extras.guard(label) for label in labels}
    builders = {label: guards[label].call("builder", partial(index.builder, config)) for label, index in extras.items()}
    for label, builder in builders.items():
        guards[label].check_type("builder", builder, ExtraIndexBuilder)
    fields = reduce(or_, (index.fields for index in extras.values()), Fields.OFFSET)
    plugin_labels = [label for label in labels if not guards[label].is_bundled]
    keys = set[bytes]()
    for chunk in walk(segment, 0, components, offset_limit=segment.end_offset):
        for table in chunk.tables:
            for columns in decode(chunk, drop_markers(table), segment, components, fields):
                if plugin_labels and Fields.KEY in fields and len(keys) < _CHECKED_KEYS:
                    keys.update(_sample_keys(columns))
                for label, builder in builders.items():
                    guards[label].check_none("add", guards[label].call("add", partial(builder.add, columns)))
    data_by_label = {label: _finish(label, builder.finish, guards[label]) for label, builder in builders.items()}
    for label in plugin_labels:
        if data_by_label[label]:
            _check_keys(extras[label], data_by_label[label], keys, guards[label])
    return data_by_label


def _sample_keys(columns: RecordColumns) -> Iterator[bytes]:
    """Yield the keys of the first and the last record."""
    for row in {0, columns.count - 1}:
        keys = columns.take(row, row + 1).keys()
        yield from (bytes(key) for key in keys if key is not None)


def _check_keys(index: ExtraIndex, data: Buffer, keys: Collection[bytes], guard: Guard) -> None:
    """Raise PluginError if an index excludes one of ``keys``, which are in its segment: a search would miss records."""
    try:
        reader = guard.call("reader", partial(index.reader, data))
    except CorruptIndexError as error:
        guard.refuse("reader", f"refuses the bytes that finish made: {error}")
    guard.check_type("reader", reader, ExtraIndexReader)
    excluded_keys = guard.call("may_hold_key", lambda: [key for key in keys if reader.may_hold_key(key) is False])
    if excluded_keys:
        guard.refuse("may_hold_key", f"excludes {len(excluded_keys)} of {len(keys)} keys that the segment has")


def _finish(label: str, finish: Callable[[], Buffer], guard: Guard) -> Buffer:
    data = guard.call("finish", finish)
    try:
        size_bytes = memoryview(data).nbytes
    except TypeError:
        guard.refuse_type("finish", data, "bytes")
    if size_bytes <= MAX_INDEX_BYTES:
        return data
    _LOGGER.warning(
        "extra index %s of a segment is left out: it has %d bytes, at most %d are allowed",
        label,
        size_bytes,
        MAX_INDEX_BYTES,
    )
    return b""
