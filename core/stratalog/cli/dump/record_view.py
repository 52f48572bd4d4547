"""Formatters of the records of one batch, and of control records, for a dump."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from stratalog.cli.contents.decoders import RecordDecoder
from stratalog.cli.contents.values import pairs, size_of, to_json_object
from stratalog.cli.output import moment, printable
from stratalog.errors import CorruptBatchError, DecompressedSizeError, InvalidRecordError, UnsupportedCompressionError
from stratalog.model.batches import BatchTable, Buffer, RecordBatch, ScanStop
from stratalog.model.messages.control import ControlRecord, EndMarker, parse_control
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.segment.components import Components
from stratalog.segment.framing import Chunk, scan
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import decode

_PAGE_RECORDS: Final = 1000  # maximum number of Record objects in memory, for an arena of any size
_LAST_SEQUENCE: Final = (1 << 31) - 1

InnerMessage: TypeAlias = tuple[RecordBatch, bool]
"""A message in a V0 or V1 wrapper message, with its position in the decompressed data; True if its CRC is right."""


@dataclass(frozen=True, slots=True)
class Arena:
    """All decoded records of a batch, or some of them.

    ``messages`` contains the messages inside a V0 or V1 wrapper message. For other batches, ``messages`` is empty.
    """

    columns: RecordColumns
    messages: tuple[InnerMessage, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the arena in bytes: the size of the batch, or of its records after decompression."""
        return len(self.columns.arena)

    def records(self) -> Iterator[tuple[Record, InnerMessage | None]]:
        """Yield each record, with its message inside the wrapper message, or None."""
        for start in range(0, self.columns.count, _PAGE_RECORDS):
            end = min(start + _PAGE_RECORDS, self.columns.count)
            messages = self.messages[start:end] or (None,) * (end - start)
            yield from zip(self.columns.take(start, end).to_records(), messages, strict=True)


def arenas(chunk: Chunk, row: BatchTable, segment: ReadableSegment, components: Components) -> Iterator[Arena]:
    """Yield the decoded records of one batch, in one or more arenas. ``row`` is the batch in one of the chunk's tables.

    Raises:
        CorruptBatchError: the records contradict the header of the batch, or the codec is not installed.
        DecompressedSizeError: the records are larger than ``limits.decompressed.bytes``.
    """
    batch = row[0]
    data = chunk.data[batch.position : batch.position + batch.size_bytes]  # an arena must have only this batch
    record_format = components.formats.of(row.magic, segment.label, chunk.position + batch.position)
    alone = Chunk(data, chunk.position + batch.position, (record_format.scan(data, 0, len(data), check_crc=False),))
    is_wrapper = row.magic < 2 and batch.codec_id
    try:
        for columns in decode(alone, alone.tables[0], segment, components, Fields.ALL):
            messages = _messages(columns.arena, components) if is_wrapper else ()
            yield Arena(columns, messages if len(messages) == columns.count else ())
    except DecompressedSizeError as error:
        raise DecompressedSizeError(error.reason, segment.label, alone.position) from error
    except UnsupportedCompressionError as error:
        raise CorruptBatchError(error.reason, segment.label, alone.position) from error


def _messages(arena: Buffer, components: Components) -> tuple[InnerMessage, ...]:
    """Return the messages inside a wrapper message.

    A scan that checks CRCs stops at a bad message. The next scan then starts at the next message.
    """
    unchecked_scan = scan(components.formats, arena, 0, len(arena), check_crc=False)
    entries = [entry for table in unchecked_scan.tables for entry in table]
    good_positions: set[int] = set()
    position = 0
    while position < len(arena):
        checked_scan = scan(components.formats, arena, position, len(arena), check_crc=True)
        good_positions.update(start for table in checked_scan.tables for start in table.position)
        if checked_scan.stop is not ScanStop.CORRUPT:
            break
        position = next(
            (entry.position for entry in entries if entry.position > checked_scan.stop_position), len(arena)
        )
    return tuple((entry, entry.position in good_positions) for entry in entries)


class RecordView:
    """Formatter of the records of a batch. Without a decoder, it shows only the sizes of keys and values.

    ``first_error`` is the text of the first error, or "". An error is a record that cannot be read, or an inner message
    with a bad CRC.
    """

    def __init__(self, batch: RecordBatch, decoder: RecordDecoder | None) -> None:
        self._batch, self._decoder = batch, decoder
        self._digits = len(str(batch.last_offset))
        self.first_error, self.error_count = "", 0

    def item(self, record: Record, message: InnerMessage | None) -> dict[str, object]:
        """Return a record as a JSON object, even if it has an error. Count the error."""
        item: dict[str, object] = {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "timestamp_type": str(record.timestamp_type),
            "sequence": sequence_after(self._batch.base_sequence, record.offset - self._batch.base_offset),
            "key_size": size_of(record.key),
            "value_size": size_of(record.value),
            "header_keys": [name for name, _ in record.headers],
        }
        if message is not None:
            entry, is_valid = message
            item |= {
                "inner_position": entry.position,
                "inner_size_bytes": entry.size_bytes,
                "inner_magic": entry.magic,
                "crc": entry.crc,
                "valid": is_valid,
            }
            self._check(record, is_valid=is_valid)
        if self._batch.is_control:
            item["control_record"] = self._control(record)
        elif self._decoder is not None:
            contents = self._decoder(record)
            self._note(record, contents.error)
            item |= contents.item()
        return item

    def lines(self, record: Record, message: InnerMessage | None) -> Iterator[str]:
        """Yield a record as lines of text, even if it has an error. Count the error."""
        begin = f"| {record.offset:>{self._digits}}  {moment(record.timestamp_ms)}  "
        if message is not None:
            self._check(record, is_valid=message[1])
            begin += "" if message[1] else "BAD CRC  "
        if self._batch.is_control:
            yield begin + control_text(self._control(record))
        elif self._decoder is not None:
            contents = self._decoder(record)
            self._note(record, contents.error)
            content_lines = contents.lines()
            yield begin + next(content_lines)
            yield from content_lines
        else:
            headers = ", ".join(printable(name) for name, _ in record.headers)
            sizes = f"key {_size_text(record.key)}  value {_size_text(record.value)}"
            yield begin + sizes + (f"  headers {headers}" if headers else "")

    def _check(self, record: Record, *, is_valid: bool) -> None:
        if not is_valid:
            self._count(f"the message of offset {record.offset} inside the wrapper has a bad CRC")

    def _control(self, record: Record) -> dict[str, object]:
        """Return a control record as a JSON object, with the number of an unknown type, or with ``error``."""
        try:
            parsed = parse_control(record.key, record.value)
        except InvalidRecordError as error:
            self._note(record, str(error))
            return {"type": None, "error": str(error)}
        if parsed is None:
            return {"type": int.from_bytes((record.key or b"")[2:4], "big", signed=True)}
        return control_object(parsed)

    def _note(self, record: Record, error: str) -> None:
        if error:
            self._count(f"the record of offset {record.offset} cannot be read: {error}")

    def _count(self, error: str) -> None:
        self.first_error = self.first_error or error
        self.error_count += 1


def sequence_after(base: int, delta: int) -> int:
    """Return the sequence number ``delta`` after ``base``; 0 follows 2147483647. Return -1 if ``base`` is -1 (none)."""
    return (base + delta) % (_LAST_SEQUENCE + 1) if base >= 0 else -1


def _size_text(data: bytes | None) -> str:
    return "null" if data is None else f"{len(data)} B"


def control_object(record: ControlRecord) -> dict[str, object]:
    """Return a parsed control record as a JSON object."""
    if isinstance(record, EndMarker):
        return {"type": record.kind.name, "coordinator_epoch": record.coordinator_epoch}
    return {"type": record.kind.name, **to_json_object(record)}


def control_text(item: dict[str, object]) -> str:
    """Return the text of a control record. ``item`` is the record as a JSON object."""
    fields = pairs({name: value for name, value in item.items() if name != "type"})
    type_name = item["type"] if isinstance(item["type"], str) else f"control type {item['type']}"
    return f"{type_name} {fields}".rstrip()
