from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence

import pytest

from log_bed import LogBed, records
from stratalog.model.batches import Buffer
from stratalog.segment.read_buffers import BufferPool, ReusedReads
from stratalog.segment.segment import Segment

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]
USUAL_BYTES = 64
SPARE = deque[bytearray]()


@pytest.fixture
def segment(bed: LogBed, make_segment: MakeSegment) -> Segment:
    return make_segment([bed.batch(0, records(9))], 0, 9)


def test_the_bytes_read_are_those_of_the_segment(segment: Segment) -> None:
    size = segment.size_bytes
    with ReusedReads(USUAL_BYTES, SPARE) as reads:
        read = reads.of(segment)
        for position in (0, 1, size - 5, size, size + 5):
            for size_bytes in (0, 1, USUAL_BYTES, USUAL_BYTES + 1, 2 * size):
                assert bytes(read(position, size_bytes)) == bytes(segment.read(position, size_bytes))


def test_a_reader_sees_no_bytes_change(segment: Segment) -> None:
    """Bytes that a caller keeps must not change, even after the reader has ended. A caller may also keep slices."""
    views, contents = [], []
    for turn in range(3):
        with ReusedReads(USUAL_BYTES, SPARE) as reads:
            read = reads.of(segment)
            for position in range(turn, 12):
                view = read(position, USUAL_BYTES)
                views.append(view if position % 2 else view[3:20].cast("B"))
                contents.append(bytes(views[-1]))
                del view
                read(position + 20, USUAL_BYTES)
    assert [bytes(view) for view in views] == contents


def test_memory_is_used_again(segment: Segment) -> None:
    """The next read reuses the memory if no view of it is left, and so does the next reader."""
    owners = list[object]()
    for _ in range(3):
        with ReusedReads(USUAL_BYTES, SPARE) as reads:
            read = reads.of(segment)
            for position in range(5):
                owners.append(read(position, USUAL_BYTES).obj)
    assert len({id(owner) for owner in owners}) == 1


@pytest.mark.parametrize("position", [0, 1, 17, 63, 64, 65])
def test_a_read_is_as_far_from_a_cache_line_in_memory_as_in_the_file(segment: Segment, position: int) -> None:
    """A large bytearray begins 16 bytes after the start of a page."""
    with ReusedReads(USUAL_BYTES, SPARE) as reads:
        view = reads.of(segment)(position, USUAL_BYTES)
        distance = address_of(view) - address_of(view.obj)
        assert len(view) == USUAL_BYTES
        assert (16 + distance - position) % 64 == 0


def address_of(data: object) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))  # type: ignore[arg-type]  # any writable buffer


def test_readers_of_one_time_have_memory_of_their_own(segment: Segment) -> None:
    with ReusedReads(USUAL_BYTES, SPARE) as reads, ReusedReads(USUAL_BYTES, SPARE) as other_reads:
        first, second = reads.of(segment)(0, USUAL_BYTES), other_reads.of(segment)(7, USUAL_BYTES)
        assert bytes(first) == bytes(segment.read(0, USUAL_BYTES))
        assert bytes(second) == bytes(segment.read(7, USUAL_BYTES))


def test_buffers_are_reused_once_no_view_uses_them() -> None:
    pool = BufferPool(USUAL_BYTES)
    first = pool.take(10)
    assert first is not None
    assert len(first) == 10
    owner = first.obj
    part = first[3:5]
    del first
    second = pool.take(USUAL_BYTES)
    assert second is not None
    assert second.obj is not owner
    del part, second
    third = pool.take(USUAL_BYTES)
    assert third is not None
    assert third.obj is owner


def test_rooms_are_few_and_of_the_usual_size() -> None:
    pool = BufferPool(USUAL_BYTES)
    assert pool.take(USUAL_BYTES + 1) is None
    buffers = [pool.take(1) for _ in range(20)]
    rooms = [room for room in buffers if room is not None]
    assert 1 <= len(rooms) < 20
    assert len({id(room.obj) for room in rooms}) == len(rooms)
    rooms.pop()
    buffers.clear()
    assert pool.take(1) is not None
