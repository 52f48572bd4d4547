from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.env import PosixVfs
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    BucketNotFoundError,
    ConfigError,
    ObjectNotFoundError,
    ReadOnlyError,
    StoreError,
    StorePermissionError,
    StoreTimeoutError,
)
from stratalog.spi import Buffer, BytesSource, Capability, Created, Env, FileStat, ObjectStore, UnfinishedUpload
from stratalog_s3.file import STALE_MS

MINUTE_NS = 60_000_000_000

OpenStore = Callable[..., ObjectStore]


class ListedVfs(PosixVfs):
    """Counts the listed folders, and the entries in the results."""

    folders = entries = 0

    def list(self, path: str, start: str = "") -> list[FileStat]:
        self.folders += 1
        listing = super().list(path, start)
        self.entries += len(listing)
        return listing


class WatchedVfs(PosixVfs):
    """Records changes of the disk, and raises an error at the operation ``fail``.

    If ``short`` is set, each write reports this number of written bytes.
    """

    def __init__(self, fail: str = "", code: int = errno.EIO, short: int | None = None) -> None:
        self.fail, self.code, self.short = fail, code, short
        self.done: list[str] = []

    def _did(self, operation: str, path: str = "") -> None:
        if operation == self.fail:
            raise OSError(self.code, os.strerror(self.code), path)
        self.done.append(operation)

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        self._did("write")
        return super().write(descriptor, position, data) if self.short is None else self.short

    def sync(self, descriptor: int) -> None:
        self._did("sync")
        super().sync(descriptor)

    def sync_folder(self, path: str) -> None:
        self._did("sync_folder", path)
        super().sync_folder(path)

    def rename(self, old: str, new: str) -> None:
        self._did("rename", new)
        super().rename(old, new)

    def link(self, old: str, new: str) -> None:
        self._did("link", new)
        super().link(old, new)


@pytest.fixture
def store(open_store: OpenStore, tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}")


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_it_declares_an_atomic_create_and_that_it_is_near(store: ObjectStore) -> None:
    assert store.capabilities == Capability.CREATE | Capability.NEAR


def test_a_range_in_the_page_cache_counts_as_cached(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    class Looked(PosixVfs):
        def is_cached(self, descriptor: int, position: int) -> bool:
            assert super().is_cached(descriptor, position) in {True, False}
            return position < 80

    store = open_store(f"file://{tmp_path}", env=Env(files=Looked()))
    store.put_file("a", BytesSource(bytes(100)), deadline_ns=deadline_ns)
    assert store.is_cached("a", 10, 80)
    assert not store.is_cached("a", 10, 81)
    assert not store.is_cached("missing", 0, 10)


@pytest.mark.parametrize("is_cached", [True, False])
def test_cached_bytes_are_read_without_waiting(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, *, is_cached: bool
) -> None:
    class Looked(PosixVfs):
        def read_cached(self, descriptor: int, position: int, into: memoryview) -> bool:
            assert super().read_cached(descriptor, position, into) in {True, False}
            return is_cached and super().read_into(descriptor, position, into) == len(into)

    store = open_store(f"file://{tmp_path}", env=Env(files=Looked()))
    store.put_file("a", BytesSource(bytes(range(100))), deadline_ns=deadline_ns)
    room = bytearray(10)
    assert store.read_cached("a", 20, memoryview(room)) is is_cached
    assert not is_cached or room == bytes(range(20, 30))
    assert not store.read_cached("a", 95, memoryview(room)), "it ends before"
    assert not store.read_cached("missing", 0, memoryview(room))
    store.close()
    assert not store.read_cached("a", 20, memoryview(room)), "and says nothing more"


def test_bytes_of_an_invalid_key_are_not_cached(store: ObjectStore) -> None:
    assert not store.is_cached("../x", 0, 1)
    assert not store.read_cached("../x", 0, memoryview(bytearray(1)))


def test_objects_are_private_files_without_leftovers(store: ObjectStore, tmp_path: Path, deadline_ns: int) -> None:
    store.put_file("a/b/put", BytesSource(b"put"), deadline_ns=deadline_ns)
    store.create("a/b/made", b"made", deadline_ns=deadline_ns)
    store.create("a/b/made", b"again", deadline_ns=deadline_ns)
    assert files_in(tmp_path) == ["a/b/made", "a/b/put"]
    assert (tmp_path / "a/b/put").read_bytes() == b"put"
    for path in (tmp_path / "a/b/put", tmp_path / "a/b/made"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize(("how", "named_by"), [("put", "rename"), ("create", "link")])
def test_bytes_are_durable_before_their_name_and_the_name_before_the_answer(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, how: str, named_by: str
) -> None:
    files = WatchedVfs()
    store = open_store(f"file://{tmp_path}", env=Env(files=files))
    store.create("a/first", b"x", deadline_ns=deadline_ns)
    assert files.done[: files.done.index("write")] == ["sync_folder"], "the new folder's own name"
    files.done.clear()
    if how == "put":
        store.put_file("a/second", BytesSource(b"x"), deadline_ns=deadline_ns)
    else:
        store.create("a/second", b"x", deadline_ns=deadline_ns)
    assert files.done == ["write", "sync", named_by, "sync_folder"]


@pytest.mark.parametrize("fail", ["write", "sync", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_put_that_fails_leaves_nothing(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, fail: str, code: int
) -> None:
    store = open_store(f"file://{tmp_path}", env=Env(files=WatchedVfs(fail, code)))
    with pytest.raises(StorePermissionError if code == errno.EACCES else StoreError):
        store.put_file("a/b", BytesSource(b"x"), deadline_ns=deadline_ns)
    assert files_in(tmp_path) == []


def test_a_missing_right_names_the_folder(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    store = open_store(f"file://{tmp_path}", env=Env(files=WatchedVfs("write", errno.EACCES)))
    with pytest.raises(StorePermissionError) as caught:
        store.put_file("a/b", BytesSource(b"x"), deadline_ns=deadline_ns)
    assert str(caught.value) == (
        f"permission denied key=a/b: give this user read and write access to the folder {tmp_path}"
    )


def test_a_read_only_file_system_names_the_folder(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    store = open_store(f"file://{tmp_path}", env=Env(files=WatchedVfs("write", errno.EROFS)))
    with pytest.raises(StorePermissionError) as caught:
        store.put_file("a/b", BytesSource(b"x"), deadline_ns=deadline_ns)
    assert str(caught.value) == (
        f"read-only file system key=a/b: make the file system of the folder {tmp_path} writable"
    )


@pytest.mark.parametrize("fail", ["write", "sync", "link"])
def test_a_create_that_fails_leaves_nothing(open_store: OpenStore, tmp_path: Path, deadline_ns: int, fail: str) -> None:
    store = open_store(f"file://{tmp_path}", env=Env(files=WatchedVfs(fail)))
    with pytest.raises(StoreError):
        store.create("a/b", b"x", deadline_ns=deadline_ns)
    assert files_in(tmp_path) == []


def test_a_full_disk_is_noticed_by_the_count(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    """On a full disk, the first write is short, and only the next write raises an error."""
    store = open_store(f"file://{tmp_path}", env=Env(files=WatchedVfs(short=1)))
    with pytest.raises(StoreError, match=r"full key=.*: free space on the disk of the store"):
        store.put_file("a", BytesSource(b"xyz"), deadline_ns=deadline_ns)
    assert files_in(tmp_path) == []


class LateFailure(WatchedVfs):
    """File system in which a new name exists, but cannot be made durable."""

    def sync_folder(self, path: str) -> None:
        if "link" in self.done:
            raise OSError(errno.EIO, "broken", path)
        super().sync_folder(path)


def test_a_create_whose_name_may_not_last_is_unknown(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    store = open_store(f"file://{tmp_path}", env=Env(files=LateFailure()))
    assert store.create("a/b", b"x", deadline_ns=deadline_ns) is Created.UNKNOWN
    assert files_in(tmp_path) == ["a/b"]


class Overtaken(WatchedVfs):
    """File system in which another writer creates the file just before this one."""

    def link(self, old: str, new: str) -> None:
        Path(new).write_bytes(b"theirs")
        super().link(old, new)


def test_the_link_decides_and_not_the_look_before(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    store = open_store(f"file://{tmp_path}", env=Env(files=Overtaken()))
    assert store.create("a/b", b"ours", deadline_ns=deadline_ns) is Created.EXISTS
    assert (tmp_path / "a/b").read_bytes() == b"theirs"
    assert files_in(tmp_path) == ["a/b"]


def calls_of(store: ObjectStore, deadline_ns: int) -> list[Callable[[], object]]:
    """Return calls that need the root of the store."""
    return [
        lambda: store.read("a", deadline_ns=deadline_ns),
        lambda: store.list("", deadline_ns=deadline_ns),
        lambda: store.list("a/", deadline_ns=deadline_ns),
        lambda: store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns),
        lambda: store.create("a", b"x", deadline_ns=deadline_ns),
    ]


def test_a_missing_root_is_a_typed_error_of_every_call(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    for call in calls_of(open_store(f"file://{tmp_path}/missing"), deadline_ns):
        with pytest.raises(BucketNotFoundError):
            call()
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(("code", "expected"), [(errno.ESTALE, StoreError), (errno.EACCES, StorePermissionError)])
def test_a_root_that_cannot_be_checked_is_a_typed_error_of_every_call(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, code: int, expected: type[StoreError]
) -> None:
    """For instance because the server of a network file system has no such folder any more."""

    class Unreachable(PosixVfs):
        def stat(self, path: str) -> FileStat | None:
            raise OSError(code, os.strerror(code), path)

    for call in calls_of(open_store(f"file://{tmp_path}", env=Env(files=Unreachable())), deadline_ns):
        with pytest.raises(expected):
            call()


def test_temporary_files_are_no_objects(store: ObjectStore, tmp_path: Path, deadline_ns: int) -> None:
    store.create("a/b", b"x", deadline_ns=deadline_ns)
    (tmp_path / "a/.stratalog-0123.tmp").write_bytes(b"half")
    assert [info.key for info in store.list("", deadline_ns=deadline_ns)] == ["a/b"]
    with pytest.raises(ConfigError):
        store.create("a/.stratalog-0123.tmp", b"x", deadline_ns=deadline_ns)


def test_files_of_a_dead_writer_are_removed_a_day_later(open_store: OpenStore, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    (tmp_path / "a").mkdir()
    old, young = tmp_path / "a/.stratalog-old.tmp", tmp_path / "a/.stratalog-young.tmp"
    for path, age_s in ((old, 90_000), (young, 60)):
        path.write_bytes(b"half")
        os.utime(path, (1_700_000_000 - age_s, 1_700_000_000 - age_s))
    store = open_store(f"file://{tmp_path}", env=Env(clock=clock))
    store.create("a/b", b"x", deadline_ns=clock.monotonic_ns() + MINUTE_NS)
    assert files_in(tmp_path) == ["a/.stratalog-young.tmp", "a/b"]


def test_files_of_a_dead_writer_are_an_unfinished_upload(store: ObjectStore, tmp_path: Path, deadline_ns: int) -> None:
    store.create("a/b", b"x", deadline_ns=deadline_ns)
    leftover = tmp_path / f"a/.stratalog-{'1' * 32}-c.tmp"
    leftover.write_bytes(b"half")
    os.utime(leftover, (1_000, 1_000))
    assert store.unfinished("a/b", deadline_ns=deadline_ns) == []
    (upload,) = store.unfinished("a/", deadline_ns=deadline_ns)
    assert upload == UnfinishedUpload("a/c", leftover.name, 1_000_000)
    store.abort(upload, deadline_ns=deadline_ns)
    store.abort(upload, deadline_ns=deadline_ns)
    assert files_in(tmp_path) == ["a/b"]
    for name in ("b", f".stratalog-{'1' * 32}-../a/b.tmp"):
        store.abort(UnfinishedUpload("a/c", name), deadline_ns=deadline_ns)
    assert files_in(tmp_path) == ["a/b"]


def test_a_writer_that_is_killed_leaves_an_upload_of_its_key(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int
) -> None:
    class Killed(PosixVfs):
        def rename(self, old: str, new: str) -> None:
            del old, new
            raise KeyboardInterrupt

        def remove(self, path: str) -> None:
            raise AssertionError(path)

    store = open_store(f"file://{tmp_path}", env=Env(files=Killed()))
    with pytest.raises(KeyboardInterrupt):
        store.put_file("a/b", BytesSource(b"x" * 10), deadline_ns=deadline_ns)
    assert [(upload.key, upload.begun_ms > 0) for upload in store.unfinished("", deadline_ns=deadline_ns)] == [
        ("a/b", True)
    ]


def test_folders_are_swept_again_a_day_later(open_store: OpenStore, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    store = open_store(f"file://{tmp_path}", env=Env(clock=clock))
    store.create("a/b", b"x", deadline_ns=clock.monotonic_ns() + MINUTE_NS)
    leftover = tmp_path / "a/.stratalog-old.tmp"
    leftover.write_bytes(b"half")
    os.utime(leftover, (1_700_000_000, 1_700_000_000))
    clock.advance_ms(STALE_MS + 1)
    store.create("a/c", b"x", deadline_ns=clock.monotonic_ns() + MINUTE_NS)
    assert files_in(tmp_path) == ["a/b", "a/c"]


def test_the_memory_for_folders_is_bounded(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_ns: int
) -> None:
    """If a folder was forgotten, its temporary files are removed again."""
    monkeypatch.setattr("stratalog_s3.file._MOST_FOLDERS", 2)
    for folder in "abc":
        store.create(f"{folder}/first", b"x", deadline_ns=deadline_ns)
    leftover = tmp_path / "a/.stratalog-old.tmp"
    leftover.write_bytes(b"half")
    os.utime(leftover, (1_000_000_000, 1_000_000_000))
    store.create("a/second", b"x", deadline_ns=deadline_ns)
    assert not leftover.exists()


def test_a_folder_that_is_forgotten_during_a_write_is_swept_again(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_ns: int
) -> None:
    """Another thread writes to a new folder, when the memory for folders is full."""

    class Busy(PosixVfs):
        def stat(self, path: str) -> FileStat | None:
            if path == str(tmp_path / "a") and (tmp_path / "a/first").exists() and not (tmp_path / "b").exists():
                shared_store.create("b/first", b"x", deadline_ns=deadline_ns)
            return super().stat(path)

    monkeypatch.setattr("stratalog_s3.file._MOST_FOLDERS", 1)
    shared_store = open_store(f"file://{tmp_path}", env=Env(files=Busy()))
    shared_store.create("a/first", b"x", deadline_ns=deadline_ns)
    shared_store.create("a/second", b"x", deadline_ns=deadline_ns)
    assert files_in(tmp_path) == ["a/first", "a/second", "b/first"]


def test_a_folder_that_was_removed_is_made_again(store: ObjectStore, tmp_path: Path, deadline_ns: int) -> None:
    for name in ("one", "two"):
        store.put_file(f"a/b/{name}", BytesSource(b"x"), deadline_ns=deadline_ns)
        assert store.create(f"a/c/{name}", b"x", deadline_ns=deadline_ns) is Created.CREATED
        shutil.rmtree(tmp_path / "a")


def test_a_deadline_between_two_pieces_stops_the_upload(open_store: OpenStore, tmp_path: Path) -> None:
    clock = ManualClock()

    class Slow(BytesSource):
        def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
            for chunk in super().chunks(chunk_bytes):
                clock.advance_ms(60)
                yield chunk

    store = open_store(f"file://{tmp_path}", env=Env(clock=clock))
    with pytest.raises(StoreTimeoutError):
        store.put_file("a/b", Slow(bytes(3 << 20)), deadline_ns=clock.monotonic_ns() + 100_000_000)
    assert files_in(tmp_path) == []


def test_links_are_not_followed(store: ObjectStore, tmp_path: Path, deadline_ns: int) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(b"private")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(StoreError):
        store.read("link", deadline_ns=deadline_ns)


def test_a_key_below_an_object_is_a_typed_error(store: ObjectStore, deadline_ns: int) -> None:
    store.create("a", b"x", deadline_ns=deadline_ns)
    with pytest.raises(StoreError):
        store.create("a/b", b"x", deadline_ns=deadline_ns)
    with pytest.raises(ObjectNotFoundError):
        store.read("a/b", deadline_ns=deadline_ns)


def test_a_store_opened_for_reading_refuses_writes(
    open_store: OpenStore, store: ObjectStore, tmp_path: Path, deadline_ns: int
) -> None:
    store.create("a", b"x", deadline_ns=deadline_ns)
    reader = open_store(f"file://{tmp_path}", read_only=True)
    assert reader.read("a", deadline_ns=deadline_ns) == b"x"
    calls: list[Callable[[], object]] = [
        lambda: reader.put_file("b", BytesSource(b"x"), deadline_ns=deadline_ns),
        lambda: reader.create("b", b"x", deadline_ns=deadline_ns),
        lambda: reader.delete(["a"], deadline_ns=deadline_ns),
    ]
    for call in calls:
        with pytest.raises(ReadOnlyError):
            call()
    assert files_in(tmp_path) == ["a"]


# --- names that are too long for a file system -------------------------------------------------------------------


@pytest.mark.parametrize("part", ["k" * 255, "k" * 256, "k" * 272, "k" * 600])
def test_long_parts_of_keys_are_stored_listed_and_deleted(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int, part: str
) -> None:
    store = open_store(tmp_path.as_uri())
    keys = [f"{part}/0/b", f"{part}/1/a", "other/0/a"]
    store.put_file(keys[0], BytesSource(b"0"), deadline_ns=deadline_ns)
    assert store.create(keys[1], b"1", deadline_ns=deadline_ns) is Created.CREATED
    assert store.create(keys[1], b"2", deadline_ns=deadline_ns) is Created.EXISTS
    store.put_file(keys[2], BytesSource(b"2"), deadline_ns=deadline_ns)
    assert [info.key for info in store.list("", deadline_ns=deadline_ns)] == sorted(keys)
    assert [info.key for info in store.list(f"{part}/1/", deadline_ns=deadline_ns)] == keys[1:2]
    assert [info.key for info in store.list(part[:254], deadline_ns=deadline_ns)] == keys[:2]
    assert [info.key for info in store.list("", after=keys[0], deadline_ns=deadline_ns)] == keys[1:]
    assert store.read(keys[0], deadline_ns=deadline_ns) == b"0"
    assert store.delete(keys[:1], deadline_ns=deadline_ns) == {}
    assert [info.key for info in store.list("", deadline_ns=deadline_ns)] == keys[1:]


def test_an_upload_under_a_long_name_without_an_end_is_found_and_aborted(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int
) -> None:
    store = open_store(tmp_path.as_uri())
    key = f"{'k' * 272}/0/segment"
    store.put_file(key, BytesSource(b"0"), deadline_ns=deadline_ns)
    (segment_path,) = tmp_path.rglob("segment")
    leftover = segment_path.with_name(f".stratalog-{0:032x}-segment.tmp")
    leftover.write_bytes(b"half")
    (upload,) = store.unfinished(f"{'k' * 272}/", deadline_ns=deadline_ns)
    assert upload.key == key
    store.abort(upload, deadline_ns=deadline_ns)
    assert not leftover.exists()
    assert store.read(key, deadline_ns=deadline_ns) == b"0"


def test_a_page_reads_only_folders_that_may_hold_its_keys(
    open_store: OpenStore, tmp_path: Path, deadline_ns: int
) -> None:
    watched_files = ListedVfs()
    store = open_store(tmp_path.as_uri(), env=Env(files=watched_files))
    keys = [f"{topic}/{name}" for topic in ("a", "b", "c", "c+") for name in ("1", "2/x", "2-")]
    for key in keys:
        store.put_file(key, BytesSource(b"1"), deadline_ns=deadline_ns)
    after, listed_keys = "", list[str]()
    watched_files.folders = 0
    while page := store.list("", after=after, limit=2, deadline_ns=deadline_ns):
        after = page[-1].key
        listed_keys += [info.key for info in page]
    assert listed_keys == sorted(keys)
    pages, folders = len(keys) // 2 + 1, 1 + 2 * 4
    assert watched_files.folders <= 3 * pages + folders
    watched_files.folders = 0
    assert [info.key for info in store.list("b/2", deadline_ns=deadline_ns)] == ["b/2-", "b/2/x"]
    assert watched_files.folders == 2


def test_a_page_reads_no_attributes_of_earlier_files(open_store: OpenStore, tmp_path: Path, deadline_ns: int) -> None:
    """Each commit to a log lists the roots after the latest one, and there may be thousands of earlier roots."""
    watched_files = ListedVfs()
    store = open_store(tmp_path.as_uri(), env=Env(files=watched_files))
    for number in range(20):
        store.put_file(f"t/roots/{number:02}", BytesSource(b"1"), deadline_ns=deadline_ns)
    watched_files.entries = 0
    assert [info.key for info in store.list("t/roots/", after="t/roots/18", deadline_ns=deadline_ns)] == ["t/roots/19"]
    assert watched_files.entries == 2


def test_every_page_has_the_keys_of_the_prefix_after_the_last_one(store: ObjectStore, deadline_ns: int) -> None:
    """Names may sort in another order than keys, because of characters below the slash."""
    parts = ["b", "b-", "b-c", "b.c", "bc", "c", "c+", "n" * 254 + "a", "n" * 254 + "m"]
    keys = sorted({*parts[2:], *(f"{part}/{inner}" for part in ("b", "b-") for inner in parts)})
    for key in keys:
        store.put_file(key, BytesSource(b"1"), deadline_ns=deadline_ns)
    for prefix in ("", *parts, *keys, "b/", "b-/", "x"):
        matching_keys = [key for key in keys if key.startswith(prefix)]
        for after in ("", *parts, *keys, "b/", "b-/x", "0", "x"):
            listed_keys = [info.key for info in store.list(prefix, after=after, deadline_ns=deadline_ns)]
            assert listed_keys == [key for key in matching_keys if key > after], (prefix, after)


def test_names_that_are_split_are_listed_in_the_order_of_their_keys(store: ObjectStore, deadline_ns: int) -> None:
    """A long key is stored in a folder that is named after its beginning.

    Keys in this folder may sort before and after keys next to the folder.
    """
    start = "n" * 254
    keys = sorted([f"{start}aa", f"{start}m", f"{start}zz", f"{start[1:]}q", f"{start}"])
    for key in keys:
        store.put_file(key, BytesSource(b"1"), deadline_ns=deadline_ns)
    assert [info.key for info in store.list("n", deadline_ns=deadline_ns)] == keys
    assert [info.key for info in store.list("n", after=keys[2], limit=1, deadline_ns=deadline_ns)] == keys[3:4]


@pytest.mark.parametrize("length", [232, 233, 249])
def test_the_longest_topic_works_on_a_folder(tmp_path: Path, length: int) -> None:
    topic = "t" * length
    (tmp_path / "tier").mkdir()
    uri = (tmp_path / "tier").as_uri()
    with open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic(topic, config={"local.retention.ms": 1, "retention.ms": -1})
        log = engine.log(topic, 0)
        for number in range(3):
            log.append([Record(value=b"%d" % number, timestamp_ms=1_000)])
            log.roll()
        engine.offload()
        engine.apply_retention()
        engine.collect()
    with open_reader(uri) as reader:
        assert list(reader.topics()) == [topic]
        assert [record.value for record in reader.log(topic, 0).records()] == [b"0", b"1", b"2"]
    with open_engine(tmp_path / "again", tier=uri, attach=True) as engine:
        assert [record.value for record in engine.log(topic, 0).records()] == [b"0", b"1", b"2"]
        engine.delete_topic(topic)
