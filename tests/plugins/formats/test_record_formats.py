"""The record formats of Kafka keep the contract of every record format."""

from __future__ import annotations

import pytest

from stratalog.spi import BatchHeader, Codec, CodecTable, Fields, Record, RecordFormat
from stratalog.testing.contracts import RecordFormatContract
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.messages import MessageFormatV0, MessageFormatV1

CODECS: dict[str, Codec] = {"gzip": GzipCodec(), "snappy": SnappyCodec(), "lz4": Lz4Codec(), "zstd": ZstdCodec()}
TABLE = CodecTable(CODECS.items())


class TestV0(RecordFormatContract):
    has_timestamps = False
    has_headers = False
    batches_are_records = True

    @pytest.fixture
    def record_format(self) -> RecordFormat:
        return MessageFormatV0(TABLE)

    @pytest.fixture(params=["gzip", "lz4"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CODECS[request.param]


class TestV1(RecordFormatContract):
    has_headers = False
    batches_are_records = True

    @pytest.fixture
    def record_format(self) -> RecordFormat:
        return MessageFormatV1(TABLE)

    @pytest.fixture(params=["gzip", "snappy", "lz4"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CODECS[request.param]


class TestV2(RecordFormatContract):
    @pytest.fixture
    def record_format(self) -> RecordFormat:
        return BatchFormat(TABLE)

    @pytest.fixture(params=list(CODECS))
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CODECS[request.param]

    def test_producer_fields_and_flags_are_in_the_header(self, record_format: RecordFormat) -> None:
        header = BatchHeader(producer_id=7, producer_epoch=3, base_sequence=11, transactional=True, leader_epoch=2)
        data = record_format.encode(self.records(), header, None, None)
        (batch,) = record_format.scan(data, 0, len(data), check_crc=True)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch) == (7, 3, 11, 2)
        assert (batch.is_transactional, batch.is_control, batch.record_count) == (True, False, 7)
        assert batch.max_timestamp_ms == max(record.timestamp_ms for record in self.records())

    def test_rewriting_is_not_offered_yet(self, record_format: RecordFormat) -> None:
        data = self.written(record_format, None)
        table = record_format.scan(data, 0, len(data), check_crc=True)
        with pytest.raises(NotImplementedError, match="BatchFormat"):
            record_format.retain(data, table, [bytes(7)], None)

    @pytest.mark.parametrize("large", [127, 128, 8191, 8192, 70_000])
    def test_numbers_of_every_width_come_back(self, record_format: RecordFormat, large: int) -> None:
        """Lengths, deltas of offsets and of times cross the borders of one, two and three bytes."""
        given = [
            Record(timestamp_ms=(-1) ** n * n * large + (1 << 40), key=bytes(n % 300), value=bytes(large))
            for n in range(9)
        ]
        data = record_format.encode(given, BatchHeader(base_offset=5), None, None)
        table = record_format.scan(data, 0, len(data), check_crc=True)
        (columns,) = record_format.decode(data, table, fields=Fields.ALL, limit_bytes=1)
        assert list(columns.timestamp_ms) == [record.timestamp_ms for record in given]
        assert columns.values() == [record.value for record in given]
        assert columns.keys() == [record.key for record in given]
