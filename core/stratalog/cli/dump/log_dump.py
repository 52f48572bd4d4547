"""Dump of ``.log`` files: batches and their records."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from stratalog.cli.contents.decoders import decoder_of
from stratalog.cli.contents.values import codec_name
from stratalog.cli.dump.file_dump import FileDump
from stratalog.cli.dump.record_view import Arena, RecordView, arenas, control_object, control_text, sequence_after
from stratalog.cli.dump.sheet import Table
from stratalog.cli.dump.source import LogSource, Source, zeros_from
from stratalog.cli.output import moment
from stratalog.errors import CorruptBatchError, CorruptionError
from stratalog.model.batches import BatchTable, RecordBatch, TimestampType
from stratalog.segment.control_batches import read_control
from stratalog.segment.framing import FRAME, FRAME_BYTES, Chunk, walk

_COLUMNS: Final = ("position", "size", "v", "offsets", "records", "codec", "epoch", "max_timestamp", "crc")


def dump_log(file: FileDump, base_offset: int | None, topic: str) -> None:
    """Show the batches of a ``.log`` file up to the first damage, and report the damage.

    If ``base_offset`` is None, the segment begins at the base offset of the first batch. ``topic`` is "" if unknown.
    Raise LogDirError if the file cannot be read.
    """
    _LogDump(file, _first_offset(file.source) if base_offset is None else base_offset, topic).run()


def _first_offset(source: Source) -> int:
    begin = source.read(0, FRAME_BYTES)
    return max(0, int(FRAME.unpack(begin)[0])) if len(begin) == FRAME_BYTES else 0


class _LogDump:
    def __init__(self, file: FileDump, base_offset: int, topic: str) -> None:
        self._file, self._run, self._components = file, file.run, file.run.components
        self._segment = LogSource(file.label, file.source.size_bytes, file.source.fetch, base_offset)
        self._table = Table(file.run.output, _COLUMNS, optional=("crc", "epoch"))
        self._decoder = decoder_of(topic, file.run.decoder) if file.run.values else None

    def run(self) -> None:
        try:
            for chunk, table, row in islice(self._rows(), self._run.limit):
                self._batch(chunk, table.take(row, row + 1))
        except CorruptBatchError as error:
            self._damage(error)
        finally:
            self._table.flush()

    def _rows(self) -> Iterator[tuple[Chunk, BatchTable, int]]:
        """Yield the chunk, the table and the row of each batch."""
        for chunk in walk(self._segment, 0, self._components):
            for table in chunk.tables:
                for row in range(len(table)):
                    yield chunk, table, row

    def _batch(self, chunk: Chunk, row: BatchTable) -> None:
        batch = row[0]
        position = chunk.position + batch.position
        head = self._item(batch, position)
        control = read_control(chunk.data, batch, self._components) if batch.is_control else None
        if control is not None:
            head["control_record"] = control_object(control)
        if not self._run.deep:
            self._show(batch, head)
            return
        batch_arenas = arenas(chunk, row, self._segment, self._components)
        try:
            first = next(batch_arenas, None)
        except CorruptionError as error:
            self._show(batch, head)
            self._file.corrupt(error)
            return
        if first is not None and batch.codec_id:
            head["uncompressed_bytes"] = first.size_bytes
        self._deep(batch, position, head, chain(() if first is None else (first,), batch_arenas))

    def _deep(self, batch: RecordBatch, position: int, head: dict[str, object], batch_arenas: Iterable[Arena]) -> None:
        """Show a batch and its records. Report bad records. Stop if the bytes of the records cannot be decoded."""
        view = RecordView(batch, self._decoder)
        pairs = chain.from_iterable(arena.records() for arena in batch_arenas)
        error: CorruptionError | None = None
        try:
            if self._run.output.as_json:
                self._write_json(head, (view.item(*pair) for pair in pairs))
            else:
                self._show(batch, head)
                self._table.flush()
                for record, message in pairs:
                    for line in view.lines(record, message):
                        self._run.output.line(line)
        except CorruptionError as caught:
            error = caught
        if view.error_count:
            more_of_them = f" (and {view.error_count - 1} more in this batch)" if view.error_count > 1 else ""
            record_error = CorruptBatchError(view.first_error + more_of_them, self._segment.label, position)
            self._file.corrupt(record_error)
        if error is not None:
            self._file.corrupt(error)

    def _write_json(self, head: dict[str, object], records: Iterable[dict[str, object]]) -> None:
        """Write a batch with its records as one JSON object, record by record, to limit the memory."""
        start = json.dumps({"file": self._segment.label, "kind": "batch", **head})[:-1]
        sys.stdout.write(f'{start}, "records": [')
        try:
            for number, record in enumerate(records):
                sys.stdout.write((", " if number else "") + json.dumps(record))
        finally:
            sys.stdout.write("]}\n")

    def _show(self, batch: RecordBatch, head: dict[str, object]) -> None:
        if self._run.output.as_json:
            self._file.item("batch", head)
            return
        values = (
            head["position"],
            batch.size_bytes,
            batch.magic,
            _offsets(head),
            head["count"],
            head["codec"],
            batch.leader_epoch if batch.magic == 2 else None,
            moment(batch.max_timestamp_ms),
            batch.crc,
        )
        self._table.add(values, _notes(batch, head))

    def _item(self, batch: RecordBatch, position: int, *, valid: bool = True) -> dict[str, object]:
        """Return a batch as a JSON object.

        The base offset and the record count of a V0 or V1 wrapper message are null.
        """
        is_wrapper = batch.magic < 2 and bool(batch.codec_id)
        return {
            "base_offset": None if is_wrapper else batch.base_offset,
            "last_offset": batch.last_offset,
            "count": None if is_wrapper else batch.record_count,
            "base_sequence": batch.base_sequence,
            "last_sequence": sequence_after(batch.base_sequence, batch.last_offset - batch.base_offset),
            "producer_id": batch.producer_id,
            "producer_epoch": batch.producer_epoch,
            "leader_epoch": batch.leader_epoch,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "delete_horizon_ms": batch.delete_horizon_ms,
            "position": position,
            "timestamp_type": str(batch.timestamp_type),
            "max_timestamp_ms": batch.max_timestamp_ms,
            "size_bytes": batch.size_bytes,
            "magic": batch.magic,
            "codec": codec_name(self._components.codecs, batch.codec_id),
            "crc": batch.crc,
            "valid": valid,
        }

    def _damage(self, error: CorruptBatchError) -> None:
        """Show the header of a damaged batch if it can be read, and report the number of bytes that are not shown."""
        details: dict[str, object] = {"bytes_not_shown": self._segment.size_bytes - error.position}
        if zeros_from(self._segment) <= error.position:
            error.add_note(
                f"all {details['bytes_not_shown']} bytes from here to the end are zero: preallocated, or lost in a crash"
            )
            details["only_zeros"] = True
        else:
            head = self._read_damaged_header(error.position)
            if head is not None:
                batch, fields = head
                details["batch"] = fields
                if not self._run.output.as_json:
                    self._show(batch, fields)
        self._table.flush()
        self._file.corrupt(error, details)

    def _read_damaged_header(self, position: int) -> tuple[RecordBatch, dict[str, object]] | None:
        try:
            chunk = next(walk(self._segment, position, self._components, check_crc=False), None)
        except CorruptBatchError:
            return None
        if chunk is None:
            return None
        batch = next(chunk.batches())
        return batch, self._item(batch, position, valid=False)


def _offsets(head: dict[str, object]) -> str:
    """Return the offsets of a batch as text; for a wrapper of V0 or V1, only the last offset is known."""
    first, last = head["base_offset"], head["last_offset"]
    return f"..{last}" if first is None else _span(first, last)


def _span(first: object, last: object) -> str:
    return str(last) if first == last else f"{first}..{last}"


def _notes(batch: RecordBatch, head: dict[str, object]) -> str:
    """Return a text with the unusual properties of a batch, such as its producer."""
    notes = []
    if not head["valid"]:
        notes.append("DAMAGED, do not trust the values")
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        notes.append("LogAppendTime")
    if batch.producer_id >= 0:
        notes.append(f"producer {batch.producer_id}/{batch.producer_epoch}")
    if batch.base_sequence >= 0:
        notes.append(f"sequence {_span(batch.base_sequence, head['last_sequence'])}")
    if batch.is_transactional and not batch.is_control:
        notes.append("transactional")
    if batch.is_control:
        record = head.get("control_record")
        notes.append(control_text(record) if isinstance(record, dict) else "control")
    if batch.delete_horizon_ms is not None:
        notes.append(f"delete horizon {moment(batch.delete_horizon_ms)}")
    if "uncompressed_bytes" in head:
        notes.append(f"{head['uncompressed_bytes']} bytes uncompressed")
    return ", ".join(notes)
