"""Long ranges are read by a thread beside whoever makes their Arrow batches; nobody meets it but by the clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from stratalog.env import PosixVfs
from stratalog.errors import CorruptBatchError, LogDirError
from stratalog.log.columns import read_arrow
from stratalog.log.log import Log
from stratalog.testing.logs import LogBed, records

AHEAD = "stratalog-ahead"
BATCHES, SPAN, VALUE_BYTES = 40, 8, 15_000  # 4.7 MiB in all, batches of 117 KiB


class Watched(PosixVfs):
    """Files that know who reads them, and fail when they are told to."""

    def __init__(self) -> None:
        self.readers = list[str]()
        self.fails_from = -1

    def read_into(self, descriptor: int, position: int, into: memoryview) -> int:
        self.readers.append(threading.current_thread().name)
        if 0 <= self.fails_from <= position:
            raise OSError(5, "Input/output error")
        return super().read_into(descriptor, position, into)


@pytest.fixture
def watched(bed: LogBed) -> Watched:
    bed.files_port = files = Watched()
    return files


def left_running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == AHEAD]


def gather(batches: Iterator[pa.RecordBatch], offsets: list[int | None]) -> None:
    for batch in batches:
        offsets += batch.column("offset").to_pylist()


def filled(bed: LogBed) -> list[bytes]:
    data = [bed.batch(SPAN * n, records(SPAN, start=SPAN * n, value_bytes=VALUE_BYTES)) for n in range(BATCHES)]
    bed.write_segment(0, data)
    return data


def test_a_long_range_is_read_beside_and_holds_its_records(bed: LogBed, watched: Watched) -> None:
    filled(bed)
    log = bed.open_reader()
    for start, end in ((0, None), (5, SPAN * BATCHES - 5), (SPAN * 3, SPAN * 35)):
        watched.readers.clear()
        table = log.to_arrow(start, end)
        assert AHEAD in watched.readers
        expected = list(log.records(start, end))
        assert table.column("offset").to_pylist() == [record.offset for record in expected]
        assert table.column("value").to_pylist() == [record.value for record in expected]
    assert left_running() == []


def test_a_short_range_and_records_are_read_by_the_caller(bed: LogBed, watched: Watched) -> None:
    filled(bed)
    log = bed.open_reader()
    watched.readers.clear()
    assert log.to_arrow(100, 103).num_rows == 3
    assert sum(1 for _ in log.records()) == SPAN * BATCHES
    assert set(watched.readers) == {threading.current_thread().name}


@pytest.mark.parametrize("bad", [1, 20, 30, BATCHES - 1])
def test_all_before_a_bad_batch_comes_first(bed: LogBed, bad: int) -> None:
    data = filled(bed)
    broken = bytearray(data[bad])
    broken[-1] ^= 1
    bed.write_segment(0, [*data[:bad], bytes(broken), *data[bad + 1 :]])
    log = bed.open_reader()
    found = list[int | None]()
    with pytest.raises(CorruptBatchError) as caught:
        gather(read_arrow(log.view, log.parts, 0, None, "log_end", 0), found)
    assert found == list(range(SPAN * bad))
    assert caught.value.position == sum(map(len, data[:bad]))
    assert left_running() == []


def test_a_disk_that_fails_meanwhile_is_told_as_ever(bed: LogBed, watched: Watched) -> None:
    filled(bed)
    log = bed.open_reader()
    watched.fails_from = 3 << 20
    with pytest.raises(LogDirError):
        log.to_arrow()
    assert left_running() == []


def test_who_has_seen_enough_leaves_no_thread(bed: LogBed) -> None:
    filled(bed)
    log = bed.open_reader()
    with closing(read_arrow(log.view, log.parts, 0, None, "log_end", 0)) as batches:
        assert next(batches).num_rows
        assert left_running() == [AHEAD]
    assert left_running() == []


def test_a_log_that_is_cut_meanwhile_is_read_up_to_its_new_end(bed: LogBed) -> None:
    made = bed.open()
    assert isinstance(made, Log)
    for n in range(BATCHES):
        made.append(records(SPAN, start=SPAN * n, value_bytes=VALUE_BYTES))
    with closing(read_arrow(made.view, made.parts, 0, None, "log_end", 0)) as batches:
        found = list[int | None](next(batches).column("offset").to_pylist())
        made.truncate_to(SPAN * 30)
        gather(batches, found)
    assert found == list(range(SPAN * 30))
