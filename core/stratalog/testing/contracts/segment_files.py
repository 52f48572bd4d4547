"""Contract tests of the segment and index files of a segment store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import pytest

from stratalog.errors import CorruptIndexError, PluginError, ReadOnlyError, SegmentGoneError
from stratalog.spi.segment_store import LogFiles, SegmentStore

LOG = "orders-0"
SEGMENT = "00000000000000000000.log"
INDEX = "00000000000000000000.index"
OLD_MS = 1_600_000_000_000


class StoreOpener(Protocol):
    """Callable that opens a store. All calls open the same directory."""

    def __call__(self, *, read_only: bool = False) -> SegmentStore:
        """Return a new open store that does not hold the lock. The caller closes the store."""


class SegmentFilesContract:
    """The part of ``SegmentStoreContract`` about the files of one log."""

    @pytest.fixture
    def open_store(self) -> StoreOpener:
        """Return an opener of stores in a new directory; overridden by the subclass."""
        raise NotImplementedError("a subclass must define the fixture open_store")

    @pytest.fixture
    def acquired_store(self, open_store: StoreOpener) -> Iterator[SegmentStore]:
        """Yield an open store that holds the lock of its directory."""
        with open_store() as store:
            store.acquire()
            yield store

    @pytest.fixture
    def log_files(self, acquired_store: SegmentStore) -> LogFiles:
        """Return the files of the new log ``LOG`` in ``acquired_store``."""
        return acquired_store.open_log(LOG, create=True)

    # --- segment files -----------------------------------------------------------------------------------------------

    def test_appends_are_read_back(self, log_files: LogFiles) -> None:
        """Appended bytes are read back; positions count bytes, and a read stops at the end of the file."""
        segment = log_files.open_segment(SEGMENT, create=True)
        assert segment.size_bytes == 0
        assert segment.append(b"abc") == 0
        assert segment.append(memoryview(b"de")) == 3
        assert segment.append(bytearray(b"f")) == 5
        assert segment.append(b"") == 6
        assert segment.append(b"ghi") == 6
        assert segment.size_bytes == 9
        assert bytes(segment.read(0, 100)) == b"abcdefghi"
        assert bytes(segment.read(4, 3)) == b"efg"
        assert bytes(segment.read(8, 3)) == b"i"
        assert bytes(segment.read(9, 3)) == bytes(segment.read(100, 3)) == b""
        segment.sync()
        segment.close()
        segment.close()

    def test_results_have_the_types_of_the_contract(self, log_files: LogFiles) -> None:
        """``read`` and ``view`` return memoryviews, ``read_small`` returns bytes: the engine refuses other types."""
        log_files.replace_small("small", b"1")
        assert isinstance(log_files.read_small("small"), bytes)
        with closing(log_files.open_segment(SEGMENT, create=True)) as segment:
            segment.append(b"abc")
            assert isinstance(segment.read(0, 3), memoryview)
        with closing(log_files.open_index(INDEX, max_bytes=100, writable=True)) as index:
            index.append(b"entry  1")
            assert isinstance(index.view(), memoryview)

    def test_reads_into_memory_of_the_caller(self, log_files: LogFiles) -> None:
        """``read_into`` fills the buffer up to the end of the file, and does not change the rest of the buffer."""
        segment = log_files.open_segment(SEGMENT, create=True, preallocate_bytes=4096)
        segment.append(b"abcdefghi")
        for position, size_bytes in ((0, 9), (4, 3), (8, 3), (9, 3), (100, 3), (0, 0)):
            room = bytearray(b"........")[: max(size_bytes, 8)]
            expected = bytes(segment.read(position, min(size_bytes, len(room))))
            count = segment.read_into(position, memoryview(room)[:size_bytes])
            assert count == len(expected)
            assert bytes(room) == expected + b"........"[count:]
        segment.close()

    def test_segments_are_made_once(self, log_files: LogFiles) -> None:
        """Creating an existing segment raises FileExistsError; opening a missing one raises SegmentGoneError."""
        log_files.open_segment(SEGMENT, create=True).close()
        with pytest.raises(FileExistsError):
            log_files.open_segment(SEGMENT, create=True)
        with pytest.raises(SegmentGoneError):
            log_files.open_segment("00000000000000000001.log")

    def test_segments_are_there_again(self, open_store: StoreOpener) -> None:
        """A segment that is opened again has the bytes appended before, and accepts further appends."""
        with open_store() as store:
            store.acquire()
            segment = store.open_log(LOG, create=True).open_segment(SEGMENT, create=True)
            segment.append(b"abc")
            segment.close()
        with open_store() as store:
            store.acquire()
            segment = store.open_log(LOG).open_segment(SEGMENT)
            assert segment.size_bytes == 3
            assert segment.append(b"d") == 3
            assert bytes(segment.read(0, 9)) == b"abcd"
            segment.close()

    def test_segments_are_cut(self, log_files: LogFiles) -> None:
        """An append after ``truncate`` begins at the new end."""
        segment = log_files.open_segment(SEGMENT, create=True)
        segment.append(b"abcdef")
        segment.truncate(2)
        assert segment.size_bytes == 2
        assert segment.append(b"X") == 2
        assert bytes(segment.read(0, 9)) == b"abX"
        with pytest.raises(ValueError, match="4"):
            segment.truncate(4)
        segment.close()

    def test_reserved_space_is_never_seen(self, log_files: LogFiles) -> None:
        """Preallocated space is not part of the segment's size or contents.

        This holds while the segment is open, after ``trim``, and after ``close``. A second ``trim`` does nothing.
        """
        segment = log_files.open_segment(SEGMENT, create=True, preallocate_bytes=100_000)
        segment.append(b"abc")
        assert segment.size_bytes == 3
        assert bytes(segment.read(0, 100)) == b"abc"
        segment.trim()
        assert [entry.size_bytes for entry in log_files.list()] == [segment.size_bytes] == [3]
        assert not segment.trim()
        assert segment.append(b"d") == 3
        segment.close()
        assert [entry.size_bytes for entry in log_files.list()] == [4]

    def test_a_slice_outlives_its_segment(self, log_files: LogFiles) -> None:
        """A slice keeps its bytes until it is released, even after the segment is closed and removed."""
        segment = log_files.open_segment(SEGMENT, create=True)
        segment.append(b"abcdef")
        piece = segment.slice(2, 3)
        segment.close()
        log_files.remove(SEGMENT)
        assert bytes(piece.data) == b"cde"
        assert piece.position == 2
        piece.release()
        piece.release()

    def test_a_closed_segment_is_gone(self, log_files: LogFiles) -> None:
        """``read`` and ``slice`` of a closed segment raise SegmentGoneError."""
        segment = log_files.open_segment(SEGMENT, create=True)
        segment.append(b"abc")
        segment.close()
        with pytest.raises(SegmentGoneError):
            segment.read(0, 3)
        with pytest.raises(SegmentGoneError):
            segment.slice(0, 3)

    def test_a_segment_may_keep_the_time_of_another(self, log_files: LogFiles) -> None:
        """``set_modified`` sets a file's time. The time stays until the next write, even if the file is opened again.

        A compacted segment gets the time of its source this way.
        """
        segment = log_files.open_segment(SEGMENT, create=True)
        segment.append(b"abc")
        segment.close()
        log_files.set_modified(SEGMENT, OLD_MS)
        if type(log_files).set_modified is LogFiles.set_modified:
            pytest.skip("the store keeps no times")
        assert [entry.modified_ms for entry in log_files.list()] == [OLD_MS]
        segment = log_files.open_segment(SEGMENT)
        assert segment.modified_ms == OLD_MS
        segment.append(b"d")
        segment.close()
        with closing(log_files.open_segment(SEGMENT)) as reopened:
            assert reopened.modified_ms > OLD_MS

    def test_paths_distinguish_files(self, acquired_store: SegmentStore, log_files: LogFiles) -> None:
        """Paths are distinct and contain the file's name: error texts show them."""
        paths = [acquired_store.path(), acquired_store.path(LOG), log_files.path(SEGMENT), log_files.path(INDEX)]
        assert log_files.path() == acquired_store.path(LOG)
        assert len(set(paths)) == len(paths)
        assert all(name in path for name, path in zip(("", LOG, SEGMENT, INDEX), paths, strict=True))

    # --- index files -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_grow_under_their_readers(self, log_files: LogFiles, *, reserve: bool) -> None:
        """A view keeps the entries that it had when it was created, even after later appends and after ``close``."""
        index = log_files.open_index(INDEX, max_bytes=100_000, writable=True, reserve=reserve)
        views, expected = [index.view()], bytearray()
        for number in range(1000):
            entry = number.to_bytes(8, "big")
            index.append(entry)
            expected += entry
            if number % 100 == 0:
                views.append(index.view())
        assert index.size_bytes == 8000
        assert bytes(index.view()) == expected
        assert [len(view) for view in views] == [0, *range(8, 8000, 800)]
        index.trim()
        index.close()
        index.close()
        assert all(view == expected[: len(view)] for view in views)
        assert bytes(index.view()) == expected
        assert [entry.size_bytes for entry in log_files.list()] == [8000]

    @pytest.mark.parametrize("reserve", [True, False])
    def test_an_index_grows_after_a_trim(self, log_files: LogFiles, *, reserve: bool) -> None:
        """``trim`` leaves only the entries in the file. Later entries follow them."""
        index = log_files.open_index(INDEX, max_bytes=1000, writable=True, reserve=reserve)
        entries = bytes(range(16))
        index.append(entries[:8])
        index.trim()
        assert [entry.size_bytes for entry in log_files.list()] == [8]
        index.append(entries[8:])
        assert bytes(index.view()) == entries
        index.close()
        assert [entry.size_bytes for entry in log_files.list()] == [16]

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_are_continued(self, log_files: LogFiles, *, reserve: bool) -> None:
        """After a close, the file contains only entries, and appends continue at its end."""
        for number in range(3):
            index = log_files.open_index(INDEX, max_bytes=1000, writable=True, reserve=reserve)
            assert index.size_bytes == 8 * number
            index.append(bytes([number]) * 8)
            index.sync()
            index.close()
        index = log_files.open_index(INDEX, max_bytes=1000, writable=False)
        assert bytes(index.view()) == b"".join(bytes([number]) * 8 for number in range(3))
        index.close()

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_are_cut_under_their_readers(self, log_files: LogFiles, *, reserve: bool) -> None:
        """``truncate`` does not invalidate older views, even if they are longer than the truncated index."""
        index = log_files.open_index(INDEX, max_bytes=1 << 20, writable=True, reserve=reserve)
        index.append(b"a" * 10_000)
        view = index.view()
        index.truncate(16)
        assert index.size_bytes == 16
        index.append(b"b" * 8)
        assert bytes(index.view()) == b"a" * 16 + b"b" * 8
        assert len(bytes(view)) == 10_000
        with pytest.raises(ValueError, match="25"):
            index.truncate(25)
        index.close()

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_have_a_bound(self, log_files: LogFiles, *, reserve: bool) -> None:
        """An append that exceeds ``max_bytes`` raises PluginError and writes nothing."""
        index = log_files.open_index(INDEX, max_bytes=24, writable=True, reserve=reserve)
        index.append(bytes(16))
        with pytest.raises(PluginError):
            index.append(bytes(16))
        index.append(bytes(8))
        assert index.size_bytes == 24
        index.close()

    def test_indexes_without_reserved_space_hold_entries_alone(self, log_files: LogFiles) -> None:
        """After each append the file contains only entries, for other processes that read it."""
        index = log_files.open_index(INDEX, max_bytes=1000, writable=True, reserve=False)
        for size in (34, 68, 102):
            index.append(b"x" * 34)
            assert [entry.size_bytes for entry in log_files.list()] == [size]
        index.close()

    def test_indexes_opened_for_reading(self, log_files: LogFiles) -> None:
        """An index opened for reading cannot be changed.

        A missing file reads as empty and is not created. A file above ``max_bytes`` raises CorruptIndexError.
        """
        missing = log_files.open_index(INDEX, max_bytes=100, writable=False)
        assert missing.size_bytes == len(missing.view()) == 0
        missing.close()
        assert log_files.list() == []
        log_files.replace_small(INDEX, bytes(101))
        with pytest.raises(CorruptIndexError):
            log_files.open_index(INDEX, max_bytes=100, writable=False)
        index = log_files.open_index(INDEX, max_bytes=101, writable=False)
        with pytest.raises(ReadOnlyError):
            index.append(b"x")
        with pytest.raises(ReadOnlyError):
            index.truncate(0)
        assert index.size_bytes == 101
        index.close()
