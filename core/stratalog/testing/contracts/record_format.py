"""Contract tests of record formats."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from stratalog.errors import CorruptBatchError, CorruptionError, DecompressedSizeError, InvalidRecordError
from stratalog.model.arrow import arrow_table, to_arrow
from stratalog.model.batches import BatchTable, ScanStop, TimestampType
from stratalog.model.prepared import PreparedBatches
from stratalog.model.records import Fields, Record
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader, RecordFormat
from stratalog.testing.contracts.record_bed import LIMIT_BYTES, START_MS, bit_flips, expected_range, good_rows, scan_all
from stratalog.testing.contracts.record_rewriting import RecordRewritingContract


class RecordFormatContract(RecordRewritingContract):
    """Contract of a record format: subclass it and override the fixtures ``record_format`` and ``codec``.

    The format must know the codec by its id.
    """

    # --- reading and writing -----------------------------------------------------------------------------------------

    def test_records_come_back_in_every_field(self, record_format: RecordFormat, codec: Codec) -> None:
        """Written records are read back with all fields, compressed or not, from any base offset."""
        for batch_codec in (None, codec):
            for base_offset in (0, 1, 1 << 40):
                data = self.written(record_format, batch_codec, base_offset=base_offset)
                table = scan_all(record_format, data)
                assert self.read(record_format, data, table) == self.expected(self.records(), base_offset)
                assert table.last_offset[-1] == base_offset + 6

    def test_batches_tile_the_bytes(self, record_format: RecordFormat, codec: Codec) -> None:
        """The scanned batches cover all bytes without gaps, and the scan stops at the end of the bytes."""
        data = self.written(record_format, None) + self.written(record_format, codec, base_offset=200)
        table = scan_all(record_format, data)
        position = 0
        for batch in table:
            assert batch.position == position
            position += batch.size_bytes
        assert position == len(data) == table.stop_position
        assert table.stop is ScanStop.END
        assert len(table) == (8 if self.batches_are_records else 2)
        assert {batch.magic for batch in table} == {record_format.magic}
        assert list(table.last_offset) == sorted(table.last_offset)

    def test_a_table_reports_if_its_offsets_ascend(self, record_format: RecordFormat) -> None:
        """``ascends`` of a scan is True exactly if the offsets ascend."""
        data = self.written(record_format, None)
        for times in (1, 2):
            table = record_format.scan(data * times, 0, len(data) * times, check_crc=True)
            copy = BatchTable(table.magic, table.columns, table.stop, table.stop_position)
            assert table.ascends == copy.ascends == (times == 1)

    def test_only_the_range_that_was_asked_for_is_looked_at(self, record_format: RecordFormat) -> None:
        """A scan does not read bytes before ``start`` and after ``end``."""
        data = self.written(record_format, None)
        framed = b"\xff" * 31 + bytes(data) + b"\xff" * 17
        table = record_format.scan(framed, 31, 31 + len(data), check_crc=True)
        assert table.stop is ScanStop.END
        assert self.read(record_format, framed, table) == self.expected(self.records(), 100)

    def test_fields_that_were_not_asked_for_are_absent(self, record_format: RecordFormat, codec: Codec) -> None:
        """Columns of fields that were not requested are empty, and the requested columns are right."""
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec)
            table = scan_all(record_format, data)
            (columns,) = record_format.decode(data, table, fields=Fields.OFFSET | Fields.KEY, limit_bytes=LIMIT_BYTES)
            assert list(columns.offset) == list(range(100, 107))
            assert columns.keys() == [record.key for record in self.records()]
            assert len(columns.timestamp_ms) == len(columns.value_size) == len(columns.header_count) == 0

    def test_arrow_holds_what_the_columns_hold(self, record_format: RecordFormat, codec: Codec) -> None:
        """``decode_arrow`` returns the same records as ``decode``, with all columns or only some.

        Its results do not refer to the input bytes, which may be overwritten afterwards.
        """
        pytest.importorskip("pyarrow")
        without_headers = [record._replace(headers=()) for record in self.records()]
        for records in (self.records(), without_headers):
            for batch_codec in (None, codec):
                data = record_format.encode(records, BatchHeader(base_offset=100, leader_epoch=5), batch_codec, None)
                table = scan_all(record_format, data)
                batches = list(record_format.decode_arrow(data, table, partition=3, limit_bytes=LIMIT_BYTES))
                expected = to_arrow(record_format.decode(bytes(data), table, limit_bytes=LIMIT_BYTES), 3)
                two_columns = list(
                    record_format.decode_arrow(
                        data, table, partition=3, limit_bytes=LIMIT_BYTES, columns=["value", "offset"]
                    )
                )
                data[:] = bytes(len(data))
                assert arrow_table(batches).equals(expected)
                assert expected.num_rows == len(records)
                assert arrow_table(two_columns, ["value", "offset"]).equals(expected.select(["value", "offset"]))

    def test_prepared_batches_are_those_of_a_scan_or_nothing(self, record_format: RecordFormat, codec: Codec) -> None:
        """``prepare_batches`` returns a copy of the bytes with the table of a scan, or None."""
        rules = self.rules()
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec) + self.written(record_format, batch_codec, base_offset=200)
            assert record_format.prepare_batches(data[:-1], rules, START_MS) is None
            prepared = record_format.prepare_batches(memoryview(data), rules, START_MS)
            if prepared is None:
                continue
            assert batch_codec is None, "compressed batches take a closer look"
            assert prepared.data == data
            assert prepared.data is not data
            assert list(prepared.table) == list(scan_all(record_format, data))

    def test_batches_that_may_break_a_rule_are_not_prepared(self, record_format: RecordFormat) -> None:
        """``prepare_batches`` and ``prepare_records`` return None if the batch or a record may break a rule."""
        data, records = self.written(record_format, None), self.records()
        for rules in (
            self.rules(max_batch_bytes=30),
            self.rules(needs_keys=True),
            self.rules(before_ms=10),
            self.rules(after_ms=5),
        ):
            assert record_format.prepare_batches(data, rules, START_MS + 30) is None
            assert record_format.prepare_records(records, rules, START_MS + 30) is None

    def test_records_are_prepared_as_they_are_encoded_or_not_at_all(self, record_format: RecordFormat) -> None:
        """``prepare_records`` returns the bytes of ``encode``, or None. Records without a timestamp get ``now_ms``."""
        rules = self.rules()
        timeless = [record._replace(timestamp_ms=-1) for record in self.records(3)]
        for records in (self.records(), timeless):
            stamped = [
                record if record.timestamp_ms >= 0 else record._replace(timestamp_ms=START_MS) for record in records
            ]
            prepared = record_format.prepare_records(records, rules, START_MS)
            if prepared is None:
                continue
            data = record_format.encode(stamped, BatchHeader(), None, None)
            assert prepared.data == data
            assert list(prepared.table) == list(scan_all(record_format, data))
        assert record_format.prepare_records([], rules, START_MS) is None

    def test_append_time_is_every_records_time(self, record_format: RecordFormat, codec: Codec) -> None:
        """With LogAppendTime, each record has the append time, whether ``encode`` or ``assign`` has set it."""
        if not self.has_timestamps:
            pytest.skip("the format has no timestamps")
        header = BatchHeader(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=START_MS + 9)
        for batch_codec in (None, codec):
            data = record_format.encode(self.records(), header, batch_codec, None)
            table = scan_all(record_format, data)
            assert {row[1] for row in self.read(record_format, data, table)} == {START_MS + 9}
            assigned = self.written(record_format, batch_codec)
            batches = PreparedBatches(scan_all(record_format, assigned), assigned)
            record_format.assign(batches, 100, 5, START_MS + 10)
            rescanned = scan_all(record_format, assigned)
            assert rescanned.stop is ScanStop.END
            assert {row[1] for row in self.read(record_format, assigned, rescanned)} == {START_MS + 10}
            assert {batch.timestamp_type for batch in batches.table} == {TimestampType.LOG_APPEND_TIME}

    def test_assigned_offsets_are_consecutive_and_the_crc_stays_right(
        self, record_format: RecordFormat, codec: Codec
    ) -> None:
        """``assign`` numbers the records of several batches; timestamps, keys, values and headers do not change."""
        records = self.records(3) + self.records(4)
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec, count=3) + self.written(record_format, batch_codec, count=4)
            batches = PreparedBatches(scan_all(record_format, data), data)
            record_format.assign(batches, 5000, 8, None)
            rescanned = scan_all(record_format, data)
            assert rescanned.stop is ScanStop.END
            scanned, assigned = (
                [replace(batch, record_count=0) for batch in table] for table in (rescanned, batches.table)
            )
            assert scanned == assigned  # a scan does not know the record count of a compressed message
            assert (batches.size_bytes, batches.last_offset) == (len(data), 5006)
            assert self.read(record_format, data, rescanned) == self.expected(records, 5000)

    def test_nothing_to_write_is_an_error(self, record_format: RecordFormat) -> None:
        """``encode`` raises InvalidRecordError for no records: a batch has at least one record."""
        with pytest.raises(InvalidRecordError):
            record_format.encode([], BatchHeader(), None, None)

    def test_times_that_do_not_exist_are_refused(self, record_format: RecordFormat) -> None:
        """``encode`` raises InvalidRecordError with the record's index for a timestamp below -1 ("no timestamp")."""
        if not self.has_timestamps:
            pytest.skip("the format has no timestamps")
        for timestamp_ms in (-2, -(1 << 63)):
            for index in (0, 3):
                records = self.records()
                records[index] = records[index]._replace(timestamp_ms=timestamp_ms)
                with pytest.raises(InvalidRecordError) as caught:
                    record_format.encode(records, BatchHeader(), None, None)
                assert caught.value.record_errors[0][0] == index

    def test_a_header_name_that_is_no_text_is_refused(self, record_format: RecordFormat) -> None:
        """``encode`` raises InvalidRecordError for a header name with a lone surrogate, which has no UTF-8 bytes."""
        with pytest.raises(InvalidRecordError) as caught:
            record_format.encode([Record(), Record(headers=(("\ud800", b""),))], BatchHeader(), None, None)
        assert caught.value.record_errors[0][0] == 1

    def test_headers_are_kept_or_refused(self, record_format: RecordFormat) -> None:
        """``encode`` of a format without headers raises InvalidRecordError for records with headers."""
        if self.has_headers:
            pytest.skip("the format has headers")
        with pytest.raises(InvalidRecordError):
            record_format.encode([Record(headers=(("h", b"x"),))], BatchHeader(), None, None)

    # --- selecting ---------------------------------------------------------------------------------------------------

    def test_a_selection_is_what_a_scan_finds_or_nothing(self, record_format: RecordFormat, codec: Codec) -> None:
        """``select`` returns the range that a scan finds, or None.

        The test combines many values of ``offset``, ``max_bytes``, ``bound`` and ``indexed_offset``.
        """
        parts = [
            self.written(record_format, batch_codec, base_offset=base)
            for batch_codec, base in ((None, 100), (codec, 107), (None, 120))
        ]
        data = b"".join(map(bytes, parts))
        table = scan_all(record_format, data)
        lasts = list(table.last_offset)
        limits = {-1, 0, 1, *(sum(list(table.size_bytes)[:count]) for count in range(1, len(table) + 1)), 1 << 40}
        for offset in range(99, 129):
            for bound in (0, 107, 114, 127, 1 << 40):
                for indexed in (None, *lasts, 99, 115, 127, 1 << 70):
                    for max_bytes in limits:
                        select = partial(
                            record_format.select, data, base_offset=100, offset=offset, indexed_offset=indexed
                        )
                        selection = select(max_bytes=max_bytes, bound=bound)
                        assert select(max_bytes=max_bytes, bound=bound, check_crc=True) == selection
                        if selection is not None:
                            assert indexed is None or indexed in lasts
                            assert selection == expected_range(table, offset, max_bytes, bound)

    def test_a_selection_by_time_begins_with_the_first_late_batch(self, record_format: RecordFormat) -> None:
        """``select`` with ``since_ms`` and ``indexed_ms`` returns the range of a scan, or None."""
        data = b"".join(bytes(self.written(record_format, None, count=2, base_offset=base)) for base in (100, 107, 120))
        table = scan_all(record_format, data)
        latest = list(table.max_timestamp_ms)
        for since_ms in {selection + step for selection in latest for step in (-1, 0, 1)}:
            for offset, row in product((100, 107, 121), range(len(table))):
                select = partial(
                    record_format.select, data, base_offset=100, offset=offset, max_bytes=1 << 20, bound=1 << 40
                )
                indexed = partial(select, since_ms=since_ms, indexed_offset=table.last_offset[row])
                selection = indexed(indexed_ms=latest[row])
                if selection is not None:
                    late = [batch.last_offset >= offset and batch.max_timestamp_ms >= since_ms for batch in table]
                    assert any(late)
                    first = late.index(True)
                    assert selection == expected_range(table, table.base_offset[first], 1 << 20, 1 << 40)
                assert indexed(indexed_ms=latest[row] + 1) is None

    def test_a_batch_is_selected_by_its_header_where_the_rest_of_it_was_not_read(
        self, record_format: RecordFormat
    ) -> None:
        """``select`` with incomplete bytes returns a range that a scan of the complete bytes finds, or None.

        The bytes end at any position. ``beyond_bytes`` is the number of missing bytes.
        """
        data = b"".join(bytes(self.written(record_format, None, count=3, base_offset=base)) for base in (100, 107, 120))
        table = scan_all(record_format, data)
        limits = dict.fromkeys((0, len(data) // 2, len(data)))
        for size in range(len(data) + 1):
            complete_count = len(record_format.scan(data, 0, size, check_crc=False))
            select = partial(record_format.select, data[:size], base_offset=100, indexed_offset=None)
            for offset, bound, max_bytes in product((100, 108, 122), (110, 1 << 40), limits):
                selection = select(offset=offset, bound=bound, max_bytes=max_bytes, beyond_bytes=len(data) - size)
                if selection is not None:
                    rows = (table.take(0, count) for count in range(max(complete_count, 1), len(table) + 1))
                    assert selection in [
                        expected_range(row, offset, max_bytes, bound) for row in rows if row.last_offset[-1] >= offset
                    ]
                checked = select(
                    offset=offset, bound=bound, max_bytes=max_bytes, beyond_bytes=len(data) - size, check_crc=True
                )
                assert checked == select(offset=offset, bound=bound, max_bytes=max_bytes, check_crc=True)

    def test_selection_and_scan_agree_about_hostile_bytes(self, record_format: RecordFormat) -> None:
        """``select`` of damaged bytes returns None, or a range of complete batches before the first damaged batch.

        A batch whose offsets do not ascend counts as damaged.
        """
        data = b"".join(bytes(self.written(record_format, None, count=1, base_offset=base)) for base in (100, 101, 102))
        damages = [*(data[:size] for size in range(len(data))), *map(bytes, bit_flips(data))]
        for damaged_bytes, check_crc in product(damages, (False, True)):
            table = scan_all(record_format, damaged_bytes, check_crc=check_crc)
            for offset in (100, 101, 102):
                selection = record_format.select(
                    damaged_bytes,
                    base_offset=100,
                    offset=offset,
                    max_bytes=1 << 20,
                    bound=1 << 62,
                    indexed_offset=None,
                    check_crc=check_crc,
                )
                if selection is not None:
                    good_count = good_rows(table, 100)
                    assert selection == expected_range(table.take(0, good_count), offset, 1 << 20, 1 << 62)

    # --- hostile bytes -----------------------------------------------------------------------------------------------

    def test_a_set_that_is_cut_anywhere_keeps_its_whole_batches(self, record_format: RecordFormat) -> None:
        """A scan of cut bytes raises no error, returns the whole batches, and reports the rest as a partial entry."""
        data = bytes(self.written(record_format, None, count=3) + self.written(record_format, None, base_offset=200))
        all_batches = scan_all(record_format, data)
        for size in range(len(data)):
            table = record_format.scan(data, 0, size, check_crc=True)
            fitting = [batch for batch in all_batches if batch.position + batch.size_bytes <= size]
            assert list(table) == fitting
            end = fitting[-1].position + fitting[-1].size_bytes if fitting else 0
            assert table.stop is (ScanStop.END if end == size else ScanStop.PARTIAL)
            assert table.stop_position == end

    def test_every_flipped_bit_is_found_or_harmless(self, record_format: RecordFormat, codec: Codec) -> None:
        """``scan`` and ``decode`` raise only typed errors, and never return changed keys, values or headers."""
        for batch_codec in (None, codec):
            data = bytes(self.written(record_format, batch_codec, count=3))
            contents = [row[2:] for row in self.expected(self.records(3), 100)]
            for damaged in bit_flips(data):
                table = scan_all(record_format, damaged)
                try:
                    rows = self.read(record_format, damaged, table)
                except CorruptionError:
                    continue
                assert [row[2:] for row in rows] == contents[: len(rows)]
                assert len(rows) == len(contents) or table.stop is not ScanStop.END

    def test_every_bit_under_the_crc_is_found(self, record_format: RecordFormat, codec: Codec) -> None:
        """A scan stops at the start of a damaged entry. This includes an entry with a flipped bit in its CRC."""
        for batch_codec in (None, codec):
            data = bytes(self.written(record_format, batch_codec, count=1))
            for damaged in bit_flips(data, self.checked_from):
                table = scan_all(record_format, damaged)
                assert table.stop in {ScanStop.CORRUPT, ScanStop.OTHER_MAGIC}
                assert (table.stop_position, len(table)) == (0, 0)

    def test_an_error_says_which_batch_it_is(self, record_format: RecordFormat, codec: Codec) -> None:
        """The error about a damaged batch has the position of the batch, and no file (``file`` is empty)."""
        first = bytes(self.written(record_format, None))
        second = bytes(self.written(record_format, codec, base_offset=200))
        error_places = set()
        for position in range(len(second) // 2, len(second)):
            data = bytearray(first + second)
            data[len(first) + position] ^= 0xFF
            table = scan_all(record_format, data, check_crc=False)
            assert table.stop is ScanStop.END
            try:
                self.read(record_format, data, table)
            except CorruptBatchError as error:
                error_places.add((error.file, error.position))
        assert error_places == {("", len(first))}

    def test_a_crc_is_only_checked_when_asked(self, record_format: RecordFormat) -> None:
        """``scan`` checks CRCs only with ``check_crc=True``: recovery checks them, a local read does not."""
        data = self.written(record_format, None, count=1)
        data[-1] ^= 1
        assert scan_all(record_format, data, check_crc=False).stop is ScanStop.END
        checked = scan_all(record_format, data)
        assert (checked.stop, checked.stop_position, len(checked)) == (ScanStop.CORRUPT, 0, 0)
        assert checked.reason

    def test_decompression_is_bounded(self, record_format: RecordFormat, codec: Codec) -> None:
        """Decompressing a megabyte of zeros raises DecompressedSizeError if the limit is 1,000 bytes."""
        data = record_format.encode([Record(value=bytes(1 << 20))], BatchHeader(), codec, None)
        table = scan_all(record_format, data)
        assert len(data) < 1 << 17
        with pytest.raises(DecompressedSizeError):
            list(record_format.decode(data, table, fields=Fields.ALL, limit_bytes=1000))

    def test_the_same_input_gives_the_same_output_and_stays_as_it_was(
        self, record_format: RecordFormat, codec: Codec
    ) -> None:
        """Encoding and decoding are deterministic and do not change their input."""
        for batch_codec in (None, codec):
            data = self.written(record_format, batch_codec)
            before = bytes(data)
            table = scan_all(record_format, data)
            assert self.read(record_format, data, table) == self.read(record_format, data, table)
            assert bytes(data) == before == bytes(self.written(record_format, batch_codec))
