"""Segment stores that break one rule each."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import stratalog_local
from contract_mutants import ContractMutants, MutantError, altered, result_of
from stratalog.errors import LogDirLockedError, LogDirNotFoundError, PluginError, ReadOnlyError, SegmentGoneError
from stratalog.spi import FileSlice, OpenContext, Provider, SegmentStore
from stratalog.testing.contexts import open_context
from stratalog.testing.contracts import SegmentStoreContract, StoreOpener
from stratalog_local.index_file import MappedIndex, PlainIndex
from stratalog_local.segment_file import LocalSegmentFile
from stratalog_local.store import LocalLogFiles, LocalStore


@dataclasses.dataclass
class Place:
    """One location of segment stores. Calling it opens a store there through a provider."""

    folder: Path
    provider: Provider[SegmentStore]

    def __call__(self, *, read_only: bool = False) -> SegmentStore:
        """Open a store."""
        return self.provider.open(open_context(location=str(self.folder / "logs"), read_only=read_only))


def _made(change: Callable[[LocalStore, OpenContext], Any]) -> Callable[[Path], StoreOpener]:
    """Return a function that makes openers of stores. ``change`` gets each opened store and returns its replacement."""
    (provider,) = stratalog_local.stratalog_segment_stores()

    def make(folder: Path) -> StoreOpener:
        return Place(folder, dataclasses.replace(provider, open=lambda context: change(LocalStore(context), context)))

    return make


def _store(**changes: Any) -> Callable[[Path], StoreOpener]:
    """Return an opener of stores with changed methods."""
    return _made(lambda store, _: altered(store, **changes))


def _files(**changes: Any) -> Callable[[Path], StoreOpener]:
    """Return an opener of stores whose logs have changed methods."""
    return _store(open_log=result_of(LocalStore, "open_log", lambda files: altered(files, **changes)))


def _segments(**changes: Any) -> Callable[[Path], StoreOpener]:
    """Return an opener of stores whose segments have changed methods."""
    return _files(open_segment=result_of(LocalLogFiles, "open_segment", lambda segment: altered(segment, **changes)))


def _indexes(mapped: Any = None, plain: Any = None) -> Callable[[Path], StoreOpener]:
    """Return an opener of stores whose indexes are changed by functions."""

    def change(index: Any) -> Any:
        index_change = mapped if isinstance(index, MappedIndex) else plain
        return index if index_change is None else index_change(index)

    return _files(open_index=result_of(LocalLogFiles, "open_index", change))


def _end_of_append(self: LocalSegmentFile, data: Any) -> int:
    return LocalSegmentFile.append(self, data) + memoryview(data).nbytes


def _fills_the_rest(self: LocalSegmentFile, position: int, into: memoryview) -> int:
    count = LocalSegmentFile.read_into(self, position, into)
    into[count:] = bytes(len(into) - count)
    return count


def _opens_existing(self: LocalLogFiles, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> Any:
    try:
        return LocalLogFiles.open_segment(self, name, create=create, preallocate_bytes=preallocate_bytes)
    except FileExistsError:
        return LocalLogFiles.open_segment(self, name)


def _opens_empty(self: LocalLogFiles, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> Any:
    segment = LocalLogFiles.open_segment(self, name, create=create, preallocate_bytes=preallocate_bytes)
    if segment.size_bytes == 3:
        segment.truncate(0)
    return segment


def _truncates_at_most(self: LocalSegmentFile, size_bytes: int) -> None:
    LocalSegmentFile.truncate(self, min(size_bytes, self.size_bytes))


def _always_trims(self: LocalSegmentFile) -> bool:
    LocalSegmentFile.trim(self)
    return True


def _empty_if_gone(self: LocalSegmentFile, position: int, size_bytes: int) -> memoryview:
    try:
        return LocalSegmentFile.read(self, position, size_bytes)
    except SegmentGoneError:
        return memoryview(b"")


def _short_view(self: MappedIndex) -> memoryview:
    return MappedIndex.view(self)[:7_000]


def _emptied(index: Any) -> Any:
    if isinstance(index, MappedIndex):
        index.truncate(0)
    return index


def _index_truncates_at_most(self: MappedIndex, size_bytes: int) -> None:
    MappedIndex.truncate(self, min(size_bytes, self.size_bytes))


def _beyond_the_bound(self: MappedIndex, entries: Any) -> None:
    with contextlib.suppress(PluginError):
        MappedIndex.append(self, entries)


def _always_reserves(self: LocalLogFiles, name: str, *, max_bytes: int, writable: bool, reserve: bool = True) -> Any:
    del reserve
    return LocalLogFiles.open_index(self, name, max_bytes=max_bytes, writable=writable, reserve=True)


def _ignores_appends(self: PlainIndex, entries: Any) -> None:
    with contextlib.suppress(ReadOnlyError):
        PlainIndex.append(self, entries)


def _no_logs(self: LocalStore) -> list[str]:
    try:
        return LocalStore.logs(self)
    except LogDirNotFoundError:
        return []


def _without_a_lock(self: LocalStore) -> None:
    with contextlib.suppress(LogDirLockedError):
        LocalStore.acquire(self)


def _reads_alone(store: LocalStore, context: OpenContext) -> Any:
    return altered(store, is_acquired_elsewhere=lambda _: False) if context.read_only else store


def _closes_once(store: LocalStore, context: OpenContext) -> Any:
    del context
    calls = list[int]()

    def close(self: LocalStore) -> None:
        LocalStore.close(self)
        calls.append(0)
        if len(calls) > 1:
            raise MutantError("closed twice")

    return altered(store, close=close)


def _all_names(self: LocalStore) -> list[str]:
    return sorted([*LocalStore.logs(self), *(["a-small-file"] if self.read_small("a-small-file") else [])])


def _any_name(self: LocalStore, name: str) -> bytes | None:
    return None if "/" in name else LocalStore.read_small(self, name)


def _keeps_the_end(self: LocalLogFiles, name: str, data: Any) -> None:
    old = LocalLogFiles.read_small(self, name) or b""
    LocalLogFiles.replace_small(self, name, bytes(data) + old[memoryview(data).nbytes :])


def _needs_the_file(self: LocalLogFiles, old: str, new: str) -> None:
    LocalLogFiles.rename(self, old, new)
    if old == "missing":
        raise SegmentGoneError("the file does not exist", old)


def _removes_nothing(self: LocalLogFiles, name: str) -> None:
    with contextlib.suppress(ReadOnlyError):
        LocalLogFiles.remove(self, name)


def _by_a_file(store: LocalStore, context: OpenContext) -> Any:
    """Lock the directory by creating a file. A killed process leaves this file behind."""
    folder = Path(context.location)
    file, owned_files = folder / "owner", list[Path]()

    def acquire(self: LocalStore) -> None:
        self._disk.check_writable(self.path())
        if owned_files:
            return
        folder.mkdir(exist_ok=True, parents=True)
        try:
            file.touch(exist_ok=False)
        except FileExistsError as error:
            raise LogDirLockedError("another engine holds the directory", str(folder)) from error
        owned_files.append(file)

    def close(self: LocalStore) -> None:
        LocalStore.close(self)
        while owned_files:
            owned_files.pop().unlink()

    return altered(
        store, acquire=acquire, close=close, is_acquired_elsewhere=lambda _: not owned_files and file.exists()
    )


def _writes_in_place(self: LocalLogFiles, name: str, data: Any) -> None:
    self.remove(name)
    with contextlib.closing(self.open_segment(name, create=True)) as file:
        file.append(data)
        file.sync()
    self.sync()


def _removes_in_memory(self: LocalStore, name: str) -> None:
    self.remove_existing(name)


def _other_bytes(piece: FileSlice) -> FileSlice:
    piece.release()
    return FileSlice(memoryview(b"xyz"))


MUTANTS: Final = ContractMutants(
    contract=SegmentStoreContract,
    fixture="open_store",
    fixtures={"provider": lambda place: place.provider},
    sound=_store(),
    mutants={
        "test_appends_are_read_back": _segments(append=_end_of_append),
        "test_results_have_the_types_of_the_contract": _segments(read=result_of(LocalSegmentFile, "read", bytes)),
        "test_reads_into_memory_of_the_caller": _segments(read_into=_fills_the_rest),
        "test_segments_are_made_once": _files(open_segment=_opens_existing),
        "test_segments_are_there_again": _files(open_segment=_opens_empty),
        "test_segments_are_cut": _segments(truncate=_truncates_at_most),
        "test_reserved_space_is_never_seen": _segments(trim=_always_trims),
        "test_a_slice_outlives_its_segment": _segments(slice=result_of(LocalSegmentFile, "slice", _other_bytes)),
        "test_a_closed_segment_is_gone": _segments(read=_empty_if_gone),
        "test_a_segment_may_keep_the_time_of_another": _files(set_modified=lambda *_: None),
        "test_paths_distinguish_files": _files(path=lambda *_: "a file"),
        "test_indexes_grow_under_their_readers": _indexes(lambda index: altered(index, view=_short_view)),
        "test_an_index_grows_after_a_trim": _indexes(lambda index: altered(index, trim=MappedIndex.close)),
        "test_indexes_are_continued": _indexes(_emptied),
        "test_indexes_are_cut_under_their_readers": _indexes(
            lambda index: altered(index, truncate=_index_truncates_at_most)
        ),
        "test_indexes_have_a_bound": _indexes(lambda index: altered(index, append=_beyond_the_bound)),
        "test_indexes_without_reserved_space_hold_entries_alone": _files(open_index=_always_reserves),
        "test_indexes_opened_for_reading": _indexes(plain=lambda index: altered(index, append=_ignores_appends)),
        "test_a_missing_directory_is_reported": _store(logs=_no_logs),
        "test_one_owner_at_a_time": _store(acquire=_without_a_lock),
        "test_readers_take_no_lock": _made(_reads_alone),
        "test_closing_twice_is_fine": _made(_closes_once),
        "test_logs_are_made_renamed_and_removed": _store(logs=_all_names),
        "test_names_stay_inside": _store(read_small=_any_name),
        "test_small_files_are_replaced_as_a_whole": _files(replace_small=_keeps_the_end),
        "test_files_are_renamed_and_removed": _files(rename=_needs_the_file),
        "test_read_only_stores_refuse_every_write": _files(remove=_removes_nothing),
        "test_another_process_cannot_acquire_the_directory": _store(acquire=_without_a_lock),
        "test_a_killed_process_releases_the_directory": _made(_by_a_file),
        "test_synced_bytes_survive_a_power_loss": _segments(sync=lambda _: None),
        "test_synced_index_entries_survive_a_power_loss": _indexes(lambda index: altered(index, sync=lambda _: None)),
        "test_a_power_loss_leaves_small_files_old_or_new": _files(replace_small=_writes_in_place),
        "test_names_survive_a_power_loss": _store(remove_small=_removes_in_memory),
    },
)
