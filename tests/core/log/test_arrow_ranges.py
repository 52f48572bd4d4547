"""A log as an Arrow table has the same contents as its records, wherever the range begins and ends."""

from __future__ import annotations

from struct import Struct

import pytest

from entry_parts import seal
from log_bed import LogBed, records
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptBatchError
from stratalog.log.read.columns import read_arrow
from stratalog.log.read.log_reader import LogReader
from stratalog.model.messages.control import ControlType
from stratalog.model.records import Record

LAST_DELTA = Struct(">i")
LAST_DELTA_POSITION = 23
SPAN = 3  # records in each batch


def same(log: LogReader, start: int, end: int | None = None, isolation: str = "read_uncommitted") -> list[int]:
    """Compare the table of a range with its records, and return the offsets of the range."""
    table = log.to_arrow(start, end, isolation)
    table.validate(full=True)
    expected = list(log.records(start, end, isolation))
    for name in ("offset", "key", "value"):
        assert table.column(name).to_pylist() == [getattr(record, name) for record in expected]
    for columns in (["value"], ["offset"], ["headers", "partition"]):
        selection = log.to_arrow(start, end, isolation, columns=columns)
        selection.validate(full=True)
        assert selection.equals(table.select(columns))
    headers = [[{"key": name, "value": value} for name, value in record.headers] for record in expected]
    assert table.column("headers").to_pylist() == headers
    return [record.offset for record in expected]


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_any_range(bed: LogBed, magic: int, codec: str | None) -> None:
    data = [bed.batch(SPAN * n, records(SPAN, start=SPAN * n), magic=magic, codec=codec) for n in range(4)]
    bed.write_segment(0, data)
    log = bed.open_reader(clean=False)
    for start in range(4 * SPAN):
        for end in range(start, 4 * SPAN + 1):
            assert same(log, start, end) == list(range(start, end))


@pytest.mark.parametrize("start", [0, 10 * SPAN])
def test_one_buffer_is_filled_again_for_each_read_of_a_scan(bed: LogBed, start: int) -> None:
    bed.limits = Limits(read_bytes=1024)
    bed.topic = TopicConfig(index_interval_bytes=0)
    data = [bed.batch(SPAN * n, records(SPAN, start=SPAN * n, value_bytes=200)) for n in range(40)]
    bed.write_segment(0, data)
    log = bed.open_reader(clean=False)
    spare = log.components.env.spare_buffers
    spare.clear()
    batches = read_arrow(log.view, log.components, start, None, "log_end", 0, ["value"])
    assert len([batch.num_rows for batch in batches]) > 3
    assert len(spare) == 1


def test_magics_codecs_and_headers_in_turn(bed: LogBed) -> None:
    data, header_records = [], [Record(key=b"k", value=b"v", headers=(("h", b"x"), ("n", None)))]
    for n, codec in enumerate([None, "zstd", None, "gzip", "gzip", None]):
        data.append(bed.batch(3 * n, records(1), magic=n % 2, codec=None if codec == "zstd" else codec))
        data.append(bed.batch(3 * n + 1, records(1), codec=codec))
        data.append(bed.batch(3 * n + 2, header_records, codec=codec))
    bed.write_segment(0, data)
    log = bed.open_reader(clean=False)
    assert same(log, 0) == list(range(18))
    assert same(log, 2, 11) == list(range(2, 11))


@pytest.mark.parametrize("isolation", ["log_end", "read_uncommitted", "read_committed"])
def test_markers_and_aborted_records_are_left_out(bed: LogBed, isolation: str) -> None:
    def sent(first: int, producer: int) -> bytes:
        return bed.batch(first, records(2, start=first), producer=(producer, 0, 0), transactional=True)

    data = [sent(0, 1), sent(2, 2), bed.marker(4, 1, ControlType.ABORT), bed.marker(5, 2, ControlType.COMMIT)]
    bed.write_segment(0, [*data, bed.batch(6, records(2, start=6))])
    log = bed.open(clean=False)
    aborted = {0, 1} if isolation == "read_committed" else set()
    visible = [offset for offset in (0, 1, 2, 3, 6, 7) if offset not in aborted]
    for start in range(1, 8):
        for end in (*range(start, 9), None):
            expected = [offset for offset in visible if start <= offset < (8 if end is None else end)]
            assert same(log, start, end, isolation) == expected
    assert same(log, 0, None, isolation) == visible


def test_wrong_offsets_do_not_leave_the_range(bed: LogBed) -> None:
    """The offsets of a batch's records exceed the last offset in its header."""
    lying = bytearray(bed.batch(0, records(6)))
    LAST_DELTA.pack_into(lying, LAST_DELTA_POSITION, SPAN - 1)
    seal(lying)
    bed.write_segment(0, [bytes(lying), bed.batch(SPAN, records(SPAN, start=SPAN))])
    log = bed.open_reader(clean=False)
    for end in range(1, 2 * SPAN + 1):
        offsets = log.to_arrow(0, end).column("offset").to_pylist()
        assert offsets[:end] == list(range(end))
        assert all(offset is not None and offset < end for offset in offsets)


def test_damage_is_an_error(bed: LogBed) -> None:
    data = [bed.batch(SPAN * n, records(SPAN, start=SPAN * n)) for n in range(3)]
    bed.write_segment(0, data)
    log = bed.open(clean=False)
    log.roll()
    bed.close()
    damaged = bytearray(bed.path(0).read_bytes())
    damaged[len(data[0]) + len(data[1]) - 1] ^= 1
    bed.path(0).write_bytes(damaged)
    reader = bed.open_reader()
    with pytest.raises(CorruptBatchError) as caught:
        reader.to_arrow()
    assert (caught.value.file, caught.value.position) == (str(bed.path(0)), len(data[0]))
    assert same(reader, 0, SPAN) == list(range(SPAN))


def test_records_that_do_not_fit_their_batch_are_an_error_that_names_the_place(bed: LogBed) -> None:
    first, second = bed.batch(0, records(SPAN)), bytearray(bed.batch(SPAN, records(SPAN, start=SPAN)))
    second[61] = 0x7F  # change the length of the first record
    seal(second)
    bed.write_segment(0, [first, bytes(second)])
    log = bed.open_reader(clean=False)
    with pytest.raises(CorruptBatchError) as caught:
        log.to_arrow()
    assert (caught.value.file, caught.value.position) == (str(bed.path(0)), len(first))


def test_a_small_range_does_not_keep_the_rest(bed: LogBed) -> None:
    bed.write_segment(0, [bed.batch(0, records(100, value_bytes=5000))])
    table = bed.open_reader(clean=False).to_arrow(50, 51)
    assert table.num_rows == 1
    assert table.get_total_buffer_size() < 2 * 5000
