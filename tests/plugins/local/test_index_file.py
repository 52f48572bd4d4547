from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog.config.engine_settings import Limits
from stratalog.errors import DiskFullError, FileReplacedError, LogDirError, LogDirOfflineError
from stratalog.spi.segment_store import IndexFile, LogFiles
from stratalog.testing.faults import StoreBench, failing
from stratalog_local import stratalog_segment_stores

NAME = "00000000000000000000.index"
PAGE = 4096
DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def index(files: LogFiles) -> Iterator[IndexFile]:
    """Yield a new growing index of at most 10 pages and 8 bytes."""
    with_room = files.open_index(NAME, max_bytes=10 * PAGE + 8, writable=True)
    yield with_room
    with_room.close()


def on_disk(files: LogFiles) -> int:
    return Path(files.path(NAME)).stat().st_size


# --- growing ---------------------------------------------------------------------------------------------------------


def test_space_doubles_up_to_the_bound(files: LogFiles, index: IndexFile) -> None:
    sizes = [on_disk(files)]
    while index.size_bytes < 10 * PAGE + 8:
        index.append(b"x" * 8)
        if on_disk(files) != sizes[-1]:
            sizes.append(on_disk(files))
    assert sizes == [0, PAGE, 2 * PAGE, 4 * PAGE, 8 * PAGE, 10 * PAGE + 8]


def test_a_small_bound_is_taken_at_once(files: LogFiles) -> None:
    index = files.open_index(NAME, max_bytes=24, writable=True)
    index.append(b"x" * 8)
    assert on_disk(files) == 24
    index.close()
    assert on_disk(files) == 8


def test_one_append_may_need_several_doublings(files: LogFiles, index: IndexFile) -> None:
    index.append(b"x" * 5 * PAGE)
    assert on_disk(files) == 8 * PAGE
    assert bytes(index.view()) == b"x" * 5 * PAGE


def test_space_is_taken_before_it_is_mapped(bench: StoreBench, index: IndexFile) -> None:
    """If the disk is full, a write through a memory map to unallocated space would kill the process."""
    index.append(b"x" * (PAGE + 8))
    assert bench.files.names("allocate", "map") == [("allocate", NAME), ("map", NAME)]


def test_holes_of_an_existing_index_are_filled_before_writing(bench: StoreBench, files: LogFiles) -> None:
    """A crashed broker leaves a sparse index of full size."""
    path = Path(files.path(NAME))
    path.touch()
    os.truncate(path, 10 * PAGE)
    index = files.open_index(NAME, max_bytes=10 * PAGE, writable=True)
    assert index.size_bytes == 10 * PAGE
    assert bytes(index.view()) == bytes(10 * PAGE)
    index.truncate(0)
    index.append(b"x" * 8)
    assert bench.files.names("allocate") == [("allocate", NAME)]
    index.close()
    assert path.read_bytes() == b"x" * 8


def test_a_full_disk_refuses_growth_and_leaves_the_index_in_use(
    bench: StoreBench, files: LogFiles, index: IndexFile
) -> None:
    index.append(b"x" * PAGE)
    view = index.view()
    bench.files.room_bytes = PAGE + 100
    with pytest.raises(DiskFullError):
        index.append(b"y" * 8)
    assert index.size_bytes == on_disk(files) == PAGE
    assert view == b"x" * PAGE
    bench.files.room_bytes = None
    index.append(b"y" * 8)
    assert bytes(index.view()) == b"x" * PAGE + b"y" * 8


def test_a_failed_allocation_ends_the_service(bench: StoreBench, index: IndexFile) -> None:
    bench.files.rule = failing("allocate", errno.EIO)
    for _ in range(2):
        with pytest.raises(LogDirOfflineError):
            index.append(b"y" * 8)
    assert index.size_bytes == 0


@pytest.mark.parametrize("reserve", [True, False])
def test_a_failed_sync_is_never_retried(bench: StoreBench, files: LogFiles, *, reserve: bool) -> None:
    index = files.open_index(NAME, max_bytes=1000, writable=True, reserve=reserve)
    index.append(b"x" * 8)
    bench.files.rule = failing("sync", errno.EIO)
    with pytest.raises(LogDirOfflineError):
        index.sync()
    bench.files.done.clear()
    for change in (index.sync, lambda: index.append(b"y"), lambda: index.truncate(0)):
        with pytest.raises(LogDirOfflineError):
            change()
    assert bench.files.names("sync", "write", "truncate", "allocate") == []
    assert bytes(index.view()) == b"x" * 8
    index.close()


def test_an_index_cut_by_another_process_is_not_mapped(files: LogFiles) -> None:
    """A read through a memory map past the end of its file would kill the process."""
    files.replace_small(NAME, b"x" * 100)
    index = files.open_index(NAME, max_bytes=1000, writable=True)
    os.truncate(files.path(NAME), 50)
    with pytest.raises(FileReplacedError):
        index.view()
    Path(files.path(NAME)).write_bytes(b"x" * 100)
    index.close()


# --- shrinking -------------------------------------------------------------------------------------------------------


def test_a_trimmed_index_holds_its_entries_alone_and_grows_again(files: LogFiles, index: IndexFile) -> None:
    index.append(b"x" * 8)
    index.trim()
    assert on_disk(files) == 8
    index.append(b"y" * 8)
    index.trim()
    assert Path(files.path(NAME)).read_bytes() == b"x" * 8 + b"y" * 8


def test_no_entry_reappears_after_a_truncation(files: LogFiles, index: IndexFile) -> None:
    """After a truncation, zeros follow the entries. Kafka leaves the truncated entries there."""
    index.append(b"x" * 80)
    index.truncate(8)
    index.append(b"y" * 8)
    assert Path(files.path(NAME)).read_bytes() == b"x" * 8 + b"y" * 8 + bytes(PAGE - 16)


def test_a_reader_of_what_was_cut_keeps_the_old_file(bench: StoreBench, files: LogFiles, index: IndexFile) -> None:
    """The index is replaced by a new file, because a view into removed pages would kill the process."""
    index.append(b"x" * 3 * PAGE)
    view = index.view()
    part = view[2 * PAGE : 2 * PAGE + 4]
    del view
    index.truncate(8)
    assert ("rename", NAME) in bench.files.names("rename")
    index.append(b"y" * PAGE)
    assert bytes(part) == b"xxxx"
    assert bytes(index.view()) == b"x" * 8 + b"y" * PAGE
    index.close()
    assert bytes(part) == b"xxxx"
    assert Path(files.path(NAME)).read_bytes() == b"x" * 8 + b"y" * PAGE


@pytest.mark.parametrize(
    ("operation", "code"), [("create", errno.ENOSPC), ("write", errno.EIO), ("rename", errno.ENOSPC)]
)
def test_a_failed_truncation_changes_nothing_that_a_reader_sees(
    bench: StoreBench, index: IndexFile, operation: str, code: int
) -> None:
    index.append(b"x" * 16)
    view = index.view()
    bench.files.rule = failing(operation, code)
    with pytest.raises(LogDirError):
        index.truncate(8)
    assert index.size_bytes == 16
    index.append(b"y" * 8)
    assert bytes(view) == b"x" * 16
    assert bytes(index.view()) == b"x" * 16 + b"y" * 8
    index.truncate(8)
    assert bytes(index.view()) == b"x" * 8


def test_without_readers_the_file_is_cut_in_place(bench: StoreBench, index: IndexFile) -> None:
    index.append(b"x" * 3 * PAGE)
    view = index.view()
    del view
    gc.collect()
    index.truncate(8)
    assert bench.files.names("rename") == []


def test_a_closed_index_still_answers(index: IndexFile, files: LogFiles) -> None:
    """A reader without a lock may still use an index that a roll has just closed."""
    index.append(b"x" * 8)
    index.close()
    files.remove(NAME)
    assert bytes(index.view()) == b"x" * 8


@pytest.mark.parametrize("reserve", [True, False])
def test_an_index_that_was_removed_can_be_closed(bench: StoreBench, files: LogFiles, *, reserve: bool) -> None:
    index = files.open_index(NAME, max_bytes=1000, writable=True, reserve=reserve)
    index.append(b"x" * 8)
    files.remove(NAME)
    bench.handles.close()
    index.close()
    assert files.list() == []


def test_readers_see_whole_entries_while_the_file_grows_and_shrinks(files: LogFiles) -> None:
    """The n-th entry is n, so the reader detects reserved space, torn entries and unmapped pages."""
    index = files.open_index(NAME, max_bytes=1 << 20, writable=True)
    is_finished, torn_views = threading.Event(), []

    def read() -> None:
        while not is_finished.is_set():
            data = bytes(index.view())
            expected = b"".join(number.to_bytes(8, "big") for number in range(len(data) // 8))
            if data != expected:
                torn_views.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(3000):
        first = index.size_bytes // 8
        index.append(b"".join(number.to_bytes(8, "big") for number in range(first, first + step % 90)))
        if step % 50 == 0:
            index.truncate(first // 2 * 8)
        if step % 70 == 0:
            index.trim()
    is_finished.set()
    reader.join()
    index.close()
    assert torn_views == []


def test_views_cannot_be_written_through(index: IndexFile) -> None:
    index.append(b"x" * 8)
    assert index.view().readonly


# --- descriptors and maps --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="the system does not list descriptors")
def test_hundreds_of_growing_indexes_share_a_few_maps(tmp_path: Path) -> None:
    """The number of maps is limited, because each map holds a descriptor."""
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path / "logs"), limits=Limits(open_files=8))
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        before = len(list(DESCRIPTORS.iterdir()))
        indexes = [files.open_index(f"{base:020d}.index", max_bytes=1 << 20, writable=True) for base in range(300)]
        expected = [bytearray() for _ in indexes]
        for turn in range(3):
            for base, index in enumerate(indexes):
                entry = b"%07d%d" % (base, turn)
                index.append(entry)
                expected[base] += entry
            assert len(list(DESCRIPTORS.iterdir())) <= before + 8 + 1
        assert [bytes(index.view()) for index in indexes] == expected
        assert bench.handles.open_count <= 8
        for index in indexes:
            index.close()
        assert len(list(DESCRIPTORS.iterdir())) <= before
        assert [Path(files.path(entry.name)).read_bytes() for entry in files.list()] == expected
    bench.close()


def test_a_view_outlives_the_place_of_its_map(tmp_path: Path) -> None:
    (provider,) = stratalog_segment_stores()
    bench = StoreBench(provider, str(tmp_path / "logs"), limits=Limits(open_files=8))
    with bench.acquired() as store:
        files = store.open_log("a-0", create=True)
        first, *other_indexes = [
            files.open_index(f"{base:020d}.index", max_bytes=1 << 20, writable=True) for base in range(20)
        ]
        first.append(b"x" * 8)
        view = first.view()
        for index in other_indexes:
            index.append(b"y" * 8)
        first.append(b"z" * 8)
        assert bytes(view) == b"x" * 8
        assert bytes(first.view()) == b"x" * 8 + b"z" * 8
        for index in (first, *other_indexes):
            index.close()
    bench.close()
