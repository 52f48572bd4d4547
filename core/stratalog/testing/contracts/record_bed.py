"""Records, written and read back: what the contracts of record formats stand on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.model.batches import BatchTable
from stratalog.model.records import Fields, Record
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader, RecordFormat

LIMIT_BYTES = 1 << 24
START_MS = 1_700_000_000_000
Row = tuple[int, int, bytes | None, bytes | None, object]


class RecordFormatBed:
    """What the contracts of record formats share: the format, a codec that it knows by its id, and records.

    Attributes:
        has_timestamps: whether records keep their own time.
        has_headers: whether records keep headers.
        batches_are_records: whether an uncompressed batch is one record.
        keeps_gaps: whether gaps between offsets can be written.
        checked_from: the first byte of an entry where a flipped bit must be found: that of the CRC.
    """

    has_timestamps: bool = True
    has_headers: bool = True
    batches_are_records: bool = False
    checked_from: int = 17
    keeps_gaps: bool = True

    @pytest.fixture
    def record_format(self) -> RecordFormat:
        """The format to check."""
        raise NotImplementedError("give the fixture `record_format`")

    @pytest.fixture
    def codec(self) -> Codec:
        """A codec that the format finds again by the id in the attributes."""
        raise NotImplementedError("give the fixture `codec`")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def records(self, count: int = 7) -> list[Record]:
        """Records with null, empty and full keys and values, and headers where the format has them."""
        choices: tuple[bytes | None, ...] = (None, b"", b"some bytes", b"x" * 300)
        return [
            Record(
                timestamp_ms=START_MS + (number * 37) % 50,
                key=choices[number % 4],
                value=choices[(number + 1) % 4],
                headers=(("h", b"v"), ("h", None), ("größe", b"")) if self.has_headers and number % 2 else (),
            )
            for number in range(count)
        ]

    def expected(self, records: Sequence[Record], base_offset: int) -> list[Row]:
        """What must be read back of records written from ``base_offset`` on."""
        return [
            (offset, record.timestamp_ms if self.has_timestamps else -1, record.key, record.value, record.headers)
            for offset, record in enumerate(records, base_offset)
        ]

    @staticmethod
    def read(form: RecordFormat, data: bytes | bytearray, table: BatchTable) -> list[Row]:
        """The records of ``table``, as tuples."""
        return [
            (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
            for columns in form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES)
            for record in columns.to_records()
        ]

    def written(self, form: RecordFormat, codec: Codec | None, count: int = 7, base_offset: int = 100) -> bytearray:
        """One encoded append."""
        header = BatchHeader(base_offset=base_offset, leader_epoch=5)
        data = form.encode(self.records(count), header, codec, None)
        table = form.scan(data, 0, len(data), check_crc=True)
        form.assign(data, table, base_offset, 5, None)
        return data
