"""The file system that simulates power losses: the states that it may leave, and those that it never leaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stratalog.testing.power_loss import PowerLossVfs

State = dict[str, bytes]


class Disk:
    """A folder on a file system that simulates power losses."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path, self.folder = tmp_path, tmp_path / "data"
        self.folder.mkdir()
        self.files = PowerLossVfs(self.folder)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        descriptor = self.files.open(self.path(name), write=True, create=True)
        self.files.write(descriptor, 0, data)
        if sync:
            self.files.sync(descriptor)
        self.files.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        self.files.rename(self.path(old), self.path(new))

    def sync(self) -> None:
        self.files.sync_folder(str(self.folder))

    def states(self, count: int = 40) -> list[State]:
        """Return possible contents of the folder after a power loss, one for each seed: bytes by relative path."""
        states = []
        for seed in range(count):
            target = self.tmp_path / f"left-{len(list(self.tmp_path.iterdir()))}"
            self.files.leave(target, random.Random(seed))  # noqa: S311 - replayed from its seed
            paths = [path for path in target.rglob("*") if path.is_file()]
            states.append({str(path.relative_to(target)): path.read_bytes() for path in paths})
        return states


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def distinct(states: Sequence[State]) -> list[State]:
    return [state for number, state in enumerate(states) if state not in states[:number]]


def test_a_rename_that_was_not_synced_leaves_one_of_the_two_names(disk: Disk) -> None:
    disk.write("old", b"data")
    disk.sync()
    disk.rename("old", "new")
    states = distinct(disk.states())
    assert len(states) == 2
    assert {"old": b"data"} in states
    assert {"new": b"data"} in states


def test_a_rename_over_a_file_leaves_the_one_or_the_other(disk: Disk) -> None:
    disk.write("checkpoint", b"before")
    disk.sync()
    disk.write("checkpoint.tmp", b"after")
    disk.rename("checkpoint.tmp", "checkpoint")
    for state in disk.states():
        assert state["checkpoint"] in {b"before", b"after"}
    assert {state["checkpoint"] for state in disk.states()} == {b"before", b"after"}


def test_renames_come_singly(disk: Disk) -> None:
    for name in "ab":
        disk.write(name, name.encode())
    disk.sync()
    for name in "ab":
        disk.rename(name, name + ".swap")
    names = {tuple(sorted(state)) for state in disk.states()}
    assert names == {("a", "b"), ("a.swap", "b"), ("a", "b.swap"), ("a.swap", "b.swap")}


@pytest.mark.parametrize("change", [lambda disk: disk.rename("a", "b"), lambda disk: disk.files.remove(disk.path("a"))])
def test_synced_bytes_survive_every_power_loss(disk: Disk, change: Callable[[Disk], None]) -> None:
    disk.write("a", b"data")
    disk.sync()
    change(disk)
    disk.sync()
    states = disk.states(10)
    assert all("a" not in state for state in states)
    assert distinct(states) == states[:1]


def test_a_removal_may_be_lost_and_the_inode_used_again(disk: Disk) -> None:
    disk.write("gone", b"durable")
    disk.sync()
    disk.files.remove(disk.path("gone"))
    disk.write("other", b"another file")
    states = disk.states()
    assert {state.get("gone") for state in states} == {None, b"durable"}
    assert {state.get("other") for state in states} == {None, b"another file"}


def test_bytes_that_were_not_synced_are_whole_or_cut_or_zeros_or_missing(disk: Disk) -> None:
    disk.write("file", b"12345678", sync=False)
    disk.sync()
    contents = {state["file"] for state in disk.states(60)}
    assert {b"", b"12345678"} < contents
    assert all(b"12345678".startswith(content.rstrip(b"\0")) for content in contents)
    assert any(content and not content.strip(b"\0") for content in contents)


def test_a_folder_that_is_renamed_keeps_what_is_durable_in_it(disk: Disk) -> None:
    disk.files.make_folder(disk.path("topic-0"))
    disk.write("topic-0/file", b"data")
    disk.files.sync_folder(disk.path("topic-0"))
    disk.sync()
    disk.rename("topic-0", "topic-0-delete")
    states = distinct(disk.states())
    assert sorted(map(str, states)) == ["{'topic-0-delete/file': b'data'}", "{'topic-0/file': b'data'}"]


def test_a_folder_that_was_removed_may_come_back_with_what_was_in_it(disk: Disk) -> None:
    disk.files.make_folder(disk.path("topic-0"))
    disk.write("topic-0/file", b"data")
    disk.files.sync_folder(disk.path("topic-0"))
    disk.sync()
    disk.files.remove(disk.path("topic-0/file"))
    disk.files.remove_folder(disk.path("topic-0"))
    assert {tuple(state.items()) for state in disk.states()} == {(), (("topic-0/file", b"data"),)}


def test_a_move_between_folders_never_loses_the_file(disk: Disk) -> None:
    for folder in ("one", "two"):
        disk.files.make_folder(disk.path(folder))
    disk.write("one/file", b"data")
    disk.files.sync_folder(disk.path("one"))
    disk.sync()
    disk.rename("one/file", "two/file")
    disk.files.sync_folder(disk.path("two"))
    assert {state["two/file"] for state in disk.states()} == {b"data"}


def test_the_watch_of_one_folder_knows_that_a_rename_is_one_change(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"data")
    files = PowerLossVfs(tmp_path)
    files.rename(str(tmp_path / "old"), str(tmp_path / "new"))
    images = list(files.images(random.Random(1), 20))  # noqa: S311 - the same in every run
    assert {tuple(image.items()) for image in images} == {(("old", b"data"),), (("new", b"data"),)}
