"""Contract tests of record formats that encode columns, change batches in place or remove records."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from itertools import product

import pytest

from stratalog.errors import DecompressedSizeError, InvalidRecordError
from stratalog.log.read.down_convert import convert
from stratalog.model.batches import TIMESTAMP_TYPE_BIT, BatchTable, ScanStop, TimestampType
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Fields, Record, RecordColumns
from stratalog.segment.components import FormatTable
from stratalog.spi.codecs import Codec, CodecTable
from stratalog.spi.formats import BatchHeader, RecordFormat, Verdict
from stratalog.testing.contracts.record_bed import LIMIT_BYTES, START_MS, RecordFormatBed, Row, scan_all

DROP, KEEP, AT_HORIZON = Verdict.DROP, Verdict.KEEP, Verdict.DROP_AT_HORIZON


class RecordRewritingContract(RecordFormatBed):
    """The part of ``RecordFormatContract`` about rewriting encoded batches."""

    def columns(self, form: RecordFormat, data: bytes | bytearray) -> RecordColumns:
        """Return the columns of all records of ``data``, which share one arena."""
        table = scan_all(form, data)
        (columns,) = form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES)
        return columns

    def cleaned(
        self, form: RecordFormat, data: bytes | bytearray, words: Sequence[int], horizon_ms: int | None = None
    ) -> bytes:
        """Return the result of ``retain`` for ``data`` and the verdicts ``words``. Skip the test without ``retain``."""
        if type(form).retain is RecordFormat.retain:
            pytest.skip("the format does not rewrite batches")
        table = scan_all(form, data)
        verdicts, start = [], 0
        for row in range(len(table)):
            (columns,) = form.decode(data, table.take(row, row + 1), fields=Fields.OFFSET, limit_bytes=LIMIT_BYTES)
            verdicts.append(bytes(words[start : start + columns.count]))
            start += columns.count
        assert start == len(words)
        return b"".join(form.retain(data, table, verdicts, horizon_ms, limit_bytes=LIMIT_BYTES))

    def rows(self, form: RecordFormat, data: bytes | bytearray) -> list[Row]:
        """Return the records of ``data``, which must contain only whole batches with valid CRCs."""
        table = scan_all(form, data)
        assert table.stop is ScanStop.END
        return self.read(form, data, table)

    # --- cleaning ----------------------------------------------------------------------------------------------------

    def test_every_choice_of_records_stays_with_its_offset_and_time(
        self, record_format: RecordFormat, codec: Codec
    ) -> None:
        """For all subsets of a batch of four records, ``retain`` does not change the kept records."""
        expected = self.expected(self.records(4), 100)
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec, count=4)
            for words in product((KEEP, DROP), repeat=4):
                cleaned_data = self.cleaned(record_format, data, words)
                kept_rows = [row for row, word in zip(expected, words, strict=True) if word is KEEP]
                assert self.rows(record_format, cleaned_data) == kept_rows
                assert bool(cleaned_data) == bool(kept_rows)

    def test_batches_that_lose_nothing_keep_their_bytes(self, record_format: RecordFormat, codec: Codec) -> None:
        """A batch that loses no record keeps its bytes, even if other batches lose records, as in Kafka."""
        first, last = self.written(record_format, codec, count=3), self.written(record_format, None, base_offset=300)
        middle = self.written(record_format, codec, count=2, base_offset=200)
        data = bytes(first + middle + last)
        assert self.cleaned(record_format, data, [KEEP] * 12) == data
        assert self.cleaned(record_format, data, [AT_HORIZON] * 12) == data
        assert self.cleaned(record_format, data, [KEEP] * 3 + [DROP] * 2 + [KEEP] * 7) == bytes(first + last)

    def test_cleaning_twice_is_cleaning_once(self, record_format: RecordFormat, codec: Codec) -> None:
        """Two calls of ``retain`` have the same result as one call that drops the records of both."""
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec)
            once = self.cleaned(record_format, data, [DROP, KEEP, KEEP, DROP, KEEP, KEEP, KEEP])
            twice = self.cleaned(record_format, once, [DROP, KEEP, KEEP, KEEP, DROP])
            at_once = self.cleaned(record_format, data, [DROP, DROP, KEEP, DROP, KEEP, KEEP, DROP])
            assert self.rows(record_format, twice) == self.rows(record_format, at_once)
            assert [row[0] for row in self.rows(record_format, twice)] == [102, 104, 105]

    def test_the_time_of_an_append_stays_when_its_first_record_goes(
        self, record_format: RecordFormat, codec: Codec
    ) -> None:
        """A rewritten batch keeps its append time and the timestamp type LogAppendTime."""
        if not self.has_timestamps:
            pytest.skip("the format has no timestamps")
        header = BatchHeader(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=START_MS + 9)
        for batch_codec in (None, codec):
            data = record_format.encode(self.records(), header, batch_codec, None)
            cleaned_data = self.cleaned(record_format, data, [DROP, *[KEEP] * 5, DROP])
            table = scan_all(record_format, cleaned_data)
            assert {batch.timestamp_type for batch in table} == {TimestampType.LOG_APPEND_TIME}
            assert [row[:2] for row in self.rows(record_format, cleaned_data)] == [
                (offset, START_MS + 9) for offset in range(1, 6)
            ]

    def test_a_horizon_changes_no_record(self, record_format: RecordFormat, codec: Codec) -> None:
        """A delete horizon changes no record. This is true even if the format does not store the horizon."""
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec)
            cleaned_data = self.cleaned(record_format, data, [KEEP, AT_HORIZON, *[KEEP] * 5], START_MS + 86_400_000)
            assert self.rows(record_format, cleaned_data) == self.expected(self.records(), 100)

    def test_verdicts_are_one_a_record(self, record_format: RecordFormat, codec: Codec) -> None:
        """``retain`` raises InvalidRecordError if there are more or fewer verdicts than records."""
        if type(record_format).retain is RecordFormat.retain:
            pytest.skip("the format does not rewrite batches")
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec, count=3)
            table = scan_all(record_format, data)
            right_verdicts = [bytes([KEEP])] * 3 if len(table) == 3 else [bytes([KEEP, DROP, KEEP])]
            for wrong_verdicts in (
                [*right_verdicts[:-1], right_verdicts[-1] + bytes([DROP])],
                right_verdicts[:-1],
                [*right_verdicts, b""],
            ):
                with pytest.raises(InvalidRecordError):
                    list(record_format.retain(data, table, wrong_verdicts, None, limit_bytes=LIMIT_BYTES))
            with pytest.raises(InvalidRecordError):
                list(record_format.retain(data, table, right_verdicts, None, retain_empty=[], limit_bytes=LIMIT_BYTES))

    def test_cleaning_is_bounded(self, record_format: RecordFormat, codec: Codec) -> None:
        """``retain`` raises DecompressedSizeError for a batch of two megabytes of zeros if the limit is 1,000 bytes."""
        if type(record_format).retain is RecordFormat.retain:
            pytest.skip("the format does not rewrite batches")
        data = record_format.encode([Record(value=bytes(1 << 20))] * 2, BatchHeader(), codec, None)
        table = scan_all(record_format, data)
        with pytest.raises(DecompressedSizeError):
            list(record_format.retain(data, table, [bytes([KEEP, DROP])], None, limit_bytes=1000))

    # --- columns -----------------------------------------------------------------------------------------------------

    def test_columns_are_written_as_their_records_are(self, record_format: RecordFormat, codec: Codec) -> None:
        """``encode`` of columns returns the bytes of ``encode`` of their records, and ignores the columns' offsets."""
        for batch_codec in (None, codec):
            columns = self.columns(record_format, self.written(record_format, batch_codec))
            for base_offset in (0, 1 << 40):
                header = BatchHeader(base_offset=base_offset, leader_epoch=3)
                data = record_format.encode(columns, header, None, None)
                assert data == record_format.encode(self.records(), header, None, None)
                compressed = record_format.encode(columns, header, codec, None)
                assert self.rows(record_format, compressed) == self.expected(self.records(), base_offset)

    def test_gaps_between_offsets_are_kept_if_asked_for(self, record_format: RecordFormat, codec: Codec) -> None:
        """With ``keep_offsets``, ``encode`` keeps the gaps between offsets; without it, offsets ascend by one.

        With ``keep_offsets``, a format that cannot store gaps raises InvalidRecordError.
        """
        parts = [self.columns(record_format, self.written(record_format, None)).take(row, row + 1) for row in (1, 3, 4)]
        columns = self.joined(parts)
        expected = [self.expected(self.records(), 500)[row] for row in (1, 3, 4)]
        for batch_codec in (None, codec):
            header = BatchHeader(base_offset=501)
            if not self.keeps_gaps:
                with pytest.raises(InvalidRecordError):
                    record_format.encode(columns, header, batch_codec, None, keep_offsets=True)
                continue
            data = record_format.encode(columns, header, batch_codec, None, keep_offsets=True)
            assert self.rows(record_format, data) == expected
            close = record_format.encode(columns, header, batch_codec, None)
            assert [row[0] for row in self.rows(record_format, close)] == [501, 502, 503]

    @staticmethod
    def joined(parts: Sequence[RecordColumns]) -> RecordColumns:
        """Return the concatenation of columns that share one arena and one list of headers."""
        names = [field.name for field in fields(RecordColumns) if field.name not in {"arena", "count"}]
        flat = {name for name in names if name.startswith("header_") and name not in {"header_first", "header_count"}}
        columns = {}
        for name in names:
            part_columns = [getattr(part, name) for part in parts]
            kind = part_columns[0].format
            column = (
                part_columns[0].tolist()
                if name in flat
                else [value for part_column in part_columns for value in part_column.tolist()]
            )
            columns[name] = memoryview(array(kind, column))
        return RecordColumns(parts[0].arena, sum(part.count for part in parts), **columns)

    def test_offsets_that_do_not_ascend_are_refused(self, record_format: RecordFormat) -> None:
        """``encode`` with ``keep_offsets`` raises InvalidRecordError if the offsets do not ascend."""
        columns = self.columns(record_format, self.written(record_format, None))
        for rows in ((2, 1), (3, 3)):
            disordered = self.joined([columns.take(row, row + 1) for row in rows])
            with pytest.raises(InvalidRecordError):
                record_format.encode(disordered, BatchHeader(), None, None, keep_offsets=True)

    def test_columns_that_cannot_be_written_are_refused(self, record_format: RecordFormat) -> None:
        """``encode`` refuses columns without records, and a timestamp below -1, with the index of its record."""
        columns = self.columns(record_format, self.written(record_format, None))
        with pytest.raises(InvalidRecordError):
            record_format.encode(columns.take(0, 0), BatchHeader(), None, None)
        timestamps = array("q", columns.timestamp_ms.tolist())
        timestamps[3] = -2
        with pytest.raises(InvalidRecordError) as caught:
            record_format.encode(replace(columns, timestamp_ms=memoryview(timestamps)), BatchHeader(), None, None)
        assert caught.value.record_errors[0][0] == 3

    # --- in place ----------------------------------------------------------------------------------------------------

    def test_assigning_keeps_the_gaps_inside_a_batch(self, record_format: RecordFormat, codec: Codec) -> None:
        """``assign`` keeps the gaps inside a batch. Between two batches, it leaves no gap."""
        if not self.keeps_gaps:
            pytest.skip("the format has no gaps")
        columns = self.columns(record_format, self.written(record_format, None))
        gaps = self.joined([columns.take(row, row + 1) for row in (0, 2, 5)])
        data = record_format.encode(gaps, BatchHeader(base_offset=100), codec, None, keep_offsets=True)
        data += self.written(record_format, codec, count=2, base_offset=200)
        batches = PreparedBatches(scan_all(record_format, data), data)
        record_format.assign(batches, 5000, 8, None)
        assert [row[0] for row in self.rows(record_format, data)] == [5000, 5002, 5005, 5006, 5007]

    def test_a_batch_gets_the_time_of_its_row(self, record_format: RecordFormat, codec: Codec) -> None:
        """``assign`` without an append time writes the timestamp type and largest timestamp of each row."""
        if not self.has_timestamps:
            pytest.skip("the format has no timestamps")
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec, count=1)
            batches = PreparedBatches(scan_all(record_format, data), data)
            record_format.assign(batches, 7, 3, START_MS)
            (batch,) = batches.table
            assert (batch.timestamp_type, batch.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, START_MS)
            with_create_time = replace(
                batch, attributes=batch.attributes & ~TIMESTAMP_TYPE_BIT, max_timestamp_ms=START_MS + 8
            )
            rows = BatchTable.from_rows(batch.magic, [astuple(with_create_time)[1:]], ScanStop.END, len(data))
            changed = PreparedBatches(rows, data)
            record_format.assign(changed, 7, 3, None)
            (rescanned_batch,) = rescanned = scan_all(record_format, data)
            assert rescanned.stop is ScanStop.END
            assert (rescanned_batch.base_offset, rescanned_batch.last_offset) == (7, 7)
            assert (rescanned_batch.timestamp_type, rescanned_batch.max_timestamp_ms) == (
                TimestampType.CREATE_TIME,
                START_MS + 8,
            )
            unchanged = bytes(data)
            record_format.assign(changed, 7, 3, None)
            assert bytes(data) == unchanged

    # --- conversion --------------------------------------------------------------------------------------------------

    def test_a_set_of_its_own_magic_is_not_converted(self, record_format: RecordFormat, codec: Codec) -> None:
        """``convert`` to the magic of the batches, or to a later magic, returns the bytes unchanged."""
        data = bytes(self.written(record_format, None) + self.written(record_format, codec, base_offset=200))
        formats, codecs = FormatTable([record_format]), CodecTable([("codec", codec)])
        for magic in (record_format.magic, record_format.magic + 1):
            result = convert(data, formats, codecs, magic, limit_bytes=LIMIT_BYTES)
            assert (result.data, result.records_converted) == (data, 0)
