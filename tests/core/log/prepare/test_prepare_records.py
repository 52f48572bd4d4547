from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from stratalog.log.prepare.prepare_records import prepare_records
from stratalog.model.batches import TimestampType
from stratalog.model.records import Record


def test_records_without_a_timestamp_get_the_clocks(bed: LogBed) -> None:
    (piece,) = prepare_records([Record(value=b"x"), Record(value=b"y", timestamp_ms=5)], bed.topic, bed.components)
    (batch,) = piece.table
    assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (bed.clock.now_ms(), bed.clock.now_ms())
    assert batch.timestamp_type is TimestampType.CREATE_TIME


def test_no_records_are_refused(bed: LogBed) -> None:
    with pytest.raises(InvalidRecordError):
        prepare_records([], bed.topic, bed.components)


def test_every_wrong_record_is_named(bed: LogBed) -> None:
    config = TopicConfig(cleanup_policy=("compact",))
    new_records = [Record(key=b"k"), Record(value=b"x"), Record(key=b"k", timestamp_ms=-2), Record()]
    with pytest.raises(InvalidRecordError) as caught:
        prepare_records(new_records, config, bed.components)
    assert [index for index, _ in caught.value.record_errors] == [1, 2, 3]
    assert not isinstance(caught.value, InvalidTimestampError)


@pytest.mark.parametrize(
    ("offset_ms", "wrong"), [(-100, False), (-101, True), (50, False), (51, True)], ids=["old", "older", "new", "newer"]
)
def test_timestamps_stay_near_the_clock(bed: LogBed, offset_ms: int, *, wrong: bool) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=100, message_timestamp_after_max_ms=50)
    new_records = [Record(timestamp_ms=bed.clock.now_ms() + offset_ms)]
    if not wrong:
        prepare_records(new_records, config, bed.components)
        return
    with pytest.raises(InvalidTimestampError):
        prepare_records(new_records, config, bed.components)


@pytest.mark.parametrize("limit", ["max.message.bytes", "segment.bytes"])
def test_many_records_become_several_batches(bed: LogBed, limit: str) -> None:
    config = TopicConfig.from_mapping({limit: 1000}, "test")
    prepared = prepare_records(records(100, value_bytes=90), config, bed.components)
    assert sum(sum(piece.table.record_count) for piece in prepared) == 100
    assert max(max(piece.table.size_bytes) for piece in prepared) <= 1000
    assert len(prepared) > 5


def test_a_record_above_the_limit_is_refused(bed: LogBed) -> None:
    config = TopicConfig(max_message_bytes=200)
    with pytest.raises(RecordTooLargeError):
        prepare_records([Record(value=b"small"), Record(value=bytes(200))], config, bed.components)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4"])
def test_records_take_the_topics_format_and_codec(bed: LogBed, version: int, codec: str) -> None:
    config = TopicConfig(record_version=version, compression_type=codec)
    prepared = prepare_records(records(5), config, bed.components)
    for piece in prepared:
        assert piece.table.magic == version
        for batch in piece.table:
            assert (batch.codec_id == 0) == (codec == "uncompressed")


def test_an_error_names_the_batch_and_the_records_in_it(bed: LogBed) -> None:
    """The indexes of the records count within their batch, as in Kafka's responses. The text names the batch."""
    bed.topic = TopicConfig(cleanup_policy=("compact",))
    log = bed.open()
    first = bed.batch(0, records(3))
    second = bed.batch(0, [Record(key=b"k"), Record(), Record(key=b"k"), Record()], codec="gzip")
    with pytest.raises(InvalidRecordError, match=f"position={len(first)} ") as caught:
        log.append_as_leader(first + second)
    assert [index for index, _ in caught.value.record_errors] == [1, 3]
    assert log.offsets().log_end == 0
