"""Space that large segments reserve ahead of appends: readers do not see it, and unused space is released."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.env import PosixVfs
from stratalog.errors import DiskFullError, FileReplacedError
from stratalog.spi.segment_store import LogFiles, SegmentFile
from stratalog.testing.faults import StoreBench, failing
from stratalog_local.segment_file import AHEAD_BYTES, LARGE_BYTES

NAME = "00000000000000000000.log"
LARGE = bytes(LARGE_BYTES)
BLOCK_BYTES = 512

linux = pytest.mark.skipif(sys.platform != "linux", reason="no space is taken ahead elsewhere")


@pytest.fixture
def segment(files: LogFiles) -> Iterator[SegmentFile]:
    """Yield a large segment that reserves space at its next append."""
    segment = files.open_segment(NAME, create=True)
    segment.append(LARGE)
    yield segment
    segment.close()


@pytest.fixture
def path(files: LogFiles) -> Path:
    return Path(files.path(NAME))


def taken(path: Path) -> int:
    return path.stat().st_blocks * BLOCK_BYTES


@linux
def test_a_large_segment_has_space_ahead_that_no_size_shows(
    bench: StoreBench, segment: SegmentFile, path: Path
) -> None:
    assert bench.files.names("reserve") == []
    segment.append(b"abc")
    assert segment.size_bytes == path.stat().st_size == LARGE_BYTES + 3
    assert taken(path) >= LARGE_BYTES + AHEAD_BYTES
    segment.append(bytes(AHEAD_BYTES))
    assert bench.files.names("reserve") == [("reserve", NAME)]
    segment.append(b"x")
    assert len(bench.files.names("reserve")) == 2
    assert path.stat().st_size == segment.size_bytes
    assert bytes(segment.read(LARGE_BYTES, 3)) == b"abc"


@linux
@pytest.mark.parametrize(
    "end",
    [lambda segment: segment.close(), lambda segment: segment.trim(), lambda segment: segment.truncate(LARGE_BYTES)],
    ids=["close", "trim", "truncate"],
)
def test_unused_space_is_given_back(segment: SegmentFile, path: Path, end: Callable[[SegmentFile], object]) -> None:
    segment.append(b"abc")
    assert not end(segment)  # the result is false: no change needs a sync
    assert path.stat().st_size in {LARGE_BYTES, LARGE_BYTES + 3}
    assert taken(path) < LARGE_BYTES + AHEAD_BYTES


@linux
def test_giving_back_leaves_the_time_of_the_last_append(bench: StoreBench, segment: SegmentFile, path: Path) -> None:
    """Retention uses the modification time if records have no timestamp."""
    segment.append(b"abc")
    bench.files.set_modified(str(path), 1_600_000_000_123)
    segment.trim()
    segment.close()
    assert path.stat().st_mtime_ns == 1_600_000_000_123_000_000


@pytest.mark.parametrize(
    "end", [lambda segment: segment.trim(), lambda segment: segment.close()], ids=["trim", "close"]
)
def test_the_end_of_a_preallocation_leaves_the_time_of_the_last_append(
    bench: StoreBench, files: LogFiles, path: Path, end: Callable[[SegmentFile], object]
) -> None:
    segment = files.open_segment(NAME, create=True, preallocate_bytes=10_000)
    segment.append(b"abc")
    bench.files.set_modified(str(path), 1_600_000_000_123)
    end(segment)
    assert path.stat().st_size == 3
    assert path.stat().st_mtime_ns == 1_600_000_000_123_000_000
    segment.close()


def test_a_later_append_takes_space_again(bench: StoreBench, segment: SegmentFile) -> None:
    segment.append(b"abc")
    segment.trim()
    segment.append(b"def")
    assert len(bench.files.names("reserve")) == 2
    assert bytes(segment.read(LARGE_BYTES, 9)) == b"abcdef"


@linux
def test_a_short_write_gives_back_what_is_ahead(bench: StoreBench, segment: SegmentFile, path: Path) -> None:
    segment.append(b"abc")
    bench.files.room_bytes = 2
    with pytest.raises(DiskFullError):
        segment.append(b"defg")
    assert path.stat().st_size == LARGE_BYTES + 3
    assert taken(path) < LARGE_BYTES + AHEAD_BYTES
    bench.files.room_bytes = None
    assert segment.append(b"defg") == LARGE_BYTES + 3


def test_a_disk_with_little_room_takes_what_fits_and_is_asked_again_later(
    bench: StoreBench, segment: SegmentFile
) -> None:
    bench.files.room_bytes = 2 * AHEAD_BYTES
    bench.files.rule = failing("reserve", errno.ENOSPC)
    segment.append(b"abc")
    segment.append(b"def")
    assert len(bench.files.names("reserve")) == 1
    bench.files.rule = None
    segment.append(bytes(AHEAD_BYTES))
    assert len(bench.files.names("reserve")) == 2
    assert bytes(segment.read(LARGE_BYTES, 6)) == b"abcdef"


@linux
def test_the_part_that_a_full_disk_granted_is_given_back(bench: StoreBench, segment: SegmentFile, path: Path) -> None:
    """On ext4, a call that fails may already have reserved a part of the space."""

    def full(operation: str, name: str) -> None:
        if operation == "reserve":
            with path.open("r+b") as file:
                PosixVfs().reserve(file.fileno(), LARGE_BYTES, AHEAD_BYTES // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    bench.files.rule = full
    segment.append(b"abc")
    assert taken(path) >= LARGE_BYTES + AHEAD_BYTES // 2
    segment.close()
    assert taken(path) < LARGE_BYTES + AHEAD_BYTES // 2


def test_a_file_system_without_the_call_gets_it_once(bench: StoreBench, segment: SegmentFile) -> None:
    bench.files.rule = failing("reserve", errno.EOPNOTSUPP)
    for _ in range(4):
        segment.append(bytes(AHEAD_BYTES))
    assert len(bench.files.names("reserve")) == 1
    assert segment.size_bytes == LARGE_BYTES + 4 * AHEAD_BYTES


@pytest.mark.parametrize("change", [Path.unlink, lambda path: os.truncate(path, 100)], ids=["unlink", "truncate"])
def test_a_file_that_another_process_changed_is_noticed_before_space_is_reserved(
    bench: StoreBench, segment: SegmentFile, path: Path, change: Callable[[Path], None]
) -> None:
    """Otherwise an append to a shorter file would leave a hole before its batches."""
    refusals = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def refused_once() -> None:
        if refusals:
            raise refusals.pop()

    bench.handles.with_room(refused_once)  # closes the descriptor of the segment
    change(path)
    with pytest.raises(FileReplacedError):
        segment.append(b"abc")
    assert segment.size_bytes == LARGE_BYTES
    assert not path.exists() or path.stat().st_size == 100


def test_a_preallocated_segment_needs_none(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True, preallocate_bytes=2 * LARGE_BYTES)
    segment.append(LARGE)
    segment.append(b"abc")
    segment.close()
    assert bench.files.names("reserve") == []
