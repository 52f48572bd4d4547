"""Contract tests of segment stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.errors import ConfigError, LogDirLockedError, LogDirNotFoundError, ReadOnlyError
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.testing.contracts.segment_durability import SegmentDurabilityContract
from stratalog.testing.contracts.segment_files import INDEX, LOG, SEGMENT, StoreOpener

BAD_NAMES = ("", ".", "..", "a/b", "../a", "/a", "a\0b")


class SegmentStoreContract(SegmentDurabilityContract):
    """Contract of a segment store: subclass it, name the class ``Test...``, and override the fixture ``open_store``.

    ``open_store`` returns a StoreOpener. The store's directory does not exist before the first ``acquire``. If the
    store accesses its files through ``context.env.files``, override the fixture ``provider``, too. Then more tests run:
    they open the store in another process, and after a simulated power loss.
    """

    # --- the directory -----------------------------------------------------------------------------------------------

    def test_a_missing_directory_is_reported(self, open_store: StoreOpener) -> None:
        """Opening a store creates no directory: ``logs`` raises LogDirNotFoundError until ``acquire`` is called."""
        with open_store() as store, pytest.raises(LogDirNotFoundError):
            store.logs()
        with open_store(read_only=True) as store, pytest.raises(LogDirNotFoundError):
            store.logs()
        with open_store() as store:
            store.acquire()
            assert store.logs() == []

    def test_one_owner_at_a_time(self, open_store: StoreOpener) -> None:
        """``acquire`` of a second store raises LogDirLockedError until the first store is closed."""
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
        """A read-only store works while a writer holds the directory, and does not block a writer."""
        with open_store() as writer, open_store(read_only=True) as reader:
            writer.acquire()
            writer.open_log(LOG, create=True)
            assert reader.is_acquired_elsewhere()
            assert reader.logs() == [LOG]
            writer.close()
            assert not reader.is_acquired_elsewhere()
            with open_store() as second_writer:
                second_writer.acquire()

    def test_closing_twice_is_fine(self, open_store: StoreOpener) -> None:
        """A second ``close`` does nothing."""
        store = open_store()
        store.acquire()
        store.close()
        store.close()

    def test_logs_are_made_renamed_and_removed(self, acquired_store: SegmentStore) -> None:
        """``logs`` returns folders that are created, renamed and removed. Small files of the directory are not logs."""
        acquired_store.replace_small("a-small-file", b"1")
        files = acquired_store.open_log(LOG, create=True)
        assert files.name == LOG
        files.replace_small("inside", b"2")
        with pytest.raises(FileExistsError):
            acquired_store.open_log(LOG, create=True)
        acquired_store.open_log("payments-3", create=True)
        assert acquired_store.logs() == [LOG, "payments-3"]
        acquired_store.rename_log(LOG, "gone-0")
        assert acquired_store.logs() == ["gone-0", "payments-3"]
        assert acquired_store.open_log("gone-0").read_small("inside") == b"2"
        acquired_store.remove_log("gone-0")
        assert acquired_store.logs() == ["payments-3"]
        with pytest.raises(LogDirNotFoundError):
            acquired_store.open_log("gone-0")

    def test_names_stay_inside(self, acquired_store: SegmentStore, log_files: LogFiles) -> None:
        """Methods of the store and of a log raise ConfigError for names of files outside the folder."""
        calls: tuple[Callable[[str], object], ...] = (
            acquired_store.open_log,
            lambda name: acquired_store.open_log(name, create=True),
            acquired_store.remove_log,
            lambda name: acquired_store.rename_log(LOG, name),
            acquired_store.read_small,
            lambda name: acquired_store.replace_small(name, b""),
            log_files.open_segment,
            lambda name: log_files.open_segment(name, create=True),
            lambda name: log_files.open_index(name, max_bytes=100, writable=True),
            lambda name: log_files.rename(name, "b"),
            lambda name: log_files.rename("b", name),
            log_files.remove,
            log_files.read_small,
            lambda name: log_files.replace_small(name, b""),
        )
        for call in calls:
            for name in BAD_NAMES:
                with pytest.raises(ConfigError):
                    call(name)

    # --- small files -------------------------------------------------------------------------------------------------

    def test_small_files_are_replaced_as_a_whole(self, acquired_store: SegmentStore, log_files: LogFiles) -> None:
        """``replace_small`` replaces the whole content, in the directory and in a log, and leaves no other file."""
        for place in (acquired_store, log_files):
            assert place.read_small("file") is None
            place.replace_small("file", b"a longer text")
            place.replace_small("file", memoryview(b"short"))
            assert place.read_small("file") == b"short"
        assert [entry.name for entry in log_files.list()] == ["file"]
        acquired_store.remove_small("file")
        acquired_store.remove_small("file")
        assert acquired_store.read_small("file") is None

    def test_files_are_renamed_and_removed(self, log_files: LogFiles) -> None:
        """A rename replaces an existing file. Renaming or removing a missing file is not an error."""
        log_files.replace_small("b", b"1")
        log_files.replace_small("a", b"22")
        assert [(entry.name, entry.size_bytes) for entry in log_files.list()] == [("a", 2), ("b", 1)]
        log_files.rename("a", "c")
        log_files.rename("missing", "d")
        log_files.remove("b")
        log_files.remove("b")
        log_files.sync()
        assert [entry.name for entry in log_files.list()] == ["c"]
        log_files.replace_small("e", b"333")
        log_files.rename("c", "e")
        log_files.sync()
        assert [(entry.name, entry.size_bytes) for entry in log_files.list()] == [("e", 2)]

    # --- reading only ------------------------------------------------------------------------------------------------

    def test_read_only_stores_refuse_every_write(self, open_store: StoreOpener) -> None:
        """Every write raises ReadOnlyError and changes nothing in the directory."""
        with open_store() as store:
            store.acquire()
            files = store.open_log(LOG, create=True)
            segment = files.open_segment(SEGMENT, create=True)
            segment.append(b"abc")
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
                lambda: segment.append(b"d"),
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
