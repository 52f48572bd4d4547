"""Opening a path that is not a regular file raises a typed error on any thread, and never waits for another process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog.env import PosixVfs
from stratalog.errors.system import IrregularFileError


def make_socket(path: Path, stack: ExitStack) -> None:
    unix_socket = stack.enter_context(socket.socket(socket.AF_UNIX))
    current_folder = os.open(".", os.O_RDONLY)
    stack.callback(os.close, current_folder)
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        unix_socket.bind(path.name)
    finally:
        os.fchdir(current_folder)


KINDS: dict[str, Callable[[Path, ExitStack], object]] = {
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a folder": lambda path, _: path.mkdir(),
    "a socket": make_socket,
    "a symbolic link": lambda path, _: path.symlink_to(path.name),
}


@pytest.fixture(params=KINDS)
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind of the file and its path."""
    path = tmp_path / "strange"
    with ExitStack() as stack:
        KINDS[request.param](path, stack)
        yield request.param, path


@pytest.mark.parametrize("write", [False, True])
def test_a_path_that_is_no_file_is_not_opened(strange: tuple[str, Path], write: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    kind, path = strange
    with pytest.raises(IrregularFileError, match=kind) as caught:
        PosixVfs().open(str(path), write=write)
    assert caught.value.filename == str(path)


def test_a_device_is_not_opened() -> None:
    with pytest.raises(IrregularFileError, match="a device"):
        PosixVfs().open(os.devnull)


def test_a_path_that_is_no_file_is_not_locked(strange: tuple[str, Path]) -> None:
    _, path = strange
    with pytest.raises(OSError, match=r"name of a file|symbolic link"):
        PosixVfs().lock(str(path))
    with pytest.raises(OSError, match=r"name of a file|symbolic link"):
        PosixVfs().is_locked(str(path))


def test_a_listing_separates_files_from_other_entries(strange: tuple[str, Path]) -> None:
    kind, path = strange
    (path.parent / "file").touch()
    entries = {entry.name: entry for entry in PosixVfs().list(str(path.parent))}
    assert (entries["file"].is_file, entries["file"].is_folder) == (True, False)
    assert (entries["strange"].is_file, entries["strange"].is_folder) == (False, kind == "a folder")


def test_a_file_keeps_its_id_under_another_name_and_its_successor_has_another(tmp_path: Path) -> None:
    files, path = PosixVfs(), str(tmp_path / "a")
    descriptor = files.open(path, create=True)
    before = files.file_id(descriptor)
    files.rename(path, str(tmp_path / "b"))
    successor = files.open(path, create=True)
    assert files.file_id(descriptor) == before != files.file_id(successor)
    status = files.stat(path)
    assert status is not None
    assert status.file_id == files.file_id(successor)
    files.close(descriptor)
    files.close(successor)
