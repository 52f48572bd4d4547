"""``stratalog explain``: show every step of the search for the record at an offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from stratalog.cli.contents.decoders import decoder_of
from stratalog.cli.contents.printer import record_lines
from stratalog.cli.contents.values import codec_name
from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output, size_text
from stratalog.errors import CorruptIndexError
from stratalog.log.read.log_reader import LogReader
from stratalog.log.read.read_plan import hidden_transactions
from stratalog.model.batches import BatchTable, RecordBatch
from stratalog.model.records import Fields, Record
from stratalog.segment.control_batches import read_control
from stratalog.segment.framing import Chunk
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.search import chunks_from, decode, offset_index, start_position
from stratalog.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the search: ``step`` is its name, ``text`` its result, and ``facts`` are the values of the result.

    ``found`` is False if the search ends with this step and finds no record.
    """

    step: str
    text: str
    facts: dict[str, object]
    found: bool = True


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@place_options
@json_option
def explain(place: LogPlace, output: Output, topic: str, partition: int, offset: int) -> int:
    """Show every step of the search for the record at OFFSET: bounds, segment, tier, index entry, batch, record.

    The exit code is 1 if a reader finds no record at OFFSET.
    """
    ends_well = True
    with place.reader() as reader:
        for number, step in enumerate(Search(reader.log(topic, partition), offset).steps(), 1):
            ends_well = step.found
            if output.as_json:
                output.item({"step": step.step, "found": step.found, "text": step.text, **step.facts})
            else:
                output.line(f"{number}. {step.step + ':':<9} {step.text}")
    return 0 if ends_well else 1


class Search:
    """Search for the record at one offset of a log."""

    def __init__(self, log: LogReader, offset: int) -> None:
        self._view, self._components, self._offset = log.view(), log.components, offset

    def steps(self) -> Iterator[Step]:
        """Yield the steps of the search. The last step describes the record, or why there is no record."""
        bounds, offset = self._view.offsets, self._offset
        names = ("log_start", "local_log_start", "last_stable", "high_watermark", "log_end")
        facts: dict[str, object] = {name: getattr(bounds, name) for name in names}
        text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
        yield Step("view", text, facts)
        if not bounds.log_start <= offset < bounds.log_end:
            where = "below the log start" if offset < bounds.log_start else "at or above the log end"
            yield Step("view", f"offset {offset} is {where}: no record", {"offset": offset}, found=False)
            return
        segment = self._view.segment_at(offset)
        if segment is None:
            yield Step("segment", "no segment ends above the offset", {}, found=False)
            return
        yield self._segment(segment)
        yield self._index(segment)
        yield from self._batch(segment)

    def _segment(self, segment: ReadableSegment) -> Step:
        tier = "local" if isinstance(segment, Segment) else "remote"
        is_active = self._view.is_active(segment)
        names = ("base_offset", "end_offset", "size_bytes")
        bounds = {name: getattr(segment, name) for name in names}
        place = f"{segment.label} ({tier}{', active' if is_active else ''})"
        text = f"{place}, offsets [{segment.base_offset}, {segment.end_offset}), {size_text(segment.size_bytes)}"
        return Step("segment", text, {"tier": tier, "file": segment.label, **bounds, "active": is_active})

    def _index(self, segment: ReadableSegment) -> Step:
        """Return the step that reads the offset index. ``believed`` is True if the log confirms the index entry."""
        start = start_position(segment, self._offset, self._components)
        try:
            reader = offset_index(segment, self._components)
            entry = reader.floor(self._offset)
        except CorruptIndexError as error:
            text = f"the index is damaged, so the scan starts at position 0: {error}"
            return Step("index", text, {"position": 0, "believed": False})
        facts: dict[str, object] = {"entries": len(reader), "position": start}
        if entry is None:
            text = f"{len(reader)} entries, none at or below the offset: the scan starts at position 0"
            return Step("index", text, facts)
        is_confirmed = start == entry.position
        facts |= {"entry_offset": entry.offset, "entry_position": entry.position, "believed": is_confirmed}
        verdict = "" if is_confirmed else ", which is wrong: the scan starts at position 0"
        text = f"{len(reader)} entries, offset {entry.offset} at position {entry.position}{verdict}"
        return Step("index", text, facts)

    def _batch(self, segment: ReadableSegment) -> Iterator[Step]:
        passed_batches = 0
        for chunk in chunks_from(segment, self._offset, self._components):
            for table in chunk.tables:
                for row, last in enumerate(table.last_offset):
                    if last < self._offset:
                        passed_batches += 1
                        continue
                    position = chunk.position + table[row].position
                    text = f"{passed_batches} batches passed, up to position {position}"
                    yield Step("scan", text, {"batches": passed_batches})
                    yield self._header(table[row], position)
                    yield self._record(segment, chunk, table.take(row, row + 1))
                    return
        text = (
            f"{passed_batches} batches passed, none contains the offset: compaction removed it, or it was never written"
        )
        yield Step("scan", text, {"batches": passed_batches}, found=False)

    def _header(self, batch: RecordBatch, position: int) -> Step:
        codec = codec_name(self._components.codecs, batch.codec_id)
        facts: dict[str, object] = {
            "position": position,
            "size_bytes": batch.size_bytes,
            "magic": batch.magic,
            "base_offset": batch.base_offset,
            "last_offset": batch.last_offset,
            "records": batch.record_count,
            "codec": codec,
            "leader_epoch": batch.leader_epoch,
            "producer_id": batch.producer_id,
            "transactional": batch.is_transactional,
            "control": batch.is_control,
        }
        text = (
            f"at position {position}, {batch.size_bytes} bytes, magic {batch.magic}, offsets {batch.base_offset} to "
            f"{batch.last_offset}, CRC good, codec {codec}"
        )
        if batch.producer_id >= 0:
            text += f", producer {batch.producer_id}{' in a transaction' if batch.is_transactional else ''}"
        return Step("batch", text, facts)

    def _record(self, segment: ReadableSegment, chunk: Chunk, row: BatchTable) -> Step:
        batch = row[0]
        if batch.is_control:
            control = read_control(chunk.data, batch, self._components)
            return Step("record", f"a control record, which readers never receive: {control}", {}, found=False)
        for columns in decode(chunk, row, segment, self._components, Fields.ALL):
            for record in columns.iter_records(self._view.name.partition):
                if record.offset == self._offset:
                    return self._visible(batch, record)
        text = "not in the batch: compaction removed it, or it was never written"
        return Step("record", text, {}, found=False)

    def _visible(self, batch: RecordBatch, record: Record) -> Step:
        """Return the step that shows the record, and the isolation levels that see the record."""
        view, offset = self._view, self._offset
        is_aborted = batch.is_transactional and any(
            transaction.producer_id == batch.producer_id
            and transaction.first_offset <= offset <= transaction.last_offset
            for transaction in hidden_transactions(view, self._components, offset, offset + 1)
        )
        is_readable_committed = offset < view.offsets.last_stable and not is_aborted
        reason = "its transaction was aborted" if is_aborted else "it is above the last stable offset"
        hidden_note = "" if is_readable_committed else f"; hidden from read_committed: {reason}"
        line = " ".join(record_lines(record, decoder_of(view.name.topic, None)))
        facts: dict[str, object] = {
            "timestamp_ms": record.timestamp_ms,
            "aborted": is_aborted,
            "read_uncommitted": offset < view.offsets.high_watermark,
            "read_committed": is_readable_committed,
        }
        return Step("record", f"{line}{hidden_note}", facts)
