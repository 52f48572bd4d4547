"""What every segment store keeps to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from stratalog.errors import (
    ConfigError,
    CorruptIndexError,
    LogDirLockedError,
    LogDirNotFoundError,
    PluginError,
    ReadOnlyError,
    SegmentGoneError,
)
from stratalog.spi.segments import LogFiles, SegmentStore

LOG = "orders-0"
SEGMENT = "00000000000000000000.log"
INDEX = "00000000000000000000.index"
BAD_NAMES = ("", ".", "..", "a/b", "../a", "/a", "a\0b")


class StoreOpener(Protocol):
    """Opens a store for one place: every call the same, so that a second one finds what the first one left."""

    def __call__(self, *, read_only: bool = False) -> SegmentStore:
        """A store that is not acquired yet; the test closes it."""


class SegmentStoreContract:
    """Subclass it, name the class ``Test...``, and give one fixture, ``open_store``: a StoreOpener.

    The place does not exist before the first ``acquire``.
    """

    @pytest.fixture
    def open_store(self) -> StoreOpener:
        """Opens stores for a new place; overridden by the subclass."""
        raise NotImplementedError("a subclass of SegmentStoreContract gives the fixture open_store")

    # --- the directory -----------------------------------------------------------------------------------------------

    def test_a_missing_directory_is_told(self, open_store: StoreOpener) -> None:
        """Opening makes nothing; only acquiring does."""
        with open_store() as store, pytest.raises(LogDirNotFoundError):
            store.logs()
        with open_store(read_only=True) as store, pytest.raises(LogDirNotFoundError):
            store.logs()
        with open_store() as store:
            store.acquire()
            assert store.logs() == []

    def test_one_owner_at_a_time(self, open_store: StoreOpener) -> None:
        """A second store is refused while the first holds the directory, and not after."""
        with open_store() as first, open_store() as second:
            first.acquire()
            with pytest.raises(LogDirLockedError):
                second.acquire()
            assert second.is_acquired_elsewhere()
            assert not first.is_acquired_elsewhere()
            first.close()
            assert not second.is_acquired_elsewhere()
            second.acquire()

    def test_readers_take_no_lock(self, open_store: StoreOpener) -> None:
        """A reader works beside a writer, and does not keep one out."""
        with open_store() as writer, open_store(read_only=True) as reader:
            writer.acquire()
            writer.open_log(LOG, create=True)
            assert reader.is_acquired_elsewhere()
            assert reader.logs() == [LOG]
            writer.close()
            assert not reader.is_acquired_elsewhere()
            with open_store() as other:
                other.acquire()

    def test_closing_twice_is_fine(self, open_store: StoreOpener) -> None:
        """The second time does nothing."""
        store = open_store()
        store.acquire()
        store.close()
        store.close()

    def test_logs_are_made_renamed_and_removed(self, open_store: StoreOpener) -> None:
        """Folders are logs; small files of the directory are not."""
        with open_store() as store:
            store.acquire()
            store.replace_small("a-small-file", b"1")
            files = store.open_log(LOG, create=True)
            assert files.name == LOG
            files.replace_small("inside", b"2")
            with pytest.raises(FileExistsError):
                store.open_log(LOG, create=True)
            store.open_log("payments-3", create=True)
            assert store.logs() == [LOG, "payments-3"]
            store.rename_log(LOG, "gone-0")
            assert store.logs() == ["gone-0", "payments-3"]
            assert store.open_log("gone-0").read_small("inside") == b"2"
            store.remove_log("gone-0")
            assert store.logs() == ["payments-3"]
            with pytest.raises(LogDirNotFoundError):
                store.open_log("gone-0")

    def test_names_stay_inside(self, open_store: StoreOpener) -> None:
        """No name leads out of its folder."""
        with open_store() as store:
            store.acquire()
            files = store.open_log(LOG, create=True)
            takers: tuple[Callable[[str], object], ...] = (
                store.open_log,
                lambda name: store.open_log(name, create=True),
                store.remove_log,
                lambda name: store.rename_log(LOG, name),
                store.read_small,
                lambda name: store.replace_small(name, b""),
                files.open_segment,
                lambda name: files.open_segment(name, create=True),
                lambda name: files.open_index(name, max_bytes=100, writable=True),
                lambda name: files.rename(name, "b"),
                lambda name: files.rename("b", name),
                files.remove,
                files.read_small,
                lambda name: files.replace_small(name, b""),
            )
            for take in takers:
                for name in BAD_NAMES:
                    with pytest.raises(ConfigError):
                        take(name)

    # --- small files -------------------------------------------------------------------------------------------------

    def test_small_files_are_replaced_as_a_whole(self, open_store: StoreOpener) -> None:
        """In the directory and in a log, and nothing else is left there."""
        with open_store() as store:
            store.acquire()
            files = store.open_log(LOG, create=True)
            for place in (store, files):
                assert place.read_small("file") is None
                place.replace_small("file", b"a longer text")
                place.replace_small("file", memoryview(b"short"))
                assert place.read_small("file") == b"short"
            assert [entry.name for entry in files.list()] == ["file"]
            store.remove_small("file")
            store.remove_small("file")
            assert store.read_small("file") is None

    def test_files_are_renamed_and_removed(self, open_store: StoreOpener) -> None:
        """Missing ones are no error."""
        with open_store() as store:
            store.acquire()
            files = store.open_log(LOG, create=True)
            files.replace_small("b", b"1")
            files.replace_small("a", b"22")
            assert [(entry.name, entry.size_bytes) for entry in files.list()] == [("a", 2), ("b", 1)]
            files.rename("a", "c")
            files.rename("missing", "d")
            files.remove("b")
            files.remove("b")
            files.sync()
            assert [entry.name for entry in files.list()] == ["c"]

    # --- segment files -----------------------------------------------------------------------------------------------

    def test_appends_are_read_back(self, open_store: StoreOpener) -> None:
        """Positions count bytes; a read ends with the file."""
        with open_store() as store:
            segment = _files(store).open_segment(SEGMENT, create=True)
            assert segment.size_bytes == 0
            assert segment.append([b"abc", memoryview(b"de"), b"", bytearray(b"f")]) == 0
            assert segment.append([]) == 6
            assert segment.append([b"ghi"]) == 6
            assert segment.size_bytes == 9
            assert bytes(segment.read(0, 100)) == b"abcdefghi"
            assert bytes(segment.read(4, 3)) == b"efg"
            assert bytes(segment.read(8, 3)) == b"i"
            assert bytes(segment.read(9, 3)) == bytes(segment.read(100, 3)) == b""
            segment.sync()
            segment.close()
            segment.close()

    def test_reads_into_memory_of_the_caller(self, open_store: StoreOpener) -> None:
        """As many bytes as there are and fit; what is behind them stays."""
        with open_store() as store:
            segment = _files(store).open_segment(SEGMENT, create=True, preallocate_bytes=4096)
            segment.append([b"abcdefghi"])
            for position, size_bytes in ((0, 9), (4, 3), (8, 3), (9, 3), (100, 3), (0, 0)):
                room = bytearray(b"........")[: max(size_bytes, 8)]
                expected = bytes(segment.read(position, min(size_bytes, len(room))))
                count = segment.read_into(position, memoryview(room)[:size_bytes])
                assert count == len(expected)
                assert bytes(room) == expected + b"........"[count:]
            segment.close()

    def test_segments_are_made_once(self, open_store: StoreOpener) -> None:
        """Creating refuses what is there; opening what is not."""
        with open_store() as store:
            files = _files(store)
            files.open_segment(SEGMENT, create=True).close()
            with pytest.raises(FileExistsError):
                files.open_segment(SEGMENT, create=True)
            with pytest.raises(SegmentGoneError):
                files.open_segment("00000000000000000001.log")

    def test_segments_are_there_again(self, open_store: StoreOpener) -> None:
        """What was appended before a close is read and continued after it."""
        with open_store() as store:
            segment = _files(store).open_segment(SEGMENT, create=True)
            segment.append([b"abc"])
            segment.close()
        with open_store() as store:
            store.acquire()
            segment = store.open_log(LOG).open_segment(SEGMENT)
            assert segment.size_bytes == 3
            assert segment.append([b"d"]) == 3
            assert bytes(segment.read(0, 9)) == b"abcd"
            segment.close()

    def test_segments_are_cut(self, open_store: StoreOpener) -> None:
        """What is appended after a cut follows it."""
        with open_store() as store:
            segment = _files(store).open_segment(SEGMENT, create=True)
            segment.append([b"abcdef"])
            segment.truncate(2)
            assert segment.size_bytes == 2
            assert segment.append([b"X"]) == 2
            assert bytes(segment.read(0, 9)) == b"abX"
            with pytest.raises(ValueError, match="4"):
                segment.truncate(4)
            segment.close()

    def test_reserved_space_is_never_seen(self, open_store: StoreOpener) -> None:
        """Neither while the segment is open, nor after it is trimmed, which is done once, nor after it is closed."""
        with open_store() as store:
            files = _files(store)
            segment = files.open_segment(SEGMENT, create=True, preallocate_bytes=100_000)
            segment.append([b"abc"])
            assert segment.size_bytes == 3
            assert bytes(segment.read(0, 100)) == b"abc"
            segment.trim()
            assert [entry.size_bytes for entry in files.list()] == [segment.size_bytes] == [3]
            assert not segment.trim()
            assert segment.append([b"d"]) == 3
            segment.close()
            assert [entry.size_bytes for entry in files.list()] == [4]

    def test_a_slice_outlives_its_segment(self, open_store: StoreOpener) -> None:
        """Its bytes, and its descriptor if it has one, until it is released."""
        with open_store() as store:
            files = _files(store)
            segment = files.open_segment(SEGMENT, create=True)
            segment.append([b"abcdef"])
            piece = segment.slice(2, 3)
            segment.close()
            files.remove(SEGMENT)
            assert bytes(piece.data) == b"cde"
            assert piece.position == 2
            piece.release()
            piece.release()

    def test_a_closed_segment_is_gone(self, open_store: StoreOpener) -> None:
        """A reader that comes too late is told to look again."""
        with open_store() as store:
            segment = _files(store).open_segment(SEGMENT, create=True)
            segment.append([b"abc"])
            segment.close()
            with pytest.raises(SegmentGoneError):
                segment.read(0, 3)
            with pytest.raises(SegmentGoneError):
                segment.slice(0, 3)

    # --- index files -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reserve", [True, False])
    def test_indexes_grow_under_their_readers(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """A view sees what was there when it was taken, whatever happens to the file after it."""
        with open_store() as store:
            files = _files(store)
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
    def test_indexes_are_continued(self, open_store: StoreOpener, *, reserve: bool) -> None:
        """After a close all bytes of the file are entries."""
        with open_store() as store:
            files = _files(store)
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
        """A reader that still looks at more than is left may go on looking."""
        with open_store() as store:
            index = _files(store).open_index(INDEX, max_bytes=1 << 20, writable=True, reserve=reserve)
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
        """Up to it they grow; past it a builder is at fault, and nothing is written."""
        with open_store() as store:
            index = _files(store).open_index(INDEX, max_bytes=24, writable=True, reserve=reserve)
            index.append(bytes(16))
            with pytest.raises(PluginError):
                index.append(bytes(16))
            index.append(bytes(8))
            assert index.size_bytes == 24
            index.close()

    def test_indexes_without_reserved_space_hold_entries_alone(self, open_store: StoreOpener) -> None:
        """At any moment, for somebody else who reads the file."""
        with open_store() as store:
            files = _files(store)
            index = files.open_index(INDEX, max_bytes=1000, writable=True, reserve=False)
            for size in (34, 68, 102):
                index.append(b"x" * 34)
                assert [entry.size_bytes for entry in files.list()] == [size]
            index.close()

    def test_indexes_opened_for_reading(self, open_store: StoreOpener) -> None:
        """A missing one is empty and not made; too large a one is refused; none is written to."""
        with open_store() as store:
            files = _files(store)
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

    # --- reading only ------------------------------------------------------------------------------------------------

    def test_read_only_stores_refuse_every_write(self, open_store: StoreOpener) -> None:
        """And leave the directory as it is."""
        with open_store() as store:
            files = _files(store)
            segment = files.open_segment(SEGMENT, create=True)
            segment.append([b"abc"])
            segment.close()
            store.replace_small("small", b"1")
        with open_store(read_only=True) as store:
            files = store.open_log(LOG)
            before = files.list()
            segment = files.open_segment(SEGMENT)
            writes: tuple[Callable[[], object], ...] = (
                store.acquire,
                lambda: store.open_log("new-0", create=True),
                lambda: store.rename_log(LOG, "new-0"),
                lambda: store.remove_log(LOG),
                lambda: store.replace_small("small", b"2"),
                lambda: store.remove_small("small"),
                lambda: files.open_segment("00000000000000000009.log", create=True),
                lambda: files.open_index(INDEX, max_bytes=100, writable=True),
                lambda: files.replace_small("x", b""),
                lambda: files.rename(SEGMENT, "x"),
                lambda: files.remove(SEGMENT),
                files.sync,
                lambda: segment.append([b"d"]),
                lambda: segment.truncate(1),
                segment.sync,
            )
            for write in writes:
                with pytest.raises(ReadOnlyError):
                    write()
            assert bytes(segment.read(0, 9)) == b"abc"
            segment.close()
            assert files.list() == before
            assert store.logs() == [LOG]
            assert store.read_small("small") == b"1"


def _files(store: SegmentStore) -> LogFiles:
    store.acquire()
    return store.open_log(LOG, create=True)
