from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from dump_parser import Dump, DumpedBatch, DumpedFile, DumpedRecord, parse_dump
from stratalog import Record, TimestampType
from stratalog.model.batches import RecordBatch
from stratalog.model.offsets import OffsetPosition, TimestampOffset
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import ProducerEntry

LOG: Final = "00000000000000000007.log"
BATCH_LINE: Final = (
    "baseOffset: 7 lastOffset: 10 count: 2 baseSequence: 3 lastSequence: 6 producerId: 11 producerEpoch: 12 "
    "partitionLeaderEpoch: 13 isTransactional: true isControl: false deleteHorizonMs: OptionalLong[14] position: 15 "
    "CreateTime: 16 size: 170 magic: 2 compresscodec: zstd crc: 4294967295 isvalid: true"
)
BATCH: Final = DumpedBatch(
    magic=2,
    position=15,
    size_bytes=170,
    last_offset=10,
    timestamp_type=TimestampType.CREATE_TIME,
    max_timestamp_ms=16,
    codec="zstd",
    crc=4294967295,
    base_offset=7,
    count=2,
    base_sequence=3,
    last_sequence=6,
    producer_id=11,
    producer_epoch=12,
    leader_epoch=13,
    transactional=True,
    control=False,
    delete_horizon_ms=14,
)
HEADER: Final = RecordBatch(2, 0, 170, 7, 10, 14, 16, 13, 11, 12, 3, 2, 0b1010100, 4294967295)


def only_batch(*lines: str) -> DumpedBatch:
    dump = parse_dump("\n".join((f"Dumping {LOG}", "Log starting offset: 7", *lines)))
    assert dump.remarks == ()
    (batch,) = dump.files[LOG].batches
    return batch


def test_a_batch_line_is_read_field_by_field() -> None:
    assert only_batch(BATCH_LINE) == BATCH


def test_a_batch_line_without_horizon_as_old_tools_print_it() -> None:
    line = BATCH_LINE.replace("deleteHorizonMs: OptionalLong[14] ", "")
    assert only_batch(line) == replace(BATCH, delete_horizon_ms=None)


def test_an_empty_delete_horizon_is_parsed_as_none() -> None:
    line = BATCH_LINE.replace("OptionalLong[14]", "OptionalLong.empty")
    assert only_batch(line) == replace(BATCH, delete_horizon_ms=None)


def test_a_batch_that_the_tool_finds_broken() -> None:
    assert only_batch(BATCH_LINE.replace("isvalid: true", "isvalid: false")) == replace(BATCH, valid=False)


def test_an_entry_of_v0_has_only_its_last_offset() -> None:
    line = "offset: 36 position: 5 NoTimestampType: -1 size: 95 magic: 0 compresscodec: gzip crc: 9 isvalid: true"
    assert only_batch(line) == DumpedBatch(
        magic=0,
        position=5,
        size_bytes=95,
        last_offset=36,
        timestamp_type=TimestampType.NONE,
        max_timestamp_ms=-1,
        codec="gzip",
        crc=9,
    )


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (
            "| offset: 8 CreateTime: 16 keySize: -1 valueSize: 35 sequence: 4 headerKeys: []",
            DumpedRecord(8, TimestampType.CREATE_TIME, 16, -1, 35, 4),
        ),
        (
            "| offset: 8 LogAppendTime: 16 keySize: 0 valueSize: -1 sequence: -1 headerKeys: [h0,h1]",
            DumpedRecord(8, TimestampType.LOG_APPEND_TIME, 16, 0, -1, -1, "h0,h1"),
        ),
        (
            (
                "| offset: 9 CreateTime: 2 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: ABORT "
                "coordinatorEpoch: 0"
            ),
            DumpedRecord(9, TimestampType.CREATE_TIME, 2, 4, 6),
        ),
        (
            '| offset: 9 CreateTime: 2 keySize: 4 valueSize: 6 sequence: 0 headerKeys: [] key: {"a":[1]} payload: x: 1',
            DumpedRecord(9, TimestampType.CREATE_TIME, 2, 4, 6, 0),
        ),
        (
            "| offset: 0 NoTimestampType: -1 keySize: 5 valueSize: 210 isValid: true crc: 922862998}",
            DumpedRecord(0, TimestampType.NONE, -1, 5, 210),
        ),
    ],
)
def test_a_record_line_belongs_to_the_batch_before(line: str, record: DumpedRecord) -> None:
    assert only_batch(BATCH_LINE, line) == replace(BATCH, records=[record])


def test_entries_of_indexes_are_written_to_their_files() -> None:
    dump = parse_dump(
        """\
Dumping 00000000000000000000.index
offset: 98 position: 4099
offset: 99 position: 5000
Dumping 00000000000000000000.timeindex
timestamp: 1700000000007 offset: 12
Dumping 00000000000000000016.txnindex
version: 0 producerId: 3 firstOffset: 1 lastOffset: 17 lastStableOffset: 18
Dumping 00000000000000000020.index
00000000000000000020.index is empty.
"""
    )
    assert dump == Dump(
        {
            "00000000000000000000.index": DumpedFile(
                "00000000000000000000.index", offset_entries=[OffsetPosition(98, 4099), OffsetPosition(99, 5000)]
            ),
            "00000000000000000000.timeindex": DumpedFile(
                "00000000000000000000.timeindex", time_entries=[TimestampOffset(1_700_000_000_007, 12)]
            ),
            "00000000000000000016.txnindex": DumpedFile(
                "00000000000000000016.txnindex", aborted=[AbortedTransaction(3, 1, 17, 18)]
            ),
            "00000000000000000020.index": DumpedFile("00000000000000000020.index"),
        },
        (),
    )


@pytest.mark.parametrize(
    ("line", "producer"),
    [
        (
            (
                "producerId: 2 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[5] lastTimestamp: "
                "17 firstSequence: 7 lastSequence: 9 lastOffset: 12 offsetDelta: 2 timestamp: 17"
            ),
            ProducerEntry(2, 1, 9, 12, 2, 17, -1, 5),
        ),
        (
            (
                "producerId: 2 producerEpoch: 1 coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong.empty "
                "lastTimestamp: 17 "
            ),
            ProducerEntry(2, 1, -1, -1, 0, 17, 3, -1),
        ),
    ],
)
def test_producers_of_a_snapshot(line: str, producer: ProducerEntry) -> None:
    dump = parse_dump(f"Dumping 00000000000000000016.snapshot\n{line}\n")
    assert dump.files["00000000000000000016.snapshot"].producers == [producer]
    assert dump.remarks == ()


def test_unknown_lines_are_remarks() -> None:
    complaint = ["Mismatches in :a-0/00000000000000000111.index", "  Index offset: 149, log offset: 148"]
    dump = parse_dump("\n".join(["java.lang.Exception: ...", f"Dumping {LOG}", BATCH_LINE, *complaint]))
    assert dump.remarks == ("java.lang.Exception: ...", *complaint)
    assert dump.files[LOG].batches == [BATCH]


def test_a_record_without_a_batch_is_a_remark() -> None:
    line = "| offset: 8 CreateTime: 16 keySize: -1 valueSize: 35 sequence: 4 headerKeys: []"
    assert parse_dump(f"Dumping {LOG}\n{line}").remarks == (line,)


def test_a_batch_is_described_as_by_the_tool() -> None:
    records = [
        Record(8, 15, TimestampType.CREATE_TIME, None, b"value", (("h", None), ("h", b"")), 13, 0),
        Record(10, 16, TimestampType.CREATE_TIME, b"", None, (), 13, 0),
    ]
    assert DumpedBatch.of(HEADER, 15, "zstd", records) == replace(
        BATCH,
        records=[
            DumpedRecord(8, TimestampType.CREATE_TIME, 15, -1, 5, 4, "h,h"),
            DumpedRecord(10, TimestampType.CREATE_TIME, 16, 0, -1, 6),
        ],
    )


def test_sequences_start_again_at_zero() -> None:
    batch = DumpedBatch.of(replace(HEADER, base_sequence=2147483646), 15, "zstd")
    assert (batch.base_sequence, batch.last_sequence) == (2147483646, 1)


def test_an_entry_of_v1_is_described_as_by_the_tool() -> None:
    header = RecordBatch(1, 0, 95, 36, 36, 17, 17, -1, -1, -1, -1, -1, 9, 5)
    assert DumpedBatch.of(header, 5, "gzip") == DumpedBatch(
        magic=1,
        position=5,
        size_bytes=95,
        last_offset=36,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp_ms=17,
        codec="gzip",
        crc=5,
    )
