"""Records as objects, in pure Python: the class, and the conversion of columns to objects and back.

``record_c`` has the same class and functions as compiled code; ``records`` selects one of the two modules.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never, Self, final

from stratalog.model.batches import NO_EPOCH, NO_TIMESTAMP, Buffer, TimestampType
from stratalog.model.column_views import (
    FLAT_COLUMNS,
    ROW_COLUMNS,
    null_name,
    outside,
    outside_headers,
    typed_view,
    views_of,
)
from stratalog.model.record_checks import Headers, checked_fields, integer, name_bytes, no_record, too_large

if TYPE_CHECKING:
    from stratalog.model.records import RecordColumns

_END_64: Final = 1 << 63
_END_32: Final = 1 << 31
_MAX_ARENA_BYTES: Final = _END_32 - 1  # positions in columns have 32 bits
_ROWS_AT_A_TIME: Final = 1024
_HEADER_OVERHEAD_BYTES: Final = 4
_ENCODED_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


class _RecordFields(NamedTuple):
    offset: int = -1
    timestamp_ms: int = NO_TIMESTAMP
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    leader_epoch: int = NO_EPOCH
    partition: int = -1


@final
class Record(_RecordFields):
    """One record, read or to be written. Immutable; the class cannot have subclasses.

    A record unpacks, compares, orders and hashes like the tuple of its fields.

    Attributes:
        offset: int64; the log assigns it when the record is written, and it is -1 before.
        timestamp_ms: int64 (ms since 1970); -1 means "no timestamp": an append then uses the time of the log's clock.
        timestamp_type: NONE for magic 0, otherwise CREATE_TIME or LOG_APPEND_TIME. An append ignores it.
        key: bytes, or None for no key. An empty key is a key.
        value: bytes, or None. In a compacted topic, a record with the value None is a tombstone.
        headers: pairs of name and value, in order; a name may repeat. A list is converted to a tuple.
        leader_epoch: int32; leader epoch of the batch, -1 if the format has none (magic 0 and 1).
        partition: int32; number of the partition from which the record was read, -1 for a record to be written.

    Raises:
        WrongTypeError: a field is of a wrong type.
        InvalidRecordError: a number does not fit its 64 or 32 bits.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 - documented at the class
        cls,
        offset: int = -1,
        timestamp_ms: int = NO_TIMESTAMP,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        leader_epoch: int = NO_EPOCH,
        partition: int = -1,
    ) -> Self:
        fields = (offset, timestamp_ms, timestamp_type, key, value, headers, leader_epoch, partition)
        if not (
            type(offset) is type(timestamp_ms) is type(leader_epoch) is type(partition) is int
            and type(timestamp_type) is TimestampType
            and (key is None or type(key) is bytes)
            and (value is None or type(value) is bytes)
            and type(headers) is tuple
            and not headers
            and -_END_64 <= offset < _END_64
            and -_END_64 <= timestamp_ms < _END_64
            and -_END_32 <= leader_epoch < _END_32
            and -_END_32 <= partition < _END_32
        ):
            fields = checked_fields(*fields)
        return tuple.__new__(cls, fields)

    def __init_subclass__(cls) -> Never:
        raise TypeError("type 'Record' is not an acceptable base type")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return restore_record, tuple(self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    if not TYPE_CHECKING:  # type checkers use the typed methods of the named tuple

        @classmethod
        def _make(cls, fields: Iterable[object]) -> Self:
            values = tuple(fields)
            if len(values) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(values)}")
            return cls(*values)

        def _replace(self, /, **changes: object) -> Self:
            return type(self)(**(dict(zip(self._fields, self, strict=True)) | changes))


def restore_record(*fields: Any) -> object:  # Any: unpickled
    """Return a record from its pickled fields. Its class is the ``Record`` of this process, compiled or not."""
    from stratalog.model.records import Record as Chosen  # noqa: PLC0415 - that module imports this one

    return Chosen(*fields)


def text_of(raw: bytes) -> str:
    """Decode UTF-8 as Java does: U+FFFD replaces invalid bytes. One U+FFFD replaces a whole encoded surrogate.

    Source: apache/kafka Utils.utf8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xff", raw).decode("utf-8", "replace")


# --- from columns ------------------------------------------------------------------------------------------------


def records_of(columns: RecordColumns, partition: int) -> list[Record]:
    """Return all records of columns as objects. The columns must have every field of ``Fields.ALL``.

    Raises:
        IndexError: a field is not inside the arena, a header is not inside the flat columns, or a header has no name.
        ValueError: a value is not a timestamp type.
        ConfigError, TypeError, ValueError: the columns break a rule of ``views_of``.
    """
    views = views_of(columns)
    raw = _as_bytes(columns.arena)
    offset, timestamp_ms, timestamp_type, leader_epoch, key_at, key_size, value_at, value_size = views[:8]
    kinds = set(timestamp_type)
    rows = zip(
        offset.tolist(),
        timestamp_ms.tolist(),
        repeat(_type_of(kinds.pop())) if len(kinds) == 1 else map(_type_of, timestamp_type),
        items_of(raw, key_at, key_size),
        items_of(raw, value_at, value_size),
        _headers(raw, *views[8:]),
        leader_epoch.tolist(),
        repeat(integer("partition", partition, 32)),
        strict=False,  # because the last iterator never ends
    )
    return list(map(_UNCHECKED, rows))


def iterator_of(columns: RecordColumns, partition: int) -> Iterator[Record]:
    """Return an iterator over the records of columns. The columns must have every field of ``Fields.ALL``.

    Raises:
        IndexError, ValueError: the errors of ``records_of``. They are raised during the iteration, at the wrong record
            or up to 1,023 records earlier.
        ConfigError, TypeError, ValueError: the columns break a rule of ``views_of``. The call raises these errors.
    """
    views_of(columns)
    integer("partition", partition, 32)
    chunk = replace(columns, arena=_as_bytes(columns.arena))
    starts = range(0, columns.count, _ROWS_AT_A_TIME)
    return chain.from_iterable(records_of(chunk.take(start, start + _ROWS_AT_A_TIME), partition) for start in starts)


def items_of(arena: Buffer, positions: memoryview, sizes: memoryview) -> list[bytes | None]:
    """Return the bytes of each field, given by its position and size in the arena; None for a negative size.

    Raises:
        IndexError: a field is not inside the arena.
        TypeError, ValueError: a column does not have its format, or the columns differ in length.
    """
    raw = _as_bytes(arena)
    starts, counts = typed_view(positions, "i", "position").tolist(), typed_view(sizes, "i", "size").tolist()
    if starts and len(starts) == len(counts):  # fast paths for columns with only nulls and without nulls
        if max(counts) < 0:
            return [None] * len(counts)
        ends = list(map(add, starts, counts))
        if min(counts) >= 0 <= min(starts) and max(ends) <= len(raw):
            return [raw[start:end] for start, end in zip(starts, ends, strict=True)]
    end = len(raw)
    if len(starts) != len(counts):
        raise ValueError(f"{len(starts)} positions and {len(counts)} sizes")
    pairs = zip(starts, counts, strict=True)
    return [
        None
        if size < 0
        else raw[position : position + size]
        if 0 <= position <= end - size
        else outside(position, size)
        for position, size in pairs
    ]


def headers_of(columns: RecordColumns) -> list[Headers]:
    """Return the headers of each record. The columns must have the field HEADERS.

    Raises:
        IndexError: a name or value is not inside the arena, a header is not inside the flat columns, or a header has no
            name.
        TypeError, ValueError: a column does not have its format, or the columns differ in length.
    """
    names = ("header_first", "header_count", *FLAT_COLUMNS)
    views = [typed_view(getattr(columns, name), "i", name) for name in names]
    return _headers(_as_bytes(columns.arena), *views)


_UNCHECKED: Final = partial(tuple.__new__, Record)
_TYPES: Final = {int(kind): kind for kind in TimestampType}


def _type_of(number: int) -> TimestampType:
    kind = _TYPES.get(number)
    return TimestampType(number) if kind is None else kind


def _as_bytes(arena: Buffer) -> bytes:
    return arena if isinstance(arena, bytes) else bytes(arena)


def _headers(
    raw: bytes,
    firsts: memoryview,
    counts: memoryview,
    key_at: memoryview,
    key_size: memoryview,
    value_at: memoryview,
    value_size: memoryview,
) -> list[Headers]:
    if len(firsts) != len(counts):
        raise ValueError(f"{len(firsts)} rows of header_first and {len(counts)} of header_count")
    total = min(len(key_at), len(key_size), len(value_at), len(value_size))
    if not total and not any(counts):
        return [()] * len(counts)
    result: list[Headers] = []
    for first, count in zip(firsts, counts, strict=True):
        if not count:
            result.append(())
            continue
        if first < 0 or count < 0 or first + count > total:
            outside_headers(first, count, total)
        rows = slice(first, first + count)
        names = [null_name() if name is None else text_of(name) for name in items_of(raw, key_at[rows], key_size[rows])]
        result.append(tuple(zip(names, items_of(raw, value_at[rows], value_size[rows]), strict=True)))
    return result


# --- survey of many records --------------------------------------------------------------------------------------


class Survey(NamedTuple):
    """Result of ``survey``, a scan of records from one index on.

    ``end`` is the index of the first record that would exceed the limit, or the number of records if none does.
    ``least_ms`` and ``largest_ms`` are the smallest and the largest timestamp of the scanned records, which are before
    ``end``. ``null_key`` is True if a scanned record has no key.
    """

    end: int
    least_ms: int
    largest_ms: int
    null_key: bool


def survey(records: Sequence[Record], start: int, limit_bytes: int, overhead_bytes: int) -> Survey:
    """Scan records from ``start`` on: at least one record, and at most as many as fit ``limit_bytes``.

    The size of a record is an estimate, in which each character of a header's name counts as one byte.

    Args:
        records: all records.
        start: index of the first record to scan, below the number of records.
        limit_bytes: size limit for keys, values, headers and overhead.
        overhead_bytes: bytes that the format adds to each record.

    Raises:
        WrongTypeError: a scanned item is not a Record.
        IndexError: ``start`` is negative.
    """
    if start < 0:
        raise IndexError(f"there is no record {start}")
    size, end, least_ms, largest_ms, null_key = 0, len(records), _END_64 - 1, -_END_64, False
    for number, record in enumerate(islice(records, start, None), start):
        if type(record) is not Record:
            raise no_record(record)
        record_bytes = overhead_bytes + len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            record_bytes += len(name) + len(value or b"") + _HEADER_OVERHEAD_BYTES
        if size and size + record_bytes > limit_bytes:
            end = number
            break
        size += record_bytes
        null_key = null_key or record.key is None
        least_ms, largest_ms = min(least_ms, record.timestamp_ms), max(largest_ms, record.timestamp_ms)
    return Survey(end, least_ms, largest_ms, null_key)


# --- to columns --------------------------------------------------------------------------------------------------


def columns_of(records: Iterable[Record]) -> tuple[bytes, int, Iterator[memoryview]]:
    """Return the arena, the count and the columns of records: first ``ROW_COLUMNS``, then ``FLAT_COLUMNS``."""
    columns = {name: array(code) for name, code in (ROW_COLUMNS | FLAT_COLUMNS).items()}
    parts, arena_bytes, count = list[bytes](), 0, 0

    def place(item: bytes | None, position: array[int], size: array[int]) -> None:
        nonlocal arena_bytes
        position.append(arena_bytes)
        size.append(-1 if item is None else len(item))
        if item:
            parts.append(item)
            arena_bytes += len(item)
            if arena_bytes > _MAX_ARENA_BYTES:
                raise too_large(count)

    for count, record in enumerate(records):
        if type(record) is not Record:
            raise no_record(record)
        place(record.key, columns["key_position"], columns["key_size"])
        place(record.value, columns["value_position"], columns["value_size"])
        columns["header_first"].append(len(columns["header_key_size"]))
        columns["header_count"].append(len(record.headers))
        for name, value in record.headers:
            place(name_bytes(name, count), columns["header_key_position"], columns["header_key_size"])
            place(value, columns["header_value_position"], columns["header_value_size"])
        for field in ("offset", "timestamp_ms", "timestamp_type", "leader_epoch"):
            columns[field].append(getattr(record, field))
    return b"".join(parts), len(columns["offset"]), map(memoryview, columns.values())
