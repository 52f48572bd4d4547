"""Each of the 125 vectors is read and, if only one encoding is correct, also written.

Other tests check details. This test fails if no code handles a vector.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from crc32c import crc32c

from stored_batches import added, stored_batch
from stratalog.config.topic import TopicConfig
from stratalog.engine.open.log_dir import CLEAN_SHUTDOWN
from stratalog.epochs.checkpoint import format_epochs, format_offsets, parse_epochs, parse_offsets
from stratalog.log.folder.directory_state import format_topic_id
from stratalog.model.messages import schema
from stratalog.model.messages.control import ControlType, control_key, control_value, parse_control
from stratalog.model.messages.offsets_topic import offsets_key, offsets_value, parse_offsets_record
from stratalog.model.messages.structures import INT32, INT64, STRING, Form
from stratalog.model.messages.transactions_topic import (
    TRANSACTION_KEY,
    TRANSACTION_STATE,
    TransactionRecord,
    parse_transaction_record,
)
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.producers.snapshot import ProducerEntry, decode_snapshot, encode_snapshot
from stratalog.spi import AbortedTransaction, CodecTable, OffsetPosition, RecordFormat, TimestampOffset
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.indexes.offset import OffsetIndex
from stratalog_formats.indexes.time import TimeIndex
from stratalog_formats.indexes.transaction import TransactionIndex
from stratalog_formats.kernels.varint import read_varint, varint
from stratalog_formats.records.batches import BatchFormat
from stratalog_formats.records.message_versions import MessageFormatV0, MessageFormatV1
from vectors import VECTORS as CHECKED

Vector = dict[str, Any]
VECTORS: list[Vector] = CHECKED["vectors"]
BY_NAME = {vector["name"]: vector for vector in VECTORS}
CODECS = CodecTable([("gzip", GzipCodec()), ("snappy", SnappyCodec()), ("lz4", Lz4Codec()), ("zstd", ZstdCodec())])
FORMATS: dict[int, RecordFormat] = {0: MessageFormatV0(CODECS), 1: MessageFormatV1(CODECS), 2: BatchFormat(CODECS)}
START_MS = 1_700_000_000_000


def raw(vector: Vector) -> bytes:
    return bytes.fromhex(vector["hex"])


# --- records -----------------------------------------------------------------------------------------------------


def check_records(vector: Vector) -> None:
    inputs, data = vector["inputs"], raw(vector)
    form = FORMATS[inputs["magic"]]
    table = form.scan(data, 0, len(data), check_crc=True)
    assert table.stop_position == len(data)
    decoded_rows = [
        (record.offset, record.key, record.value)
        for columns in form.decode(data, table, limit_bytes=1 << 24)
        for record in columns.to_records()
    ]
    assert decoded_rows == [
        (
            record["offset"],
            *(None if record[name] is None else bytes.fromhex(record[name]) for name in ("key", "value")),
        )
        for record in inputs["records"]
    ]


def check_control_value(vector: Vector) -> None:
    kinds = {
        "control_leader_change": ControlType.LEADER_CHANGE,
        "control_snapshot_header": ControlType.SNAPSHOT_HEADER,
        "control_snapshot_footer": ControlType.SNAPSHOT_FOOTER,
        "control_kraft_version": ControlType.KRAFT_VERSION,
        "control_voters": ControlType.KRAFT_VOTERS,
    }
    record = parse_control(control_key(kinds[vector["name"].rpartition("_v")[0]]), raw(vector))
    assert record is not None
    assert control_value(record) == raw(vector)


def check_coordinator_record(vector: Vector) -> None:
    data, name = raw(vector), vector["name"]
    if name.startswith("txn_log_"):
        key = raw(BY_NAME["txn_log_key_v0"])
        transaction_record = parse_transaction_record(key, None if "key" in name else data)
        assert isinstance(transaction_record, TransactionRecord)
        if "key" in name:
            assert TRANSACTION_KEY.encode(transaction_record.key, 0) == data
            return
        assert transaction_record.value is not None
        assert transaction_record.value_version is not None
        assert TRANSACTION_STATE.encode(transaction_record.value, transaction_record.value_version) == data
        return
    if "_key" in name:
        record = parse_offsets_record(data, None)
        assert record is not None
        # Two versions of the key of a commit have the same fields.
        assert offsets_key(record.kind, record.key)[2:] == data[2:]
        return
    keys = {
        "offset_commit": raw(BY_NAME["offset_commit_key_v1"]),
        "group_metadata": raw(BY_NAME["group_metadata_key_v2"]),
        "consumer_group_metadata": raw(BY_NAME["consumer_group_metadata_key"]),
        "consumer_group_member": b"\0\5\0\1g\0\1m",
    }
    record = parse_offsets_record(keys[name.partition("_value")[0]], data)
    assert record is not None
    assert record.value is not None
    assert not isinstance(record.value, bytes)
    assert record.value_version is not None
    assert offsets_value(record.kind, record.value, record.value_version) == data


def check_remote_metadata(vector: Vector) -> None:
    """stratalog does not use this topic, so the check writes its records with the primitives of the other topics."""
    inputs, none, form = vector["inputs"], b"\0", Form(0, flexible=True)
    has_topic, lacks_segment = "topic" in inputs, "segment_id" not in inputs
    segment_place = b""
    if has_topic:
        segment_place = (
            STRING.write(inputs["topic"], form)
            + bytes.fromhex(inputs["topic_id"])
            + INT32.write(inputs["partition"], form)
        )
        segment_place += none
    if not lacks_segment:
        segment_place += uuid.UUID(inputs["segment_id"]).bytes + (none if has_topic else b"")
    body = b"".join(INT64.write(inputs[name], form) for name in ("start_offset", "end_offset") if name in inputs)
    body += INT32.write(inputs["broker_id"], form)
    body += b"".join(INT64.write(inputs[name], form) for name in ("max_timestamp", "event_timestamp") if name in inputs)
    if "leader_epochs" in inputs:
        pairs = [INT32.write(epoch, form) + INT64.write(start, form) + none for epoch, start in inputs["leader_epochs"]]
        body += schema.uvarint(len(pairs) + 1) + b"".join(pairs) + INT32.write(inputs["size"], form)
    if "custom" in inputs:
        custom = inputs["custom"]
        content = b"" if custom is None else bytes.fromhex(custom)
        body += schema.uvarint(0 if custom is None else len(content) + 1) + content
    reader = schema.SchemaReader(raw(vector), "a record")
    frame = [reader.uvarint() for _ in range(3)]
    encoded = b"".join(map(schema.uvarint, frame)) + segment_place + body + inputs["state"].to_bytes(1, "big") + none
    assert encoded == raw(vector)


# --- primitives --------------------------------------------------------------------------------------------------


def check_varint(vector: Vector) -> None:
    value, bits = int(vector["inputs"]["value"]), 32 if vector["format"].endswith("32") else 64
    assert varint(value) == raw(vector)
    assert read_varint(raw(vector), 0, bits) == (value, len(raw(vector)))


def check_uvarint(vector: Vector) -> None:
    value = int(vector["inputs"]["value"])
    assert schema.uvarint(value) == raw(vector)
    assert schema.SchemaReader(raw(vector), "a number").uvarint() == value


def check_crc32(vector: Vector) -> None:
    assert crc32(bytes.fromhex(vector["inputs"]["data"])).to_bytes(4, "big") == raw(vector)


def check_crc32c(vector: Vector) -> None:
    assert crc32c(bytes.fromhex(vector["inputs"]["data"])).to_bytes(4, "big") == raw(vector)


def check_lz4_header(vector: Vector) -> None:
    """The header checksums of frames that the codec writes. For magic 0, the sum also covers the frame's magic."""
    frame = Lz4Codec().compress(bytes(10), level=None, magic=0 if "legacy" in vector["name"] else 1)
    header = bytes.fromhex(vector["inputs"]["data"])
    assert frame[: len(header)] == header or frame[4 : 4 + len(header)] == header
    assert frame[6:7] == raw(vector)


def check_uuid(vector: Vector) -> None:
    topic_id = TopicId.from_uuid(uuid.UUID(vector["inputs"]["uuid"]))
    assert str(topic_id).encode() == raw(vector)
    assert TopicId(vector["text"]) == topic_id


# --- files -------------------------------------------------------------------------------------------------------


def check_offset_index(vector: Vector) -> None:
    inputs = vector["inputs"]
    expected = [OffsetPosition(*entry) for entry in inputs["entries"]]
    assert list(OffsetIndex().reader(raw(vector), inputs["base_offset"]))[: len(expected)] == expected


def check_time_index(vector: Vector) -> None:
    inputs = vector["inputs"]
    expected = [TimestampOffset(*entry) for entry in inputs["entries"]]
    assert list(TimeIndex().reader(raw(vector), inputs["base_offset"])) == expected


def check_transaction_index(vector: Vector) -> None:
    builder, index_entries = TransactionIndex().builder(0, TopicConfig()), []
    for entry in vector["inputs"]["entries"]:
        transaction = AbortedTransaction(*entry)
        index_entries.append(
            added(builder, stored_batch(0, 78, transaction.last_offset, transaction.last_offset, START_MS), transaction)
        )
    assert b"".join(index_entries) == raw(vector)


def check_snapshot(vector: Vector) -> None:
    entries = [ProducerEntry(*entry.values()) for entry in vector["inputs"]["entries"]]
    assert decode_snapshot(raw(vector), "vector") == entries
    assert encode_snapshot(entries) == raw(vector)


def check_offset_checkpoint(vector: Vector) -> None:
    offsets = {TopicPartition(topic, number): offset for topic, number, offset in vector["inputs"]["entries"]}
    assert parse_offsets(raw(vector), "vector") == offsets
    # Kafka writes the lines in the order of a hash map.
    assert sorted(format_offsets(offsets).splitlines()) == sorted(raw(vector).splitlines())


def check_epoch_checkpoint(vector: Vector) -> None:
    epochs = [EpochEntry(*entry) for entry in vector["inputs"]["entries"]]
    assert parse_epochs(raw(vector), "vector") == epochs
    assert format_epochs(epochs) == raw(vector)


def check_partition_metadata(vector: Vector) -> None:
    assert format_topic_id(TopicId.from_uuid(uuid.UUID(vector["inputs"]["topic_id"]))) == raw(vector)


def check_clean_shutdown(vector: Vector) -> None:
    """stratalog's file differs from a broker's only in the broker's epoch, which it does not have."""
    shutdown = {**json.loads(CLEAN_SHUTDOWN), "brokerEpoch": vector["inputs"]["broker_epoch"]}
    assert json.dumps(shutdown, separators=(",", ":")).encode() == raw(vector)


CHECKS: dict[str, Callable[[Vector], None]] = {
    "messageset-v0": check_records,
    "messageset-v1": check_records,
    "batch-v2": check_records,
    "batch-v2-control": check_records,
    "control-value": check_control_value,
    "coordinator-record": check_coordinator_record,
    "remote-log-metadata": check_remote_metadata,
    "zigzag-varint32": check_varint,
    "zigzag-varint64": check_varint,
    "unsigned-varint32": check_uvarint,
    "crc32-big-endian": check_crc32,
    "crc32c-big-endian": check_crc32c,
    "lz4-hc-byte": check_lz4_header,
    "uuid-base64url-text": check_uuid,
    "offset-index": check_offset_index,
    "time-index": check_time_index,
    "txn-index": check_transaction_index,
    "producer-snapshot": check_snapshot,
    "offset-checkpoint": check_offset_checkpoint,
    "leader-epoch-checkpoint": check_epoch_checkpoint,
    "partition-metadata": check_partition_metadata,
    "clean-shutdown": check_clean_shutdown,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_vector_is_read_and_written(name: str) -> None:
    vector = BY_NAME[name]
    CHECKS[vector["format"]](vector)


def test_no_vector_is_left_out() -> None:
    assert len(VECTORS) == len(BY_NAME) == 125
    assert set(CHECKS) == {vector["format"] for vector in VECTORS}
