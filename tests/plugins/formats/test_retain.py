"""Results of cleaning for batches of magic 2 and for messages, in addition to the contract of all formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import twins
from stratalog import Record, TimestampType
from stratalog.errors import CorruptBatchError, InvalidRecordError, UnsupportedCompressionError
from stratalog.spi import BatchHeader, BatchTable, Codec, CodecTable, Fields, RecordBatch, RecordFormat, Verdict
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.kernels.dispatch import KERNELS, PYTHON
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.message_versions import MessageFormatV0, MessageFormatV1
from vectors import VECTORS as CHECKED

CODECS: dict[str, Codec] = {"gzip": GzipCodec(), "snappy": SnappyCodec(), "lz4": Lz4Codec(), "zstd": ZstdCodec()}
TABLE = CodecTable(CODECS.items())
V0, V1, V2 = MessageFormatV0(TABLE), MessageFormatV1(TABLE), BatchFormat(TABLE)
TWINS = [BatchFormat(TABLE, kernels) for kernels in (KERNELS, PYTHON)]
VECTORS = CHECKED["vectors"]
LIMIT_BYTES = 1 << 24
START_MS = 1_700_000_000_000
HORIZON_MS = START_MS + 86_400_000
KEEP, DROP, AT_HORIZON = Verdict.KEEP, Verdict.DROP, Verdict.DROP_AT_HORIZON
HEADER = BatchHeader(
    base_offset=100,
    leader_epoch=2,
    producer_id=4000,
    producer_epoch=3,
    base_sequence=10,
    transactional=True,
)


def vector(name: str) -> dict[str, Any]:
    return next(candidate for candidate in VECTORS if candidate["name"] == name)


def some(count: int = 5, step_ms: int = 1) -> list[Record]:
    return [
        Record(timestamp_ms=START_MS + number * step_ms, key=b"k%d" % number, value=b"v%d" % number)
        for number in range(count)
    ]


def cleaned(
    data: bytes | bytearray,
    *words: Sequence[int],
    horizon_ms: int | None = None,
    empty: Sequence[bool] | None = None,
) -> bytes:
    """Clean batches of magic 2 by these verdicts, and return the remaining bytes; both kernels must agree."""
    table = V2.scan(data, 0, len(data), check_crc=True)
    verdicts = [bytes(word) for word in words]
    results = {
        b"".join(twin.retain(data, table, verdicts, horizon_ms, retain_empty=empty, limit_bytes=LIMIT_BYTES))
        for twin in TWINS
    }
    (result,) = results
    return result


def only(data: bytes | bytearray, form: RecordFormat = V2) -> tuple[RecordBatch, list[Record]]:
    """Return the only batch in ``data``, and its records."""
    table = form.scan(data, 0, len(data), check_crc=True)
    (batch,) = table
    assert table.stop_position == len(data)
    records = [
        record
        for columns in form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES)
        for record in columns.to_records()
    ]
    return batch, records


# --- batches of magic 2 ------------------------------------------------------------------------------------------


def test_gaps_are_left_as_kafka_leaves_them() -> None:
    """In the vector, Kafka has removed some of the offsets 100 to 104."""
    kept_records = {record["offset"]: record for record in vector("v2_compacted_gaps")["inputs"]["records"]}
    records = [
        Record(
            timestamp_ms=START_MS + offset - 100,
            key=bytes.fromhex(kept_records[offset]["key"]) if offset in kept_records else b"gone",
            value=bytes.fromhex(kept_records[offset]["value"]) if offset in kept_records else b"too",
        )
        for offset in range(100, 105)
    ]
    data = V2.encode(records, BatchHeader(base_offset=100), None, None)
    words = [KEEP if offset in kept_records else DROP for offset in range(100, 105)]
    assert cleaned(data, words).hex() == vector("v2_compacted_gaps")["hex"]


def test_a_horizon_is_set_as_kafka_sets_it() -> None:
    inputs = vector("v2_delete_horizon")["inputs"]
    (tombstone,) = inputs["records"]
    record = Record(timestamp_ms=tombstone["timestamp"], key=bytes.fromhex(tombstone["key"]))
    data = V2.encode([record], BatchHeader(base_offset=8), None, None)
    result = cleaned(data, [AT_HORIZON], horizon_ms=inputs["delete_horizon_ms"])
    assert result.hex() == vector("v2_delete_horizon")["hex"]


def test_an_emptied_batch_is_kafkas_to_the_byte() -> None:
    inputs = vector("v2_empty_retained")["inputs"]
    header = BatchHeader(
        base_offset=inputs["base_offset"],
        leader_epoch=inputs["partition_leader_epoch"],
        producer_id=inputs["producer_id"],
        producer_epoch=inputs["producer_epoch"],
        base_sequence=inputs["base_sequence"],
    )
    for codec in (None, *CODECS.values()):
        times = [START_MS, START_MS + 3, START_MS + 1, START_MS + 2, START_MS]
        data = V2.encode([Record(timestamp_ms=ms) for ms in times], header, codec, None)
        once = cleaned(data, [DROP] * 5, empty=[True])
        assert once.hex() == vector("v2_empty_retained")["hex"]
        assert cleaned(once, [], empty=[True]) == once
        assert cleaned(once, []) == b""


@pytest.mark.parametrize("codec", [None, *CODECS])
@pytest.mark.parametrize("step_ms", [0, 1, 1_000_000, -7])
def test_the_header_around_the_records_stays(codec: str | None, step_ms: int) -> None:
    """Base and last offset, producer, epoch, flags and codec stay. Timestamps and the number of records are new."""
    original_records = some(step_ms=step_ms)
    data = V2.encode(original_records, HEADER, CODECS[codec] if codec else None, None)
    before, _ = only(data)
    for words in ([DROP, KEEP, KEEP, KEEP, DROP], [KEEP, DROP, DROP, KEEP, DROP], [DROP, DROP, KEEP, DROP, DROP]):
        batch, records = only(cleaned(data, words))
        rows = [row for row, word in enumerate(words) if word is KEEP]
        assert [record.offset for record in records] == [100 + row for row in rows]
        assert [record.timestamp_ms for record in records] == [original_records[row].timestamp_ms for row in rows]
        assert [record.value for record in records] == [original_records[row].value for row in rows]
        assert (batch.base_offset, batch.last_offset, batch.record_count) == (100, 104, len(rows))
        assert batch.base_timestamp_ms == records[0].timestamp_ms
        assert batch.max_timestamp_ms == max(record.timestamp_ms for record in records)
        for name in ("leader_epoch", "producer_id", "producer_epoch", "base_sequence", "attributes"):
            assert getattr(batch, name) == getattr(before, name)


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_rewritten_batch_is_what_encoding_its_records_gives(codec: str | None) -> None:
    """The records of a rewritten batch may be copied, or encoded again with new timestamp deltas."""
    batch_codec = CODECS[codec] if codec else None
    for words in ([KEEP, KEEP, KEEP, KEEP, DROP], [DROP, KEEP, KEEP, KEEP, KEEP]):
        kept_records = [record for record, word in zip(some(), words, strict=True) if word is KEEP]
        batch, records = only(cleaned(V2.encode(some(), HEADER, batch_codec, None), words))
        first = kept_records[0]
        expected = V2.encode(kept_records, HEADER, batch_codec, None)
        encoded_batch, _ = only(expected)
        assert [record._replace(offset=-1) for record in records] == [
            record._replace(leader_epoch=2, offset=-1) for record in kept_records
        ]
        assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (first.timestamp_ms, encoded_batch.max_timestamp_ms)
        assert (
            batch.size_bytes <= encoded_batch.size_bytes + 4
            if batch_codec
            else batch.size_bytes == encoded_batch.size_bytes
        )


def test_a_horizon_is_set_once_and_stays() -> None:
    data = V2.encode(some(), HEADER, None, None)
    first = cleaned(data, [KEEP, AT_HORIZON, KEEP, KEEP, KEEP], horizon_ms=HORIZON_MS)
    batch, records = only(first)
    assert (batch.delete_horizon_ms, batch.record_count) == (HORIZON_MS, 5)
    assert [record.timestamp_ms for record in records] == [record.timestamp_ms for record in some()]
    assert cleaned(first, [AT_HORIZON] * 5, horizon_ms=HORIZON_MS + 1) == first
    later, records = only(cleaned(first, [DROP, AT_HORIZON, KEEP, KEEP, DROP], horizon_ms=HORIZON_MS + 1))
    assert later.delete_horizon_ms == HORIZON_MS
    assert [record.timestamp_ms for record in records] == [START_MS + 1, START_MS + 2, START_MS + 3]
    emptied, _ = only(cleaned(first, [DROP] * 5, empty=[True]))
    assert (emptied.delete_horizon_ms, emptied.base_timestamp_ms, emptied.max_timestamp_ms) == (None, -1, START_MS + 4)


def test_no_horizon_is_set_without_a_tombstone_or_without_one_to_set() -> None:
    data = bytes(V2.encode(some(), HEADER, None, None))
    assert cleaned(data, [KEEP] * 5, horizon_ms=HORIZON_MS) == data
    assert cleaned(data, [AT_HORIZON] * 5) == data
    batch, _ = only(cleaned(data, [DROP, KEEP, KEEP, KEEP, KEEP], horizon_ms=HORIZON_MS))
    assert batch.delete_horizon_ms is None
    batch, _ = only(cleaned(data, [DROP, AT_HORIZON, KEEP, KEEP, KEEP], horizon_ms=HORIZON_MS))
    assert batch.delete_horizon_ms == HORIZON_MS


def test_a_marker_gets_a_horizon_and_stays_a_marker() -> None:
    """KIP-534: the marker gets a delete horizon when no record of its transaction is left."""
    data = bytes.fromhex(vector("v2_abort_marker")["hex"])
    batch, (record,) = only(cleaned(data, [AT_HORIZON], horizon_ms=HORIZON_MS))
    assert (batch.is_control, batch.is_transactional, batch.delete_horizon_ms) == (True, True, HORIZON_MS)
    assert (record.key, record.value, record.timestamp_ms) == (bytes(4), bytes.fromhex("000000000007"), START_MS)
    emptied, records = only(cleaned(data, [DROP], empty=[True]))
    assert (emptied.is_control, emptied.is_transactional, emptied.record_count, records) == (True, True, 0, [])


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_the_time_of_the_append_stays_the_largest(codec: str | None) -> None:
    header = BatchHeader(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=START_MS + 77)
    data = V2.encode(some(), header, CODECS[codec] if codec else None, None)
    batch, records = only(cleaned(data, [KEEP, DROP, KEEP, DROP, DROP]))
    assert (batch.max_timestamp_ms, batch.timestamp_type) == (START_MS + 77, TimestampType.LOG_APPEND_TIME)
    assert [record.timestamp_ms for record in records] == [START_MS + 77] * 2
    assert batch.base_timestamp_ms == START_MS + 77
    emptied, _ = only(cleaned(data, [DROP] * 5, empty=[True]))
    assert (emptied.timestamp_type, emptied.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, START_MS + 77)


@pytest.mark.parametrize("codec", CODECS)
def test_only_compressed_batches_that_keep_changed_records_are_decompressed(codec: str) -> None:
    """The codec refuses every batch. A batch that stays, is left out or keeps only its header needs no codec."""
    first, second, third = (
        bytes(V2.encode(some(2), BatchHeader(base_offset=offset), CODECS[codec], None)) for offset in (0, 2, 4)
    )
    data, without_codecs = first + second + third, BatchFormat(CodecTable([]))
    table = V2.scan(data, 0, len(data), check_crc=True)
    words = [bytes([KEEP, AT_HORIZON]), bytes([DROP, DROP]), bytes([DROP, DROP])]
    empty = [False, True, False]
    retained = b"".join(without_codecs.retain(data, table, words, None, retain_empty=empty, limit_bytes=LIMIT_BYTES))
    assert (retained[: len(first)], len(retained)) == (first, len(first) + 61)
    for verdicts, horizon_ms in (([KEEP, DROP], None), ([KEEP, AT_HORIZON], HORIZON_MS)):
        with pytest.raises(UnsupportedCompressionError):
            list(without_codecs.retain(data, table, [bytes(verdicts), *words[1:]], horizon_ms, limit_bytes=LIMIT_BYTES))


def test_batches_that_are_left_out_of_the_table_are_left_out() -> None:
    """Bytes between the rows of the table are not copied."""
    pieces = [bytes(V2.encode(some(2), BatchHeader(base_offset=offset), None, None)) for offset in range(0, 6, 2)]
    data = b"".join(pieces)
    table = V2.scan(data, 0, len(data), check_crc=True).keep([True, False, True])
    for twin in TWINS:
        retained = twin.retain(data, table, [bytes(2)] * 2, None, limit_bytes=LIMIT_BYTES)
        assert b"".join(retained) == pieces[0] + pieces[2]


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_a_wrong_number_of_verdicts_is_reported_with_the_position_of_its_batch(codec: str | None) -> None:
    record_codec = CODECS[codec] if codec else None
    first, second = (V2.encode(some(2), BatchHeader(base_offset=offset), record_codec, None) for offset in (0, 2))
    data = first + second
    table = V2.scan(data, 0, len(data), check_crc=True)
    for twin in TWINS:
        with pytest.raises(InvalidRecordError, match=f"3 verdicts for 2 records position={len(first)}$"):
            list(
                twin.retain(
                    data, table, [bytes([DROP, KEEP]), bytes([DROP, KEEP, KEEP])], None, limit_bytes=LIMIT_BYTES
                )
            )


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_inconsistent_records_are_corrupt_at_their_batch(codec: str | None) -> None:
    batch_codec = CODECS[codec] if codec else None
    first = bytes(V2.encode(some(2), BatchHeader(), None, None))
    second = bytearray(V2.encode(some(3), BatchHeader(base_offset=2), batch_codec, None))
    second[61] ^= 0x44
    data = first + second
    table = V2.scan(data, 0, len(data), check_crc=False)
    words = [bytes([KEEP, KEEP]), bytes([DROP, KEEP, KEEP])]
    for twin in TWINS:
        with pytest.raises(CorruptBatchError) as caught:
            list(twin.retain(data, table, words, None, limit_bytes=LIMIT_BYTES))
        assert (caught.value.file, caught.value.position) == ("", len(first))


# --- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
@pytest.mark.parametrize("form", [V0, V1], ids=["v0", "v1"])
def test_a_wrapper_takes_the_offset_of_the_last_message_that_stays(form: RecordFormat, codec: str) -> None:
    data = form.encode(some(), BatchHeader(base_offset=100), CODECS[codec], None)
    table = form.scan(data, 0, len(data), check_crc=True)
    words = bytes([DROP, KEEP, DROP, AT_HORIZON, DROP])
    cleaned_data = b"".join(form.retain(data, table, [words], HORIZON_MS, limit_bytes=LIMIT_BYTES))
    batch, records = only(cleaned_data, form)
    assert (batch.last_offset, batch.codec_id) == (103, CODECS[codec].id)
    assert [(record.offset, record.value) for record in records] == [(101, b"v1"), (103, b"v3")]
    assert batch.max_timestamp_ms == (START_MS + 3 if form.magic else -1)


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("form", [V0, V1], ids=["v0", "v1"])
def test_messages_have_no_empty_batches(form: RecordFormat, codec: str | None) -> None:
    """Kafka throws IllegalStateException here."""
    data = form.encode(some(1), BatchHeader(), CODECS[codec] if codec else None, None)
    table = form.scan(data, 0, len(data), check_crc=True)
    with pytest.raises(InvalidRecordError, match="empty"):
        list(form.retain(data, table, [bytes([DROP])], None, retain_empty=[True], limit_bytes=LIMIT_BYTES))
    retained = form.retain(data, table, [bytes([KEEP])], None, retain_empty=[True], limit_bytes=LIMIT_BYTES)
    assert b"".join(retained) == data


def test_twins_refuse_the_same_damage() -> None:
    """Each byte of the records is changed to several values. Both kernels keep the same records, or both fail."""
    records = [replace_headers(record) for record in some(3)]
    data = V2.encode(records, BatchHeader(), None, None)
    words = [bytes([KEEP, DROP, AT_HORIZON])]
    outcomes = set()
    for position in range(61, len(data)):
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF, data[position] ^ 1):
            damaged = bytearray(data)
            damaged[position] = value
            table = V2.scan(damaged, 0, len(damaged), check_crc=False)
            results = [outcome_of(twin, damaged, table, words) for twin in TWINS]
            assert results[0] == results[1], (position, value)
            outcomes.add(type(results[0]))
    assert outcomes == {bytes, str}


def test_twins_refuse_the_same_arguments() -> None:
    data = bytes(V2.encode(some(2), BatchHeader(), None, None))
    table = V2.scan(data, 0, len(data), check_crc=True)
    for kernels in twins.twins():
        with pytest.raises(IndexError, match=f"a batch of {len(data)} bytes at 0 is not inside {len(data) - 1} bytes"):
            kernels.retain_plain(data[:-1], table, [bytes([DROP, KEEP])], None, None)
        with pytest.raises(InvalidRecordError, match="1 verdicts for 2 records position=0"):
            kernels.retain_plain(data, table, [bytes([KEEP])], None, None)


def replace_headers(record: Record) -> Record:
    return Record(timestamp_ms=record.timestamp_ms, key=record.key, value=record.value, headers=(("h", b"x"),))


def outcome_of(twin: BatchFormat, data: bytearray, table: BatchTable, words: Sequence[bytes]) -> bytes | str:
    try:
        return b"".join(twin.retain(data, table, words, HORIZON_MS, limit_bytes=LIMIT_BYTES))
    except CorruptBatchError as error:
        return f"{error} {error.position}"
