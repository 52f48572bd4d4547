"""``check_segment`` reports damage, wrong index entries and bad records, each with its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from entry_parts import seal
from log_bed import LogBed, records
from stratalog.log.load.producer_replay import replay_table
from stratalog.model.batches import Buffer
from stratalog.model.messages.control import ControlType
from stratalog.producers.state import ProducerState
from stratalog.segment.finding import FindingKind
from stratalog.segment.index_entries import rebuild_entries
from stratalog.segment.segment import Segment
from stratalog.segment.segment_check import StoredIndex, check_segment, read_stored_indexes
from stratalog.spi.indexes import IndexRole

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]


@pytest.fixture
def batches(bed: LogBed) -> list[bytes]:
    """Return three batches of two records each."""
    return [bed.batch(start, records(2, start=start)) for start in (0, 2, 4)]


def test_a_sound_segment_is_counted_and_has_no_findings(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    segment = make_segment(batches, 0, 6)
    steps = list[int]()
    roles = (IndexRole.OFFSET, IndexRole.TIME)
    indexes = {role: StoredIndex("index", rebuild_entries(segment, role, bed.components)) for role in roles}
    report = check_segment(segment, bed.components, indexes=indexes, records=True, on_bytes=steps.append)
    assert (report.batches, report.records, report.end_offset) == (3, 6, 6)
    assert report.valid_bytes == segment.size_bytes == sum(steps)
    assert report.largest_ms == records(1, start=5)[0].timestamp_ms
    assert report.findings == report.bad_records == []


@pytest.mark.parametrize("is_last", [True, False])
def test_a_truncated_batch_is_a_torn_tail_only_at_the_end_of_a_log(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes], *, is_last: bool
) -> None:
    segment = make_segment([*batches[:2], batches[2][:-5]], 0, 6)
    report = check_segment(segment, bed.components, is_last=is_last)
    (finding,) = report.findings
    assert finding.kind is (FindingKind.TORN if is_last else FindingKind.DAMAGE)
    assert (finding.place, finding.position) == (segment.label, len(batches[0]) + len(batches[1]))
    assert (report.batches, report.end_offset) == (2, 4)


def test_a_bad_batch_before_a_good_one_is_damage_even_at_the_end_of_a_log(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    damaged = bytearray(batches[1])
    damaged[-1] ^= 1
    report = check_segment(make_segment([batches[0], damaged, batches[2]], 0, 6), bed.components, is_last=True)
    assert [finding.kind for finding in report.findings] == [FindingKind.DAMAGE]


def test_records_that_cannot_be_decoded_are_found_only_if_records_are_checked(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    damaged = bytearray(batches[1])
    damaged[57:61] = (3).to_bytes(4, "big")  # change the number of records
    seal(damaged)
    segment = make_segment([batches[0], damaged, batches[2]], 0, 6)
    assert check_segment(segment, bed.components).bad_records == []
    report = check_segment(segment, bed.components, records=True)
    assert (report.findings, report.records) == ([], 4)
    assert [(finding.kind, finding.position) for finding in report.bad_records] == [
        (FindingKind.DAMAGE, len(batches[0]))
    ]


def test_a_wrong_entry_is_found_with_the_place_and_the_name_of_its_index(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    segment = make_segment(batches, 0, 6)
    entries = (2).to_bytes(4, "big") + (len(batches[0]) + 1).to_bytes(4, "big")
    index = StoredIndex("the object", entries, name="the index file: ")
    (finding,) = check_segment(segment, bed.components, indexes={IndexRole.OFFSET: index}).findings
    assert (finding.kind, finding.place, finding.position) == (FindingKind.INDEX, "the object", 0)
    assert finding.text == f"the index file: no batch starts at position {len(batches[0]) + 1}"


def test_kafka_indexes_the_append_time_of_records_without_timestamps(bed: LogBed, make_segment: MakeSegment) -> None:
    """Kafka 2 does so for V0 in a topic with message.timestamp.type=LogAppendTime."""
    stamp = records(1)[0].timestamp_ms
    old = [bed.batch(0, records(2, timestamp_ms=-1), magic=0), bed.batch(2, records(2, timestamp_ms=-1), magic=0)]
    segment = make_segment([*old, bed.batch(4, records(1, timestamp_ms=stamp - 1), magic=1)], 0, 5)
    for offset, expected_findings in ((3, 0), (4, 1)):
        entries = stamp.to_bytes(8, "big") + offset.to_bytes(4, "big")
        report = check_segment(segment, bed.components, indexes={IndexRole.TIME: StoredIndex("index", entries)})
        assert len(report.findings) == expected_findings


def test_an_index_that_could_not_be_read_is_reported_with_its_reason(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    indexes = {IndexRole.TIME: StoredIndex("the object", problem="it is too large")}
    (finding,) = check_segment(make_segment(batches, 0, 6), bed.components, indexes=indexes).findings
    assert (finding.kind, finding.text) == (FindingKind.INDEX, "it is too large")


def test_indexes_are_not_compared_with_the_batches_before_damage(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    segment = make_segment([batches[0], bytes(80), batches[2]], 0, 6)
    indexes = {IndexRole.OFFSET: StoredIndex("index", b"\xff" * 8)}
    report = check_segment(segment, bed.components, indexes=indexes)
    assert [finding.kind for finding in report.findings] == [FindingKind.DAMAGE]


def test_a_missing_offset_index_of_a_local_segment_is_a_problem(
    bed: LogBed, make_segment: MakeSegment, batches: list[bytes]
) -> None:
    segment = make_segment(batches, 0, 6)
    indexes = read_stored_indexes(segment, bed.components, bed.names())
    assert {role: index.problem for role, index in indexes.items()} == {
        IndexRole.OFFSET: "the index is missing",
        IndexRole.TIME: "",
        IndexRole.TRANSACTION: "",
    }
    assert indexes[IndexRole.TIME].place == str(bed.path(0, ".timeindex"))


def test_an_aborted_transaction_counts_as_missing_only_if_the_producers_are_known(
    bed: LogBed, make_segment: MakeSegment
) -> None:
    batches: Sequence[Buffer] = [
        bed.batch(0, records(1), producer=(5, 0, 0), transactional=True),
        bed.marker(1, 5, ControlType.ABORT),
    ]
    segment = make_segment(batches, 0, 2)
    check = partial(check_segment, segment, bed.components, indexes={IndexRole.TRANSACTION: StoredIndex("index")})
    assert check().findings == []
    state = ProducerState()
    report = check(replay=lambda chunk, table: replay_table(state, chunk.data, table, bed.components))
    assert [finding.kind for finding in report.findings] == [FindingKind.INDEX]
    assert "producer 5 aborted at 1 is missing" in report.findings[0].text
