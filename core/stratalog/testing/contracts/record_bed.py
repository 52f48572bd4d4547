"""Shared records, fixtures and helpers of the contract tests of record formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from stratalog.model.batches import BatchTable, Buffer, RecordBatch
from stratalog.model.prepared import PreparedBatches, Rules
from stratalog.model.records import Fields, Record
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader, RecordFormat

LIMIT_BYTES = 1 << 24
START_MS = 1_700_000_000_000
Row = tuple[int, int, bytes | None, bytes | None, object]


class RecordFormatBed:
    """Base class of the contracts of record formats: fixtures, test records and helpers.

    Attributes:
        has_timestamps: True if the format stores a timestamp for each record.
        has_headers: True if the format stores record headers.
        batches_are_records: True if an uncompressed batch is a single record.
        keeps_gaps: True if the format can store gaps between offsets.
        checked_from: position of the CRC in an entry. A scan must find each flipped bit from this byte on.
    """

    has_timestamps: bool = True
    has_headers: bool = True
    batches_are_records: bool = False
    checked_from: int = 17
    keeps_gaps: bool = True

    @pytest.fixture
    def record_format(self) -> RecordFormat:
        """Return the record format to check; overridden by the subclass."""
        raise NotImplementedError("define the fixture `record_format`")

    @pytest.fixture
    def codec(self) -> Codec:
        """Return the codec for compressed batches; overridden by the subclass.

        The record format must find this codec by its id, which is in the attributes of a batch.
        """
        raise NotImplementedError("define the fixture `codec`")

    # --- helpers -----------------------------------------------------------------------------------------------------

    def records(self, count: int = 7) -> list[Record]:
        """Return records with null, empty and other keys and values, and with headers if the format has them."""
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

    @staticmethod
    def rules(
        *,
        max_batch_bytes: int = LIMIT_BYTES,
        before_ms: int = 1 << 62,
        after_ms: int = 1 << 62,
        needs_keys: bool = False,
    ) -> Rules:
        """Return rules that all test records satisfy, unless an argument makes a rule stricter."""
        return Rules(
            max_batch_bytes=max_batch_bytes,
            before_ms=before_ms,
            after_ms=after_ms,
            needs_keys=needs_keys,
            keeps_times=True,
            limit_bytes=LIMIT_BYTES,
            overhead_bytes=30,
        )

    def expected(self, records: Sequence[Record], base_offset: int) -> list[Row]:
        """Return the rows that ``read`` must return for ``records`` whose first offset is ``base_offset``."""
        return [
            (offset, record.timestamp_ms if self.has_timestamps else -1, record.key, record.value, record.headers)
            for offset, record in enumerate(records, base_offset)
        ]

    @staticmethod
    def read(form: RecordFormat, data: bytes | bytearray, table: BatchTable) -> list[Row]:
        """Return the records of ``table`` as tuples of offset, timestamp, key, value and headers."""
        return [
            (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
            for columns in form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES)
            for record in columns.to_records()
        ]

    def written(self, form: RecordFormat, codec: Codec | None, count: int = 7, base_offset: int = 100) -> bytearray:
        """Return the bytes of ``count`` encoded records with offsets from ``base_offset`` on and leader epoch 5."""
        header = BatchHeader(base_offset=base_offset, leader_epoch=5)
        data = form.encode(self.records(count), header, codec, None)
        form.assign(PreparedBatches(scan_all(form, data), data), base_offset, 5, None)
        return data


def scan_all(form: RecordFormat, data: Buffer, *, check_crc: bool = True) -> BatchTable:
    """Return the batches of a scan of all bytes."""
    return form.scan(data, 0, len(data), check_crc=check_crc)


def bit_flips(data: bytes, start: int = 0) -> Iterator[bytearray]:
    """Yield the data with one flipped bit, for each bit from the byte ``start`` on."""
    for bit in range(start * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        yield damaged


def expected_range(table: BatchTable, offset: int, max_bytes: int, bound: int) -> tuple[int, int, int] | None:
    """Return the result that ``select`` must have if it is not None: start, end and last offset.

    If all batches of ``table`` are below ``offset``, only None is allowed. If the range is empty, the last offset is
    -1.
    """
    rows = [batch for batch in table if batch.last_offset >= offset]
    if not rows:
        return None
    start, batches = rows[0].position, list[RecordBatch]()
    for batch in rows:
        if batch.last_offset >= bound or (batches and batch.position + batch.size_bytes - start > max_bytes):
            break
        batches.append(batch)
    last = batches[-1] if batches else None
    return (start, start, -1) if last is None else (start, last.position + last.size_bytes, last.last_offset)


def good_rows(table: BatchTable, base_offset: int) -> int:
    """Return the number of batches before the first batch with invalid offsets, in a segment with ``base_offset``."""
    after = base_offset - 1
    for row, batch in enumerate(table):
        if not after < batch.base_offset <= batch.last_offset < base_offset + (1 << 31):
            return row
        after = batch.last_offset
    return len(table)
