"""Lookup of the records of one key. Extra indexes skip segments that cannot contain the key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from stratalog.errors import (
    CorruptIndexError,
    ObjectNotFoundError,
    PluginImportError,
    SegmentGoneError,
    StorageError,
    UnknownComponentError,
)
from stratalog.log.read.columns import cut_columns, read_pieces
from stratalog.log.read.retry_read import ReadRetry, ViewSource
from stratalog.model.batches import BatchTable
from stratalog.model.matching import rows_of_key
from stratalog.model.records import Fields, Record
from stratalog.segment.components import Components, ExtraTable
from stratalog.segment.extra_index_file import extra_index
from stratalog.segment.framing import Chunk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode
from stratalog.spi.extra import ExtraIndexReader

_HAS_KEY: Final = 1


class SegmentExtra(NamedTuple):
    """An extra index of one segment. The segment has the offsets [base_offset, end_offset).

    If ``reader`` is None, the records must be read instead. It is None for the active segment, for a segment without an
    index or removed during the iteration, and for an index that is damaged or empty.
    """

    base_offset: int
    end_offset: int
    reader: ExtraIndexReader | None


def segment_extras(views: ViewSource, extras: ExtraTable, name: str) -> Iterator[SegmentExtra]:
    """Yield one item for each segment, oldest first, with the segment's extra index ``name``.

    A segment that is on local disk and in the tier is yielded once, for the local copy. Raises the same errors as
    ``LogReader.extra_index``.
    """
    view = views()
    labels = [label for label in extras.labels if label.rpartition("@")[0] == name]
    if not labels:
        names = ", ".join(sorted(label.rpartition("@")[0] for label in extras.labels)) or "none"
        raise UnknownComponentError(
            f"{view.name} has no extra index {name!r}, only: {names}; add it to index.extra of the topic"
        )
    for segment in view.readable():
        try:
            reader = None if view.is_active(segment) else _reader(segment, labels[0], extras)
        except (SegmentGoneError, ObjectNotFoundError) as error:
            if not ReadRetry(views, view).should_retry(error, segment):
                raise
            reader = None  # another segment has the records now, or retention removed them
        yield SegmentExtra(segment.base_offset, segment.end_offset, reader)


def records_with_key(
    views: ViewSource,
    components: Components,
    key: bytes,
    start: int,
    end: int | None,
    isolation: str,
    partition: int,
) -> Iterator[Record]:
    """Yield the records with this key and offsets in [start, end).

    Raises the same errors as ``LogReader.records_with_key``.
    """
    if not isinstance(key, bytes):  # another type would equal no key, and the result would be silently empty
        raise TypeError(f"the key must be bytes, not {type(key).__name__}")

    def decode_batches(
        chunk: Chunk, table: BatchTable, segment: ReadableSegment, span: range
    ) -> Iterator[tuple[Record, int]]:
        keys = decode(chunk, table, segment, components, Fields.OFFSET | Fields.KEY)
        if not any(_HAS_KEY in rows_of_key(columns, key) for columns in keys):
            return
        for columns in decode(chunk, table, segment, components, Fields.ALL):
            selected = cut_columns(columns, span)
            matches = rows_of_key(selected, key)
            row = matches.find(_HAS_KEY)
            while row >= 0:
                (record,) = selected.take(row, row + 1).to_records(partition)
                yield record, record.offset + 1
                row = matches.find(_HAS_KEY, row + 1)

    def is_without(segment: ReadableSegment) -> bool:
        return not all(_may_hold(segment, label, components.extras, key) for label in components.extras.labels)

    return read_pieces(
        views, components, start, end, isolation, decode_batches, components.limits.read_bytes, is_without
    )


def _may_hold(segment: ReadableSegment, label: str, extras: ExtraTable, key: bytes) -> bool:
    """Return False if an index proves that the segment lacks the key. If the index fails, the result is True."""
    reader = _reader(segment, label, extras)
    if reader is None:
        return True
    guard = extras.guard(label)
    try:
        with guard.calling("may_hold_key"):
            answer: object = reader.may_hold_key(key)
            if not isinstance(answer, bool):
                guard.refuse("may_hold_key", f"returned {answer!r}, neither True nor False")
    except CorruptIndexError:
        return True
    except StorageError as error:  # an error of a plugin must not stop a read of records
        extras.note_failure(label, "may_hold_key", segment.label, error)
        return True
    return answer is not False


def _reader(segment: ReadableSegment, label: str, extras: ExtraTable) -> ExtraIndexReader | None:
    data = extra_index(segment, label)
    if not data:
        return None
    guard = extras.guard(label)
    try:
        with guard.calling("reader"):
            return guard.of_type("reader", extras.of(label).reader(data), ExtraIndexReader)
    except (CorruptIndexError, PluginImportError):
        pass
    except StorageError as error:  # an error of a plugin must not stop a read of records
        extras.note_failure(label, "reader", segment.label, error)
    return None
