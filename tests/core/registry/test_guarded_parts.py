"""Checks of the results of a segment store's files, indexes and folders."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest

from stratalog.env.vfs import FileStat
from stratalog.errors import PluginError
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileSlice
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_part, place_in
from stratalog.spi.segment_store import IndexFile, LogFiles, SegmentFile, SegmentStore

GUARD = Guard("segment store 'odd' version 1", "plugin odd of odd-stores 2.1")


@dataclass
class Bytes(SegmentFile):
    """A file in memory that can be wrong.

    It can store ``written`` in place of the given data, and can return None from reads.
    """

    data: bytearray = field(default_factory=bytearray)
    written: bytes | None = None
    reads_none: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def modified_ms(self) -> int:
        return 0

    def append(self, data: Buffer) -> int:
        self.data += data if self.written is None else self.written
        return len(self.data) - len(data)

    def read(self, position: int, size_bytes: int) -> memoryview:
        data: Any = None if self.reads_none else memoryview(bytes(self.data))[position : position + size_bytes]
        return data  # type: ignore[no-any-return] # None is the mistake

    def slice(self, position: int, size_bytes: int) -> FileSlice:
        return FileSlice.of(self.read(position, size_bytes), position)

    def truncate(self, size_bytes: int) -> None:
        if size_bytes > len(self.data):
            raise ValueError("smaller")
        del self.data[size_bytes:]

    def sync(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Entries(IndexFile):
    """An index in memory, which can lose its entries."""

    data: bytes = b""
    forgets: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def append(self, entries: Buffer) -> None:
        self.data += b"" if self.forgets else bytes(entries)

    def view(self) -> memoryview:
        return memoryview(self.data)

    def truncate(self, size_bytes: int) -> None:
        self.data = self.data[:size_bytes]

    def trim(self) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Folder(LogFiles):
    """A folder in memory, which can create a file under another name."""

    files: dict[str, Bytes] = field(default_factory=dict)
    name: str = "t-0"
    suffix: str = ""

    def path(self, name: str = "") -> str:
        return f"odd:/t-0/{name}"

    def list(self) -> list[FileStat]:
        return [FileStat(name, len(file.data), 0, is_folder=False) for name, file in sorted(self.files.items())]

    def open_segment(self, name: str, *, create: bool = False, preallocate_bytes: int = 0) -> SegmentFile:
        del preallocate_bytes
        if create and name in self.files:
            raise FileExistsError(name)
        return self.files.setdefault(name + self.suffix, Bytes())

    def open_index(self, name: str, *, max_bytes: int, writable: bool, reserve: bool = True) -> IndexFile:
        del name, max_bytes, writable, reserve
        return Entries()

    def read_small(self, name: str) -> bytes | None:
        return bytes(self.files[name].data) if name in self.files else None

    def replace_small(self, name: str, data: Buffer) -> None:
        self.files[name] = Bytes(bytearray(data))

    def rename(self, old: str, new: str) -> None:
        with suppress(KeyError):
            self.files[new] = self.files.pop(old)

    def remove(self, name: str) -> None:
        self.files.pop(name, None)

    def sync(self) -> None: ...


@pytest.fixture
def folder() -> Folder:
    return Folder()


@pytest.fixture
def guarded(folder: Folder) -> LogFiles:
    return guarded_part(folder, LogFiles, GUARD)


def refusal(text: str) -> Any:  # Any: the type of pytest's context is private
    return pytest.raises(PluginError, match=rf"'odd' version 1 \(plugin odd of odd-stores 2\.1\): {text}")


def test_a_sound_store_is_used_unchanged(guarded: LogFiles) -> None:
    file = guarded.open_segment("a.log", create=True)
    assert [file.append(b"one"), file.append(memoryview(b"two"))] == [0, 3]
    assert bytes(file.read(0, 99)) == b"onetwo"
    index = guarded.open_index("a.index", max_bytes=99, writable=True)
    index.append(b"entry")
    assert bytes(index.view()) == b"entry"


@pytest.mark.parametrize("written", [b"", b"on", b"one more", b"two"])
def test_an_append_that_keeps_other_bytes_is_refused(folder: Folder, guarded: LogFiles, written: bytes) -> None:
    file = guarded.open_segment("a.log", create=True)
    folder.files["a.log"].written = written
    with refusal("append (returned position|left the file with|kept other bytes)"):
        file.append(b"one")


def test_an_index_that_forgets_entries_is_refused() -> None:
    index = guarded_part(Entries(forgets=True), IndexFile, GUARD)
    with refusal("append kept 0 other bytes than the 5"):
        index.append(b"entry")


def test_a_file_that_is_created_under_another_name_is_refused(folder: Folder, guarded: LogFiles) -> None:
    folder.suffix = ".other"
    with refusal("open_segment created no file a.log"):
        guarded.open_segment("a.log", create=True)


def test_a_default_method_is_not_blamed_for_the_method_that_it_calls(folder: Folder, guarded: LogFiles) -> None:
    file = guarded.open_segment("a.log", create=True)
    folder.files["a.log"].reads_none = True
    with refusal("read returned None, not memoryview"):
        file.read_into(0, memoryview(bytearray(3)))


def test_errors_of_other_types_are_converted(guarded: LogFiles) -> None:
    file = guarded.open_segment("a.log", create=True)
    with refusal("truncate raised ValueError: smaller"):
        file.truncate(9)
    with refusal("open_segment raised FileExistsError: a.log"):
        guarded.open_segment("a.log", create=True)


def test_only_a_folder_that_is_created_may_exist_already() -> None:
    unguarded = Mock(spec=SegmentStore)
    unguarded.open_log.side_effect = FileExistsError("t-0")
    store = guarded_part(unguarded, SegmentStore, GUARD)
    with pytest.raises(FileExistsError):
        store.open_log("t-0", create=True)
    with refusal("open_log raised FileExistsError: t-0"):
        store.open_log("t-0")


def test_a_place_names_the_store_of_a_plugin(folder: Folder, guarded: LogFiles) -> None:
    assert place_in(folder, "/a.log") == "/a.log"
    assert place_in(guarded, "/a.log") == f"/a.log in {GUARD}"
