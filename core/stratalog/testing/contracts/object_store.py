"""Contract tests of object stores."""

from __future__ import annotations

import errno
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from stratalog.env.clock import SystemClock
from stratalog.errors import ObjectNotFoundError, StorageError, StoreTimeoutError
from stratalog.model.batches import Buffer
from stratalog.spi.objects import (
    ByteSource,
    BytesSource,
    Capability,
    Created,
    ObjectInfo,
    ObjectStore,
    UnfinishedUpload,
)
from stratalog.tier.store.store import ChunkSource

RACERS: Final = 8
DATA: Final = bytes(range(256)) * 40
LARGE: Final = (9 << 20) + 3  # larger than a part of a multipart upload; no multiple of a usual part size
# no key is a folder of another key
SORTED_KEYS: Final = (
    "a-b/c", "a.b", "a/b/c", "a/b/d", "a/c", "aa", "b/0", "b/1", "ä/x",
)  # fmt: skip
HOSTILE_KEYS: Final = ("", "/a", "a/", "a//b", "../a", "a/../b", "./a", "a/.", "a\nb", "a\0b", "a" * 1025)


def broken_source(size_bytes: int, real_bytes: int) -> ByteSource:
    """Return a source that yields ``real_bytes`` zeros, which can be more or fewer than its ``size_bytes``."""

    def chunks(chunk_bytes: int) -> Iterator[Buffer]:
        for start in range(0, real_bytes, chunk_bytes):
            yield bytes(min(chunk_bytes, real_bytes - start))

    return ChunkSource(size_bytes, chunks)


def failing_source(size_bytes: int) -> ByteSource:
    """Return a source that yields the first half of its bytes, and then raises an I/O error."""

    def chunks(chunk_bytes: int) -> Iterator[Buffer]:
        yield from broken_source(size_bytes, size_bytes // 2).chunks(chunk_bytes)
        raise OSError(errno.EIO, "the disk is broken")

    return ChunkSource(size_bytes, chunks)


def watched_source(data: Buffer, call: Callable[[], None]) -> ByteSource:
    """Return a source that yields pieces of at most 4 KiB, and calls a function before each piece."""

    def chunks(chunk_bytes: int) -> Iterator[Buffer]:
        for chunk in BytesSource(data).chunks(min(chunk_bytes, 4096)):
            call()
            yield chunk

    return ChunkSource(len(data), chunks)


class ObjectStoreContract:
    """Contract of an object store: subclass it and override the fixture ``store``, which returns an open, empty store.

    Tests of capabilities that the store does not declare are skipped. Deadlines are times of the system's monotonic
    clock, and the store must use the same clock.
    """

    @pytest.fixture
    def store(self) -> ObjectStore:
        """Return the store to check, open and empty; overridden by the subclass."""
        raise NotImplementedError("a subclass must define the fixture store")

    @pytest.fixture
    def deadline_ns(self) -> int:
        """Return a deadline 60 seconds from now, far enough in the future for any test."""
        return SystemClock().monotonic_ns() + 60_000_000_000

    @pytest.fixture
    def filled(self, store: ObjectStore, deadline_ns: int) -> ObjectStore:
        """Return the store with one object for each of ``SORTED_KEYS``; the content of an object is its key."""
        for key in reversed(SORTED_KEYS):
            store.put_file(key, BytesSource(key.encode()), deadline_ns=deadline_ns)
        return store

    # --- writing and reading ---------------------------------------------------------------------------------------

    def test_an_object_that_was_put_is_read(self, store: ObjectStore, deadline_ns: int) -> None:
        """A stored object is read back whole, under its key."""
        info = store.put_file("a/b.seg", BytesSource(DATA), deadline_ns=deadline_ns)
        assert (info.key, info.size_bytes) == ("a/b.seg", len(DATA))
        assert store.read("a/b.seg", deadline_ns=deadline_ns) == DATA

    def test_a_large_object_is_kept_whole(self, store: ObjectStore, deadline_ns: int) -> None:
        """Every byte of a large object is kept, and the returned size is right.

        The engine deletes local data after an upload.
        """
        data = random.Random(7).randbytes(LARGE)  # noqa: S311 - a test must be repeatable
        info = store.put_file("large", BytesSource(data), deadline_ns=deadline_ns)
        assert (info.key, info.size_bytes) == ("large", LARGE)
        assert store.read("large", deadline_ns=deadline_ns) == data
        assert store.read("large", LARGE - 5, LARGE + 5, deadline_ns=deadline_ns) == data[-5:]

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, 1), (0, 100), (100, 200), (1, None), (None, 7), (len(DATA) - 1, len(DATA)), (5, 5), (None, 0)],
    )
    def test_a_range_is_read(self, store: ObjectStore, deadline_ns: int, start: int | None, end: int | None) -> None:
        """``read`` returns bytes [start, end) of an object; None means its start or its end."""
        store.put_file("a", BytesSource(DATA), deadline_ns=deadline_ns)
        assert store.read("a", start, end, deadline_ns=deadline_ns) == DATA[start:end]

    def test_cached_bytes_are_those_that_were_put(self, store: ObjectStore, deadline_ns: int) -> None:
        """``read_cached`` fills the buffer with the stored bytes and returns True, or returns False. Never raises.

        The test cannot predict if the operating system has the bytes in memory.
        """
        if Capability.NEAR not in store.capabilities:
            pytest.skip("the store is not near")
        store.put_file("a", BytesSource(DATA), deadline_ns=deadline_ns)
        assert store.read("a", deadline_ns=deadline_ns) == DATA
        for start, size_bytes in ((0, len(DATA)), (5, 100), (len(DATA) - 10, 10)):
            assert store.is_cached("a", start, start + size_bytes) in {True, False}
            room = bytearray(size_bytes)
            if store.read_cached("a", start, memoryview(room)):
                assert room == DATA[start : start + size_bytes]
        for key, start in (("a", len(DATA) - 1), ("a", len(DATA) + 5), ("missing", 0)):
            assert not store.read_cached(key, start, memoryview(bytearray(2)))
        assert not store.is_cached("missing", 0, 2)
        store.close()
        assert not store.read_cached("a", 0, memoryview(bytearray(2)))
        assert store.is_cached("a", 0, 2) in {True, False}

    @pytest.mark.parametrize("start", [0, len(DATA) - 3, len(DATA), len(DATA) + 100])
    def test_a_range_past_the_end_is_cut(self, store: ObjectStore, deadline_ns: int, start: int) -> None:
        """A range past the end returns fewer bytes or none, and no error."""
        store.put_file("a", BytesSource(DATA), deadline_ns=deadline_ns)
        assert store.read("a", start, len(DATA) + 200, deadline_ns=deadline_ns) == DATA[start:]

    def test_an_object_may_be_empty(self, store: ObjectStore, deadline_ns: int) -> None:
        """An empty object is listed and read like any other."""
        store.put_file("a", BytesSource(b""), deadline_ns=deadline_ns)
        assert store.read("a", deadline_ns=deadline_ns) == b""
        assert store.read("a", 0, 16, deadline_ns=deadline_ns) == b""
        assert [info.size_bytes for info in store.list("", deadline_ns=deadline_ns)] == [0]

    @pytest.mark.parametrize("window", [(None, None), (0, 10)])
    def test_a_missing_object_is_a_typed_error(
        self, store: ObjectStore, deadline_ns: int, window: tuple[int | None, int | None]
    ) -> None:
        """``read`` of a missing key raises ObjectNotFoundError.

        If the key ``a/b`` exists, the keys ``a`` and ``a/b/c`` are still missing.
        """
        store.put_file("a/b", BytesSource(DATA), deadline_ns=deadline_ns)
        for key in ("a/c", "a", "a/b/c"):
            with pytest.raises(ObjectNotFoundError):
                store.read(key, *window, deadline_ns=deadline_ns)

    @pytest.mark.parametrize("real_bytes", [0, 10, 101])
    def test_a_source_with_a_wrong_size_leaves_no_object(
        self, store: ObjectStore, deadline_ns: int, real_bytes: int
    ) -> None:
        """If a source has too few or too many bytes, ``put_file`` raises a StorageError, and no object is visible."""
        with pytest.raises(StorageError):
            store.put_file("a/b", broken_source(100, real_bytes), deadline_ns=deadline_ns)
        assert list(store.list("", deadline_ns=deadline_ns)) == []
        with pytest.raises(ObjectNotFoundError):
            store.read("a/b", deadline_ns=deadline_ns)

    def test_a_source_that_fails_leaves_nothing(self, store: ObjectStore, deadline_ns: int) -> None:
        """If a source raises an error in the middle, ``put_file`` raises it or a StorageError, and leaves no object."""
        with pytest.raises((StorageError, OSError)):
            store.put_file("a/b", failing_source(len(DATA)), deadline_ns=deadline_ns)
        assert list(store.list("", deadline_ns=deadline_ns)) == []

    def test_an_object_is_never_seen_in_part(self, store: ObjectStore, deadline_ns: int) -> None:
        """Other clients see no part of an object during its upload, and all of it afterwards."""
        listed_sizes: list[int] = []

        def look() -> None:
            listed_sizes.extend(info.size_bytes for info in store.list("a", deadline_ns=deadline_ns))

        store.put_file("a", watched_source(DATA, look), deadline_ns=deadline_ns)
        assert listed_sizes == []
        assert store.read("a", deadline_ns=deadline_ns) == DATA

    def test_a_source_is_read_again_by_a_second_upload(self, store: ObjectStore, deadline_ns: int) -> None:
        """A source can be uploaded to one key twice: a client repeats an upload after a lost reply."""
        source = BytesSource(DATA)
        for _ in range(2):
            assert store.put_file("a", source, deadline_ns=deadline_ns).size_bytes == len(DATA)
        assert store.read("a", deadline_ns=deadline_ns) == DATA

    def test_results_have_the_types_of_the_contract(self, store: ObjectStore, deadline_ns: int) -> None:
        """``read`` returns bytes, and ``list`` a sequence of ObjectInfo: the engine refuses other types."""
        assert isinstance(store.put_file("a", BytesSource(DATA), deadline_ns=deadline_ns), ObjectInfo)
        assert isinstance(store.read("a", deadline_ns=deadline_ns), bytes)
        infos = store.list("", deadline_ns=deadline_ns)
        assert isinstance(infos, Sequence)
        assert {type(info) for info in infos} == {ObjectInfo}
        assert isinstance(store.delete(["a"], deadline_ns=deadline_ns), Mapping)

    def test_threads_read_at_once(self, store: ObjectStore, deadline_ns: int) -> None:
        """Several threads can use one store at the same time."""
        store.put_file("a", BytesSource(DATA), deadline_ns=deadline_ns)
        starts = range(0, 2_000, 50)
        with ThreadPoolExecutor(RACERS) as pool:
            read = list(pool.map(lambda start: store.read("a", start, start + 70, deadline_ns=deadline_ns), starts))
        assert read == [DATA[start : start + 70] for start in starts]

    # --- creating --------------------------------------------------------------------------------------------------

    def test_a_free_key_is_created(self, store: ObjectStore, deadline_ns: int) -> None:
        """A created object is readable immediately."""
        assert store.create("m/1", DATA, deadline_ns=deadline_ns) is Created.CREATED
        assert store.read("m/1", deadline_ns=deadline_ns) == DATA

    @pytest.mark.parametrize("buffer_kind", [bytes, bytearray, memoryview])
    def test_any_buffer_is_created(self, store: ObjectStore, deadline_ns: int, buffer_kind: type[Buffer]) -> None:
        """``create`` accepts bytes, bytearray and memoryview."""
        assert store.create("m/1", buffer_kind(DATA), deadline_ns=deadline_ns) is Created.CREATED
        assert store.read("m/1", deadline_ns=deadline_ns) == DATA

    def test_a_taken_key_is_left_alone(self, store: ObjectStore, deadline_ns: int) -> None:
        """``create`` of an existing key returns ``Created.EXISTS`` and keeps the existing bytes."""
        store.create("m/1", b"first", deadline_ns=deadline_ns)
        assert store.create("m/1", b"second", deadline_ns=deadline_ns) is Created.EXISTS
        assert store.read("m/1", deadline_ns=deadline_ns) == b"first"

    def test_a_key_that_was_put_is_taken(self, store: ObjectStore, deadline_ns: int) -> None:
        """``create`` returns ``Created.EXISTS`` for a key that was written by ``put_file``."""
        store.put_file("m/1", BytesSource(b"put"), deadline_ns=deadline_ns)
        assert store.create("m/1", b"created", deadline_ns=deadline_ns) is Created.EXISTS

    def test_a_deleted_key_is_free_again(self, store: ObjectStore, deadline_ns: int) -> None:
        """A key can be created again after its deletion."""
        store.create("m/1", b"first", deadline_ns=deadline_ns)
        store.delete(["m/1"], deadline_ns=deadline_ns)
        assert store.create("m/1", b"second", deadline_ns=deadline_ns) is Created.CREATED
        assert store.read("m/1", deadline_ns=deadline_ns) == b"second"

    def test_one_of_several_racers_creates(self, store: ObjectStore, deadline_ns: int) -> None:
        """One of several concurrent calls of ``create`` returns CREATED and stores its bytes. Others return EXISTS."""
        if Capability.CREATE not in store.capabilities:
            pytest.skip("the store declares no atomic create")
        for turn in range(10):
            outcomes = raced(store, f"m/{turn}", deadline_ns)
            winners = [data for data, outcome in outcomes.items() if outcome is Created.CREATED]
            assert len(winners) == 1
            assert all(outcome in {Created.CREATED, Created.EXISTS} for outcome in outcomes.values())
            assert store.read(f"m/{turn}", deadline_ns=deadline_ns) == winners[0]

    # --- listing ---------------------------------------------------------------------------------------------------

    def test_keys_ascend_by_their_bytes(self, filled: ObjectStore, deadline_ns: int) -> None:
        """Keys are sorted by their UTF-8 bytes; a slash has no special meaning."""
        infos = filled.list("", deadline_ns=deadline_ns)
        assert [info.key for info in infos] == sorted(SORTED_KEYS, key=str.encode)
        assert [info.size_bytes for info in infos] == [len(info.key.encode()) for info in infos]

    @pytest.mark.parametrize("prefix", ["a", "a/", "a/b", "b/", "c", "a-", "a/b/"])
    def test_a_prefix_need_not_end_with_a_part(self, filled: ObjectStore, deadline_ns: int, prefix: str) -> None:
        """``list`` compares a prefix as text: a prefix can end between two slashes of a key."""
        keys = [info.key for info in filled.list(prefix, deadline_ns=deadline_ns)]
        assert keys == [key for key in SORTED_KEYS if key.startswith(prefix)]

    @pytest.mark.parametrize("after", ["a", "a/", "a/b", "a/zz", "b/1", "zz", "A"])
    def test_only_keys_above_are_listed(self, filled: ObjectStore, deadline_ns: int, after: str) -> None:
        """``list`` returns only keys above ``after``. No object needs to have the key ``after``."""
        keys = [info.key for info in filled.list("", after=after, deadline_ns=deadline_ns)]
        assert keys == [key for key in SORTED_KEYS if key > after]

    @pytest.mark.parametrize("limit", [1, 3, len(SORTED_KEYS), len(SORTED_KEYS) + 1])
    def test_pages_join_to_the_whole(self, filled: ObjectStore, deadline_ns: int, limit: int) -> None:
        """Results of ``list`` join to all keys. A result with fewer keys than the limit is the last one."""
        keys: list[str] = []
        while True:
            page = filled.list("", after=keys[-1] if keys else "", limit=limit, deadline_ns=deadline_ns)
            keys += [info.key for info in page]
            if len(page) < limit:
                break
        assert keys == list(SORTED_KEYS)

    def test_a_listing_sees_what_was_done_before(self, store: ObjectStore, deadline_ns: int) -> None:
        """A listing shows the effect of every earlier upload, creation and deletion."""

        def seen() -> list[str]:
            return [info.key for info in store.list("f/", deadline_ns=deadline_ns)]

        assert seen() == []
        store.put_file("f/1", BytesSource(b"x"), deadline_ns=deadline_ns)
        assert seen() == ["f/1"]
        store.create("f/2", b"x", deadline_ns=deadline_ns)
        assert seen() == ["f/1", "f/2"]
        store.delete(["f/1"], deadline_ns=deadline_ns)
        assert seen() == ["f/2"]

    # --- deleting --------------------------------------------------------------------------------------------------

    def test_a_missing_object_is_deleted_with_success(self, filled: ObjectStore, deadline_ns: int) -> None:
        """Deleting a missing object is not an error, and the other keys of the call are deleted."""
        assert filled.delete(["a/c", "no/such", "aa"], deadline_ns=deadline_ns) == {}
        remaining_keys = [info.key for info in filled.list("", deadline_ns=deadline_ns)]
        assert remaining_keys == [key for key in SORTED_KEYS if key not in {"a/c", "aa"}]

    def test_nothing_is_deleted_if_nothing_is_asked(self, filled: ObjectStore, deadline_ns: int) -> None:
        """An empty list of keys deletes nothing."""
        assert filled.delete([], deadline_ns=deadline_ns) == {}
        assert len(filled.list("", deadline_ns=deadline_ns)) == len(SORTED_KEYS)

    # --- refusals --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=repr)
    def test_a_key_that_could_leave_its_place_is_refused(self, store: ObjectStore, deadline_ns: int, key: str) -> None:
        """An invalid key raises a StorageError: keys come from manifests, which an attacker may have written."""
        with pytest.raises(StorageError):
            store.put_file(key, BytesSource(b"x"), deadline_ns=deadline_ns)
        with pytest.raises(StorageError):
            store.create(key, b"x", deadline_ns=deadline_ns)
        with pytest.raises(StorageError):
            store.read(key, deadline_ns=deadline_ns)

    def test_a_deadline_that_has_passed_stops_every_call(self, filled: ObjectStore, deadline_ns: int) -> None:
        """A call after its deadline raises StoreTimeoutError and sends no request."""
        past_ns = SystemClock().monotonic_ns() - 1
        with pytest.raises(StoreTimeoutError):
            filled.put_file("new/1", BytesSource(b"x"), deadline_ns=past_ns)
        with pytest.raises(StoreTimeoutError):
            filled.create("new/2", b"x", deadline_ns=past_ns)
        with pytest.raises(StoreTimeoutError):
            filled.read("aa", deadline_ns=past_ns)
        with pytest.raises(StoreTimeoutError):
            filled.list("", deadline_ns=past_ns)
        assert [info.key for info in filled.list("new/", deadline_ns=deadline_ns)] == []

    def test_a_finished_upload_is_not_listed_as_unfinished(self, filled: ObjectStore, deadline_ns: int) -> None:
        """``unfinished`` does not return finished uploads. ``abort`` of an unknown upload is not an error."""
        assert list(filled.unfinished("", deadline_ns=deadline_ns)) == []
        keys = [info.key for info in filled.list("", deadline_ns=deadline_ns)]
        filled.abort(UnfinishedUpload(keys[0], "0" * 32), deadline_ns=deadline_ns)
        assert [info.key for info in filled.list("", deadline_ns=deadline_ns)] == keys

    def test_a_closed_store_refuses(self, store: ObjectStore, deadline_ns: int) -> None:
        """After ``close``, ``read`` raises a StorageError, and a second ``close`` does nothing."""
        store.put_file("a", BytesSource(b"x"), deadline_ns=deadline_ns)
        store.close()
        store.close()
        with pytest.raises(StorageError):
            store.read("a", deadline_ns=deadline_ns)

    def test_a_store_is_not_pickled(self, store: ObjectStore) -> None:
        """Pickling a store raises an error, because a pickle would contain the credentials."""
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            pickle.dumps(store)

    def test_requests_are_counted_or_one_a_call(self, store: ObjectStore, deadline_ns: int) -> None:
        """The counts of ``sent`` increase with each request. They stay 0 if the store does not count requests."""
        before = sum(store.sent().values())
        store.create("m/1", b"x", deadline_ns=deadline_ns)
        store.read("m/1", deadline_ns=deadline_ns)
        after = sum(store.sent().values())
        assert after == before == 0 or after >= before + 2

    def test_the_uri_is_one(self, store: ObjectStore) -> None:
        """``uri`` contains ``://``. Error messages show the URI."""
        assert "://" in store.uri


def raced(store: ObjectStore, key: str, deadline_ns: int) -> dict[bytes, Created]:
    """Create one key in several threads at the same time, each with other bytes. Return the result by these bytes."""
    barrier = threading.Barrier(RACERS)

    def create(data: bytes) -> Created:
        barrier.wait()
        return store.create(key, data, deadline_ns=deadline_ns)

    offers = [f"racer {number}".encode() * 100 for number in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as pool:
        return dict(zip(offers, pool.map(create, offers), strict=True))
