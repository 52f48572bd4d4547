"""Records as objects, and records as columns. The module ``arrow`` converts columns to Arrow tables."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING, Final, Self

from stratalog.extensions import extension
from stratalog.model import record_py
from stratalog.model.batches import Buffer
from stratalog.model.record_checks import Headers
from stratalog.model.record_py import Survey

__all__ = [
    "EXTENSIONS", "Fields", "Headers", "Record", "RecordColumns", "Survey", "int32_column", "int64_column", "survey",
]  # fmt: skip

EXTENSIONS: Final = (
    "stratalog.model.record_c",
    "stratalog.model.arrow_c",
    "stratalog.model.matching_c",
    "stratalog.model.prepared_c",
)
"""The compiled twins of the modules in ``stratalog.model``."""

_twin: Final = extension("stratalog.model.record_c") or record_py

if TYPE_CHECKING:
    from stratalog.model.record_py import Record  # the type of both twins, though a compiled Record is not a tuple
else:
    Record = _twin.Record


class Fields(Flag):
    """The fields of records that a decoder fills. The columns of other fields are empty."""

    OFFSET = auto()
    TIMESTAMP = auto()
    KEY = auto()
    VALUE = auto()
    HEADERS = auto()
    ALL = OFFSET | TIMESTAMP | KEY | VALUE | HEADERS


def int64_column(values: Iterable[int] = ()) -> memoryview:
    """Return a column (memoryview of format ``q``) of these int64 values."""
    return memoryview(array("q", values))


def int32_column(values: Iterable[int] = ()) -> memoryview:
    """Return a column (memoryview of format ``i``) of these int32 values."""
    return memoryview(array("i", values))


_NO_LONGS: Final = int64_column()
_NO_INTS: Final = int32_column()


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records as columns over one ``arena`` of bytes. ``count`` is the number of records.

    Every column is a contiguous ``memoryview`` of native numbers: ``offset`` and ``timestamp_ms`` of format ``q``
    (int64), all others of format ``i`` (int32). Record columns have ``count`` rows. ``Fields.OFFSET`` fills ``offset``
    and ``leader_epoch``; ``Fields.TIMESTAMP`` fills ``timestamp_ms`` and ``timestamp_type``. A column that was not
    requested has 0 rows. ``key_position`` and ``key_size`` locate a key in the arena, and ``value_position`` and
    ``value_size`` a value; a size below 0 means null. The flat columns, ``header_key_position`` to
    ``header_value_size``, have one row for each header. A record's headers are ``header_count`` rows of the flat
    columns, from the row ``header_first`` on.

    Raises (every method that reads the arena):
        IndexError: a field is not inside the arena, a header is not inside the flat columns, or a header has no name.
        TypeError: a column does not have its format.
        ValueError: columns have different lengths.
    """

    arena: Buffer
    count: int
    offset: memoryview = _NO_LONGS
    timestamp_ms: memoryview = _NO_LONGS
    timestamp_type: memoryview = _NO_INTS
    leader_epoch: memoryview = _NO_INTS
    key_position: memoryview = _NO_INTS
    key_size: memoryview = _NO_INTS
    value_position: memoryview = _NO_INTS
    value_size: memoryview = _NO_INTS
    header_first: memoryview = _NO_INTS
    header_count: memoryview = _NO_INTS
    header_key_position: memoryview = _NO_INTS
    header_key_size: memoryview = _NO_INTS
    header_value_position: memoryview = _NO_INTS
    header_value_size: memoryview = _NO_INTS

    @classmethod
    def from_records(cls, records: Iterable[Record]) -> Self:
        """Return columns with every field of the records, but without their partitions, and with a new arena.

        Raises:
            WrongTypeError: an item is not a Record.
            InvalidRecordError: a header's name is not Unicode text, or keys, values and headers need more than 2 GiB.
        """
        arena, count, columns = _twin.columns_of(records)
        return cls(arena, count, *columns)

    def take(self, start: int, end: int) -> RecordColumns:
        """Return the slice ``[start:end]`` of the records. The arena and the flat header columns are shared."""
        return RecordColumns(
            self.arena,
            len(range(self.count)[start:end]),
            self.offset[start:end],
            self.timestamp_ms[start:end],
            self.timestamp_type[start:end],
            self.leader_epoch[start:end],
            self.key_position[start:end],
            self.key_size[start:end],
            self.value_position[start:end],
            self.value_size[start:end],
            self.header_first[start:end],
            self.header_count[start:end],
            self.header_key_position,
            self.header_key_size,
            self.header_value_position,
            self.header_value_size,
        )

    def keys(self) -> list[bytes | None]:
        """Return all keys; an empty list if keys were not requested. For the errors, see ``RecordColumns``."""
        return _items_of(self.arena, self.key_position, self.key_size)

    def values(self) -> list[bytes | None]:
        """Return all values; an empty list if values were not requested. For the errors, see ``RecordColumns``."""
        return _items_of(self.arena, self.value_position, self.value_size)

    def headers(self) -> list[Headers]:
        """Return the headers of each record; an empty tuple for each record if headers were not requested.

        As in Kafka, U+FFFD replaces bytes of a name that are not UTF-8. For the errors, see ``RecordColumns``.
        """
        return _headers_of(self) if len(self.header_count) else [()] * self.count

    def to_records(self, partition: int = -1) -> list[Record]:
        """Return all records as objects, with the given partition number. The columns must have every field.

        Raises:
            ConfigError: a field is absent; the text names its column.
            InvalidRecordError: ``partition`` does not fit 32 bits.
            ValueError: a value is not a timestamp type.
            IndexError, TypeError, ValueError: the columns break a rule of ``RecordColumns``.
        """
        return _records_of(self, partition)

    def iter_records(self, partition: int = -1) -> Iterator[Record]:
        """Yield the records one by one. The columns must have every field.

        Raises:
            ConfigError, InvalidRecordError, IndexError, TypeError, ValueError: the errors of ``to_records``. They are
                raised at the latest when the iteration reaches the wrong record.
        """
        return _iterator_of(self, partition)


_items_of: Final[Callable[[Buffer, memoryview, memoryview], list[bytes | None]]] = _twin.items_of
_headers_of: Final[Callable[[RecordColumns], list[Headers]]] = _twin.headers_of
_records_of: Final[Callable[[RecordColumns, int], list[Record]]] = _twin.records_of
_iterator_of: Final[Callable[[RecordColumns, int], Iterator[Record]]] = _twin.iterator_of
survey: Final[Callable[[Sequence[Record], int, int, int], Survey]] = _twin.survey
