from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.model.batches import BatchTable, Buffer
from stratalog.model.segment_info import AbortedTransaction
from stratalog.producers.snapshot import decode_snapshot
from stratalog.segment.framing import Chunk
from stratalog.segment.recover import scan_valid_part
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole
from vectors import VECTORS

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]

RECOVERIES = {case["name"]: case for case in VECTORS["recovery_scenarios"]}
# Kafka keeps batches after a decreasing offset, and treats a magic above 2 as 2; stratalog does neither.
STRICTER = {"recover_unknown_magic_3_valid_crc": 161, "recover_offset_regression": 161}
AS_KAFKA = [name for name, case in RECOVERIES.items() if "expected" in case and name not in STRICTER]


def config_of(case: dict[str, Any]) -> TopicConfig:
    return TopicConfig(index_interval_bytes=case["index_interval_bytes"])


@pytest.mark.parametrize("name", AS_KAFKA)
def test_an_unclean_load_leaves_what_kafka_leaves(bed: LogBed, name: str) -> None:
    case = RECOVERIES[name]
    expected, base = case["expected"], case["base_offset"]
    bed.topic = config_of(case)
    bed.write_segment(base, [bytes.fromhex(case["log_hex"])])
    loaded_log = bed.load(clean=False)
    for segment in loaded_log.segments:
        segment.close()
    contents = bed.contents()
    assert (loaded_log.log_end, loaded_log.truncated_bytes) == (expected["next_offset"], expected["truncated_bytes"])
    assert len(contents[bed.path(base).name]) == expected["log_size"]
    assert contents[bed.path(base, ".index").name].hex() == expected["index"]
    assert contents[bed.path(base, ".timeindex").name].hex() == expected["timeindex"]
    assert (contents.get(bed.path(base, ".txnindex").name) or b"").hex() == (expected["txnindex"] or "")
    assert (expected["txnindex"] is None) == (bed.path(base, ".txnindex").name not in contents)
    snapshot = expected["snapshot_file"]
    assert sorted(decode_snapshot(contents[snapshot], "f")) == sorted(
        decode_snapshot(bytes.fromhex(expected["snapshot"]), "f")
    )
    assert loaded_log.recovered_segments == 1


@pytest.mark.parametrize(("name", "kept"), STRICTER.items())
def test_descending_offsets_and_unknown_magics_are_truncated(bed: LogBed, name: str, kept: int) -> None:
    case = RECOVERIES[name]
    bed.topic = config_of(case)
    bed.write_segment(case["base_offset"], [bytes.fromhex(case["log_hex"])])
    loaded_log = bed.load(clean=False)
    for segment in loaded_log.segments:
        segment.close()
    assert bed.path(case["base_offset"]).stat().st_size % kept == 0
    assert loaded_log.truncated_bytes > 0


def nobody(chunk: Chunk, table: BatchTable) -> dict[int, AbortedTransaction]:
    """Return no aborted transactions: the log has no producers."""
    del chunk, table
    return {}


def test_offsets_below_the_segments_base_are_cut(bed: LogBed, make_segment: MakeSegment) -> None:
    """Kafka stops loading the log here. stratalog truncates the segment to 0 bytes."""
    case = RECOVERIES["recover_offset_below_base_first"]
    segment = make_segment([bytes.fromhex(case["log_hex"])], case["base_offset"], 100)
    valid_part = scan_valid_part(segment, bed.components, config_of(case), nobody)
    assert (valid_part.valid_bytes, valid_part.end_offset) == (0, case["base_offset"])
    assert valid_part.damage is not None
    assert valid_part.damage.position == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_a_torn_tail_is_cut_at_any_byte(bed: LogBed, make_segment: MakeSegment, magic: int, codec: str | None) -> None:
    first, second = (bed.batch(offset, records(2), magic=magic, codec=codec) for offset in (0, 2))
    # two V0 or V1 messages are two entries; otherwise the data is one entry
    ends = {len(second) // 2: 3} if magic < 2 and codec is None else {}
    for size in range(len(second)):
        segment = make_segment([first, second[:size]], 0, 100)
        valid_part = scan_valid_part(segment, bed.components, TopicConfig(), nobody)
        kept_bytes, end_offset = max(((bytes_, end) for bytes_, end in ends.items() if bytes_ <= size), default=(0, 2))
        assert (valid_part.valid_bytes, valid_part.end_offset) == (len(first) + kept_bytes, end_offset)
        assert (valid_part.damage is None) == (size == kept_bytes)


@pytest.mark.parametrize(
    ("offsets", "kept"),
    [([0, 2, 4], 3), ([0, 5, 9], 3), ([0, 2, 2], 2), ([0, 4, 2], 2), ([0, 1, 4], 1), ([0, 2, 1 << 31], 2)],
    ids=["dense", "gaps", "twice", "back", "overlap", "too far"],
)
def test_offsets_ascend_from_batch_to_batch(
    bed: LogBed, make_segment: MakeSegment, offsets: list[int], kept: int
) -> None:
    """No CRC covers the base offset of a batch. Recovery truncates before a batch whose offset decreases."""
    batches = [bed.batch(offset, records(2)) for offset in offsets]
    valid_part = scan_valid_part(make_segment(batches, 0, 1 << 40), bed.components, TopicConfig(), nobody)
    assert valid_part.valid_bytes == sum(map(len, batches[:kept]))
    assert valid_part.end_offset == offsets[kept - 1] + 2
    assert (valid_part.damage is None) == (kept == len(batches))


def test_rebuilt_indexes_equal_those_of_an_appender(bed: LogBed, make_segment: MakeSegment) -> None:
    batches = [bed.batch(3 * n, records(3, start=3 * n)) for n in range(10)]
    valid_part = scan_valid_part(
        make_segment(batches, 0, 30), bed.components, TopicConfig(index_interval_bytes=0), nobody
    )
    for role, entries in ((IndexRole.OFFSET, 9), (IndexRole.TIME, 9), (IndexRole.TRANSACTION, 0)):
        reader = bed.components.indexes[role].reader(valid_part.entries[role], 0)
        reader.check(30, valid_part.valid_bytes)
        assert len(reader) == entries
    assert valid_part.largest == (records(30)[29].timestamp_ms, 29)


def test_an_empty_segment_is_good(bed: LogBed, make_segment: MakeSegment) -> None:
    valid_part = scan_valid_part(make_segment([], 7, 100), bed.components, TopicConfig(), nobody)
    assert (valid_part.valid_bytes, valid_part.end_offset, valid_part.largest, valid_part.damage) == (
        0,
        7,
        (-1, 7),
        None,
    )
    assert set(valid_part.entries.values()) == {b""}
