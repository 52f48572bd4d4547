from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stratalog.config.topic import TopicConfig
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    StorageError,
)
from stratalog.log.validate import prepare_batches, prepare_records
from stratalog.model.batches import TimestampType
from stratalog.model.records import Record
from stratalog.testing.logs import LogBed, records

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "vectors.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in VECTORS["append_validation"]}

COORDINATORS = {name for name, case in CASES.items() if case["config"]["origin"] != "CLIENT"}
MORE_THAN_KAFKA_TAKES = {
    # several batches at once, of any magic, each encoded again where it has to be
    "append_v2_two_batches",
    "append_v2_two_batches_gzip",
    "append_mixed_magic",
    "append_mixed_compressed_and_not_v1",
    # no whole batch: nothing is prepared, and the append refuses
    "append_v2_empty_input",
    # deltas that are not 0, 1, 2 are put right; Kafka fails on its own error
    "append_v2_gzip_deltas_02_count2_lod1",
    # the CRC of a message inside a wrapper is not looked at: what it holds is encoded again, with a right one
    "append_v1_inner_bad_crc",
}
LESS_THAN_KAFKA_TAKES = {
    # fields past the end of their message can never be read
    "append_v1_value_length_overrun",
    "append_v1_key_length_overrun_compacted",
    "append_v1_14_bytes",
    # a timestamp below -1 is refused, not replaced
    "append_v1_negative_ts",
}
ENCODED_AGAIN = {
    # the same records, but messages become one batch each, wrappers and wrong maxima are written anew
    "append_v0_to_v2",
    "append_v1_to_v2",
    "append_v1_gzip_in_place",
    "append_v1_gzip_librdkafka_wrapper_offset_0",
    "append_v1_gzip_LAT_in_place",
    "append_v1_wrapper_LAT_on_CreateTime",
    "append_v2_gzip_wrong_maxTimestamp_header",
    "append_v0_extra_bytes",
}
PUT_RIGHT = {"append_v2_uncompressed_deltas_02_count2_lod1"}  # Kafka stores an offset past the batch's last one
TRIMMED = {"append_v2_partial_trailing_bytes"}  # Kafka's validator leaves that to its caller
REFUSED = {name for name, case in CASES.items() if case["expect"] == "reject"} - MORE_THAN_KAFKA_TAKES - COORDINATORS
ACCEPTED = set(CASES) - REFUSED - COORDINATORS - MORE_THAN_KAFKA_TAKES - LESS_THAN_KAFKA_TAKES


def topic_of(case: dict[str, Any]) -> TopicConfig:
    given = case["config"]
    values: dict[str, object] = {
        "record.version": given["to_magic"],
        "compression.type": {"none": "uncompressed"}.get(given["target_compression"], given["target_compression"]),
        "message.timestamp.type": given["timestamp_type"],
        "cleanup.policy": "compact" if given["compacted"] else "delete",
        "message.timestamp.before.max.ms": given["before_max_ms"],
        "message.timestamp.after.max.ms": given["after_max_ms"],
    }
    return TopicConfig.from_mapping({name: value for name, value in values.items() if value is not None}, "a vector")


def appended(bed: LogBed, case: dict[str, Any]) -> tuple[bytes, int]:
    """The bytes that an append would write, and the next offset."""
    given = case["config"]
    bed.topic, bed.clock = topic_of(case), ManualClock(given["now"])
    stamp = given["now"] if given["timestamp_type"] == "LogAppendTime" else None
    written, offset = b"", given["next_offset"]
    for piece in prepare_batches(bytes.fromhex(case["hex"]), bed.topic, bed.parts):
        table = piece.format.assign(piece.data, piece.table, offset, given["leader_epoch"], stamp)
        written, offset = written + bytes(piece.data), table.last_offset[-1] + 1
    return written, offset


def read(bed: LogBed, data: bytes) -> list[dict[str, object]]:
    bed.write_segment(0, [data])
    log = bed.open_reader(clean=False)
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": None if record.key is None else record.key.hex(),
            "value": None if record.value is None else record.value.hex(),
        }
        for record in log.records(isolation="log_end")
    ]


def test_the_lists_above_are_of_real_cases() -> None:
    assert set(CASES) >= MORE_THAN_KAFKA_TAKES | LESS_THAN_KAFKA_TAKES | ENCODED_AGAIN | PUT_RIGHT | TRIMMED
    assert len(ACCEPTED - ENCODED_AGAIN) > 10
    assert len(REFUSED) > 15


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_what_a_leader_accepts_is_stored_as_kafka_stores_it(bed: LogBed, name: str) -> None:
    case = CASES[name]
    written, offset = appended(bed, case)
    assert offset == case["next_offset_after"]
    if case["byte_exact"] and name not in ENCODED_AGAIN | PUT_RIGHT | TRIMMED:
        assert written.hex() == case["result_hex"]
    if name not in PUT_RIGHT:
        assert read(bed, written) == case["records"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_leader_refuses(bed: LogBed, name: str) -> None:
    case = CASES[name]
    with pytest.raises(StorageError) as caught:
        appended(bed, case)
    if case["error"] in {"InvalidTimestampException", "InvalidRecordException"}:
        kind = InvalidTimestampError if case["error"] == "InvalidTimestampException" else InvalidRecordError
        assert type(caught.value) is kind


@pytest.mark.parametrize("name", sorted(LESS_THAN_KAFKA_TAKES))
def test_what_could_never_be_read_is_refused(bed: LogBed, name: str) -> None:
    with pytest.raises(InvalidRecordError):
        appended(bed, CASES[name])


@pytest.mark.parametrize("name", sorted(MORE_THAN_KAFKA_TAKES))
def test_what_is_taken_beyond_kafka_gets_offsets_without_gaps(bed: LogBed, name: str) -> None:
    written, offset = appended(bed, CASES[name])
    first = CASES[name]["config"]["next_offset"]
    assert [record["offset"] for record in read(bed, written)] == list(range(first, offset))


# --- encoded batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_trailing_partial_entry_is_left_out(bed: LogBed, magic: int) -> None:
    whole, more = bed.batch(0, records(1), magic=magic), bed.batch(1, records(1), magic=magic)
    for size in range(len(more)):
        prepared = prepare_batches(whole + more[:size], bed.topic, bed.parts)
        assert sum(len(piece.table) for piece in prepared) == 1
    assert prepare_batches(whole[:-1], bed.topic, bed.parts) == []
    assert prepare_batches(b"", bed.topic, bed.parts) == []


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_damaged_batches_are_corrupt(bed: LogBed, magic: int) -> None:
    good, bad = bed.batch(0, records(1), magic=magic), bytearray(bed.batch(1, records(1), magic=magic))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        prepare_batches(good + bad, bed.topic, bed.parts)
    assert (caught.value.file, caught.value.position) == ("append", len(good))


@pytest.mark.parametrize("size", [-1, 0, 13])
def test_impossible_sizes_are_corrupt(bed: LogBed, size: int) -> None:
    data = bed.batch(0, records(1))
    lying = data[:8] + size.to_bytes(4, "big", signed=True) + data[12:]
    with pytest.raises(CorruptBatchError):
        prepare_batches(lying, bed.topic, bed.parts)


def test_a_batch_above_the_limit_is_refused(bed: LogBed) -> None:
    data = bed.batch(0, records(5, value_bytes=100))
    prepare_batches(data, TopicConfig(max_message_bytes=len(data)), bed.parts)
    with pytest.raises(RecordTooLargeError):
        prepare_batches(data, TopicConfig(max_message_bytes=len(data) - 1), bed.parts)


def test_what_grows_above_the_limit_is_split_unless_its_producer_counts(bed: LogBed) -> None:
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=600)
    plain = bed.batch(0, records(20, value_bytes=60), codec="gzip")
    assert len(plain) < 600
    prepared = prepare_batches(plain, config, bed.parts)
    assert sum(sum(piece.table.record_count) for piece in prepared) == 20
    assert max(max(piece.table.size_bytes) for piece in prepared) <= 600
    idempotent = bed.batch(0, records(20, value_bytes=60), codec="gzip", producer=(7, 0, 0))
    with pytest.raises(RecordTooLargeError):
        prepare_batches(idempotent, config, bed.parts)


def test_a_batch_that_is_encoded_again_keeps_its_producer(bed: LogBed) -> None:
    data = bed.batch(0, records(3), producer=(7, 2, 40), transactional=True)
    (piece,) = prepare_batches(data, TopicConfig(compression_type="gzip"), bed.parts)
    (batch,) = piece.table
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 40)
    assert batch.is_transactional
    assert batch.codec_id == 1


# --- records -----------------------------------------------------------------------------------------------------


def test_records_without_a_timestamp_get_the_clocks(bed: LogBed) -> None:
    (piece,) = prepare_records([Record(value=b"x"), Record(value=b"y", timestamp_ms=5)], bed.topic, bed.parts)
    (batch,) = piece.table
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (bed.clock.now_ms(), bed.clock.now_ms())
    assert batch.timestamp_type is TimestampType.CREATE_TIME


def test_no_records_are_refused(bed: LogBed) -> None:
    with pytest.raises(InvalidRecordError):
        prepare_records([], bed.topic, bed.parts)


def test_every_wrong_record_is_named(bed: LogBed) -> None:
    config = TopicConfig(cleanup_policy=("compact",))
    listed = [Record(key=b"k"), Record(value=b"x"), Record(key=b"k", timestamp_ms=-2), Record()]
    with pytest.raises(InvalidRecordError) as caught:
        prepare_records(listed, config, bed.parts)
    assert [index for index, _ in caught.value.record_errors] == [1, 2, 3]
    assert not isinstance(caught.value, InvalidTimestampError)


@pytest.mark.parametrize(
    ("offset_ms", "wrong"), [(-100, False), (-101, True), (50, False), (51, True)], ids=["old", "older", "new", "newer"]
)
def test_timestamps_stay_near_the_clock(bed: LogBed, offset_ms: int, *, wrong: bool) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)
    listed = [Record(timestamp_ms=bed.clock.now_ms() + offset_ms)]
    if not wrong:
        prepare_records(listed, config, bed.parts)
        return
    with pytest.raises(InvalidTimestampError):
        prepare_records(listed, config, bed.parts)


@pytest.mark.parametrize("limit", ["max.message.bytes", "segment.bytes"])
def test_many_records_become_several_batches(bed: LogBed, limit: str) -> None:
    config = TopicConfig.from_mapping({limit: 1000}, "test")
    prepared = prepare_records(records(100, value_bytes=90), config, bed.parts)
    assert sum(sum(piece.table.record_count) for piece in prepared) == 100
    assert max(max(piece.table.size_bytes) for piece in prepared) <= 1000
    assert len(prepared) > 5


def test_a_record_above_the_limit_is_refused(bed: LogBed) -> None:
    config = TopicConfig(max_message_bytes=200)
    with pytest.raises(RecordTooLargeError):
        prepare_records([Record(value=b"small"), Record(value=bytes(200))], config, bed.parts)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4"])
def test_records_take_the_topics_format_and_codec(bed: LogBed, version: int, codec: str) -> None:
    config = TopicConfig(record_version=version, compression_type=codec)
    prepared = prepare_records(records(5), config, bed.parts)
    for piece in prepared:
        assert piece.table.magic == version
        for batch in piece.table:
            assert (batch.codec_id == 0) == (codec == "uncompressed")
