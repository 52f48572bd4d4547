from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.config.engine_settings import Limits
from stratalog.errors import (
    DiskFullError,
    LogDirError,
    LogDirOfflineError,
    LogDirPermissionError,
    SegmentGoneError,
    SystemLimitError,
)
from stratalog.spi.segment_store import LogFiles
from stratalog.testing.faults import StoreBench, failing
from stratalog_local import stratalog_segment_stores

NAME = "00000000000000000000.log"


# --- a disk that fills up or fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("preallocate_bytes", [0, 10_000])
def test_a_short_write_is_cut_back(bench: StoreBench, files: LogFiles, preallocate_bytes: int) -> None:
    segment = files.open_segment(NAME, create=True, preallocate_bytes=preallocate_bytes)
    segment.append(b"abc")
    bench.files.room_bytes = 5
    with pytest.raises(DiskFullError) as caught:
        segment.append(b"defghij")
    assert caught.value.path == files.path(NAME)
    assert segment.size_bytes == Path(files.path(NAME)).stat().st_size == 3
    assert bytes(segment.read(0, 100)) == b"abc"
    bench.files.room_bytes = None
    assert segment.append(b"def") == 3
    segment.sync()
    segment.close()
    assert Path(files.path(NAME)).read_bytes() == b"abcdef"


def test_a_short_write_that_cannot_be_cut_back_ends_the_service(bench: StoreBench, files: LogFiles) -> None:
    """If the truncation after a short write fails, the next append would follow a part of a batch."""
    segment = files.open_segment(NAME, create=True)
    bench.files.room_bytes = 2
    bench.files.rule = failing("truncate", errno.EIO, times=2)
    with pytest.raises(LogDirOfflineError):
        segment.append(b"abc")
    bench.files.room_bytes = None
    with pytest.raises(LogDirOfflineError):
        segment.append(b"abc")
    assert segment.size_bytes == 0
    segment.close()


@pytest.mark.parametrize("operation", ["write", "sync", "truncate"])
def test_a_failed_change_is_never_retried(bench: StoreBench, files: LogFiles, operation: str) -> None:
    """After a failed fsync, another fsync may succeed although data is lost. So there is no second fsync."""
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abc")
    bench.files.rule = failing(operation, errno.EIO)
    changes: dict[str, Callable[[], object]] = {
        "write": lambda: segment.append(b"d"),
        "sync": segment.sync,
        "truncate": lambda: segment.truncate(1),
    }
    with pytest.raises(LogDirOfflineError) as caught:
        changes[operation]()
    assert isinstance(caught.value.__cause__, OSError)
    bench.files.done.clear()
    for change in changes.values():
        with pytest.raises(LogDirOfflineError):
            change()
    assert bench.files.names("write", "sync", "truncate") == []
    assert bytes(segment.read(0, 1)) == b"a"
    segment.close()


def test_a_full_disk_at_a_sync_ends_the_service_too(bench: StoreBench, files: LogFiles) -> None:
    """If the file system allocates blocks late, a full disk at a sync loses records that were written before."""
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abc")
    bench.files.rule = failing("sync", errno.ENOSPC)
    for _ in range(2):
        with pytest.raises(LogDirOfflineError):
            segment.sync()
    segment.close()


def test_a_failed_read_is_reported(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abc")
    bench.files.rule = failing("read", errno.EIO, times=2)
    with pytest.raises(LogDirOfflineError):
        segment.read(0, 3)
    with segment.slice(0, 3) as piece, pytest.raises(LogDirOfflineError):
        assert piece.data
    assert bytes(segment.read(0, 3)) == b"abc"
    segment.close()


@pytest.mark.parametrize(("code", "kind"), [(errno.EACCES, LogDirPermissionError), (errno.ENOMEM, SystemLimitError)])
def test_a_path_whose_attributes_cannot_be_read_is_no_replaced_file(
    bench: StoreBench, files: LogFiles, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[LogDirError]
) -> None:
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abc")

    def refuse(path: str) -> None:
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patch:
        patch.setattr(bench.files, "stat", refuse)
        with pytest.raises(kind):
            segment.sync()
    segment.append(b"def")
    segment.sync()
    segment.close()


# --- reserved space --------------------------------------------------------------------------------------------------


def test_preallocation_takes_space_until_the_segment_closes(files: LogFiles) -> None:
    path = Path(files.path(NAME))
    segment = files.open_segment(NAME, create=True, preallocate_bytes=1 << 20)
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20
    segment.append(b"abc")
    segment.close()
    assert path.read_bytes() == b"abc"


def test_cutting_a_preallocated_segment_gives_the_space_back(files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True, preallocate_bytes=1 << 20)
    segment.append(b"abc")
    segment.truncate(3)
    assert Path(files.path(NAME)).stat().st_size == 3
    segment.close()


def test_nothing_is_left_of_a_segment_without_room(bench: StoreBench, files: LogFiles) -> None:
    bench.files.room_bytes = 10
    with pytest.raises(DiskFullError):
        files.open_segment(NAME, create=True, preallocate_bytes=11)
    assert files.list() == []
    bench.files.room_bytes = None
    files.open_segment(NAME, create=True, preallocate_bytes=11).close()


def test_a_preallocated_segment_that_was_removed_can_be_closed(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True, preallocate_bytes=100)
    segment.append(b"abc")
    files.remove(NAME)
    bench.handles.close()
    segment.close()
    assert files.list() == []


# --- descriptors -----------------------------------------------------------------------------------------------------


def test_thousands_of_segments_share_a_few_descriptors(tmp_path: Path) -> None:
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path / "logs"), limits=Limits(open_files=8))
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        segments = [files.open_segment(f"{base:020d}.log", create=True) for base in range(2000)]
        for turn in range(2):
            for base, segment in enumerate(segments):
                assert segment.append(b"%d/%d;" % (base, turn)) == turn * len(b"%d/0;" % base)
            assert len(bench.files.open_paths) <= 9  # eight segments and the lock file
        piece = segments[0].slice(0, 100)
        for base, segment in enumerate(segments):
            assert bytes(segment.read(0, 100)) == b"%d/0;%d/1;" % (base, base)
        assert piece.fileno() is not None
        assert os.pread(piece.fileno() or -1, 100, piece.position) == b"0/0;0/1;"
        piece.release()
        for segment in segments:
            segment.close()
        assert len(bench.files.open_paths) == 1
    bench.close()


def test_a_slice_pins_its_descriptor(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abcdef")
    piece = segment.slice(2, 100)
    segment.close()
    descriptor = piece.fileno()
    assert descriptor is not None
    assert os.pread(descriptor, piece.size_bytes, piece.position) == b"cdef"
    assert files.path(NAME) in bench.files.open_paths
    piece.release()
    assert files.path(NAME) not in bench.files.open_paths


def test_the_bytes_of_a_slice_are_read_when_they_are_used_first(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abcdef")
    read_slice, removed_slice, replaced_slice = segment.slice(0, 4), segment.slice(1, 4), segment.slice(2, 100)
    assert (bytes(read_slice.data), replaced_slice.size_bytes) == (b"abcd", 4)
    segment.close()
    files.remove(NAME)
    assert bytes(removed_slice.data) == b"bcde"
    new_segment = files.open_segment(NAME, create=True)
    new_segment.append(b"uvwxyz")
    assert (bytes(replaced_slice.data), bytes(read_slice.data)) == (b"cdef", b"abcd")
    for piece in (read_slice, removed_slice, replaced_slice):
        piece.release()
    new_segment.close()
    assert files.path(NAME) not in bench.files.open_paths


@pytest.mark.parametrize("kept_bytes", [1, 6])
def test_bytes_that_may_have_changed_since_a_slice_was_made_are_not_read(files: LogFiles, kept_bytes: int) -> None:
    """A log closes a segment file, opens it again, truncates it, and appends to it."""
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abcdef")
    piece = segment.slice(2, 4)
    segment.close()
    reopened_segment = files.open_segment(NAME)
    reopened_segment.truncate(kept_bytes)
    reopened_segment.append(b"others")
    with pytest.raises(SegmentGoneError, match="truncated"):
        assert piece.data
    piece.release()
    reopened_segment.close()


def test_a_slice_of_a_file_that_another_process_truncated_raises_an_error(files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abcdef")
    with segment.slice(2, 4) as piece:
        os.truncate(files.path(NAME), 3)
        with pytest.raises(SegmentGoneError):
            assert piece.data


def test_a_segment_deleted_while_its_descriptor_was_closed_raises_an_error(files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    segment.append(b"abc")
    segment.close()
    reopened_segment = files.open_segment(NAME)
    files.remove(NAME)
    with pytest.raises(SegmentGoneError) as caught:
        reopened_segment.read(0, 3)
    assert caught.value.retriable
    with pytest.raises(SegmentGoneError):
        reopened_segment.slice(0, 3)
    reopened_segment.close()


def test_a_segment_that_may_not_be_opened_is_reported(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    bench.files.rule = failing("open", errno.EACCES)
    with pytest.raises(LogDirPermissionError):
        segment.append(b"abc")
    segment.close()


def test_the_time_of_a_segment_is_that_of_its_file(bench: StoreBench, files: LogFiles) -> None:
    segment = files.open_segment(NAME, create=True)
    bench.files.set_modified(files.path(NAME), 1_600_000_000_123)
    assert segment.modified_ms == 1_600_000_000_123
    files.rename(NAME, NAME + ".deleted")
    assert segment.modified_ms == 1_600_000_000_123
    segment.close()
