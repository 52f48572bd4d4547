from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from struct import pack

import pytest

from log_bed import LogBed, records
from stored_batches import prepared
from stratalog.config.engine_settings import Limits
from stratalog.config.topic import TopicConfig
from stratalog.errors import SegmentGoneError
from stratalog.model.batches import Buffer
from stratalog.segment.appender import Appender
from stratalog.segment.segment import Segment
from stratalog.spi.indexes import IndexRole

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]

BATCHES = 10


@pytest.fixture
def closed(bed: LogBed, make_segment: MakeSegment) -> Segment:
    """Return a closed segment of ten batches with three records each, with indexes."""
    data = [bed.batch(3 * n, records(3, start=3 * n, value_bytes=50)) for n in range(BATCHES)]
    log = bed.files().open_segment(bed.path(100).name, create=True)
    with closing(Segment(bed.files(), 0, 0, bed.components, log, names={".log": bed.path(100).name})) as active:
        appender = Appender(active, bed.components, TopicConfig(index_interval_bytes=0))
        for batch in data:
            appender.append(prepared(bed.components.formats, batch))
        appender.finish()
    bed.path(100).unlink()
    return make_segment(data, 0, 3 * BATCHES)


def entries_of(segment: Segment, bed: LogBed, role: IndexRole) -> int:
    index = bed.components.indexes[role]
    reader = index.reader(segment.index_entries(role), segment.base_offset)
    reader.check(segment.end_offset, segment.size_bytes)
    return len(reader)


def test_sound_index_files_are_used(bed: LogBed, closed: Segment) -> None:
    for role, suffix in ((IndexRole.OFFSET, ".index"), (IndexRole.TIME, ".timeindex")):
        assert bytes(closed.index_entries(role)) == bed.path(0, suffix).read_bytes() != b""


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + bytes(8),
        lambda data: bytes(len(data)),
        lambda data: data[8:] + data[:8],
        lambda data: data[:-4] + pack(">i", 1 << 30),
        lambda data: b"\x7f" + data[1:],
    ],
    ids=["cut", "reserved space", "zeros", "rotated", "past the end", "flipped"],
)
@pytest.mark.parametrize(("role", "suffix"), [(IndexRole.OFFSET, ".index"), (IndexRole.TIME, ".timeindex")])
def test_an_index_that_contradicts_its_log_is_rebuilt_in_memory(
    bed: LogBed, closed: Segment, role: IndexRole, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    path = bed.path(0, suffix)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    entries_of(closed, bed, role)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(("read_bytes", "made_again"), [(1024, True), (1 << 20, False)])
def test_a_lost_offset_index_is_rebuilt_if_one_read_does_not_cover_the_segment(
    bed: LogBed, make_segment: MakeSegment, read_bytes: int, *, made_again: bool
) -> None:
    bed.limits = Limits(read_bytes=read_bytes)
    data = [bed.batch(3 * n, records(3, start=3 * n, value_bytes=1000)) for n in range(BATCHES)]
    segment = make_segment(data, 0, 3 * BATCHES)
    assert bool(entries_of(segment, bed, IndexRole.OFFSET)) is made_again
    assert not bed.path(0, ".index").exists()


def test_reading_stops_at_the_end(closed: Segment) -> None:
    size = closed.size_bytes
    assert len(closed.read(0, size + 100)) == size
    assert len(closed.read(size - 5, 100)) == 5
    with closed.slice(size - 5, 100) as piece:
        assert piece.size_bytes == 5


def test_a_limited_segment_ends_at_its_limit(bed: LogBed, closed: Segment) -> None:
    limited = Segment(bed.files(), 0, 3, bed.components, closed.file, size_bytes=100)
    assert limited.size_bytes == 100
    assert len(limited.read(90, 50)) == 10
    assert "[0, 3)" in repr(limited)


def test_closed_files_are_gone(closed: Segment) -> None:
    closed.close()
    closed.close()
    with pytest.raises(SegmentGoneError):
        closed.read(0, 10)


def test_an_index_can_be_read_while_its_segment_is_sealed(bed: LogBed) -> None:
    log = bed.files().open_segment(bed.path(0).name, create=True)
    with closing(Segment(bed.files(), 0, 0, bed.components, log)) as segment:
        appender = Appender(segment, bed.components, TopicConfig(index_interval_bytes=0))
        for offset in range(3):
            batch = bed.batch(offset, records(1))
            appender.append(prepared(bed.components.formats, batch))
        view = memoryview(segment.index_entries(IndexRole.OFFSET))
        before = bytes(view)
        appender.finish()
        assert bytes(view) == before == bytes(segment.index_entries(IndexRole.OFFSET)) != b""
