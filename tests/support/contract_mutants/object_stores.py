"""Object stores that break one rule each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, altered, result_of
from sim_objects import ALL_CAPABILITIES, SimBucket, SimObjectStore
from stratalog.env.clock import SystemClock
from stratalog.errors import ObjectNotFoundError, StorageError, StoreError
from stratalog.model.batches import Buffer
from stratalog.spi import ObjectStore
from stratalog.spi.objects import ByteSource, BytesSource, Capability, Created, ObjectInfo, UnfinishedUpload
from stratalog.testing.contracts import ObjectStoreContract

_LATE_NS: Final = 1 << 62
_LARGE: Final = 1 << 20
_Store = SimObjectStore


def _sound(folder: Path | None = None) -> SimObjectStore:
    del folder
    return SimObjectStore(SimBucket(SystemClock()))


def _made(**changes: Any) -> Callable[[Path], ObjectStore]:
    return lambda folder: altered(_sound(folder), **changes)


def _written(store: _Store, key: str, data: bytes) -> ObjectInfo:
    store.bucket.write(key, data)
    return ObjectInfo(key, len(data))


def _cuts_large(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    info = _Store.put_file(self, key, source, deadline_ns=deadline_ns)
    if info.size_bytes > _LARGE:
        self.bucket.write(key, self.bucket.objects[key][0][:-1])
    return info


def _skips_empty(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    info = _Store.put_file(self, key, source, deadline_ns=deadline_ns)
    if not info.size_bytes:
        del self.bucket.objects[key]
    return info


def _keeps_what_came(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    try:
        return _Store.put_file(self, key, source, deadline_ns=deadline_ns)
    except StoreError:
        self.bucket.write(key, b"what came")
        raise


def _keeps_the_first_half(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    try:
        return _Store.put_file(self, key, source, deadline_ns=deadline_ns)
    except OSError as error:
        if not isinstance(error, StorageError):
            self.bucket.write(key, b"the first half")
        raise


def _shows_parts(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    if key == "a":
        self.bucket.write(key, b"")
    return _Store.put_file(self, key, source, deadline_ns=deadline_ns)


def _no_second_upload(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    is_second = key in self.bucket.objects
    info = _Store.put_file(self, key, source, deadline_ns=deadline_ns)
    return replace(info, size_bytes=0) if is_second else info


def _no_bounds(self: _Store, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
    return _Store.read(self, key, start, end or None, deadline_ns=deadline_ns)


def _nothing_past_the_end(
    self: _Store, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int
) -> bytes:
    data = _Store.read(self, key, deadline_ns=deadline_ns)
    if end is not None and data and end > len(data) + 100:
        raise StoreError("past the end", key)
    return data[start:end]


def _empty_if_missing(
    self: _Store, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int
) -> bytes:
    try:
        return _Store.read(self, key, start, end, deadline_ns=deadline_ns)
    except ObjectNotFoundError:
        if key == "a/c":
            return b""
        raise


def _for_one_thread(folder: Path) -> ObjectStore:
    owner = threading.get_ident()

    def read(self: _Store, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        data = _Store.read(self, key, start, end, deadline_ns=deadline_ns)
        return data if threading.get_ident() == owner else data[:-1]

    return _made(read=read)(folder)


def _free_key_exists(self: _Store, key: str, data: Buffer, *, deadline_ns: int) -> Created:
    outcome = _Store.create(self, key, data, deadline_ns=deadline_ns)
    return Created.UNKNOWN if outcome is Created.CREATED else outcome


def _bytes_alone(self: _Store, key: str, data: Buffer, *, deadline_ns: int) -> Created:
    return _Store.create(self, key, data if isinstance(data, bytes) else b"", deadline_ns=deadline_ns)


def _overwrites(self: _Store, key: str, data: Buffer, *, deadline_ns: int) -> Created:
    outcome = _Store.create(self, key, data, deadline_ns=deadline_ns)
    self.bucket.write(key, bytes(data))
    return outcome


def _knows_own_keys(folder: Path) -> ObjectStore:
    created = set[str]()

    def create(self: _Store, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        if key not in created:
            self.bucket.objects.pop(key, None)
        created.add(key)
        return _Store.create(self, key, data, deadline_ns=deadline_ns)

    return _made(create=create)(folder)


def _never_free_again(folder: Path) -> ObjectStore:
    created = set[str]()

    def create(self: _Store, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        if key in created:
            return Created.EXISTS
        created.add(key)
        return _Store.create(self, key, data, deadline_ns=deadline_ns)

    return _made(create=create)(folder)


def _all_win(folder: Path) -> ObjectStore:
    owner = threading.get_ident()

    def create(self: _Store, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        if threading.get_ident() != owner:
            self.bucket.objects.pop(key, None)
        return _Store.create(self, key, data, deadline_ns=deadline_ns)

    return _made(create=create)(folder)


def _by_parts(infos: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    return sorted(infos, key=lambda info: info.key.split("/"))


def _by_folder(self: _Store, prefix: str, **keywords: Any) -> Sequence[ObjectInfo]:
    return _Store.list(self, prefix[: prefix.rfind("/") + 1], **keywords)


def _from_after(self: _Store, prefix: str, *, after: str = "", **keywords: Any) -> Sequence[ObjectInfo]:
    listing = _Store.list(self, prefix, after=after, **keywords)
    is_key = after in self.bucket.objects and keywords.get("limit", 1000) == 1000
    return [*([ObjectInfo(after, 0)] if is_key else []), *listing]


def _short_pages(self: _Store, prefix: str, *, limit: int = 1000, **keywords: Any) -> Sequence[ObjectInfo]:
    return _Store.list(self, prefix, limit=max(1, limit - 1), **keywords)


def _stale(folder: Path) -> ObjectStore:
    listings = list[Sequence[ObjectInfo]]()

    def listed(self: _Store, prefix: str, **keywords: Any) -> Sequence[ObjectInfo]:
        listings.append(_Store.list(self, prefix, **keywords))
        return listings[0] if prefix == "f/" else listings[-1]

    return _made(list=listed)(folder)


def _errors_of_missing(self: _Store, keys: Sequence[str], *, deadline_ns: int) -> Any:
    missing = [key for key in keys if key not in self.bucket.objects]
    return {**_Store.delete(self, keys, deadline_ns=deadline_ns), **{key: StoreError("no", key) for key in missing}}


def _all_if_none(self: _Store, keys: Sequence[str], *, deadline_ns: int) -> Any:
    return _Store.delete(self, keys or list(self.bucket.objects), deadline_ns=deadline_ns)


def _hostile(self: _Store, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
    if ".." in key:
        return _written(self, key, b"".join(map(bytes, source.chunks(1 << 20))))
    return _Store.put_file(self, key, source, deadline_ns=deadline_ns)


def _patient(self: _Store, prefix: str, *, deadline_ns: int, **keywords: Any) -> Sequence[ObjectInfo]:
    del deadline_ns
    return _Store.list(self, prefix, deadline_ns=_LATE_NS, **keywords)


def _all_unfinished(self: _Store, prefix: str, *, deadline_ns: int) -> Sequence[UnfinishedUpload]:
    del deadline_ns
    return [UnfinishedUpload(key, "0" * 32) for key in self.bucket.keys(prefix)]


def _claims_memory(self: _Store, key: str, start: int, into: memoryview) -> bool:
    del self, key, start, into
    return True


def _near(folder: Path) -> ObjectStore:
    return _made(
        capabilities=property(lambda _: ALL_CAPABILITIES | Capability.NEAR),
        read_cached=_claims_memory,
    )(folder)


def _two_requests(self: _Store) -> Any:
    del self
    return {"GET": 5}


def _open_for_ever(self: _Store) -> None:
    with contextlib.suppress(StorageError):
        self.put_file("closed", BytesSource(b""), deadline_ns=_LATE_NS)


MUTANTS: Final = ContractMutants(
    contract=ObjectStoreContract,
    fixture="store",
    sound=_sound,
    mutants={
        "test_an_object_that_was_put_is_read": _made(
            put_file=result_of(_Store, "put_file", lambda info: replace(info, key=f"/{info.key}"))
        ),
        "test_a_large_object_is_kept_whole": _made(put_file=_cuts_large),
        "test_a_range_is_read": _made(read=_no_bounds),
        "test_cached_bytes_are_those_that_were_put": _near,
        "test_a_range_past_the_end_is_cut": _made(read=_nothing_past_the_end),
        "test_an_object_may_be_empty": _made(put_file=_skips_empty),
        "test_a_missing_object_is_a_typed_error": _made(read=_empty_if_missing),
        "test_a_source_with_a_wrong_size_leaves_no_object": _made(put_file=_keeps_what_came),
        "test_a_source_that_fails_leaves_nothing": _made(put_file=_keeps_the_first_half),
        "test_an_object_is_never_seen_in_part": _made(put_file=_shows_parts),
        "test_a_source_is_read_again_by_a_second_upload": _made(put_file=_no_second_upload),
        "test_results_have_the_types_of_the_contract": _made(read=result_of(_Store, "read", memoryview)),
        "test_threads_read_at_once": _for_one_thread,
        "test_a_free_key_is_created": _made(create=_free_key_exists),
        "test_any_buffer_is_created": _made(create=_bytes_alone),
        "test_a_taken_key_is_left_alone": _made(create=_overwrites),
        "test_a_key_that_was_put_is_taken": _knows_own_keys,
        "test_a_deleted_key_is_free_again": _never_free_again,
        "test_one_of_several_racers_creates": _all_win,
        "test_keys_ascend_by_their_bytes": _made(list=result_of(_Store, "list", _by_parts)),
        "test_a_prefix_need_not_end_with_a_part": _made(list=_by_folder),
        "test_only_keys_above_are_listed": _made(list=_from_after),
        "test_pages_join_to_the_whole": _made(list=_short_pages),
        "test_a_listing_sees_what_was_done_before": _stale,
        "test_a_missing_object_is_deleted_with_success": _made(delete=_errors_of_missing),
        "test_nothing_is_deleted_if_nothing_is_asked": _made(delete=_all_if_none),
        "test_a_key_that_could_leave_its_place_is_refused": _made(put_file=_hostile),
        "test_a_deadline_that_has_passed_stops_every_call": _made(list=_patient),
        "test_a_finished_upload_is_not_listed_as_unfinished": _made(unfinished=_all_unfinished),
        "test_a_closed_store_refuses": _made(close=_open_for_ever),
        "test_a_store_is_not_pickled": _made(__reduce__=lambda _: (str, ("a store",))),
        "test_requests_are_counted_or_one_a_call": _made(sent=_two_requests),
        "test_the_uri_is_one": _made(uri=property(lambda _: "a store")),
    },
)
