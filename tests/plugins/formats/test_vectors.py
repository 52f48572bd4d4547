"""The formats, compared with vectors that Kafka's own Java classes read and wrote."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog import Record, TimestampType
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError, CorruptionError, UnsupportedCompressionError
from stratalog.reading.open_reader import open_host
from stratalog.segment.components import Components
from stratalog.segment.framing import scan
from stratalog.spi import BatchHeader, Fields, Headers, ScanStop
from vectors import VECTORS

LIMIT_BYTES = 1 << 27
SETS = [
    v for v in VECTORS["vectors"] if v["format"] in {"messageset-v0", "messageset-v1", "batch-v2", "batch-v2-control"}
]
MALFORMED = [v for v in VECTORS["malformed"] if "hex" in v]
STAGES = {"framing", "checksum/size check", "records"}


@pytest.fixture(scope="module")
def components() -> Components:
    host = open_host(Settings(), (), None)
    return host.components(TopicConfig())


def named(vectors: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors]


def raw(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def header_pairs(record: dict[str, Any]) -> Headers:
    return tuple((name, raw(value)) for name, value in record["headers"])


def decoded(components: Components, data: bytes) -> list[Record]:
    """Return every record of a set; raise the error of the format if the set is damaged."""
    scan_result = scan(components.formats, data, 0, len(data), check_crc=True)
    if scan_result.stop is ScanStop.CORRUPT:
        raise CorruptionError(scan_result.reason, "vector", scan_result.stop_position)
    records: list[Record] = []
    for table in scan_result.tables:
        form = components.formats.of(table.magic, "vector", 0)
        for columns in form.decode(data, table, fields=Fields.ALL, limit_bytes=LIMIT_BYTES):
            records += columns.to_records()
    return records


@pytest.mark.parametrize("vector", named(SETS))
def test_a_vector_decodes_to_its_inputs(components: Components, vector: dict[str, Any]) -> None:
    inputs = vector["inputs"]
    is_append_time = inputs["timestamp_type"] == "LogAppendTime"
    expected = [
        (
            record["offset"],
            inputs["log_append_time"] if is_append_time else record["timestamp"] if inputs["magic"] else -1,
            raw(record["key"]),
            raw(record["value"]),
            header_pairs(record),
        )
        for record in inputs["records"]
    ]
    for text in filter(None, (vector["hex"], vector.get("reference_writer_hex"))):
        records = decoded(components, bytes.fromhex(text))
        assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in records] == expected
        kinds = {"none": TimestampType.NONE, "CreateTime": TimestampType.CREATE_TIME}
        kind = kinds.get(inputs["timestamp_type"], TimestampType.LOG_APPEND_TIME)
        assert {r.timestamp_type for r in records} <= {kind}


def expressible(vector: dict[str, Any]) -> bool:
    """Return True if ``encode`` can write the set. Compacted sets and control batches are written by other code."""
    inputs = vector["inputs"]
    offsets = [record["offset"] for record in inputs["records"]]
    ascending = offsets == list(range(inputs["base_offset"], inputs["base_offset"] + len(offsets)))
    odd = {"delete_horizon_ms", "override_last_offset"} & {name for name, value in inputs.items() if value is not None}
    return bool(vector["byte_exact"] and offsets and ascending and not odd)


@pytest.mark.parametrize("vector", named([vector for vector in SETS if expressible(vector)]))
def test_a_byte_exact_vector_is_encoded_to_the_same_bytes(components: Components, vector: dict[str, Any]) -> None:
    inputs = vector["inputs"]
    is_append_time = inputs["timestamp_type"] == "LogAppendTime"
    header = BatchHeader(
        base_offset=inputs["base_offset"],
        leader_epoch=inputs.get("partition_leader_epoch", -1),
        timestamp_type=TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME,
        append_time_ms=inputs.get("log_append_time", -1),
        producer_id=inputs.get("producer_id", -1),
        producer_epoch=inputs.get("producer_epoch", -1),
        base_sequence=inputs.get("base_sequence", -1),
        transactional=inputs.get("transactional", False),
        control=inputs.get("control", False),
    )
    records = [
        Record(
            timestamp_ms=record["timestamp"],
            key=raw(record["key"]),
            value=raw(record["value"]),
            headers=header_pairs(record),
        )
        for record in inputs["records"]
    ]
    codec = None if inputs["compression"] == "none" else components.codecs.by_name(inputs["compression"])
    form = components.formats.of(inputs["magic"], "vector", 0)
    assert form.encode(records, header, codec, None).hex() == vector["hex"]


def test_there_are_vectors_of_every_kind() -> None:
    assert len(SETS) >= 37
    assert len([vector for vector in SETS if expressible(vector)]) >= 15
    assert len(MALFORMED) == len(VECTORS["malformed"]) == 81
    assert {vector["expect"].partition(" ")[0] for vector in MALFORMED} == {"accept", "reject", "ignored"}
    assert {vector["stage"] for vector in MALFORMED if vector["expect"] == "reject"} <= STAGES


@pytest.mark.parametrize("vector", named([vector for vector in MALFORMED if vector["expect"] == "reject"]))
def test_batches_that_kafka_rejects_raise_a_typed_error(components: Components, vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    scan_result = scan(components.formats, data, 0, len(data), check_crc=True)
    if vector["stage"] != "records":
        assert vector["error"] == "CorruptRecordException"
        assert scan_result.stop is ScanStop.CORRUPT
        assert scan_result.reason
        return
    assert scan_result.stop is ScanStop.END
    kind = UnsupportedCompressionError if "codec 5" in vector["name"].replace("_", " ") else CorruptBatchError
    with pytest.raises(kind):
        decoded(components, data)


@pytest.mark.parametrize("vector", named([vector for vector in MALFORMED if vector["expect"] == "accept"]))
def test_batches_that_kafka_accepts_are_accepted(components: Components, vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    scan_result = scan(components.formats, data, 0, len(data), check_crc=True)
    assert scan_result.stop is ScanStop.END
    assert [record.offset for record in decoded(components, data)] == vector["offsets"]


@pytest.mark.parametrize("vector", named([vector for vector in MALFORMED if vector["expect"].startswith("ignored")]))
def test_a_cut_entry_at_the_end_is_left_out(components: Components, vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    scan_result = scan(components.formats, data, 0, len(data), check_crc=True)
    assert scan_result.stop is ScanStop.PARTIAL
    assert sum(len(table) for table in scan_result.tables) == len(
        decoded_batches(components, data[: scan_result.stop_position])
    )


def decoded_batches(components: Components, data: bytes) -> list[object]:
    return [batch for table in scan(components.formats, data, 0, len(data), check_crc=True).tables for batch in table]
