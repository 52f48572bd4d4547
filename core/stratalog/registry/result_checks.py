"""Checks of the results of components that do not come with stratalog. A result that breaks a rule could lose records.

Each check is a function of the guarded part, the method's result and the method's arguments. It returns the defect of
the result as text, "" if there is none. The docstrings of ``stratalog.spi`` state the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from stratalog.model.batches import BATCH_COLUMNS, BatchTable, Buffer, ScanStop
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.registry.guard import Guard
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import RecordFormat, Verdict
from stratalog.spi.indexes import IndexFormat
from stratalog.spi.layouts import MAC_BYTES, ManifestAuthenticator
from stratalog.spi.segment_store import IndexFile, LogFiles, SegmentFile, SegmentStore

_NO_LIMIT: Final = 1 << 31  # no limit, because the caller has the decompressed bytes in memory
_COMPARED: Final = tuple(name for name in BATCH_COLUMNS if name != "record_count")  # a scan may not know the count
_VERDICTS: Final = bytes(Verdict)
_Contents = list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """The check of one method of a guarded part.

    Attributes:
        find_defect: function of the part, the result of ``before`` (None if there is no ``before``), the method's
            result and the method's arguments. It returns the defect of the method's result as text, or "".
        before: function of the part and the method's arguments that is called before the method; None if not needed.
    """

    find_defect: Callable[..., str]
    before: Callable[..., Any] | None = None  # Any: an argument of ``find_defect``


def _is_same(first: Buffer, second: Buffer) -> bool:
    """Return True if two buffers have the same bytes. A comparison of memoryviews is slower."""
    return bytes(first) == bytes(second)


# --- codecs ------------------------------------------------------------------------------------------------------


def _check_compress(codec: Codec, _: None, result: bytes, data: Buffer, *, magic: int, **__: object) -> str:
    decompressed = codec.decompress(result, limit_bytes=max(len(data), 1), magic=magic)
    return "" if _is_same(decompressed, data) else "made bytes from which decompress does not return the data"


def _check_decompress(_: Codec, __: None, result: memoryview, *___: Buffer, limit_bytes: int, **____: object) -> str:
    return f"returned {result.nbytes} bytes, above limit_bytes={limit_bytes}" if result.nbytes > limit_bytes else ""


# --- record formats ----------------------------------------------------------------------------------------------


def _check_scan(
    record_format: RecordFormat, _: None, table: BatchTable, data: Buffer, start: int, end: int, *, check_crc: bool
) -> str:
    del data, check_crc
    if table.magic != record_format.magic:
        return f"returned batches of magic {table.magic}, not {record_format.magic}"
    ends = list(accumulate(table.size_bytes, initial=start))
    if list(table.position) != ends[:-1] or table.stop_position != ends[-1] or not start <= table.stop_position <= end:
        return f"returned batches that do not follow each other from {start} to {table.stop_position}"
    if any(size <= 0 for size in table.size_bytes):
        return "returned an empty batch"
    if table.stop is ScanStop.END and table.stop_position != end:
        return f"stopped at {table.stop_position} as if that were the end {end} of the range"
    return ""


def _check_encode(
    record_format: RecordFormat,
    _: None,
    result: bytearray,
    records: Sequence[Record] | RecordColumns,
    *__: object,
    **___: object,
) -> str:
    rows = _contents([records if isinstance(records, RecordColumns) else RecordColumns.from_records(records)])
    return _compare_records(record_format, result, [row[2:] for row in rows])


def _compare_records(record_format: RecordFormat, data: Buffer, expected: Sequence[object]) -> str:
    """Return "" if ``data`` is whole batches, whose records have the ``expected`` contents, or the defect as text."""
    table = record_format.scan(data, 0, len(data), check_crc=True)
    if table.stop is not ScanStop.END or not len(table):
        return f"made bytes that scan refuses: {table.reason or table.stop}"
    decoded = _contents(record_format.decode(data, table, fields=Fields.ALL, limit_bytes=_NO_LIMIT))
    return (
        "" if [row[2:] for row in decoded] == expected else "made bytes from which decode does not return the records"
    )


def _contents(pieces: Iterable[RecordColumns]) -> _Contents:
    return [
        (offset, timestamp_ms, key, value, headers)
        for piece in pieces
        for offset, timestamp_ms, key, value, headers in zip(
            piece.offset, piece.timestamp_ms, piece.keys(), piece.values(), piece.headers(), strict=True
        )
    ]


def _check_prepare_records(
    record_format: RecordFormat,
    _: None,
    result: PreparedBatches | None,
    records: Sequence[Record],
    *__: object,
    **___: object,
) -> str:
    if result is None:
        return ""
    rows = [row[2:] for row in _contents([RecordColumns.from_records(records)])]
    return _compare_records(record_format, result.data, rows) or _compare_table(record_format, result)


def _check_prepare_batches(
    record_format: RecordFormat, _: None, result: PreparedBatches | None, data: Buffer, *__: object, **___: object
) -> str:
    if result is None:
        return ""
    if not _is_same(result.data, data):
        return "returned other bytes than it was given"
    return _compare_table(record_format, result)


def _compare_table(record_format: RecordFormat, batches: PreparedBatches) -> str:
    table = record_format.scan(batches.data, 0, len(batches.data), check_crc=True)
    if table.stop is not ScanStop.END:
        return f"made bytes that scan refuses: {table.reason or table.stop}"
    for name in _COMPARED:
        if getattr(table, name) != getattr(batches.table, name):
            return f"made a table whose {name} is not that of the bytes"
    return ""


def _check_assign(
    record_format: RecordFormat,
    _: None,
    __: None,
    batches: PreparedBatches,
    base_offset: int,
    leader_epoch: int,
    *___: object,
    **____: object,
) -> str:
    last_offset = base_offset + batches.span - 1
    if batches.last_offset != last_offset or batches.table.last_offset[-1] != last_offset:
        return f"assigned offsets up to {batches.last_offset}, not {last_offset}"
    if batches.magic >= 2 and any(epoch != leader_epoch for epoch in batches.table.leader_epoch):
        return f"did not assign leader epoch {leader_epoch}"
    return _compare_table(record_format, batches)


def _check_select(
    record_format: RecordFormat,
    _: None,
    result: tuple[int, int, int] | None,
    data: Buffer,
    *,
    offset: int,
    beyond_bytes: int = 0,
    **__: object,
) -> str:
    if result is None:
        return ""
    start, end, last_offset = result
    if not 0 <= start <= end <= len(data) + beyond_bytes:
        return f"returned [{start}, {end}), which is outside of the {len(data)} bytes"
    if end > len(data) or start == end:
        return ""
    table = record_format.scan(data, start, end, check_crc=False)
    if table.stop is not ScanStop.END or table.last_offset[0] < offset or table.last_offset[-1] != last_offset:
        return f"returned [{start}, {end}), which is not the batches from offset {offset} to {last_offset}"
    return ""


def _check_decode(
    guard: Guard,
    record_format: RecordFormat,
    pieces: Iterator[RecordColumns],
    data: Buffer,
    batches: BatchTable,
    **_: object,
) -> Iterator[RecordColumns]:
    del record_format, data
    record_counts, count = list(batches.record_count), 0
    for piece in pieces:
        count += piece.count
        yield piece
    if min(record_counts, default=0) >= 0 and count != sum(record_counts):
        guard.refuse("decode", f"returned {count} records of batches with {sum(record_counts)}")


def _check_retain(
    guard: Guard,
    record_format: RecordFormat,
    pieces: Iterator[Buffer],
    data: Buffer,
    batches: BatchTable,
    verdicts: Sequence[Buffer],
    horizon_ms: int | None,
    *,
    limit_bytes: int,
    **_: object,
) -> Iterator[Buffer]:
    del horizon_ms
    with guard.calling("retain"):
        retained_bytes = b"".join(pieces)
        records = _contents(record_format.decode(data, batches, fields=Fields.ALL, limit_bytes=limit_bytes))
        expected = [row for row, verdict in zip(records, b"".join(verdicts), strict=True) if verdict != Verdict.DROP]
        table = record_format.scan(retained_bytes, 0, len(retained_bytes), check_crc=True)
        decoded = (
            _contents(record_format.decode(retained_bytes, table, fields=Fields.ALL, limit_bytes=limit_bytes))
            if len(table)
            else []
        )
    if table.stop is not ScanStop.END:
        guard.refuse("retain", f"made bytes that scan refuses: {table.reason or table.stop}")
    if decoded != expected:
        guard.refuse("retain", f"kept other records than the verdicts say: {len(decoded)}, not {len(expected)}")
    yield retained_bytes


# --- index formats -----------------------------------------------------------------------------------------------


def _check_kept_bytes(
    index_format: IndexFormat[Any], _: None, result: int, entries: Buffer, *__: object, **___: object
) -> str:
    if 0 <= result <= len(entries) and result % index_format.entry_bytes == 0:
        return ""
    return f"returned {result}, which is not a border of an entry in {len(entries)} bytes"


# --- segment stores ----------------------------------------------------------------------------------------------


def _size(file: SegmentFile | IndexFile, *_: object, **__: object) -> int:
    return file.size_bytes


def _check_segment_append(file: SegmentFile, size_bytes: int, position: int, data: Buffer) -> str:
    if position != size_bytes:
        return f"returned position {position} in a file of {size_bytes} bytes"
    added_bytes = memoryview(data).nbytes
    if file.size_bytes != size_bytes + added_bytes:
        return f"left the file with {file.size_bytes} bytes, not {size_bytes + added_bytes}"
    return "" if _is_same(file.read(position, added_bytes), data) else "kept other bytes than it was given"


def _check_index_append(file: IndexFile, size_bytes: int, _: None, entries: Buffer) -> str:
    added_entries = file.view()[size_bytes:]
    if added_entries == entries:
        return ""
    return f"kept {len(added_entries)} other bytes than the {len(entries)} that it was given"


def _check_truncate(file: SegmentFile | IndexFile, _: None, __: None, size_bytes: int) -> str:
    return "" if file.size_bytes == size_bytes else f"left the file with {file.size_bytes} bytes, not {size_bytes}"


def _check_read(_: SegmentFile, __: None, data: memoryview, position: int, size_bytes: int) -> str:
    del position
    return f"returned {len(data)} bytes, more than {size_bytes}" if len(data) > size_bytes else ""


def _check_read_into(file: SegmentFile, _: None, count: int, position: int, into: memoryview) -> str:
    del file, position
    return "" if 0 <= count <= len(into) else f"returned {count}, but was given {len(into)} bytes to fill"


def _check_open_segment(
    files: LogFiles, _: None, __: SegmentFile, name: str, *, create: bool = False, preallocate_bytes: int = 0
) -> str:
    del preallocate_bytes
    return "" if not create or any(file.name == name for file in files.list()) else f"created no file {name}"


def _check_replace_small(store: LogFiles | SegmentStore, _: None, __: None, name: str, data: Buffer) -> str:
    return "" if store.read_small(name) == data else f"kept other bytes than it was given for {name}"


def _check_rename(files: LogFiles, _: None, __: None, old: str, new: str) -> str:
    return f"left {old} in its place" if old != new and any(file.name == old for file in files.list()) else ""


def _check_rename_log(store: SegmentStore, _: None, __: None, old: str, new: str) -> str:
    names = store.logs()
    return "" if new in names and (old == new or old not in names) else f"did not rename {old} to {new}"


def _check_remove_log(store: SegmentStore, _: None, __: None, name: str) -> str:
    return f"left {name} in its place" if name in store.logs() else ""


def _check_remove(files: LogFiles, _: None, __: None, name: str) -> str:
    return f"left {name} in its place" if any(file.name == name for file in files.list()) else ""


# --- record filters ----------------------------------------------------------------------------------------------


def _check_observe(_: RecordFilter, __: None, result: int, records: RecordColumns) -> str:
    return "" if 0 <= result <= records.count else f"returned {result} for {records.count} records"


def _check_judge(_: RecordFilter, count: int, __: None, records: RecordColumns, verdicts: bytearray) -> str:
    del records
    if len(verdicts) != count:
        return f"changed the number of verdicts from {count} to {len(verdicts)}"
    return f"wrote a value that is no Verdict: {max(verdicts)}" if verdicts.strip(_VERDICTS) else ""


def _count_verdicts(record_filter: RecordFilter, records: RecordColumns, verdicts: bytearray) -> int:
    del record_filter, records
    return len(verdicts)


# --- authenticators of manifests ---------------------------------------------------------------------------------


def _check_mac(_: object, __: None, result: bytes, *___: object) -> str:
    return "" if len(result) == MAC_BYTES else f"returned {len(result)} bytes, not {MAC_BYTES}"


CHECKS: Final[Mapping[tuple[type[Any], str], ResultCheck]] = {  # Any: classes of every kind
    (Codec, "compress"): ResultCheck(_check_compress),
    (Codec, "decompress"): ResultCheck(_check_decompress),
    (RecordFormat, "scan"): ResultCheck(_check_scan),
    (RecordFormat, "encode"): ResultCheck(_check_encode),
    (RecordFormat, "prepare_records"): ResultCheck(_check_prepare_records),
    (RecordFormat, "prepare_batches"): ResultCheck(_check_prepare_batches),
    (RecordFormat, "assign"): ResultCheck(_check_assign),
    (RecordFormat, "select"): ResultCheck(_check_select),
    (IndexFormat, "kept_bytes"): ResultCheck(_check_kept_bytes),
    (LogFiles, "open_segment"): ResultCheck(_check_open_segment),
    (SegmentFile, "append"): ResultCheck(_check_segment_append, _size),
    (SegmentFile, "truncate"): ResultCheck(_check_truncate),
    (SegmentFile, "read"): ResultCheck(_check_read),
    (SegmentFile, "read_into"): ResultCheck(_check_read_into),
    (IndexFile, "append"): ResultCheck(_check_index_append, _size),
    (IndexFile, "truncate"): ResultCheck(_check_truncate),
    (LogFiles, "replace_small"): ResultCheck(_check_replace_small),
    (LogFiles, "rename"): ResultCheck(_check_rename),
    (LogFiles, "remove"): ResultCheck(_check_remove),
    (SegmentStore, "replace_small"): ResultCheck(_check_replace_small),
    (SegmentStore, "rename_log"): ResultCheck(_check_rename_log),
    (SegmentStore, "remove_log"): ResultCheck(_check_remove_log),
    (RecordFilter, "observe"): ResultCheck(_check_observe),
    (RecordFilter, "judge"): ResultCheck(_check_judge, _count_verdicts),
    (ManifestAuthenticator, "mac"): ResultCheck(_check_mac),
}
LAZY_CHECKS: Final[Mapping[tuple[type[Any], str], Callable[..., Iterator[Any]]]] = {  # Any: as above
    (RecordFormat, "decode"): _check_decode,
    (RecordFormat, "retain"): _check_retain,
}
