from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from stratalog.env import PosixVfs
from stratalog.env.handles import HandlePool
from stratalog.errors import ClosedError


class CountingVfs(PosixVfs):
    """File system that returns numbers as descriptors, and records open descriptors and the order of their closing."""

    def __init__(self) -> None:
        self.opened: set[int] = set()
        self.closed: list[int] = []
        self.next = 100

    def open_next(self) -> int:
        self.next += 1
        self.opened.add(self.next)
        return self.next

    def close(self, descriptor: int) -> None:
        self.opened.remove(descriptor)
        self.closed.append(descriptor)


@pytest.fixture
def files() -> CountingVfs:
    return CountingVfs()


@pytest.fixture
def pool(files: CountingVfs) -> HandlePool:
    return HandlePool(files, 3)


def touched(pool: HandlePool, files: CountingVfs, *names: str) -> list[int]:
    descriptors = []
    for name in names:
        with pool.using(name, files.open_next) as descriptor:
            descriptors.append(descriptor)
    return descriptors


def test_a_descriptor_is_opened_once(pool: HandlePool, files: CountingVfs) -> None:
    assert len(set(touched(pool, files, "a", "a", "a"))) == 1
    assert pool.open_count == len(files.opened) == 1


def test_the_least_recently_used_one_closes(pool: HandlePool, files: CountingVfs) -> None:
    first = touched(pool, files, "a", "b", "c")
    touched(pool, files, "a", "d")
    assert files.closed == [first[1]]
    assert touched(pool, files, "a") == [first[0]]
    assert pool.open_count == 3


def test_pinned_descriptors_stay_open(pool: HandlePool, files: CountingVfs) -> None:
    pinned = {name: pool.pin(name, files.open_next) for name in "abcde"}
    assert files.closed == []
    assert pool.open_count == 5
    for name, descriptor in pinned.items():
        pool.unpin(name, descriptor)
    assert files.closed == [pinned["a"], pinned["b"]]
    assert pool.open_count == 3


def test_a_descriptor_pinned_twice_stays_until_the_second_unpin(pool: HandlePool, files: CountingVfs) -> None:
    descriptor = pool.pin("a", files.open_next)
    assert pool.pin("a", files.open_next) == descriptor
    pool.unpin("a", descriptor)
    touched(pool, files, "b", "c", "d", "e")
    assert descriptor in files.opened
    pool.unpin("a", descriptor)
    touched(pool, files, "b", "c", "d")
    assert descriptor not in files.opened


def test_dropping_closes_at_once_or_with_the_last_pin(pool: HandlePool, files: CountingVfs) -> None:
    (idle,) = touched(pool, files, "idle")
    pool.drop("idle")
    assert files.closed == [idle]
    old = pool.pin("a", files.open_next)
    pool.drop("a")
    pool.drop("a")
    assert old in files.opened
    (new,) = touched(pool, files, "a")
    assert new != old
    pool.unpin("a", old)
    assert old not in files.opened
    assert new in files.opened
    assert pool.open_count == 1


def test_a_failed_open_leaves_nothing(pool: HandlePool, files: CountingVfs) -> None:
    def fail() -> int:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(PermissionError):
        pool.pin("a", fail)
    assert pool.open_count == 0
    assert len(touched(pool, files, "a")) == 1


def test_idle_descriptors_are_closed_when_the_process_has_none_left(pool: HandlePool, files: CountingVfs) -> None:
    """The limit of the process may be below the limit of the pool, or other code may use descriptors too."""
    first = touched(pool, files, "a", "b")
    pinned = pool.pin("b", files.open_next)

    def scarce() -> int:
        if len(files.opened) > 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return files.open_next()

    with pool.using("c", scarce):
        assert files.closed == [first[0]]
        with pytest.raises(OSError, match="Too many open files"):
            pool.pin("d", scarce)
    pool.unpin("b", pinned)


def test_a_call_that_needs_a_descriptor_for_itself_gets_the_place_of_idle_ones(
    pool: HandlePool, files: CountingVfs
) -> None:
    touched(pool, files, "a", "b")
    pinned = pool.pin("b", files.open_next)

    def scarce() -> str:
        if len(files.opened) > 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return "done"

    assert pool.with_room(scarce) == "done"
    assert files.opened == {pinned}
    files.open_next()
    with pytest.raises(OSError, match="Too many open files"):
        pool.with_room(scarce)
    pool.unpin("b", pinned)


def test_a_call_that_fails_for_another_reason_closes_nothing(pool: HandlePool, files: CountingVfs) -> None:
    touched(pool, files, "a", "b")

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        pool.with_room(fail)
    assert files.closed == []


def test_a_closed_pool_opens_nothing_more(pool: HandlePool, files: CountingVfs) -> None:
    touched(pool, files, "a", "b")
    pinned = pool.pin("c", files.open_next)
    pool.close()
    pool.close()
    assert files.opened == {pinned}
    with pytest.raises(ClosedError):
        pool.pin("a", files.open_next)
    pool.unpin("c", pinned)
    assert files.opened == set()
    assert pool.open_count == 0


# --- memory maps -----------------------------------------------------------------------------------------------------


def test_maps_count_and_make_room(pool: HandlePool, files: CountingVfs) -> None:
    dropped_names: list[str] = []

    def keep(name: str) -> None:
        pool.keep(name, partial(dropped_names.append, name))

    keep("map a")
    keep("map b")
    touched(pool, files, "a")
    keep("map a")
    touched(pool, files, "b")
    assert dropped_names == ["map b"]
    touched(pool, files, "c")
    assert (dropped_names, len(files.closed)) == (["map b"], 1)
    keep("map b")
    assert dropped_names == ["map b", "map a"]
    pool.drop("map b")
    pool.drop("map b")
    assert dropped_names == ["map b", "map a", "map b"]
    keep("map c")
    pool.close()
    assert dropped_names[3:] == ["map c"]
    keep("map d")
    assert dropped_names[4:] == ["map d"]
    assert pool.open_count == 0


def test_threads_share_a_pool(tmp_path: Path) -> None:
    """Every thread reads the content of its file, although other threads open and close the same handles."""
    files = PosixVfs()
    pool = HandlePool(files, 2)
    names = [str(tmp_path / str(number)) for number in range(6)]
    for name in names:
        Path(name).write_text(name, encoding="utf-8")
    mismatches: list[bytes] = []

    def read(turn: int) -> None:
        for step in range(200):
            name = names[(turn + step) % len(names)]
            with pool.using(name, partial(files.open, name)) as descriptor:
                data = files.read(descriptor, 0, 1000)
            if data != name.encode():
                mismatches.append(data)
            if step % 7 == 0:
                pool.drop(names[step % len(names)])

    threads = [threading.Thread(target=read, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mismatches == []
    assert pool.open_count <= 2
    pool.close()
    assert pool.open_count == 0


@pytest.mark.parametrize(("allowed", "kept"), [(8, 4), (1000, 6), (resource.RLIM_INFINITY, 6)])
def test_half_of_what_the_system_allows_is_never_passed(
    files: CountingVfs, monkeypatch: pytest.MonkeyPatch, allowed: int, kept: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    pool = HandlePool(files, 6)
    for name in range(10):
        with pool.using(name, files.open_next):
            pass
    assert pool.open_count == kept
    pool.close()


def test_a_system_without_unix_modules_reads_formats_all_the_same() -> None:
    """On Windows, no file is locked and no limit is requested."""
    script = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None  # what imports them fails
import stratalog.spi, stratalog_formats
from stratalog.env.posix_vfs import PosixVfs
from stratalog.env.handles import HandlePool
pool = HandlePool(PosixVfs(), 1)
pool.keep("one", lambda: None)
pool.keep("other", lambda: None)
assert pool.open_count == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - our own interpreter and text
