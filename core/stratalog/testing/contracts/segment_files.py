"""Contract tests of the segment and index files of a segment store."""

from __future__ import annotations

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

    # --- segment files -----------------------------------------------------------------------------------------------

    def test_appends_are_read_back(self, open_store: StoreOpener) -> None:
        """Appended bytes are read back; positions count bytes, and a read stops at the end of the file."""
        with open_store() as store:
            segment = made_log(store).open_segment(SEGMENT, create=True)
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

    def test_results_have_the_types_of_the_contract(self, open_store: StoreOpener) -> None:
        """``read`` and ``view`` return memoryviews, ``read_small`` returns bytes: the engine refuses other types."""
        with open_store() as store:
            files = made_log(store)
            files.replace_small("small", b"1")
            assert isinstance(files.read_small("small"), bytes)
            with closing(files.open_segment(SEGMENT, create=True)) as segment:
                segment.append(b"abc")
                assert isinstance(segment.read(0, 3), memoryview)
            with closing(files.open_index(INDEX, max_bytes=100, writable=True)) as index:
                index.append(b"entry  1")
                assert isinstance(index.view(), memoryview)

    def test_reads_into_memory_of_the_caller(self, open_store: StoreOpener) -> None:
        """``read_into`` fills the buffer up to the end of the file, and does not change the rest of the buffer."""
        with open_store() as store:
            segment = made_log(store).open_segment(SEGMENT, create=True, preallocate_bytes=4096)
            segment.append(b"abcdefghi")
            for position, size_bytes in ((0, 9), (4, 3), (8, 3), (9, 3), (100, 3), (0, 0)):
                room = bytearray(b"........")[: max(size_bytes, 8)]
                expected = bytes(segment.read(position, min(size_bytes, len(room))))
                count = segment.read_into(position, memoryview(room)[:size_bytes])
                assert count == len(expected)
                assert bytes(room) == expected + b"........"[count:]
            segment.close()

    def test_segments_are_made_once(self, open_store: StoreOpener) -> None:
        """Creating an existing segment raises FileExistsError; opening a missing one raises SegmentGoneError."""
        with open_store() as store:
            files = made_log(store)
            files.open_segment(SEGMENT, create=True).close()
            with pytest.raises(FileExistsError):
                files.open_segment(SEGMENT, create=True)
            with pytest.raises(SegmentGoneError):
                files.open_segment("00000000000000000001.log")

    def test_segments_are_there_again(self, open_store: StoreOpener) -> None:
        """A segment that is opened again has the bytes appended before, and accepts further appends."""
        with open_store() as store:
            segment = made_log(store).open_segment(SEGMENT, create=True)
            segment.append(b"abc")
            segment.close()
        with open_store() as store:
            store.acquire()
            segment = store.open_log(LOG).open_segment(SEGMENT)
            assert segment.size_bytes == 3
            assert segment.append(b"d") == 3
            assert bytes(segment.read(0, 9)) == b"abcd"
            segment.close()

    def test_segments_are_cut(self, open_store: StoreOpener) -> None:
        """An append after ``truncate`` begins at the new end."""
        with open_store() as store:
            segment = made_log(store).open_segment(SEGMENT, create=True)
            segment.append(b"abcdef")
            segment.truncate(2)
            assert segment.size_bytes == 2
            assert segment.append(b"X") == 2
            assert bytes(segment.read(0, 9)) == b"abX"
            with pytest.raises(ValueError, match="4"):
                segment.truncate(4)
            segment.close()

    def test_reserved_space_is_never_seen(self, open_store: StoreOpener) -> None:
        """Preallocated space is not part of the segment's size or contents.

        This holds while the segment is open, after ``trim``, and after ``close``. A second ``trim`` does nothing.
        """
        with open_store() as store:
            files = made_log(store)
            segment = files.open_segment(SEGMENT, create=True, preallocate_bytes=100_000)
            segment.append(b"abc")
            assert segment.size_bytes == 3
            assert bytes(segment.read(0, 100)) == b"abc"
            segment.trim()
            assert [entry.size_bytes for entry in files.list()] == [segment.size_bytes] == [3]
            assert not segment.trim()
            assert segment.append(b"d") == 3
            segment.close()
            assert [entry.size_bytes for entry in files.list()] == [4]

    def test_a_slice_outlives_its_segment(self, open_store: StoreOpener) -> None:
        """A slice keeps its bytes until it is released, even after the segment is closed and removed."""
        with open_store() as store:
            files = made_log(store)
            segment = files.open_segment(SEGMENT, create=True)
            segment.append(b"abcdef")
            piece = segment.slice(2, 3)
            segment.close()
            files.remove(SEGMENT)
            assert bytes(piece.data) == b"cde"
            assert piece.position == 2
            piece.release()
            piece.release()

    def test_a_closed_segment_is_gone(self, open_store: StoreOpener) -> None:
        """``read`` and ``slice`` of a closed segment raise SegmentGoneError."""
        with open_store() as store:
            segment = made_log(store).open_segment(SEGMENT, create=True)
            segment.append(b"abc")
            segment.close()
            with pytest.raises(SegmentGoneError):
                segment.read(0, 3)
            with pytest.raises(SegmentGoneError):
                segment.slice(0, 3)

    def test_a_segment_may_keep_the_time_of_another(self, open_store: StoreOpener) -> None:
        """``set_modified`` sets a file's time. The time stays until the next write, even if the file is opened again.

        A compacted segment gets the time of its source this way.
        """
        with open_store() as store:
            files = made_log(store)
            segment = files.open_segment(SEGMENT, create=True)
            segment.append(b"abc")
            segment.close()
            files.set_modified(SEGMENT, OLD_MS)
            if type(files).set_modified is LogFiles.set_modified:
                pytest.skip("the store keeps no times")
            assert [entry.modified_ms for entry in files.list()] == [OLD_MS]
            segment = files.open_segment(SEGMENT)
            assert segment.modified_ms == OLD_MS
            segment.append(b"d")
            segment.close()
            with closing(files.open_segment(SEGMENT)) as reopened:
                assert reopened.modified_ms > OLD_MS

    def test_paths_distinguish_files(self, open_store: StoreOpener) -> None:
        """Paths are distinct and contain the file's name: error texts show them."""
        with open_store() as store:
            files = made_log(store)
            paths = [store.path(), store.path(LOG), files.path(SEGMENT), files.path(INDEX)]
            assert files.path() == store.path(LOG)
            assert len(set(paths)) == len(paths)
            assert all(name in path for name, path in zip(("", LOG, SEGMENT, INDEX), paths, strict=True))

    # --- index files -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_grow_under_their_readers(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """A view keeps the entries that it had when it was created, even after later appends and after ``close``."""
        with open_store() as store:
            files = made_log(store)
            index = files.open_index(INDEX, max_bytes=100_000, writable=True, reserve=reserve)
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
            assert [entry.size_bytes for entry in files.list()] == [8000]

    @pytest.mark.parametrize("reserve", [True, False])
    def test_an_index_grows_after_a_trim(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """``trim`` leaves only the entries in the file. Later entries follow them."""
        with open_store() as store:
            files = made_log(store)
            index = files.open_index(INDEX, max_bytes=1000, writable=True, reserve=reserve)
            entries = bytes(range(16))
            index.append(entries[:8])
            index.trim()
            assert [entry.size_bytes for entry in files.list()] == [8]
            index.append(entries[8:])
            assert bytes(index.view()) == entries
            index.close()
            assert [entry.size_bytes for entry in files.list()] == [16]

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_are_continued(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """After a close, the file contains only entries, and appends continue at its end."""
        with open_store() as store:
            files = made_log(store)
            for number in range(3):
                index = files.open_index(INDEX, max_bytes=1000, writable=True, reserve=reserve)
                assert index.size_bytes == 8 * number
                index.append(bytes([number]) * 8)
                index.sync()
                index.close()
            index = files.open_index(INDEX, max_bytes=1000, writable=False)
            assert bytes(index.view()) == b"".join(bytes([number]) * 8 for number in range(3))
            index.close()

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_are_cut_under_their_readers(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """``truncate`` does not invalidate older views, even if they are longer than the truncated index."""
        with open_store() as store:
            index = made_log(store).open_index(INDEX, max_bytes=1 << 20, writable=True, reserve=reserve)
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
    def test_indexes_have_a_bound(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """An append that exceeds ``max_bytes`` raises PluginError and writes nothing."""
        with open_store() as store:
            index = made_log(store).open_index(INDEX, max_bytes=24, writable=True, reserve=reserve)
            index.append(bytes(16))
            with pytest.raises(PluginError):
                index.append(bytes(16))
            index.append(bytes(8))
            assert index.size_bytes == 24
            index.close()

    def test_indexes_without_reserved_space_hold_entries_alone(self, open_store: StoreOpener) -> None:
        """After each append the file contains only entries, for other processes that read it."""
        with open_store() as store:
            files = made_log(store)
            index = files.open_index(INDEX, max_bytes=1000, writable=True, reserve=False)
            for size in (34, 68, 102):
                index.append(b"x" * 34)
                assert [entry.size_bytes for entry in files.list()] == [size]
            index.close()

    def test_indexes_opened_for_reading(self, open_store: StoreOpener) -> None:
        """An index opened for reading cannot be changed.

        A missing file reads as empty and is not created. A file above ``max_bytes`` raises CorruptIndexError.
        """
        with open_store() as store:
            files = made_log(store)
            missing = files.open_index(INDEX, max_bytes=100, writable=False)
            assert missing.size_bytes == len(missing.view()) == 0
            missing.close()
            assert files.list() == []
            files.replace_small(INDEX, bytes(101))
            with pytest.raises(CorruptIndexError):
                files.open_index(INDEX, max_bytes=100, writable=False)
            index = files.open_index(INDEX, max_bytes=101, writable=False)
            with pytest.raises(ReadOnlyError):
                index.append(b"x")
            with pytest.raises(ReadOnlyError):
                index.truncate(0)
            assert index.size_bytes == 101
            index.close()


def made_log(store: SegmentStore) -> LogFiles:
    """Acquire the store, create the log ``LOG`` in it, and return the files of the log."""
    store.acquire()
    return store.open_log(LOG, create=True)
