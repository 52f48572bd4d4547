"""Record formats that break one rule each. All are formats of magic 2."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, MutantError, altered
from stratalog import Record, RecordColumns, TimestampType
from stratalog.errors import CorruptBatchError, InvalidRecordError
from stratalog.model.prepared import Rules
from stratalog.model.prepared_py import Rules as PythonRules
from stratalog.spi import (
    BatchHeader,
    BatchTable,
    Buffer,
    CodecTable,
    Fields,
    PreparedBatches,
    RecordFormat,
    ScanStop,
    Verdict,
)
from stratalog.testing.contracts import RecordFormatContract
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.records.batches import BatchFormat

_TABLE: Final = CodecTable([("gzip", GzipCodec())])
_SOUND: Final = BatchFormat(_TABLE)
_ALL_BYTES: Final = 1 << 30
_FAR: Final = 1 << 40
_EPOCH_END: Final = 15  # position of the last byte of the leader epoch, which no CRC covers
_ASSIGNED: Final = 5_000  # base offset that only the tests of ``assign`` use
_RULES: Final = tuple(inspect.signature(PythonRules).parameters)
_AGAIN: Final = 7  # base offset of the test of a row's time


def _made(**changes: Any) -> Callable[[Path], RecordFormat]:
    return lambda _: altered(BatchFormat(_TABLE), **changes)


def _static(change: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *args, **keywords: change(*args, **keywords)


# --- reading -----------------------------------------------------------------------------------------------------


def _scans(change: Callable[[BatchTable, bool], BatchTable]) -> Callable[[Path], RecordFormat]:
    """Return a format that changes the results of ``scan``."""

    def scan(data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
        return change(_SOUND.scan(data, start, end, check_crc=check_crc), check_crc)

    return _made(scan=_static(scan))


def _stopped(table: BatchTable, stop: ScanStop, position: int | None = None) -> BatchTable:
    return BatchTable(
        table.magic, table.columns, stop, table.stop_position if position is None else position, table.reason
    )


def _beyond(table: BatchTable, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as the change has it
    del check_crc
    return _stopped(table, table.stop, table.stop_position + 1) if len(set(table.attributes)) > 1 else table


def _always_ascends(table: BatchTable, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as the change has it
    del check_crc
    return BatchTable(table.magic, table.columns, table.stop, table.stop_position, table.reason, ascends=True)


def _not_partial(table: BatchTable, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as the change has it
    del check_crc
    return _stopped(table, ScanStop.END) if table.stop is ScanStop.PARTIAL else table


def _not_corrupt(table: BatchTable, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as the change has it
    return _stopped(table, ScanStop.PARTIAL) if table.stop is ScanStop.CORRUPT and check_crc else table


def _needs_its_magic(table: BatchTable, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as the change has it
    if check_crc and table.stop is ScanStop.OTHER_MAGIC:
        raise MutantError("another magic")
    return table


def _without_the_last(table: BatchTable, check_crc: bool) -> BatchTable:  # noqa: FBT001 - as the change has it
    if check_crc or len(table) != 2 or table.stop is not ScanStop.END:
        return table
    return _stopped(table.take(0, 1), ScanStop.END, table.position[1])


def _past_the_range(data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
    del end
    return _SOUND.scan(data, start, len(data), check_crc=check_crc)


def _checks_always(data: Buffer, start: int, end: int, *, check_crc: bool) -> BatchTable:
    del check_crc
    return _SOUND.scan(data, start, end, check_crc=True)


def _decodes(change: Callable[[RecordColumns], RecordColumns], **given: Any) -> Callable[[Path], RecordFormat]:
    """Return a format that changes the results of ``decode``; ``given`` changes its arguments."""

    def decode(data: Buffer, batches: BatchTable, **keywords: Any) -> Iterator[RecordColumns]:
        return map(change, _SOUND.decode(data, batches, **{**keywords, **given}))

    return _made(decode=_static(decode))


def _no_far_record(columns: RecordColumns) -> RecordColumns:
    is_far = len(columns.offset) and columns.offset[0] == _FAR
    return columns.take(0, columns.count - 1) if is_far else columns


def _same(columns: RecordColumns) -> RecordColumns:
    return columns


def _names_a_file(data: Buffer, batches: BatchTable, **keywords: Any) -> Iterator[RecordColumns]:
    try:
        yield from _SOUND.decode(data, batches, **keywords)
    except CorruptBatchError as error:
        raise CorruptBatchError(error.reason, "a file", error.position or 0) from error


def _marks_read(data: Any, batches: BatchTable, **keywords: Any) -> Iterator[RecordColumns]:
    if isinstance(data, bytearray):
        data[_EPOCH_END] = (data[_EPOCH_END] + 1) % 128
    yield from _SOUND.decode(data, batches, **keywords)


def _other_partition(data: Buffer, batches: BatchTable, **keywords: Any) -> Any:
    return _SOUND.decode_arrow(data, batches, **{**keywords, "partition": 0})


# --- writing -----------------------------------------------------------------------------------------------------


def _encodes(
    change: Callable[[Any, BatchHeader, dict[str, Any]], tuple[Any, BatchHeader, dict[str, Any]]],
) -> Callable[[Path], RecordFormat]:
    """Return a format that changes the arguments of ``encode``: records, header and keywords."""

    def encode(records: Any, header: BatchHeader, codec: Any, level: Any, **keywords: Any) -> bytearray:
        records, header, keywords = change(records, header, keywords)
        return _SOUND.encode(records, header, codec, level, **keywords)

    return _made(encode=_static(encode))


def _changed_records(change: Callable[[Record], Record]) -> Callable[[Path], RecordFormat]:
    return _encodes(
        lambda records, header, keywords: (
            records if isinstance(records, RecordColumns) else [change(record) for record in records],
            header,
            keywords,
        )
    )


def _empty(kind: type[Any]) -> Callable[[Path], RecordFormat]:
    """Return a format that encodes an empty input to no bytes if the input has the type ``kind``."""

    def encode(records: Any, header: BatchHeader, codec: Any, level: Any, **keywords: Any) -> bytearray:
        is_empty = not (records.count if isinstance(records, RecordColumns) else records)
        return (
            bytearray()
            if is_empty and isinstance(records, kind)
            else _SOUND.encode(records, header, codec, level, **keywords)
        )

    return _made(encode=_static(encode))


def _readable(record: Record) -> Record:
    names = [(name.encode("utf-8", "replace").decode(), value) for name, value in record.headers]
    return record._replace(headers=tuple(names))


def _next_epoch(records: Any, header: BatchHeader, keywords: dict[str, Any]) -> Any:
    is_columns = isinstance(records, RecordColumns) and not keywords
    return records, replace(header, leader_epoch=header.leader_epoch + 1) if is_columns else header, keywords


def _without_gaps(records: Any, header: BatchHeader, keywords: dict[str, Any]) -> Any:
    offsets = list(records.offset) if isinstance(records, RecordColumns) else []
    return records, header, {} if offsets == sorted(set(offsets)) else keywords


def _closes_gaps(records: Any, header: BatchHeader, codec: Any, level: Any, **keywords: Any) -> bytearray:
    try:
        return _SOUND.encode(records, header, codec, level, **keywords)
    except InvalidRecordError:
        if keywords:
            return _SOUND.encode(records, header, codec, level)
        raise


def _same_object(data: Any, rules: Any, now_ms: int) -> PreparedBatches | None:
    prepared = _SOUND.prepare_batches(data, rules, now_ms)
    source: Any = data.obj if isinstance(data, memoryview) else data
    return None if prepared is None else PreparedBatches(prepared.table, source)


def _without_rules(data: Any, rules: Any, now_ms: int) -> PreparedBatches | None:
    changed = {name: getattr(rules, name) for name in _RULES}
    return _SOUND.prepare_batches(data, Rules(**{**changed, "needs_keys": False}), now_ms)


def _later(records: Sequence[Record], rules: Any, now_ms: int) -> PreparedBatches | None:
    return _SOUND.prepare_records(records, rules, now_ms + 1)


def _assigns(change: Callable[[PreparedBatches, int, int, int | None], None]) -> Callable[[Path], RecordFormat]:
    return _made(assign=_static(change))


def _next_time(batches: PreparedBatches, base: int, epoch: int, append_time_ms: int | None) -> None:
    _SOUND.assign(batches, base, epoch, None if append_time_ms is None else append_time_ms + 1)


def _next_offset(batches: PreparedBatches, base: int, epoch: int, append_time_ms: int | None) -> None:
    _SOUND.assign(batches, base + (base == _ASSIGNED and batches.span == 7), epoch, append_time_ms)


def _after_a_gap(batches: PreparedBatches, base: int, epoch: int, append_time_ms: int | None) -> None:
    counts = sum(batches.table.record_count)
    _SOUND.assign(batches, base + (batches.span - counts), epoch, append_time_ms)


def _time_of_the_header(batches: PreparedBatches, base: int, epoch: int, append_time_ms: int | None) -> None:
    if base == _AGAIN and append_time_ms is None:
        table = _SOUND.scan(batches.data, 0, len(batches.data), check_crc=False)
        batches = PreparedBatches(table, batches.data)
    _SOUND.assign(batches, base, epoch, append_time_ms)


# --- selecting ---------------------------------------------------------------------------------------------------


def _selects(**given: Any) -> Callable[[Path], RecordFormat]:
    """Return a format that replaces arguments of ``select``."""
    return _made(select=_static(lambda data, **keywords: _SOUND.select(data, **{**keywords, **given})))


def _one_byte_more(data: Buffer, **keywords: Any) -> Any:
    selection = _SOUND.select(data, **keywords)
    return (
        selection
        if selection is None or not keywords.get("beyond_bytes")
        else (selection[0], selection[1] + 1, selection[2])
    )


def _any_time(data: Buffer, **keywords: Any) -> Any:
    return _SOUND.select(data, **({**keywords, "since_ms": 0} if keywords.get("since_ms") is not None else keywords))


# --- cleaning ----------------------------------------------------------------------------------------------------


def _retains(
    verdicts: Callable[[Sequence[Buffer], int | None], Sequence[Buffer]] = lambda found, _: found,
    result: Callable[[bytes], bytes] = bytes,
    **given: Any,
) -> Callable[[Path], RecordFormat]:
    """Return a format that changes verdicts, keywords and the result of ``retain``."""

    def retain(data: Any, batches: Any, found: Any, horizon_ms: int | None, **keywords: Any) -> list[bytes]:
        changed = verdicts(found, horizon_ms)
        retained = _SOUND.retain(data, batches, changed, horizon_ms, **{**keywords, **given})
        return [result(b"".join(retained))]

    return _made(retain=_static(retain))


def _keeps_the_last(verdicts: Sequence[Buffer], horizon_ms: int | None) -> Sequence[Buffer]:
    del horizon_ms
    return [bytes(verdict[:3]) + bytes([Verdict.KEEP]) if len(verdict) == 4 else verdict for verdict in verdicts]


def _drops_at_once(verdicts: Sequence[Buffer], horizon_ms: int | None) -> Sequence[Buffer]:
    if horizon_ms is None:
        return verdicts
    table = bytes.maketrans(bytes([Verdict.DROP_AT_HORIZON]), bytes([Verdict.DROP]))
    return [bytes(verdict).translate(table) for verdict in verdicts]


def _next_epoch_bytes(data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[_EPOCH_END] = (changed[_EPOCH_END] + 1) % 128
    return bytes(changed)


def _once(data: Any, batches: Any, verdicts: Any, horizon_ms: int | None, **keywords: Any) -> list[Buffer]:
    has_gaps = any(batch.record_count < batch.last_offset - batch.base_offset + 1 for batch in batches)
    return [data] if has_gaps else list(_SOUND.retain(data, batches, verdicts, horizon_ms, **keywords))


def _later_append(data: bytes) -> bytes:
    table = _SOUND.scan(data, 0, len(data), check_crc=False)
    changed = bytearray(data)
    if len(table) and table[0].timestamp_type is TimestampType.LOG_APPEND_TIME:
        batches = PreparedBatches(table, changed)
        _SOUND.assign(batches, table[0].base_offset, 5, table[0].max_timestamp_ms + 1)
    return bytes(changed)


def _any_verdicts(data: Any, batches: Any, verdicts: Any, horizon_ms: int | None, **keywords: Any) -> list[Buffer]:
    try:
        return list(_SOUND.retain(data, batches, verdicts, horizon_ms, **keywords))
    except InvalidRecordError:
        return []


MUTANTS: Final = ContractMutants(
    contract=RecordFormatContract,
    fixture="record_format",
    fixtures={"codec": lambda _: GzipCodec()},
    attributes={"test_headers_are_kept_or_refused": {"has_headers": False}},
    sound=_made(),
    mutants={
        "test_records_come_back_in_every_field": _decodes(_no_far_record),
        "test_batches_tile_the_bytes": _scans(_beyond),
        "test_a_table_reports_if_its_offsets_ascend": _scans(_always_ascends),
        "test_only_the_range_that_was_asked_for_is_looked_at": _made(scan=_static(_past_the_range)),
        "test_fields_that_were_not_asked_for_are_absent": _decodes(_same, fields=Fields.ALL),
        "test_arrow_holds_what_the_columns_hold": _made(decode_arrow=_static(_other_partition)),
        "test_prepared_batches_are_those_of_a_scan_or_nothing": _made(prepare_batches=_static(_same_object)),
        "test_batches_that_may_break_a_rule_are_not_prepared": _made(prepare_batches=_static(_without_rules)),
        "test_records_are_prepared_as_they_are_encoded_or_not_at_all": _made(prepare_records=_static(_later)),
        "test_append_time_is_every_records_time": _assigns(_next_time),
        "test_assigned_offsets_are_consecutive_and_the_crc_stays_right": _assigns(_next_offset),
        "test_nothing_to_write_is_an_error": _empty(list),
        "test_times_that_do_not_exist_are_refused": _changed_records(
            lambda record: record._replace(timestamp_ms=max(record.timestamp_ms, -1))
        ),
        "test_a_header_name_that_is_no_text_is_refused": _changed_records(_readable),
        "test_headers_are_kept_or_refused": _made(),
        "test_a_selection_is_what_a_scan_finds_or_nothing": _selects(bound=1 << 62),
        "test_a_selection_by_time_begins_with_the_first_late_batch": _made(select=_static(_any_time)),
        "test_a_batch_is_selected_by_its_header_where_the_rest_of_it_was_not_read": _made(
            select=_static(_one_byte_more)
        ),
        "test_selection_and_scan_agree_about_hostile_bytes": _selects(check_crc=False),
        "test_a_set_that_is_cut_anywhere_keeps_its_whole_batches": _scans(_not_partial),
        "test_every_flipped_bit_is_found_or_harmless": _scans(_needs_its_magic),
        "test_every_bit_under_the_crc_is_found": _scans(_not_corrupt),
        "test_an_error_says_which_batch_it_is": _made(decode=_static(_names_a_file)),
        "test_a_crc_is_only_checked_when_asked": _made(scan=_static(_checks_always)),
        "test_decompression_is_bounded": _decodes(_same, limit_bytes=_ALL_BYTES),
        "test_the_same_input_gives_the_same_output_and_stays_as_it_was": _made(decode=_static(_marks_read)),
        "test_every_choice_of_records_stays_with_its_offset_and_time": _retains(_keeps_the_last),
        "test_batches_that_lose_nothing_keep_their_bytes": _retains(result=_next_epoch_bytes),
        "test_cleaning_twice_is_cleaning_once": _made(retain=_static(_once)),
        "test_the_time_of_an_append_stays_when_its_first_record_goes": _retains(result=_later_append),
        "test_a_horizon_changes_no_record": _retains(_drops_at_once),
        "test_verdicts_are_one_a_record": _made(retain=_static(_any_verdicts)),
        "test_cleaning_is_bounded": _retains(limit_bytes=_ALL_BYTES),
        "test_columns_are_written_as_their_records_are": _encodes(_next_epoch),
        "test_gaps_between_offsets_are_kept_if_asked_for": _encodes(_without_gaps),
        "test_offsets_that_do_not_ascend_are_refused": _made(encode=_static(_closes_gaps)),
        "test_columns_that_cannot_be_written_are_refused": _empty(RecordColumns),
        "test_assigning_keeps_the_gaps_inside_a_batch": _assigns(_after_a_gap),
        "test_a_batch_gets_the_time_of_its_row": _assigns(_time_of_the_header),
        "test_a_set_of_its_own_magic_is_not_converted": _scans(_without_the_last),
    },
)
