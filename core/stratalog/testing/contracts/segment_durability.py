"""Contract tests of segment stores about other processes, killed processes and power losses."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from stratalog.env import Env, Vfs
from stratalog.errors import LogDirLockedError
from stratalog.spi.providers import Provider
from stratalog.spi.segment_store import LogFiles, SegmentStore
from stratalog.testing.contexts import open_context
from stratalog.testing.contracts.segment_files import INDEX, LOG, SEGMENT, SegmentFilesContract
from stratalog.testing.power_loss import PowerLossVfs

_STATES: Final = 8  # number of states of the disk after each power loss
_DONE: Final = "acquired"


class SegmentDurabilityContract(SegmentFilesContract):
    """The part of ``SegmentStoreContract`` that opens stores itself: in other processes, and on simulated disks."""

    @pytest.fixture
    def provider(self) -> Provider[SegmentStore]:
        """Return the provider of a store that accesses its files through ``context.env.files``.

        Without this fixture, the tests of other processes and of power losses are skipped.
        """
        pytest.skip("the subclass does not define the fixture provider")

    # --- processes ---------------------------------------------------------------------------------------------------

    def test_another_process_cannot_acquire_the_directory(
        self, provider: Provider[SegmentStore], tmp_path: Path
    ) -> None:
        """``acquire`` raises LogDirLockedError while a store of another process holds the directory."""
        with _open(provider, tmp_path / "logs") as store:
            store.acquire()
            with _acquired_by_child(provider, tmp_path / "logs") as outcome:
                assert outcome == LogDirLockedError.__name__
            store.close()
            with _acquired_by_child(provider, tmp_path / "logs") as outcome:
                assert outcome == _DONE

    def test_a_killed_process_releases_the_directory(self, provider: Provider[SegmentStore], tmp_path: Path) -> None:
        """If a process that holds the lock is killed, another process can acquire the directory."""
        with _open(provider, tmp_path / "logs") as store:
            with _acquired_by_child(provider, tmp_path / "logs") as outcome:
                assert outcome == _DONE
                assert store.is_acquired_elsewhere()
                with pytest.raises(LogDirLockedError):
                    store.acquire()
            assert not store.is_acquired_elsewhere()
            store.acquire()

    # --- power losses ------------------------------------------------------------------------------------------------

    def test_synced_bytes_survive_a_power_loss(self, provider: Provider[SegmentStore], tmp_path: Path) -> None:
        """``sync`` makes all bytes of a segment durable, even after ``truncate``. Later bytes can be lost or wrong."""
        with _watch(provider, tmp_path / "logs") as (files, store):
            log = _make_log(store)
            segment = log.open_segment(SEGMENT, create=True, preallocate_bytes=4096)
            log.sync()
            segment.append(b"a" * 1000)
            segment.truncate(600)
            segment.append(b"b" * 700)
            segment.sync()
            for later in (b"", b"c" * 900):
                segment.append(later)
                for log_left in _logs_left(provider, files, tmp_path / f"after {len(later)}"):
                    with contextlib.closing(log_left.open_segment(SEGMENT)) as segment_left:
                        assert bytes(segment_left.read(0, 1300)) == b"a" * 600 + b"b" * 700
            segment.close()

    def test_synced_index_entries_survive_a_power_loss(self, provider: Provider[SegmentStore], tmp_path: Path) -> None:
        """``sync`` makes all entries of an index durable; later entries can be missing or wrong."""
        with _watch(provider, tmp_path / "logs") as (files, store):
            log = _make_log(store)
            index = log.open_index(INDEX, max_bytes=1 << 16, writable=True)
            log.sync()
            index.append(b"entry 1 " * 100)
            index.sync()
            index.append(b"entry 2 " * 100)
            for log_left in _logs_left(provider, files, tmp_path / "left"):
                with contextlib.closing(log_left.open_index(INDEX, max_bytes=1 << 16, writable=False)) as index_left:
                    assert bytes(index_left.view()[:800]) == b"entry 1 " * 100
            index.close()

    def test_a_power_loss_leaves_small_files_old_or_new(self, provider: Provider[SegmentStore], tmp_path: Path) -> None:
        """A power loss during ``replace_small`` leaves the old or new content. After it, the new content is durable."""
        chance = random.Random(3)  # noqa: S311 - the same states in every run
        with _watch(provider, tmp_path / "logs") as (files, store):
            log = _make_log(store)
            places: tuple[SegmentStore | LogFiles, ...] = (store, log)
            for place in places:
                place.replace_small("small", b"old" * 400)
            during = list[Path]()

            def before(operation: str) -> None:
                for _ in range(2):
                    during.append(tmp_path / f"{len(during)} before {operation}")
                    files.leave(during[-1], chance)

            files.before = before
            for place in places:
                place.replace_small("small", b"new" * 500)
            files.before = None
            after = _states(files, tmp_path / "after")
            for allowed, states in (((b"old" * 400, b"new" * 500), during), ((b"new" * 500,), after)):
                for store_left in _acquired(provider, states):
                    assert store_left.read_small("small") in allowed
                    assert store_left.open_log(LOG).read_small("small") in allowed

    def test_names_survive_a_power_loss(self, provider: Provider[SegmentStore], tmp_path: Path) -> None:
        """``LogFiles.sync`` makes file names durable. The store's own changes of names are durable when it returns."""
        with _watch(provider, tmp_path / "logs") as (files, store):
            log = _make_log(store)
            for name in ("a.log", "b.log"):
                log.open_segment(name, create=True).close()
            log.sync()
            log.rename("a.log", "c.log")
            log.remove("b.log")
            log.open_segment("d.log", create=True).close()
            log.sync()
            store.open_log("old-0", create=True)
            store.rename_log("old-0", "new-0")
            store.replace_small("small", b"1")
            store.remove_small("small")
            for store_left in _acquired(provider, _states(files, tmp_path / "left")):
                assert sorted(store_left.logs()) == ["new-0", LOG]
                assert [entry.name for entry in store_left.open_log(LOG).list()] == ["c.log", "d.log"]
                assert store_left.read_small("small") is None


def _open(provider: Provider[SegmentStore], place: Path, files: Vfs | None = None) -> SegmentStore:
    return provider.open(open_context(location=str(place), env=None if files is None else Env(files=files)))


def _acquired(provider: Provider[SegmentStore], places: Iterable[Path]) -> Iterator[SegmentStore]:
    """Yield an open, acquired store of each directory, one after the other."""
    for place in places:
        with _open(provider, place) as store:
            store.acquire()
            yield store


@contextlib.contextmanager
def _watch(provider: Provider[SegmentStore], place: Path) -> Iterator[tuple[PowerLossVfs, SegmentStore]]:
    """Open and acquire a store in a new folder. Yield the PowerLossVfs of the folder, and the store."""
    place.mkdir()
    files = PowerLossVfs(place)
    with _open(provider, place, files) as store:
        store.acquire()
        yield files, store


def _make_log(store: SegmentStore) -> LogFiles:
    """Create a log with a durable folder. The folder is durable because ``rename_log`` made its name durable."""
    store.open_log("made-0", create=True)
    store.rename_log("made-0", LOG)
    return store.open_log(LOG)


def _states(files: PowerLossVfs, folder: Path) -> Iterator[Path]:
    """Yield folders with states of the disk after a power loss at this point.

    The first state has only the durable changes. The others are random.
    """
    chance = random.Random(4)  # noqa: S311 - the same states in every run
    for number in range(_STATES):
        state = folder / str(number)
        files.leave(state, chance if number else None)
        yield state


def _logs_left(provider: Provider[SegmentStore], files: PowerLossVfs, folder: Path) -> Iterator[LogFiles]:
    """Yield the log in each state of the disk that a power loss at this point may leave."""
    for store in _acquired(provider, _states(files, folder)):
        yield store.open_log(LOG)


@contextlib.contextmanager
def _acquired_by_child(provider: Provider[SegmentStore], place: Path) -> Iterator[str]:
    """Acquire the directory in a forked process, which is killed at the end.

    Yield the name of the error that ``acquire`` raised, or ``_DONE``.
    """
    if sys.platform == "win32":
        pytest.skip("this system has no fork")
    answers, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses no thread of the parent
        child = os.fork()
    if child == 0:
        _hold(provider, place, writing)
    os.close(writing)
    try:
        yield os.read(answers, 1000).decode()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(answers)


def _hold(provider: Provider[SegmentStore], place: Path, answers: int) -> NoReturn:
    """Acquire a directory, write the name of the error or ``_DONE`` to a pipe, and wait until the process is killed."""
    stores = list[SegmentStore]()
    try:
        stores.append(_open(provider, place))
        stores[0].acquire()
        outcome = _DONE
    except BaseException as error:  # noqa: BLE001 - the test compares its name
        outcome = type(error).__name__
    os.write(answers, outcome.encode())
    while True:
        signal.pause()
