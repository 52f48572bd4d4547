"""The file system with injected failures."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stratalog.testing.faults import FaultyVfs, failing


def test_an_allocation_that_fails_grows_a_small_file_and_leaves_a_large_one(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"a")
    (tmp_path / "large").write_bytes(b"a" * 100)
    files = FaultyVfs()
    files.room_bytes = 10
    for name in ("small", "large"):
        descriptor = files.open(str(tmp_path / name), write=True)
        with pytest.raises(OSError, match="No space left"):
            files.allocate(descriptor, 200)
        files.close(descriptor)
    assert (tmp_path / "small").read_bytes() == b"a" + bytes(9)
    assert (tmp_path / "large").read_bytes() == b"a" * 100


def test_every_change_of_names_and_times_is_recorded_and_can_fail(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    files = FaultyVfs()
    files.link(str(tmp_path / "a"), str(tmp_path / "b"))
    files.set_modified(str(tmp_path / "b"), 1000)
    assert files.names("link", "set modified") == [("link", "b"), ("set modified", "b")]
    assert (tmp_path / "a").stat().st_mtime == 1
    files.rule = failing("link", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        files.link(str(tmp_path / "a"), str(tmp_path / "c"))
    files.rule = failing("set modified", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        files.set_modified(str(tmp_path / "a"), 5000)
    assert not (tmp_path / "c").exists()
    assert (tmp_path / "a").stat().st_mtime == 1
