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
from stratalog.model.prepared import PreparedBatches, Rules
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.registry.guard import Guard
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader, RecordFormat, Verdict
from stratalog.spi.indexes import IndexFormat
from stratalog.spi.layouts import MAC_BYTES, ManifestAuthenticator
from stratalog.spi.segment_store import IndexFile, LogFiles, SegmentFile, SegmentStore

_NO_LIMIT: Final = 1 << 31  # decompressed bytes need no limit: the caller had them in memory
_COMPARED: Final = tuple(name for name in BATCH_COLUMNS if name != "record_count")  # a scan may not know the count
_VERDICTS: Final = bytes(Verdict)
_Contents = list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """The check of one method of a guarded part.

    Attributes:
        wrong: called with the part, the result of ``before`` (None without it), the method's result and its arguments;
            returns the defect as text, or "".
        before: called before the method, with the part and the arguments; its result is passed to ``wrong``.
    """

    wrong: Callable[..., str]
    before: Callable[..., Any] | None = None  # Any: an argument of ``wrong``


def _same(one: Buffer, other: Buffer) -> bool:
    """Return True if two buffers have the same bytes. A comparison of memoryviews is slower."""
    return bytes(one) == bytes(other)


# --- codecs ------------------------------------------------------------------------------------------------------


def _compressed(found: Codec, _: None, result: bytes, data: Buffer, *, level: int | None, magic: int) -> str:
    del level
    back = found.decompress(result, limit_bytes=max(len(data), 1), magic=magic)
    return "" if _same(back, data) else "made bytes from which decompress does not return the data"


def _decompressed(found: Codec, _: None, result: memoryview, data: Buffer, *, limit_bytes: int, magic: int) -> str:
    del found, data, magic
    return f"returned {result.nbytes} bytes, above limit_bytes={limit_bytes}" if result.nbytes > limit_bytes else ""


# --- record formats ----------------------------------------------------------------------------------------------


def _scanned(
    found: RecordFormat, _: None, table: BatchTable, data: Buffer, start: int, end: int, *, check_crc: bool
) -> str:
    del data, check_crc
    if table.magic != found.magic:
        return f"returned batches of magic {table.magic}, not {found.magic}"
    ends = list(accumulate(table.size_bytes, initial=start))
    if list(table.position) != ends[:-1] or table.stop_position != ends[-1] or not start <= table.stop_position <= end:
        return f"returned batches that do not follow each other from {start} to {table.stop_position}"
    if any(size <= 0 for size in table.size_bytes):
        return "returned an empty batch"
    if table.stop is ScanStop.END and table.stop_position != end:
        return f"stopped at {table.stop_position} as if that were the end {end} of the range"
    return ""


def _encoded(
    found: RecordFormat,
    _: None,
    result: bytearray,
    records: Sequence[Record] | RecordColumns,
    header: BatchHeader,
    codec: Codec | None,
    level: int | None,
    *,
    keep_offsets: bool = False,
) -> str:
    del header, codec, level, keep_offsets
    wanted = _contents([records if isinstance(records, RecordColumns) else RecordColumns.from_records(records)])
    return _unlike(found, result, [row[2:] for row in wanted])


def _unlike(found: RecordFormat, data: Buffer, wanted: Sequence[object]) -> str:
    """Return the defect if ``data`` is not whole batches of records with these keys, values and headers; else ""."""
    table = found.scan(data, 0, len(data), check_crc=True)
    if table.stop is not ScanStop.END or not len(table):
        return f"made bytes that scan refuses: {table.reason or table.stop}"
    kept = _contents(found.decode(data, table, fields=Fields.ALL, limit_bytes=_NO_LIMIT))
    return "" if [row[2:] for row in kept] == wanted else "made bytes from which decode does not return the records"


def _contents(pieces: Iterable[RecordColumns]) -> _Contents:
    return [
        (offset, timestamp_ms, key, value, headers)
        for piece in pieces
        for offset, timestamp_ms, key, value, headers in zip(
            piece.offset, piece.timestamp_ms, piece.keys(), piece.values(), piece.headers(), strict=True
        )
    ]


def _prepared_records(
    found: RecordFormat, _: None, result: PreparedBatches | None, records: Sequence[Record], rules: Rules, now_ms: int
) -> str:
    del rules, now_ms
    if result is None:
        return ""
    wanted = [row[2:] for row in _contents([RecordColumns.from_records(records)])]
    return _unlike(found, result.data, wanted) or _other_table(found, result)


def _prepared_batches(
    found: RecordFormat, _: None, result: PreparedBatches | None, data: Buffer, rules: Rules, now_ms: int
) -> str:
    del rules, now_ms
    if result is None:
        return ""
    if not _same(result.data, data):
        return "returned other bytes than it was given"
    return _other_table(found, result)


def _other_table(found: RecordFormat, batches: PreparedBatches) -> str:
    table = found.scan(batches.data, 0, len(batches.data), check_crc=True)
    if table.stop is not ScanStop.END:
        return f"made bytes that scan refuses: {table.reason or table.stop}"
    for name in _COMPARED:
        if getattr(table, name) != getattr(batches.table, name):
            return f"made a table whose {name} is not that of the bytes"
    return ""


def _assigned(
    found: RecordFormat,
    _: None,
    result: None,
    batches: PreparedBatches,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None,
) -> str:
    del result, append_time_ms
    last_offset = base_offset + batches.span - 1
    if batches.last_offset != last_offset or batches.table.last_offset[-1] != last_offset:
        return f"assigned offsets up to {batches.last_offset}, not {last_offset}"
    if batches.magic >= 2 and any(epoch != leader_epoch for epoch in batches.table.leader_epoch):
        return f"did not assign leader epoch {leader_epoch}"
    return _other_table(found, batches)


def _selected(
    found: RecordFormat,
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
    table = found.scan(data, start, end, check_crc=False)
    if table.stop is not ScanStop.END or table.last_offset[0] < offset or table.last_offset[-1] != last_offset:
        return f"returned [{start}, {end}), which is not the batches from offset {offset} to {last_offset}"
    return ""


def _decoded(
    guard: Guard, found: RecordFormat, pieces: Iterator[RecordColumns], data: Buffer, batches: BatchTable, **_: object
) -> Iterator[RecordColumns]:
    del found, data
    wanted, count = list(batches.record_count), 0
    for piece in pieces:
        count += piece.count
        yield piece
    if min(wanted, default=0) >= 0 and count != sum(wanted):
        guard.refuse("decode", f"returned {count} records of batches with {sum(wanted)}")


def _retained(
    guard: Guard,
    found: RecordFormat,
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
        made = b"".join(pieces)
        records = _contents(found.decode(data, batches, fields=Fields.ALL, limit_bytes=limit_bytes))
        kept = [row for row, verdict in zip(records, b"".join(verdicts), strict=True) if verdict != Verdict.DROP]
        table = found.scan(made, 0, len(made), check_crc=True)
        again = _contents(found.decode(made, table, fields=Fields.ALL, limit_bytes=limit_bytes)) if len(table) else []
    if table.stop is not ScanStop.END:
        guard.refuse("retain", f"made bytes that scan refuses: {table.reason or table.stop}")
    if again != kept:
        guard.refuse("retain", f"kept other records than the verdicts say: {len(again)}, not {len(kept)}")
    yield made


# --- index formats -----------------------------------------------------------------------------------------------


def _kept(found: IndexFormat[Any], _: None, result: int, entries: Buffer, base_offset: int, end_offset: int) -> str:
    del base_offset, end_offset
    if 0 <= result <= len(entries) and result % found.entry_bytes == 0:
        return ""
    return f"returned {result}, which is no border of an entry in {len(entries)} bytes"


# --- segment stores ----------------------------------------------------------------------------------------------


def _size(file: SegmentFile | IndexFile, *_: object, **__: object) -> int:
    return file.size_bytes


def _appended(file: SegmentFile, size_bytes: int, position: int, data: Buffer) -> str:
    if position != size_bytes:
        return f"returned position {position} in a file of {size_bytes} bytes"
    added_bytes = memoryview(data).nbytes
    if file.size_bytes != size_bytes + added_bytes:
        return f"left the file with {file.size_bytes} bytes, not {size_bytes + added_bytes}"
    return "" if _same(file.read(position, added_bytes), data) else "kept other bytes than it was given"


def _added(file: IndexFile, size_bytes: int, _: None, entries: Buffer) -> str:
    kept = file.view()[size_bytes:]
    return "" if kept == entries else f"kept {len(kept)} other bytes than the {len(entries)} that it was given"


def _cut(file: SegmentFile | IndexFile, _: None, __: None, size_bytes: int) -> str:
    return "" if file.size_bytes == size_bytes else f"left the file with {file.size_bytes} bytes, not {size_bytes}"


def _read(file: SegmentFile, _: None, data: memoryview, position: int, size_bytes: int) -> str:
    del file, position
    return f"returned {len(data)} bytes, more than {size_bytes}" if len(data) > size_bytes else ""


def _read_into(file: SegmentFile, _: None, count: int, position: int, into: memoryview) -> str:
    del file, position
    return "" if 0 <= count <= len(into) else f"returned {count}, but was given {len(into)} bytes to fill"


def _opened(
    place: LogFiles, _: None, __: SegmentFile, name: str, *, create: bool = False, preallocate_bytes: int = 0
) -> str:
    del preallocate_bytes
    return "" if not create or any(found.name == name for found in place.list()) else f"created no file {name}"


def _replaced(place: LogFiles | SegmentStore, _: None, __: None, name: str, data: Buffer) -> str:
    return "" if place.read_small(name) == data else f"kept other bytes than it was given for {name}"


def _renamed(place: LogFiles, _: None, __: None, old: str, new: str) -> str:
    return f"left {old} in its place" if old != new and any(found.name == old for found in place.list()) else ""


def _log_renamed(store: SegmentStore, _: None, __: None, old: str, new: str) -> str:
    names = store.logs()
    return "" if new in names and (old == new or old not in names) else f"did not rename {old} to {new}"


def _log_removed(store: SegmentStore, _: None, __: None, name: str) -> str:
    return f"left {name} in its place" if name in store.logs() else ""


def _removed(place: LogFiles, _: None, __: None, name: str) -> str:
    return f"left {name} in its place" if any(found.name == name for found in place.list()) else ""


# --- record filters ----------------------------------------------------------------------------------------------


def _observed(found: RecordFilter, _: None, result: int, records: RecordColumns) -> str:
    del found
    return "" if 0 <= result <= records.count else f"returned {result} for {records.count} records"


def _judged(found: RecordFilter, count: int, _: None, records: RecordColumns, verdicts: bytearray) -> str:
    del found, records
    if len(verdicts) != count:
        return f"changed the number of verdicts from {count} to {len(verdicts)}"
    return f"wrote a value that is no Verdict: {max(verdicts)}" if verdicts.strip(_VERDICTS) else ""


def _count(found: RecordFilter, records: RecordColumns, verdicts: bytearray) -> int:
    del found, records
    return len(verdicts)


# --- authenticators of manifests ---------------------------------------------------------------------------------


def _authenticated(_: object, __: None, result: bytes, *___: object) -> str:
    return "" if len(result) == MAC_BYTES else f"returned {len(result)} bytes, not {MAC_BYTES}"


CHECKS: Final[Mapping[tuple[type[Any], str], ResultCheck]] = {  # Any: classes of every kind
    (Codec, "compress"): ResultCheck(_compressed),
    (Codec, "decompress"): ResultCheck(_decompressed),
    (RecordFormat, "scan"): ResultCheck(_scanned),
    (RecordFormat, "encode"): ResultCheck(_encoded),
    (RecordFormat, "prepare_records"): ResultCheck(_prepared_records),
    (RecordFormat, "prepare_batches"): ResultCheck(_prepared_batches),
    (RecordFormat, "assign"): ResultCheck(_assigned),
    (RecordFormat, "select"): ResultCheck(_selected),
    (IndexFormat, "kept_bytes"): ResultCheck(_kept),
    (LogFiles, "open_segment"): ResultCheck(_opened),
    (SegmentFile, "append"): ResultCheck(_appended, _size),
    (SegmentFile, "truncate"): ResultCheck(_cut),
    (SegmentFile, "read"): ResultCheck(_read),
    (SegmentFile, "read_into"): ResultCheck(_read_into),
    (IndexFile, "append"): ResultCheck(_added, _size),
    (IndexFile, "truncate"): ResultCheck(_cut),
    (LogFiles, "replace_small"): ResultCheck(_replaced),
    (LogFiles, "rename"): ResultCheck(_renamed),
    (LogFiles, "remove"): ResultCheck(_removed),
    (SegmentStore, "replace_small"): ResultCheck(_replaced),
    (SegmentStore, "rename_log"): ResultCheck(_log_renamed),
    (SegmentStore, "remove_log"): ResultCheck(_log_removed),
    (RecordFilter, "observe"): ResultCheck(_observed),
    (RecordFilter, "judge"): ResultCheck(_judged, _count),
    (ManifestAuthenticator, "mac"): ResultCheck(_authenticated),
}
LAZY_CHECKS: Final[Mapping[tuple[type[Any], str], Callable[..., Iterator[Any]]]] = {  # Any: as above
    (RecordFormat, "decode"): _decoded,
    (RecordFormat, "retain"): _retained,
}
