"""Kafka's record formats pass the contract of record formats."""

from __future__ import annotations

import mmap

import pytest

import twins
from stratalog import Record, TimestampType
from stratalog.errors import UnsupportedCompressionError
from stratalog.spi import BatchHeader, Codec, CodecTable, Fields, RecordFormat, ScanStop
from stratalog.testing.contracts import RecordFormatContract
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.message_versions import MessageFormatV0, MessageFormatV1

CODECS: dict[str, Codec] = {"gzip": GzipCodec(), "snappy": SnappyCodec(), "lz4": Lz4Codec(), "zstd": ZstdCodec()}
TABLE = CodecTable(CODECS.items())


class TestV0(RecordFormatContract):
    has_timestamps = False
    has_headers = False
    batches_are_records = True
    checked_from = 12

    @pytest.fixture
    def record_format(self) -> RecordFormat:
        return MessageFormatV0(TABLE)

    @pytest.fixture(params=["gzip", "lz4"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CODECS[request.param]


class TestV1(RecordFormatContract):
    has_headers = False
    batches_are_records = True
    checked_from = 12

    @pytest.fixture
    def record_format(self) -> RecordFormat:
        return MessageFormatV1(TABLE)

    @pytest.fixture(params=["gzip", "snappy", "lz4"])
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return CODECS[request.param]


@pytest.mark.parametrize("form", [MessageFormatV0(TABLE), MessageFormatV1(TABLE)], ids=["v0", "v1"])
def test_zstd_is_refused_where_it_does_not_exist(form: RecordFormat) -> None:
    with pytest.raises(UnsupportedCompressionError, match="zstd"):
        form.encode([Record(value=b"v")], BatchHeader(), CODECS["zstd"], None)


@pytest.mark.parametrize("kind", [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])
@pytest.mark.parametrize("outer", [MessageFormatV0(TABLE), MessageFormatV1(TABLE)], ids=["v0", "v1"])
@pytest.mark.parametrize("inner", [MessageFormatV0(TABLE), MessageFormatV1(TABLE)], ids=["v0", "v1"])
def test_a_message_in_a_wrapper_has_the_time_that_its_own_magic_has(
    outer: RecordFormat, inner: RecordFormat, kind: TimestampType
) -> None:
    """Like Kafka, the format reads the timestamp from the message, and only the timestamp type from the wrapper."""

    class Switched(GzipCodec):
        def compress(self, data: object, *, level: int | None, magic: int) -> bytes:
            del data
            return super().compress(inner.encode(records, BatchHeader(), None, None), level=level, magic=magic)

    records = [Record(timestamp_ms=5, value=b"a"), Record(timestamp_ms=9, value=b"b")]
    header = BatchHeader(base_offset=20, timestamp_type=kind, append_time_ms=77)
    data = outer.encode(records, header, Switched(), None)
    table = outer.scan(data, 0, len(data), check_crc=True)
    assert table.stop is ScanStop.END
    (columns,) = outer.decode(data, table, limit_bytes=1 << 20)
    has_own = inner.magic == 1
    is_stamped = outer.magic == 1 and kind is TimestampType.LOG_APPEND_TIME
    message_times = [77, 77] if is_stamped else [5, 9]
    assert list(columns.timestamp_ms) == (message_times if has_own else [-1, -1])
    assert list(columns.timestamp_type) == [int(kind) if has_own and outer.magic == 1 else -1] * 2
    assert columns.values() == [b"a", b"b"]


@pytest.mark.parametrize("name", ["v0", "v1", "v2"])
@pytest.mark.parametrize("codec", [None, CODECS["gzip"]], ids=["plain", "gzip"])
def test_batches_at_the_start_of_more_than_2_gib_are_decoded(name: str, codec: Codec | None) -> None:
    for kernels in twins.twins():
        form, records = twins.formats(kernels)[name], [Record(timestamp_ms=5, value=b"a"), Record(timestamp_ms=9)]
        encoded = form.encode(records, BatchHeader(), codec, None)
        with mmap.mmap(-1, (1 << 31) + 1) as data:
            data[: len(encoded)] = encoded
            with memoryview(data) as view:
                table = form.scan(view, 0, len(encoded), check_crc=True)
                chunks = form.decode(view, table, limit_bytes=1 << 20)
                assert [offset for columns in chunks for offset in columns.offset] == [0, 1]
                del chunks


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

    @pytest.mark.parametrize("large", [127, 128, 8191, 8192, 70_000])
    def test_numbers_of_every_width_come_back(self, record_format: RecordFormat, large: int) -> None:
        """Lengths, offset deltas and timestamp deltas need one, two or three bytes."""
        records = [
            Record(timestamp_ms=(-1) ** n * n * large + (1 << 40), key=bytes(n % 300), value=bytes(large))
            for n in range(9)
        ]
        data = record_format.encode(records, BatchHeader(base_offset=5), None, None)
        table = record_format.scan(data, 0, len(data), check_crc=True)
        (columns,) = record_format.decode(data, table, fields=Fields.ALL, limit_bytes=1)
        assert list(columns.timestamp_ms) == [record.timestamp_ms for record in records]
        assert columns.values() == [record.value for record in records]
        assert columns.keys() == [record.key for record in records]
