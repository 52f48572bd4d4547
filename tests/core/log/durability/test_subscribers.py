"""Callbacks for appends without a waiter, and subscribers: each one is called, and no append waits for them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.env import Env
from stratalog.env.threads import OwnThread
from stratalog.errors import ClosedError, LogDirOfflineError
from stratalog.model.names import LOG_SUFFIX
from stratalog.model.offsets import LogOffsets
from stratalog.testing.faults import FaultyVfs, failing

SOON_S = 30.0
ONE = [Record(value=b"v")]


@pytest.fixture
def files() -> FaultyVfs:
    return FaultyVfs()


@pytest.fixture
def gate(files: FaultyVfs) -> Iterator[threading.Event]:
    """Yield an event; syncs of logs block until it is set."""
    may_end = threading.Event()

    def rule(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(LOG_SUFFIX):
            assert may_end.wait(SOON_S)

    files.rule = rule
    yield may_end
    may_end.set()


def test_an_append_returns_before_its_sync_does(tmp_path: Path, files: FaultyVfs, gate: threading.Event) -> None:
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        waiting = [log.append(ONE, "durable", wait=False) for _ in range(5)]
        assert (log.offsets().log_end, [future.done() for future in waiting]) == (5, [False] * 5)
        assert not waiting[0].cancel()
        gate.set()
        assert [future.result(SOON_S).base_offset for future in waiting] == list(range(5))
        assert log.offsets().recovery_point == 5
    syncs = sum(name.endswith(LOG_SUFFIX) for _, name in files.names("sync"))
    assert syncs <= 3, "of the first, of all that came meanwhile, of closing"


def test_without_a_thread_the_caller_syncs_and_later_changes_reach_subscribers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may refuse a thread for a while. No future and no subscriber may wait for it for ever."""

    def refuse(_: OwnThread) -> None:
        raise RuntimeError("can't start new thread")

    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        log, log_ends, called = engine.log("t", 0), list[int](), threading.Event()

        def look(offsets: LogOffsets) -> None:
            log_ends.append(offsets.log_end)
            called.set()

        log.subscribe(look)
        with monkeypatch.context() as patch:
            patch.setattr(OwnThread, "start", refuse)
            future = log.append(ONE, "durable", wait=False)
            assert future.done()
            assert future.result().base_offset == 0
        assert log.offsets().recovery_point == 1
        assert log.append(ONE, "durable", wait=False).result(SOON_S).base_offset == 1
        assert called.wait(SOON_S)
    assert log_ends[-1] == 2


def test_a_subscriber_of_written_records_is_called_at_once(
    tmp_path: Path, files: FaultyVfs, gate: threading.Event
) -> None:
    del gate
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        engine.create_topic("t")
        future = engine.log("t", 0).append(ONE, wait=False)
        assert future.done()
        assert future.result().base_offset == 0
        files.rule = None


def test_an_engine_that_closes_leaves_no_future_behind(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", partitions=10)
        log = engine.log("t", 0)
        waiting = [engine.log("t", n % 10).append(ONE, "durable", wait=False) for n in range(100)]
    assert all(future.done() for future in waiting)
    assert sorted(future.result().base_offset for future in waiting) == sorted([*range(10)] * 10)
    with pytest.raises(ClosedError):
        log.append(ONE, "durable", wait=False)


def test_a_failed_sync_is_set_in_all_futures(tmp_path: Path, files: FaultyVfs) -> None:
    with open_engine(tmp_path, env=Env(files=files)) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        files.rule = failing("sync", errno.EIO, path=LOG_SUFFIX)
        assert isinstance(log.append(ONE, "durable", wait=False).exception(SOON_S), LogDirOfflineError)
        with pytest.raises(LogDirOfflineError):
            log.append(ONE, "durable", wait=False)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_subscribers_receive_the_changed_offsets(tmp_path: Path, error: type[BaseException]) -> None:
    heard, enough = list[LogOffsets](), threading.Event()

    def broken(offsets: LogOffsets) -> None:
        raise error(offsets)

    def listen(offsets: LogOffsets) -> None:
        heard.append(offsets)
        if offsets.log_end == 10:
            log.offsets()  # this call would hang if the caller held the log's lock
            enough.set()

    with open_engine(tmp_path) as engine:
        engine.create_topic("t")
        log = engine.log("t", 0)
        log.subscribe(broken)
        end = log.subscribe(listen)
        for _ in range(10):
            log.append(ONE)
        assert enough.wait(SOON_S)
        ends = [offsets.log_end for offsets in heard]
        assert ends == sorted(ends)
        end()
        end()
        before = len(heard)
        log.append(ONE)
    assert len(heard) == before
