"""Batches that a client encoded. The expected results are those of Kafka's own validation."""

from __future__ import annotations

from typing import Any

import pytest

from entry_parts import seal
from log_bed import LogBed, records
from stored_batches import records_in
from stratalog.config.topic import TopicConfig
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    StorageError,
    UnsupportedCompressionError,
    UnsupportedForMessageFormatError,
)
from stratalog.log.prepare.prepare_batches import prepare_batches
from stratalog.log.prepare.preparer import Preparer
from stratalog.model.batches import Buffer, RecordBatch
from stratalog.model.messages.control import ControlType
from stratalog.model.offsets import AppendOrigin
from stratalog.model.records import Record
from stratalog.segment.framing import scan
from stratalog.spi.codecs import Codec
from stratalog.spi.formats import BatchHeader
from vectors import VECTORS

CASES = {case["name"]: case for case in VECTORS["append_validation"]}

SEVERAL_AT_ONCE = {
    # several batches in one append, of any magic; stratalog encodes each again if necessary
    "append_v2_two_batches",
    "append_v2_two_batches_gzip",
    "append_mixed_magic",
    "append_mixed_compressed_and_not_v1",
}
NO_WHOLE_BATCH = "append_v2_empty_input"  # Kafka's validator accepts it; the caller of the validator appends nothing
PUT_RIGHT = {
    # wrong offsets inside of a batch: both store the same records, but Kafka's next offset differs
    "append_v2_uncompressed_deltas_02_count2_lod1",
    "append_v2_gzip_deltas_02_count2_lod1",
    "append_v2_count_mismatch_coordinator_origin",
}
NEVER_READABLE = {
    # fields that exceed their message: Kafka stores them, and every reader of the log then fails
    "append_v1_value_length_overrun",
    "append_v1_key_length_overrun_compacted",
    "append_v1_14_bytes",
}
TRIMMED = {"append_v2_partial_trailing_bytes"}  # Kafka's validator leaves the check to its caller
OTHERWISE = SEVERAL_AT_ONCE | PUT_RIGHT | NEVER_READABLE | {NO_WHOLE_BATCH}
REFUSED = {name for name, case in CASES.items() if case["expect"] == "reject"} - OTHERWISE
ACCEPTED = {name for name, case in CASES.items() if case["expect"] == "accept"} - OTHERWISE
KINDS: dict[str, tuple[type[StorageError], ...]] = {
    "InvalidTimestampException": (InvalidTimestampError,),
    "InvalidRecordException": (InvalidRecordError,),
    "UnsupportedForMessageFormatException": (UnsupportedForMessageFormatError,),
    "CorruptRecordException": (CorruptBatchError,),
    "IllegalArgumentException": (InvalidRecordError, UnsupportedCompressionError),
}


def topic_of(case: dict[str, Any]) -> TopicConfig:
    config = case["config"]
    values: dict[str, object] = {
        "record.version": config["to_magic"],
        "compression.type": {"none": "uncompressed"}.get(config["target_compression"], config["target_compression"]),
        "message.timestamp.type": config["timestamp_type"],
        "cleanup.policy": "compact" if config["compacted"] else "delete",
        "message.timestamp.before.max.ms": config["before_max_ms"],
        "message.timestamp.after.max.ms": config["after_max_ms"],
    }
    return TopicConfig.from_mapping({name: value for name, value in values.items() if value is not None}, "a vector")


def appended(bed: LogBed, case: dict[str, Any]) -> tuple[bytes, int, list[RecordBatch]]:
    """Return the bytes that an append would write, the next offset, and the batches."""
    config = case["config"]
    bed.topic, bed.clock = topic_of(case), ManualClock(config["now"])
    stamp = config["now"] if config["timestamp_type"] == "LogAppendTime" else None
    origin = AppendOrigin(config["origin"].lower())
    prepared = Preparer(bed.topic, bed.components).batches(bytes.fromhex(case["hex"]), origin)
    bed.components.formats.of(prepared.magic, "", 0).assign(
        prepared, config["next_offset"], config["leader_epoch"], stamp
    )
    return bytes(prepared.data), prepared.last_offset + 1, list(prepared.table)


def read(bed: LogBed, data: bytes) -> list[dict[str, object]]:
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": None if record.key is None else record.key.hex(),
            "value": None if record.value is None else record.value.hex(),
        }
        for record in records_in(data, bed.components)
    ]


def contents(bed: LogBed, data: bytes) -> bytes:
    """Return the decompressed records section of ``data``, or all of ``data`` if it is not compressed."""
    (table,) = scan(bed.components.formats, data, 0, len(data), check_crc=True).tables
    form = bed.components.formats.of(table.magic, "", 0)
    return b"".join(bytes(columns.arena) for columns in form.decode(data, table, limit_bytes=1 << 20))


def test_every_vector_is_in_one_list() -> None:
    assert len(CASES) == 62
    assert set(CASES) == ACCEPTED | REFUSED | OTHERWISE
    assert set(CASES) >= OTHERWISE | TRIMMED
    assert len(ACCEPTED) + len(REFUSED) == 62 - len(OTHERWISE)


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_batches_that_a_leader_accepts_are_stored_as_kafka_stores_them(bed: LogBed, name: str) -> None:
    case = CASES[name]
    data, offset, batches = appended(bed, case)
    assert offset == case["next_offset_after"]
    assert max(batch.max_timestamp_ms for batch in batches) == case["max_timestamp"]
    if name in TRIMMED:
        assert case["result_hex"].startswith(data.hex())
    elif case["byte_exact"]:
        assert data.hex() == case["result_hex"]
    else:
        assert contents(bed, data) == contents(bed, bytes.fromhex(case["result_hex"]))
    assert read(bed, data) == case["records"]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_leader_refuses_the_batches_that_kafka_refuses(bed: LogBed, name: str) -> None:
    case = CASES[name]
    with pytest.raises(StorageError) as caught:
        appended(bed, case)
    assert isinstance(caught.value, KINDS[case["error"]])
    assert isinstance(caught.value, InvalidTimestampError) == (case["error"] == "InvalidTimestampException")


@pytest.mark.parametrize("name", sorted(NEVER_READABLE))
def test_batches_that_could_never_be_read_are_refused(bed: LogBed, name: str) -> None:
    with pytest.raises(InvalidRecordError):
        appended(bed, CASES[name])


def test_no_whole_batch_is_refused(bed: LogBed) -> None:
    with pytest.raises(InvalidRecordError, match="no complete batch"):
        appended(bed, CASES[NO_WHOLE_BATCH])


@pytest.mark.parametrize("name", sorted(SEVERAL_AT_ONCE | PUT_RIGHT))
def test_batches_that_only_we_accept_get_offsets_without_gaps(bed: LogBed, name: str) -> None:
    data, offset, _ = appended(bed, CASES[name])
    first = CASES[name]["config"]["next_offset"]
    assert [record["offset"] for record in read(bed, data)] == list(range(first, offset))
    assert offset == CASES[name].get("next_offset_after", offset)


@pytest.mark.parametrize("count", [1, 11, 12, 16, 17, 40])
def test_zeros_after_a_batch_are_damage_once_they_contain_a_size(bed: LogBed, count: int) -> None:
    """Like Kafka, stratalog reads the size of an entry if at least 12 bytes are left."""
    log, data = bed.open(), bytes(bed.batch(0, records(2))) + bytes(count)
    if count < 12:
        assert log.append_as_leader(data).last_offset == 1
        return
    with pytest.raises(CorruptBatchError):
        log.append_as_leader(data)
    assert log.offsets().log_end == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_trailing_partial_entry_is_left_out(bed: LogBed, magic: int) -> None:
    first, second = bed.batch(0, records(1), magic=magic), bed.batch(1, records(1), magic=magic)
    for size in range(len(second)):
        prepared = prepare_batches(first + second[:size], bed.topic, bed.components)
        assert sum(len(piece.table) for piece in prepared) == 1
    assert prepare_batches(first[:-1], bed.topic, bed.components) == []
    assert prepare_batches(b"", bed.topic, bed.components) == []


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_damaged_batches_are_corrupt(bed: LogBed, magic: int) -> None:
    sound, damaged = bed.batch(0, records(1), magic=magic), bytearray(bed.batch(1, records(1), magic=magic))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        prepare_batches(sound + damaged, bed.topic, bed.components)
    assert (caught.value.file, caught.value.position) == ("append", len(sound))


@pytest.mark.parametrize("size", [-1, 0, 13])
def test_impossible_sizes_are_corrupt(bed: LogBed, size: int) -> None:
    data = bed.batch(0, records(1))
    lying = data[:8] + size.to_bytes(4, "big", signed=True) + data[12:]
    with pytest.raises(CorruptBatchError):
        prepare_batches(lying, bed.topic, bed.components)


def test_the_position_of_a_batch_without_a_codec_is_its_position_in_the_append(bed: LogBed) -> None:
    sound = bed.batch(0, records(1)) + bed.batch(1, records(1))
    unknown = bytearray(bed.batch(2, records(1)))
    unknown[22] = 7  # the lower byte of the attributes: no codec has this id
    seal(unknown)
    with pytest.raises(UnsupportedCompressionError) as caught:
        prepare_batches(sound + unknown, bed.topic, bed.components)
    assert (caught.value.file, caught.value.position) == ("", len(sound))


def test_a_batch_above_the_limit_is_refused(bed: LogBed) -> None:
    data = bed.batch(0, records(5, value_bytes=100))
    prepare_batches(data, TopicConfig(max_message_bytes=len(data)), bed.components)
    with pytest.raises(RecordTooLargeError):
        prepare_batches(data, TopicConfig(max_message_bytes=len(data) - 1), bed.components)


def test_a_batch_that_grows_above_the_limit_is_split_unless_it_has_producer_sequences(bed: LogBed) -> None:
    config = TopicConfig(compression_type="uncompressed", max_message_bytes=600)
    batch = bed.batch(0, records(20, value_bytes=60), codec="gzip")
    assert len(batch) < 600
    prepared = prepare_batches(batch, config, bed.components)
    assert sum(sum(piece.table.record_count) for piece in prepared) == 20
    assert max(max(piece.table.size_bytes) for piece in prepared) <= 600
    idempotent = bed.batch(0, records(20, value_bytes=60), codec="gzip", producer=(7, 0, 0))
    with pytest.raises(RecordTooLargeError):
        prepare_batches(idempotent, config, bed.components)


def test_a_batch_that_is_encoded_again_keeps_its_producer(bed: LogBed) -> None:
    data = bed.batch(0, records(3), producer=(7, 2, 40), transactional=True)
    (piece,) = prepare_batches(data, TopicConfig(compression_type="gzip"), bed.components)
    (batch,) = piece.table
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 40)
    assert batch.is_transactional
    assert batch.codec_id == 1


@pytest.mark.parametrize("topic", [{}, {"compression_type": "gzip"}, {"record_version": 1}])
def test_an_id_below_0_is_no_producer(bed: LogBed, topic: dict[str, Any]) -> None:
    """Such a batch needs no sequence number. Compiled record formats accept it, too."""
    data = bed.batch(0, records(2), producer=(-7, 0, -1))
    assert [piece.span for piece in prepare_batches(data, TopicConfig(**topic), bed.components)] == [2]


# --- contents of batches -----------------------------------------------------------------------------------------


class Damaging(Codec):
    """Codec that flips the last bit of its input."""

    id = 1  # the id of gzip, the codec that does the work
    levels = None

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        damaged = bytearray(data)
        damaged[-1] ^= 1
        return self._codec.compress(damaged, level=level, magic=magic)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        return self._codec.decompress(data, limit_bytes=limit_bytes, magic=magic)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_message_inside_of_another_has_a_crc_of_its_own(bed: LogBed, magic: int, version: int) -> None:
    """Readers do not check this CRC, so the leader must check it."""
    topic = TopicConfig(record_version=version)
    sound = bed.batch(0, records(3), magic=magic, codec="gzip")
    damaging = Damaging(bed.components.codecs.by_name("gzip"))
    damaged = bytes(bed.components.formats.of(magic, "", 0).encode(records(3), BatchHeader(), damaging, None))
    assert len(prepare_batches(sound, topic, bed.components)) == 1
    assert [record["value"] for record in read(bed, damaged)][:2] == [b"v0".hex(), b"v1".hex()]
    with pytest.raises(CorruptBatchError) as caught:
        prepare_batches(sound + damaged, topic, bed.components)
    assert (caught.value.file, caught.value.position) == ("append", len(sound))


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_clients_of_every_magic_write_to_topics_of_every_version(
    bed: LogBed, magic: int, version: int, codec: str | None
) -> None:
    """Offsets are consecutive, timestamps stay if both formats have them, and the log can be read back."""
    topic = TopicConfig(record_version=version)
    offset, data = 40, b""
    for _ in range(2):
        for piece in prepare_batches(bed.batch(7, records(3), magic=magic, codec=codec), topic, bed.components):
            assert piece.table.magic == version
            bed.components.formats.of(version, "", 0).assign(piece, offset, 3, None)
            offset, data = piece.last_offset + 1, data + bytes(piece.data)
    assert offset == 46
    stamps = [record.timestamp_ms if magic and version else -1 for record in records(3)]
    rows = read(bed, data)
    assert [record["offset"] for record in rows] == list(range(40, 46))
    assert [record["timestamp"] for record in rows] == stamps * 2
    assert [record["key"] for record in rows] == [(b"k%d" % number).hex() for number in range(3)] * 2
    for table in scan(bed.components.formats, data, 0, len(data), check_crc=True).tables:
        wrappers = 2 if version == 2 or codec else 6
        assert (table.magic, len(table)) == (version, wrappers)


def test_only_coordinators_write_control_batches(bed: LogBed) -> None:
    marker = bed.marker(0, 5, ControlType.COMMIT)
    with pytest.raises(InvalidRecordError, match="control"):
        prepare_batches(marker, bed.topic, bed.components)
    (piece,) = prepare_batches(marker, bed.topic, bed.components, origin=AppendOrigin.COORDINATOR)
    assert bytes(piece.data) == marker


def test_headers_do_not_fit_an_old_topic(bed: LogBed) -> None:
    """An append raises an error. Otherwise each fetch would drop the headers."""
    data = bed.batch(0, [*records(2), Record(key=b"k", timestamp_ms=5, headers=(("h", b""),))])
    with pytest.raises(InvalidRecordError) as caught:
        prepare_batches(data, TopicConfig(record_version=1), bed.components)
    assert caught.value.record_errors[0][0] == 2
